"""One client's connection to one broker: two sockets, two pipes, and the requests under way."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from fencepost.coordinator.codec.endpoints import (
    AddressOf,
    carries_endpoints,
    is_readable,
    limit_versions,
    replace_endpoints,
)
from fencepost.coordinator.codec.framing import MalformedFrame, read_header
from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.server.services import NO_REPLY, ThrottledReply, Unanswered
from fencepost.coordinator.server.turns import Share
from fencepost.simulation.embedded.faults import remember
from fencepost.simulation.kernel.rules import (
    Corrupt,
    Delay,
    Direction,
    Fate,
    Message,
    NetworkRule,
    Throttle,
    Verdict,
)
from fencepost.simulation.lab.proxy.exchange import ObservedTopicNames, ProxyExchange
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.lab.proxy.pipe import Parcel, Pipe, spoiled
from fencepost.simulation.lab.proxy.side import ProxySide
from fencepost.simulation.lab.proxy.stand_in import StandIn, response_frame

log = structlog.get_logger(__name__)

_SASL_HANDSHAKE = 17
_READ_AHEAD_BYTES = 8 << 20
"""Maximum number of bytes under way in one direction; the sender has to wait beyond it."""

_MOST_IN_FLIGHT = 1_000
"""Number of requests without a response from which on no more are read."""


@dataclasses.dataclass(kw_only=True, eq=False)
class ProxyContext:
    """The state that all connections of a proxy share."""

    rng: random.Random
    rules: list[NetworkRule]
    observer: ProxyObserver | None
    members: Mapping[str, str]
    address_of: AddressOf
    stand_in: StandIn | None = None
    topic_names: ObservedTopicNames = dataclasses.field(default_factory=ObservedTopicNames)


@dataclasses.dataclass(slots=True, eq=False)
class _Way:
    """One direction: its pipe, the socket that it comes from, and what came while the pipe was stalled."""

    direction: Direction
    pipe: Pipe
    source: ProxySide
    backlog: deque[tuple[bytes, ProxyExchange]] = dataclasses.field(default_factory=deque)
    backlog_size: int = 0
    blocked: bool = False
    """True if the receiver's socket is full."""
    paused: bool = False
    """True if the sender has to wait."""


class ProxyConnection:
    """Carries one client's requests to the broker at `upstream`, and the responses back."""

    def __init__(
        self,
        surroundings: ProxyContext,
        node: int,
        upstream: Callable[[], tuple[str, int]],
        on_end: Callable[[ProxyConnection], None],
    ) -> None:
        self.broker = f"broker-{node}"
        self.client_id = ""
        """The client id; empty until the client has sent it."""
        self.share = Share()
        self.principal = ""
        self.members: dict[str, None] = {}
        """The members that sent requests on it; by the clients' rules there is one."""
        self._node = node
        self._around = surroundings
        self._upstream = upstream
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._deaf = False
        """True once a message was lost: nothing gets through any more, and no side is notified."""
        self._ended = False
        self._closing = False
        """True once a fault closes the connection: later requests do not count."""
        self._rests: set[asyncio.Future[Any]] = set()
        """Times for which nothing is read from the client."""
        self._unread: deque[bytes] = deque()
        """Requests that came before reading stopped."""
        self._client_open = self._broker_open = True
        self._host = ""
        self._connecting: asyncio.Task[None] | None = None
        self._in_flight: deque[ProxyExchange] = deque()
        self._waiting_size = 0
        """Bytes of the responses that wait for those of earlier requests."""
        self.client = ProxySide(
            on_made=self._client_came,
            on_frame=self._request,
            on_garbage=self._client_garbage,
            on_gone=self._client_gone,
            on_flow=lambda blocked: self._flow(self._back, blocked),
        )
        self._server = ProxySide(
            on_made=self._broker_reached,
            on_frame=self._response,
            on_garbage=self._broker_garbage,
            on_gone=self._broker_gone,
            on_flow=lambda blocked: self._flow(self._forth, blocked),
        )
        self._forth = _Way(Direction.REQUEST, self._pipe(Direction.REQUEST), self.client)
        self._back = _Way(Direction.RESPONSE, self._pipe(Direction.RESPONSE), self._server)

    @property
    def is_closed(self) -> bool:
        """True if no response is sent any more."""
        return self._deaf or self._closing or not self._client_open

    def close(self) -> None:
        """Close the client's socket, after the responses that are on their way."""
        self._closing = True
        self._back.pipe.finish()

    def cut(self) -> None:
        """Reset both sockets. What is under way is lost."""
        self._deaf = True
        if self._connecting is not None:
            self._connecting.cancel()
        self.client.reset()
        self._server.reset()

    # -- sockets come and go --------------------------------------------------------------------------------

    def _client_came(self, transport: asyncio.Transport) -> None:
        peer = transport.get_extra_info("peername")
        self._host = f"/{peer[0]}" if peer else "/unknown"
        self._back.pipe.transport = transport
        if self._deaf:
            self._broker_open = False
            self.client.reset()
            return
        self._connecting = self._loop.create_task(self._connect())
        self._connecting.add_done_callback(self._connected)

    async def _connect(self) -> None:
        await self._loop.create_connection(lambda: self._server, *self._upstream())

    def _connected(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if task.cancelled() or isinstance(task.exception(), OSError):
            self._broker_gone(True)
        else:
            task.result()

    def _broker_reached(self, transport: asyncio.Transport) -> None:
        if not self._broker_open:
            self._server.reset()
            return
        self._forth.pipe.transport = transport
        self._forth.pipe.pump()
        self._regulate(self._forth)

    def _client_gone(self, reset: bool) -> None:
        self._client_open = False
        self._lose_all(self._back)
        if self._deaf:
            self._lose_all(self._forth)
            self._leave_broker()
        elif not self._forth.backlog:
            self._forth.pipe.finish()
        self._end_if_over()

    def _broker_gone(self, reset: bool) -> None:
        self._broker_open = False
        self._lose_all(self._forth)
        while self._in_flight:
            exchange = self._in_flight.popleft()
            self._lose(Direction.REQUEST if exchange.is_kept else Direction.RESPONSE, exchange)
        self._waiting_size = 0
        if self._client_open and not self._deaf:
            if reset and not self._back.pipe.size:
                self.client.reset()
            elif not self._back.backlog:
                self._back.pipe.finish()
        self._end_if_over()

    def _leave_broker(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        self._server.close()  # it may have connected a moment ago

    def _end_if_over(self) -> None:
        if self._ended or self._client_open or self._broker_open:
            return
        for rest in self._rests:
            rest.cancel()
        self._ended = True
        self._on_end(self)

    def _client_garbage(self, reason: str) -> None:
        log.warning("proxy_closed_client", broker=self.broker, members=list(self.members), reason=reason)
        self.cut()

    def _broker_garbage(self, reason: str) -> None:
        log.warning("proxy_closed_broker", broker=self.broker, members=list(self.members), reason=reason)
        self.cut()

    # -- messages -------------------------------------------------------------------------------------------

    def _request(self, frame: bytes) -> None:
        if self._rests:
            self._unread.append(frame)
            return
        header = read_header(frame)
        if carries_endpoints(header.api_key, header.api_version) and not is_readable(
            header.api_key, header.api_version
        ):
            raise MalformedFrame(f"{api_name(header.api_key)} version {header.api_version} is not known here")
        if header.api_key == _SASL_HANDSHAKE and header.api_version == 0:
            raise MalformedFrame("SaslHandshake version 0: what follows it is no frame of Kafka's")
        around = self._around
        member = around.members.get(header.client_id, header.client_id)
        remember(self.members, member, None)
        self.client_id = header.client_id or self.client_id
        exchange = ProxyExchange(header, member, frame, self._host, around.topic_names)
        if self._closing:
            self._lose(Direction.REQUEST, exchange)
        elif around.stand_in is not None and around.stand_in.is_about(header.api_key):
            self._ask(around.stand_in, frame, exchange)
        else:
            self._take(self._forth, frame, exchange)

    def _ask(self, stand_in: StandIn, frame: bytes, exchange: ProxyExchange) -> None:
        """Let faults decide about a request: it is passed on, or gets its response here, in its turn."""
        exchange.is_kept = True

        def carry_out() -> Any:
            exchange.is_kept = False
            exchange.broker = self._loop.create_future()
            self._take(self._forth, frame, exchange)
            return exchange.broker if exchange.is_answered else NO_REPLY

        try:
            reply = stand_in.ask(
                self, frame, exchange.header, carry_out, client_host=self._host, broker=self._node
            )
        except Unanswered:
            self._closing = True
            self._close_at(exchange)
        else:
            if reply is exchange.broker or reply is NO_REPLY:
                return  # no fault waits for it
            if isinstance(reply, asyncio.Future):
                exchange.late = reply
                if not exchange.is_answered and not exchange.is_kept:
                    self._rest_until(reply)
                reply.add_done_callback(lambda late: self._settled(exchange, late))
            else:
                self._answer(exchange, response_frame(exchange.header, reply))
        if exchange.is_kept:
            self._take(self._forth, b"", exchange)
        else:
            self._pass_answers()

    def _settled(self, exchange: ProxyExchange, late: asyncio.Future[Any]) -> None:
        if late.cancelled():
            return
        try:
            reply = late.result()
        except Unanswered:
            self._close_at(exchange)
        except Exception:
            log.exception("proxy_fault_failed", broker=self.broker, members=list(self.members))
            self.cut()
        else:
            if isinstance(reply, ThrottledReply):
                exchange.throttle_s = reply.throttle_time_ms / 1_000
            if reply is not NO_REPLY:
                self._answer(exchange, response_frame(exchange.header, reply))
        self._pass_answers()

    def _close_at(self, exchange: ProxyExchange) -> None:
        """Close the connection when it is the turn of this exchange; at once if it has none."""
        exchange.closes = True
        if not exchange.is_answered and not exchange.is_kept:
            self.close()

    def _answer(self, exchange: ProxyExchange, frame: bytes) -> None:
        """Keep a response until it is its turn."""
        exchange.answer = frame
        self._waiting_size += len(frame)

    def _pass_answers(self) -> None:
        """Send the responses that are there, in the order of the requests."""
        waiting = self._in_flight
        while waiting and not self._deaf and (waiting[0].closes or waiting[0].answer is not None):
            exchange = waiting.popleft()
            self._waiting_size -= len(exchange.answer or b"")
            if exchange.answer is None:
                self._lose(Direction.REQUEST if exchange.is_kept else Direction.RESPONSE, exchange)
                self.close()
                return
            self._take(self._back, exchange.answer, exchange)
            if exchange.throttle_s:
                self._rest_until(self._loop.create_task(asyncio.sleep(exchange.throttle_s)))
        self._regulate(self._forth)
        self._regulate(self._back)

    def _rest_until(self, over: asyncio.Future[Any]) -> None:
        """Read nothing from the client until then (KIP-219)."""
        self._rests.add(over)
        self._regulate(self._forth)
        over.add_done_callback(self._rested)

    def _rested(self, over: asyncio.Future[Any]) -> None:
        self._rests.discard(over)
        self._regulate(self._forth)
        try:
            while self._unread and not self._rests:
                self._request(self._unread.popleft())
        except MalformedFrame as error:
            self._client_garbage(str(error))

    def _response(self, frame: bytes) -> None:
        exchange = next((each for each in self._in_flight if not each.is_kept and not each.is_received), None)
        if exchange is None:
            raise MalformedFrame("a response without a request")
        header = exchange.header
        if int.from_bytes(frame[:4], "big", signed=True) != header.correlation_id:
            raise MalformedFrame(f"a response that does not match request {header.correlation_id}")
        if carries_endpoints(header.api_key, header.api_version):
            told = replace_endpoints(header.api_key, header.api_version, frame, self._around.address_of)
            if header.api_key == ApiKey.METADATA:
                self._around.topic_names.hear(header.api_version, frame)
            frame = told
        elif header.api_key == ApiKey.API_VERSIONS:
            frame = limit_versions(header.api_version, frame)
        exchange.is_received = True
        if exchange.broker is not None and not exchange.broker.done():
            exchange.broker.set_result(frame)
        if exchange.late is None or exchange.late.cancelled():
            self._answer(exchange, frame)
        self._pass_answers()

    def _take(self, way: _Way, frame: bytes, exchange: ProxyExchange) -> None:
        """Take a message: let the rules decide, behind what waits for a stall to end."""
        if self._deaf or not way.pipe.open:
            self._lose(way.direction, exchange)
            return
        if way.pipe.stalled:
            way.backlog.append((frame, exchange))
            way.backlog_size += len(frame)
        else:
            self._send(way, frame, exchange)
        self._regulate(way)

    def _send(self, way: _Way, frame: bytes, exchange: ProxyExchange) -> None:
        if exchange.is_kept and way is self._forth:
            way.pipe.put(Parcel(b"", exchange, instead=b""))
            return
        verdict, rule = (
            self._judge(way.direction, frame, exchange) if self._around.rules else (Fate.PASS, None)
        )
        match verdict:
            case Fate.PASS:
                way.pipe.put(Parcel(frame, exchange))
            case Delay(us):
                way.pipe.put(Parcel(frame, exchange, ready_s=self._loop.time() + us / 1e6))
            case Throttle(bytes_per_second):
                way.pipe.put(Parcel(frame, exchange, bytes_per_second=max(1, bytes_per_second)))
            case Fate.STALL:
                way.pipe.put(Parcel(frame, exchange, held_by=rule))
            case Corrupt(damage):
                self._lose(way.direction, exchange)
                way.pipe.put(Parcel(frame, exchange, instead=spoiled(frame, damage, self._around.rng)))
            case Fate.DROP:
                self._lose(way.direction, exchange)
                self._deaf = True
                self._regulate(self._forth)
                self._regulate(self._back)
            case Fate.CUT:
                self._lose(way.direction, exchange)
                self.cut()

    def _judge(
        self, direction: Direction, frame: bytes, exchange: ProxyExchange
    ) -> tuple[Verdict, NetworkRule | None]:
        """Return the first verdict that does not let the message pass, and its rule."""
        message: Message | None = None
        api_key, member = exchange.header.api_key, exchange.member
        for rule in tuple(self._around.rules):
            if not rule.concerns(member, self.broker, direction, api_key):
                continue
            if message is None:
                message = Message(
                    member=member,
                    broker=self.broker,
                    direction=direction,
                    request=exchange.request,
                    response=None if direction is Direction.REQUEST else exchange.response(frame),
                    api_key=api_key,
                )
            verdict = rule.judge(message)
            if verdict is not Fate.PASS:
                return verdict, rule
        return Fate.PASS, None

    def _sent(self, direction: Direction, parcel: Parcel) -> None:
        """Note that a message's last byte was handed to the receiver's socket."""
        way = self._forth if direction is Direction.REQUEST else self._back
        if way.paused:
            self._regulate(way)
        exchange, observer = parcel.exchange, self._around.observer
        if direction is Direction.REQUEST and exchange.is_kept:
            self._in_flight.append(exchange)
            self._pass_answers()
        elif direction is Direction.REQUEST:
            if exchange.is_answered:
                self._in_flight.append(exchange)
            if observer is not None and not exchange.lost:
                observer.on_request(exchange.member, self.broker, exchange.request, self._now_us())
        elif observer is not None and not exchange.lost:
            response = exchange.response(parcel.frame)
            observer.on_response(exchange.member, self.broker, exchange.request, response, self._now_us())

    def _lose(self, direction: Direction, exchange: ProxyExchange) -> None:
        if exchange.lost:
            return
        exchange.lost = True
        for waiting in (exchange.broker, exchange.late):
            if waiting is not None:
                waiting.cancel()
        if self._around.observer is not None:
            self._around.observer.on_loss(
                exchange.member, self.broker, direction, exchange.request, self._now_us()
            )

    def _lose_all(self, way: _Way) -> None:
        for exchange in way.pipe.clear():
            self._lose(way.direction, exchange)
        for _, exchange in way.backlog:
            self._lose(way.direction, exchange)
        way.backlog.clear()
        way.backlog_size = 0

    # -- pipes ----------------------------------------------------------------------------------------------

    def _pipe(self, direction: Direction) -> Pipe:
        forth = direction is Direction.REQUEST
        return Pipe(
            self._loop,
            is_in_force=lambda rule: any(rule is other for other in self._around.rules),
            on_sent=lambda parcel: self._sent(direction, parcel),
            on_lifted=lambda: self._lifted(self._forth if forth else self._back),
            on_drained=self._leave_broker if forth else self.client.close,
        )

    def _lifted(self, way: _Way) -> None:
        """Judge what came during a stall that has ended."""
        while way.backlog and not way.pipe.stalled:
            frame, exchange = way.backlog.popleft()
            way.backlog_size -= len(frame)
            if self._deaf:
                self._lose(way.direction, exchange)
            else:
                self._send(way, frame, exchange)
        sender_open = self._client_open if way is self._forth else self._broker_open
        if not sender_open and not way.backlog:
            way.pipe.finish()

    def _flow(self, way: _Way, blocked: bool) -> None:
        way.blocked = blocked
        self._regulate(way)

    def _regulate(self, way: _Way) -> None:
        """Read from a sender only as fast as its messages are passed on."""
        waiting = self._waiting_size > _READ_AHEAD_BYTES
        if way is self._forth:
            held = waiting or bool(self._rests) or len(self._in_flight) > _MOST_IN_FLIGHT
        else:  # unless all wait for what the broker sends next
            head = self._in_flight[0] if waiting and self._in_flight else None
            held = head is not None and (head.is_kept or head.is_received)
        full = way.blocked or held or way.pipe.size + way.backlog_size > _READ_AHEAD_BYTES
        paused = full and not self._deaf
        if paused != way.paused:
            way.paused = paused
            way.source.read(not paused)

    def _now_us(self) -> int:
        return int(self._loop.time() * 1_000_000)
