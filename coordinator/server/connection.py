"""One client's socket: frames are read, and responses are written in the order of their requests.

Like Kafka, a connection works on one request at a time. While a Fetch waits for records, later requests of
this client wait too, but other clients do not. The server does not read from a client that sends much and
reads nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import structlog

from fencepost.coordinator.codec import framing
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.registry import (
    ApiKey,
    VersionCodec,
    api_name,
    codec_of,
    unsupported_api_versions,
)
from fencepost.coordinator.codec.releases import codec_up_to
from fencepost.coordinator.codec.security import bare_token
from fencepost.coordinator.codec.writer import LARGE_BYTES
from fencepost.coordinator.protocol.acls import ANONYMOUS
from fencepost.coordinator.sasl.credentials import Credentials
from fencepost.coordinator.server.accepting import socket_number
from fencepost.coordinator.server.buffers import UNCOUNTED, Buffers
from fencepost.coordinator.server.group_apis import consumer_group_heartbeat
from fencepost.coordinator.server.login import LOGIN_S, MAX_LOGIN_FRAME_BYTES, MIN_REAUTH_INTERVAL_MS, Login
from fencepost.coordinator.server.repeated import (
    ASKED_AGAIN,
    RepeatedAnswers,
    RepeatedRequest,
    RepeatingHandlers,
    SteadyHeartbeat,
)
from fencepost.coordinator.server.services import (
    NO_REPLY,
    Asked,
    Handler,
    Services,
    ThrottledReply,
    Unanswered,
)
from fencepost.coordinator.server.turns import LONG_BYTES, FairTurns, Share

log = structlog.get_logger(__name__)

_HEARTBEAT = int(ApiKey.CONSUMER_GROUP_HEARTBEAT)
_HEARTBEAT_KEY = _HEARTBEAT.to_bytes(2, "big")
_PRODUCE_KEY = int(ApiKey.PRODUCE).to_bytes(2, "big")
_WRITTEN_AT_ONCE = frozenset({int(ApiKey.PRODUCE)})
"""APIs whose requests are long and whose responses are short."""
_READ_AHEAD_BYTES = 1 << 20
"""Number of bytes of later requests that are read from the socket while one is being answered."""

_QUERY_FOLLOWS_S = 0.002
"""Time that the response to librdkafka's broker query waits for the next request, from another thread, in s.

Once librdkafka knows the brokers, it gives up the connection on which it was to ask for its coordinator. If
the response is faster than its threads, it waits 50 ms before it connects again and asks.
"""

_COORDINATOR_TOLD_S = 0.002
"""Minimum delay between two FindCoordinator responses to librdkafka, in s.

librdkafka sends several of these requests behind a waiting Fetch. The first response makes it give up the
commit that waited for its coordinator, and with it the coordinator. The second response names the coordinator
again, unless it comes too early.
"""

_ANSWERS_AT_ONCE = 64
"""Responses are written together up to this number or a large one; writing shows whether the client reads.

Then other clients have their turn, so that no client keeps the loop busy with many requests.
"""


class KafkaServerConnection(asyncio.Protocol):
    """Serves one client. `on_made` and `on_lost` notify the broker, which may return a reason to refuse."""

    __slots__ = (
        "_asking",
        "_buffers",
        "_codec_of",
        "_expires_ms",
        "_frames",
        "_handlers",
        "_heartbeat",
        "_held",
        "_holds",
        "_host",
        "_is_librdkafka",
        "_is_own",
        "_is_plain",
        "_is_queued",
        "_is_starved",
        "_last_login",
        "_late",
        "_local_host",
        "_login",
        "_lost",
        "_max_frame_bytes",
        "_on_lost",
        "_on_made",
        "_out",
        "_peer",
        "_reauth_ms",
        "_repeated",
        "_rights",
        "_services",
        "_shortcut",
        "_stopped",
        "_transport",
        "_turns",
        "_waiting",
        "_write_blocked",
        "client_id",
        "principal",
        "share",
    )

    def __init__(
        self,
        services: Services,
        handlers: Mapping[int, Handler],
        repeated: RepeatedAnswers,
        *,
        max_frame_bytes: int,
        buffers: Buffers | None = None,
        on_made: Callable[[KafkaServerConnection], str | None],
        on_lost: Callable[[KafkaServerConnection], None],
    ) -> None:
        self.client_id = ""
        """The client id; empty until the client has sent it."""
        self.principal = ANONYMOUS
        """Its user in Kafka's words."""
        self.share = Share()
        self._services = services
        self._rights = services.rights
        newest = services.max_versions
        self._codec_of = codec_of if newest is None else partial(codec_up_to, newest)
        self._turns = services.turns or FairTurns()
        self._handlers = handlers
        self._repeated = repeated
        self._on_made = on_made
        self._on_lost = on_lost
        self._login = None if services.credentials is None else self._new_login(services.credentials)
        self._last_login: Login | None = None
        self._reauth_ms = -MIN_REAUTH_INTERVAL_MS
        """The time at which the client began to log in again, in ms."""
        self._expires_ms: int | None = None
        """The time at which the client has to log in again, in ms; None if it need not (KIP-368)."""
        self._max_frame_bytes = max_frame_bytes
        self._frames = framing.FrameBuffer(
            max_frame_bytes if self._login is None else min(max_frame_bytes, MAX_LOGIN_FRAME_BYTES)
        )
        self._late: asyncio.TimerHandle | None = None
        self._held: asyncio.TimerHandle | None = None
        self._is_librdkafka = False
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._waiting: asyncio.Future[Any] | None = None
        self._buffers = buffers or Buffers()
        self._holds = False
        """True while the bytes of its requests are counted."""
        self._is_starved = False
        """True while the connection is not read from, as all of them together hold too much."""
        self._asking = 0
        """Bytes of the request that waits for its response."""
        self._is_queued = False
        """True while requests that came wait for their turn."""
        self._write_blocked = False
        self._stopped = False
        self._lost = False
        self._is_own = False
        """True while the connection waits for a time or for a Produce, which goes on without its client."""
        self._out: list[bytes] = []
        self._host = self._local_host = self._peer = ""
        self._heartbeat = SteadyHeartbeat()
        heartbeat = getattr(handlers[_HEARTBEAT], "handler", handlers[_HEARTBEAT])
        self._is_plain = heartbeat is consumer_group_heartbeat
        self._shortcut = not self._is_guarded and (self._is_plain or isinstance(handlers, RepeatingHandlers))

    def _new_login(self, credentials: Credentials, before: Login | None = None) -> Login:
        return Login(credentials, self._rights.max_reauth_ms, before)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving the client; the broker may refuse it."""
        self._transport = cast("asyncio.Transport", transport)
        self._shortcut = self._shortcut and not self._is_guarded  # rights may have come since
        peer, local = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._host = f"/{peer[0]}" if peer else "/unknown"
        self._peer = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._local_host = local[0] if local else ""
        refusal = self._on_made(self)
        if refusal is not None:
            self._stop(refusal)
        elif self._login is not None:
            self._late = self._services.loop.call_later(LOGIN_S, self._stop, "no login in time")

    def connection_lost(self, error: Exception | None) -> None:
        """End the client's wait for records, and stop serving it once its records are in the log."""
        if not self._stopped and self._login is not None and self._login.failure is not None:
            self._log_closed(self._login.failure)  # a client may leave before the refusal
        if self._late is not None:
            self._late.cancel()
        if self._held is not None:
            self._held.cancel()
        self._lost = True
        self._buffers.drop(self)
        if (self._is_own or self._is_queued) and not self._stopped and self._login is None:
            # As in Kafka, producers that want no response may disconnect when they have sent everything.
            self._write_blocked = False
        else:
            self._forget()

    def _forget(self) -> None:
        """Stop serving a client that is gone."""
        self._stopped = True
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        self._on_lost(self)

    @property
    def _is_guarded(self) -> bool:
        """True if another client's responses are no answers to this one."""
        return self._rights.is_active or self._expires_ms is not None

    def be_guarded(self) -> None:
        """Pass by no handler any more, since some of them may refuse."""
        self._shortcut = False

    @property
    def is_closed(self) -> bool:
        """True if no response is sent any more."""
        return self._stopped or self._lost

    @property
    def socket_number(self) -> int:
        """The file descriptor; -1 without one any more."""
        return socket_number(self._transport)

    def close(self) -> None:
        """Close the connection without a message; responses that the client does not read are dropped."""
        self._stopped = True
        if self._lost:
            self._forget()
        elif (
            self._transport.get_write_buffer_size()
            or self._transport.get_extra_info("sslcontext") is not None
        ):
            self._transport.abort()
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, with any number of requests in them."""
        if self._stopped:
            return
        if (
            self._heartbeat.is_alone(data)
            and self._shortcut
            and (self._is_plain or self._may_repeat())
            and not (self._turns.is_crowded or self._frames.buffered or self._is_queued or self._held)
            and self._waiting is None
            and not self._write_blocked
        ):
            self._beat(data)
            return
        self._frames.feed(data)
        if self._waiting is None and not self._write_blocked and not self._is_queued:
            self._is_queued = True
            self._turns.run(self.share, self._work)
        buffered = self._frames.buffered
        if buffered > UNCOUNTED or self._holds:
            self._hold()
            if buffered > _READ_AHEAD_BYTES and self._is_busy:
                self._transport.pause_reading()

    def _beat(self, data: bytes) -> None:
        """Handle the heartbeat that most clients send most of the time, by the shortest way."""
        turns, heartbeat = self._turns, self._heartbeat
        turns.begin(self.share)
        try:
            reply = self._ask_again(heartbeat.request)
            self._out.append(heartbeat.answer(data[8:12], reply))
            self._flush()
        except Unanswered as error:
            self._stop(str(error))
        except Exception:
            self._failed()
        finally:
            turns.end()

    def _may_repeat(self) -> bool:
        """Return true if what stands in front of the handler lets a repeated heartbeat pass."""
        return cast("RepeatingHandlers", self._handlers).again is not None

    def _ask_again(self, request: Any) -> Any:
        if self._is_plain:
            return self._services.ask(request)
        again = cast("RepeatingHandlers", self._handlers).again
        assert again is not None
        return again(self._services, request, self)

    def _hold(self) -> None:
        """Count the bytes that are held, and stop reading if all connections hold too much."""
        size = self._frames.buffered + self._asking
        self._holds = size > UNCOUNTED
        if self._lost:
            return
        if not self._buffers.hold(self, size if self._holds else 0):
            self._is_starved = True
            self._transport.pause_reading()
        elif self._is_starved:
            self.read_on()

    def read_on(self) -> None:
        """Read from the socket again, as there is room for requests."""
        self._is_starved = False
        if not self.is_closed and not self._is_busy:
            self._transport.resume_reading()

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not read."""
        return 0 if self._lost else self._transport.get_write_buffer_size()

    def cut_off(self, reason: str) -> None:
        """Close the connection at once, with a line in the log."""
        self._stopped = True
        self._log_closed(reason)
        self._transport.abort()

    @property
    def _is_busy(self) -> bool:
        """True if the next request has to wait."""
        return self._is_queued or self._waiting is not None or self._write_blocked

    def pause_writing(self) -> None:
        """Stop handling requests while the client does not read."""
        self._write_blocked = True
        self._buffers.unread(self)

    def resume_writing(self) -> None:
        """Handle requests again, as the client reads again."""
        self._write_blocked = False
        self._buffers.unread(self)
        self._continue()

    def _is_ready(self) -> bool:
        """Return true if the next request may be handled, which is read then."""
        if self._stopped or self._is_busy:
            return False
        if not self._lost and not self._is_starved:
            self._transport.resume_reading()
        return True

    def _continue(self) -> None:
        if self._is_ready():
            self._is_queued = True
            self._turns.run(self.share, self._work)

    def _work(self) -> None:
        """Handle received requests until one has to wait, or others have their turn.

        Small responses are written together.
        """
        self._is_queued = False
        taken, is_enough = 0, False
        try:
            while not is_enough and (frame := self._next_request()) is not None:
                self._take(frame)
                taken += 1
                is_enough = self._frames.buffered > 0 and self._is_enough(taken)
        except (framing.MalformedFrame, Unanswered) as error:
            self._stop(str(error))
        except Exception:
            self._failed()
        if self._held is None:
            self._flush()
        if self._holds:
            self._hold()
        if self._stopped:
            self._end()
        elif is_enough:
            self._continue()
        elif self._lost and not self._is_busy:
            self._forget()

    def _is_enough(self, taken: int) -> bool:
        """Return true if that many requests are enough for one piece of work."""
        return (
            taken >= _ANSWERS_AT_ONCE
            or self._turns.is_long
            or bool(self._out and len(self._out[-1]) >= LARGE_BYTES)
        )

    def _next_request(self) -> bytes | None:
        """Return the request to handle now. None if there is no request, or it has to wait."""
        if self._waiting is not None or self._stopped or self._write_blocked:
            return None
        frame = self._frames.next_frame()
        while self._lost and frame is not None and frame[:2] != _PRODUCE_KEY:
            frame = self._frames.next_frame()
        if frame is None:
            return None
        if self._held is not None:
            self._held.cancel()
            self._held = None
        return frame

    def _let_go(self) -> None:
        """Send a response that was held for the next request, as no request follows."""
        self._held = None
        self._flush()

    def _flush(self) -> None:
        """Write responses: small pieces together, large ones without a copy. A shut gate stops all of
        them."""
        if self._services.gate.is_shut:
            self._services.gate.when_open(self._flush)
            return
        out = self._out
        if self._lost or (self._stopped and self._transport.is_closing()):
            out.clear()
        if len(out) == 1:
            self._transport.write(out[0])
        elif any(len(piece) >= LARGE_BYTES for piece in out):
            for piece in out:
                self._transport.write(piece)
        elif out:
            self._transport.write(b"".join(out))
        out.clear()
        if self._write_blocked:
            self._buffers.unread(self)

    def _stop(self, reason: str) -> None:
        self._stopped = True
        self._log_closed(reason)
        self._flush()
        self._end()

    def _log_closed(self, reason: str) -> None:
        if structlog.is_configured():
            # Without a logging setup, the line would be printed to the standard output.
            log.warning("connection_closed", peer=self._peer, reason=reason)

    def _end(self) -> None:
        """Close the connection after its responses."""
        if self._lost:
            self._forget()
        elif self._services.gate.is_shut:
            self._services.gate.when_open(self._end)
        else:
            self._transport.close()

    def _take(self, frame: bytes) -> None:
        heartbeat = self._heartbeat
        if (
            self._shortcut
            and frame[:2] == _HEARTBEAT_KEY
            and heartbeat.is_again(frame)
            and (self._is_plain or self._may_repeat())
        ):
            self._out.append(heartbeat.answer(frame[4:8], self._ask_again(heartbeat.request)))
            return
        if self._login is not None and self._login.tokens_are_bare:
            self._take_token(self._login, frame)
            return
        header = framing.read_header(frame)
        self.client_id = header.client_id or self.client_id
        question = None
        if header.api_key in ASKED_AGAIN and self._login is None and not self._is_guarded:
            api_key, version = header.api_key, header.api_version
            question = RepeatedRequest(self._local_host, api_key, version, frame[header.body_offset :])
            known = self._repeated.find(question, self._handlers[api_key])
            if known is not None:
                self._out.append(known.to(frame))
                self._answered(api_key, known.request)
                return
        codec = self._codec_of(header.api_key, header.api_version)
        if self._login is not None or self._expires_ms is not None:
            self._check_login(header.api_key, is_spoken=codec is not None)
        if codec is None:
            self._unsupported(header)
            return
        context = RequestContext(header.api_version, header.client_id, self._host)
        request = codec.decode(frame, codec.body_of(frame, header), context)
        if header.api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            heartbeat.remember(frame, request)
        handler = self._handlers[header.api_key]
        reply = handler(self._services, request, Asked(context, self._local_host, self, self._login))
        reply = self._in_another_turn(header.api_key, reply) if len(frame) > LONG_BYTES else reply
        if isinstance(reply, asyncio.Future):
            keep = None if question is None else self._repeated.keep_later(question, handler, request)
            self._asking = len(frame)
            self._holds |= self._asking > UNCOUNTED
            self._is_own = header.api_key == ApiKey.PRODUCE
            self._wait(reply, codec, header.correlation_id, keep)
        elif reply is not NO_REPLY:
            answer = codec.encode(header.correlation_id, reply)
            self._out += answer
            if question is not None:
                self._repeated.keep(question, handler, request, answer)
            if self._login is not None:
                self._went_on(self._login)
            self._answered(header.api_key, request)

    def _check_login(self, api_key: int, *, is_spoken: bool) -> None:
        """Begin another login, or refuse what is no step of one, or comes after the end of a session.

        :raises Unanswered: then; Kafka, too, closes the connection.
        """
        if self._login is None:
            now_ms = self._services.transactions.now_ms()
            if api_key == ApiKey.SASL_HANDSHAKE and now_ms >= self._reauth_ms + MIN_REAUTH_INTERVAL_MS:
                assert self._services.credentials is not None
                self._reauth_ms = now_ms
                self._login = self._new_login(self._services.credentials, self._last_login)
            elif self._expires_ms is not None and now_ms > self._expires_ms:
                raise Unanswered("the session of the login is over")
        if self._login is not None:
            self._login.check(api_key, is_spoken=is_spoken)

    def _in_another_turn(self, api_key: int, reply: Any) -> Any:
        """Return a response to a long request as a future: writing it may take as long as computing it."""
        if isinstance(reply, asyncio.Future) or reply is NO_REPLY or api_key in _WRITTEN_AT_ONCE:
            return reply
        future = self._services.loop.create_future()
        future.set_result(reply)
        return future

    def _answered(self, api_key: int, request: Any) -> None:
        """Give librdkafka's other threads the time they need, see above."""
        if api_key == ApiKey.API_VERSIONS:
            self._is_librdkafka = _is_librdkafka(request.client_software_name)
        elif not self._is_librdkafka:
            return
        elif api_key == ApiKey.METADATA and request.topics == ():
            self._held = self._services.loop.call_later(_QUERY_FOLLOWS_S, self._let_go)
        elif api_key == ApiKey.FIND_COORDINATOR and self._frames.buffered:
            self._rest(_COORDINATOR_TOLD_S)

    def _rest(self, seconds: float) -> None:
        """Delay the next request by that time."""
        self._waiting = rest = self._services.loop.create_future()
        self._is_own = True

        def over() -> None:
            if not rest.done():
                rest.set_result(None)

        timer = self._services.loop.call_later(seconds, over)

        def done(rest: asyncio.Future[None]) -> None:
            timer.cancel()
            self._waiting = None
            self._is_own = False
            self._continue()

        rest.add_done_callback(done)

    def _take_token(self, login: Login, token: bytes) -> None:
        """Handle a bare token: the response is bare too, and a refused token gets no response."""
        answer = login.answer(token)
        if login.failure is None:
            self._out.append(bare_token(answer.token))
        self._went_on(login)

    def _went_on(self, login: Login) -> None:
        """Continue after a response of the login: the client is logged in, has to continue, or is closed."""
        if login.failure is not None:
            self._stop(login.failure)
        elif login.is_done:
            self._login = None
            self.principal = login.principal
            if reauth_ms := self._rights.max_reauth_ms:
                self._last_login = login
                self._expires_ms = self._services.transactions.now_ms() + reauth_ms
                self._shortcut = False
            self._frames.max_bytes = self._max_frame_bytes
            if self._late is not None:
                self._late.cancel()

    def _unsupported(self, header: framing.RequestHeader) -> None:
        """Respond to an unknown version. Only ApiVersions has a response that every client can read
        (KIP-511)."""
        if header.api_key != ApiKey.API_VERSIONS:
            raise framing.MalformedFrame(
                f"{api_name(header.api_key)} version {header.api_version} is not spoken here"
            )
        self._out += unsupported_api_versions(header.correlation_id, self._services.max_versions)

    def _wait(
        self,
        future: asyncio.Future[Any],
        codec: VersionCodec,
        correlation_id: int,
        keep: Callable[[list[bytes]], None] | None,
    ) -> None:
        def answer() -> None:
            self._waiting = None
            self._is_own = False
            self._asking = 0
            if self._stopped or future.cancelled():
                return
            try:
                if type(reply := future.result()) is ThrottledReply:
                    self._out += codec.encode_throttled(correlation_id, reply.reply, reply.throttle_time_ms)
                    self._rest(reply.throttle_time_ms / 1_000)
                elif reply is not NO_REPLY:
                    answer = codec.encode(correlation_id, reply)
                    self._out += answer
                    if keep is not None:
                        keep(answer)
                if self._login is not None:
                    self._went_on(self._login)
            except Unanswered as error:
                self._stop(str(error))
            except Exception:
                self._failed()
            self._flush()
            if self._is_ready():
                self._work()

        self._waiting = future
        future.add_done_callback(lambda _: self._turns.run(self.share, answer))

    def _failed(self) -> None:
        if self._login is None:
            log.exception("request_failed", peer=self._peer)
        else:  # the text of an exception may contain data of the client
            log.error("request_failed", peer=self._peer)
        self._stop("a request failed")


def _is_librdkafka(client_software_name: str) -> bool:
    """Return true for librdkafka itself, and for Confluent's clients that use it."""
    return "rdkafka" in client_software_name or client_software_name.startswith("confluent-kafka")
