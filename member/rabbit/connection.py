"""One connection to a node of RabbitMQ's streams, for one consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec

from fencepost.coordinator.protocol.sac import SIMPLE
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import Frame, Request
from fencepost.coordinator.rabbit_codec.chunks import read_chunk
from fencepost.coordinator.rabbit_codec.codec import MalformedFrame, decode, encode, frame_buffer
from fencepost.coordinator.rabbit_codec.codes import OffsetType, ResponseCode
from fencepost.coordinator.rabbit_codec.compression import InvalidBatch
from fencepost.coordinator.rabbit_codec.entries import messages_of
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification as WireOffset
from fencepost.member.base.transport import Disconnected, TransportError
from fencepost.member.sac.offsets import OffsetSpecification
from fencepost.member.sac.transport import ConnectionListener, SacSubscription, SubscriptionRefused

R = TypeVar("R", bound=Frame)

MAX_FRAME_BYTES: Final = 1 << 27
"""The limit for a node's frames; chunks have some megabytes at most."""
INITIAL_CREDIT: Final = 10
"""Chunks that may be in flight."""
CLOSE_TIMEOUT_S: Final = 5.0
"""Time that a node may take to respond to Close, in seconds."""
_SUBSCRIPTION: Final = 0
"""The one subscription of a connection."""
_PASSING: Final = frozenset({ResponseCode.STREAM_NOT_AVAILABLE, ResponseCode.INTERNAL_ERROR})
"""Response codes of a node that may differ on the next attempt."""


class RabbitLogin(msgspec.Struct, frozen=True, kw_only=True):
    """The credentials and settings of a connection."""

    username: str
    password: str
    virtual_host: str
    client_name: str
    heartbeat_s: int

    def __repr__(self) -> str:
        return f"Credentials({self.username!r})"


class StreamConnection(asyncio.Protocol):
    """Frames over a socket, about one stream. Each request returns a future with the response, or a
    TransportError."""

    def __init__(self, listener: ConnectionListener, stream: str) -> None:
        self._listener = listener
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._frames = frame_buffer(MAX_FRAME_BYTES)
        self._asked: dict[int, asyncio.Future[Frame]] = {}
        self._number = 0
        self._tuned: asyncio.Future[frames.Tune] = self._loop.create_future()
        self._heartbeat_s = 0
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = self._said_at = 0.0
        self._is_open = False
        self._is_closed = False
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._loss = "the connection was lost"
        self.refusal: SubscriptionRefused | None = None
        """The error after which no subscription is possible here, ever."""
        self.advertised: tuple[str, int] | None = None
        """The address that the node advertises; None if it advertises none."""

    # -- asyncio's side ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the node is connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._heard_at = self._said_at = self._loop.time()

    def connection_lost(self, error: Exception | None) -> None:
        """Fail everything that waits for a response."""
        was_closed, self._is_closed = self._is_closed, True
        if self._timer is not None:
            self._timer.cancel()
        if not self._gone.done():
            self._gone.set_result(None)
        waiting: list[asyncio.Future[Any]] = [*self._asked.values(), self._tuned]
        for future in waiting:
            if not future.done():
                future.set_exception(Disconnected(self._loss))
                future.exception()  # there may be no waiter
        self._asked.clear()
        if self._is_open and not was_closed:
            self._listener.disconnected(self._loss)

    def data_received(self, data: bytes) -> None:
        """Take in bytes, with any number of frames in them."""
        self._heard_at = self._loop.time()
        self._frames.feed(data)
        try:
            while not self._transport.is_closing() and (found := self._frames.next_frame()) is not None:
                frame = decode(found)
                if not self._is_closed:
                    self._take(frame)
                elif isinstance(frame, frames.CloseResponse):
                    self._transport.close()
        except MalformedFrame as error:
            self._abort(str(error))

    def _take(self, frame: Frame) -> None:
        match frame:
            case frames.Deliver() if frame.subscription_id == _SUBSCRIPTION:
                chunk = read_chunk(frame.chunk)
                try:
                    messages = messages_of(chunk.data)
                except InvalidBatch as error:  # its bytes are as they were sent: the next try gets them again
                    self._listener.unreadable(chunk.first_offset, chunk.records, str(error))
                else:
                    self._listener.delivered(chunk.first_offset, messages)
            case frames.ConsumerUpdate() if frame.subscription_id == _SUBSCRIPTION:
                self._listener.consumer_update(frame.correlation_id, bool(frame.active))
            case frames.Tune():
                if not self._tuned.done():
                    self._tuned.set_result(frame)
            case frames.MetadataUpdate():
                # The subscription is lost: a new connection will show if that is final.
                self._hang_up(f"{frame.stream!r} was deleted or is moving: {_code(frame).name}")
            case frames.Close():
                self._hang_up(f"the node closes the connection: {frame.reason} ({frame.code})")
            case _ if frame.is_response and (number := getattr(frame, "correlation_id", None)) is not None:
                future = self._asked.pop(number, None)
                if future is not None and not future.done():
                    future.set_result(frame)

    def _abort(self, reason: str) -> None:
        self._loss = reason
        self._transport.abort()

    def _hang_up(self, reason: str) -> None:
        """Close after the last message: an offset may be in it."""
        self._loss = reason
        self._transport.close()

    # -- sending ----------------------------------------------------------------------------------------

    def _send(self, frame: Frame) -> None:
        if not self._transport.is_closing():
            self._said_at = self._loop.time()
            self._transport.write(encode(frame))

    def _ask(self, make: type[Request], *values: object) -> asyncio.Future[Frame]:
        future: asyncio.Future[Frame] = self._loop.create_future()
        if self._is_closed or self._transport.is_closing():
            future.set_exception(Disconnected("the connection is closed"))
            return future
        self._number += 1
        self._asked[self._number] = future
        self._send(make(self._number, *values))
        return future

    async def open(self, credentials: RabbitLogin) -> None:
        """Authenticate and open the virtual host; a final refusal becomes `refusal`.

        :raises TransportError: if the node does not respond as it should.
        """
        names = {"connection_name": credentials.client_name, "product": "fencepost", "platform": "Python"}
        await self._ask(frames.PeerProperties, names)
        await self._ask(frames.SaslHandshake)
        token = f"\0{credentials.username}\0{credentials.password}".encode()
        code = _code(await self._ask(frames.SaslAuthenticate, "PLAIN", token))
        if code is not ResponseCode.OK:
            self.refusal = SubscriptionRefused(f"{credentials.username!r} can't log in: {code.name}")
            return
        tune = await self._tuned
        theirs, mine = tune.heartbeat, credentials.heartbeat_s
        self._heartbeat_s = min(theirs, mine) if theirs and mine else theirs or mine
        self._send(frames.Tune(tune.frame_max, self._heartbeat_s))
        opened = await self._ask(frames.Open, credentials.virtual_host)
        code = _code(opened)
        if code is not ResponseCode.OK:
            self.refusal = SubscriptionRefused(f"{credentials.virtual_host!r} can't be opened: {code.name}")
            return
        self.advertised = _advertised(getattr(opened, "properties", {}))
        self._is_open = True
        self._beat()

    async def nodes(self) -> Sequence[tuple[str, int]]:
        """Return the nodes at which the stream can be read, replicas before the leader; empty if there is no
        such stream.

        :raises TransportError: if the node does not respond, or knows no place.
        """
        answer = await self._ask(frames.Metadata, (self._stream,))
        if not isinstance(answer, frames.MetadataResponse) or len(answer.streams) != 1:
            raise TransportError(f"the node was asked about {self._stream!r}, and sent another response")
        (place,) = answer.streams
        if place.code == ResponseCode.STREAM_DOES_NOT_EXIST:
            return ()
        known = {each.reference: (each.host, each.port) for each in answer.brokers}
        found = [known[each] for each in (*place.replicas, place.leader) if each in known]
        if not found:
            raise TransportError(f"no node has the stream {self._stream!r} now")
        return found

    def _beat(self) -> None:
        """Send a sign of life to the node, and check that one came from it."""
        if not self._heartbeat_s or self._is_closed:
            return
        now = self._loop.time()
        if now - self._heard_at > 2 * self._heartbeat_s:
            self._abort(f"the node has sent nothing for {now - self._heard_at:.1f} s")
            return
        if now - self._said_at >= self._heartbeat_s / 2:
            self._send(frames.Heartbeat())
        self._timer = self._loop.call_later(self._heartbeat_s / 2, self._beat)

    # -- a consumer's side (SacConnection) --------------------------------------------------------------

    def subscribe(self, subscription: SacSubscription) -> asyncio.Future[None]:
        """Subscribe as a single active consumer."""
        return self._loop.create_task(self._subscribed(subscription))

    async def _subscribed(self, subscription: SacSubscription) -> None:
        if self.refusal is not None:
            raise self.refusal
        if subscription.stream != self._stream:  # this node may have it, though the next one may not
            raise SubscriptionRefused(
                f"the subscription is to {subscription.stream!r}, and its transport is for {self._stream!r}"
            )
        if subscription.partition_index != SIMPLE:
            raise SubscriptionRefused(
                f"partition_index is {subscription.partition_index}, and RabbitMQ's protocol has no field for"
                " it: leave it out and set super_stream; RabbitMQ then finds the index of the partition"
                f" {subscription.stream!r} itself"
            )
        properties = {"single-active-consumer": "true", "name": subscription.name}
        if subscription.super_stream is not None:
            properties["super-stream"] = subscription.super_stream
        where = _on_the_wire(subscription.offset)
        answer = self._ask(
            frames.Subscribe, _SUBSCRIPTION, subscription.stream, where, INITIAL_CREDIT, properties
        )
        code = _code(await answer)
        if code in _PASSING:
            raise TransportError(f"{subscription.stream!r} can't be read now: {code.name}")
        if code is not ResponseCode.OK:
            raise SubscriptionRefused(f"{subscription.stream!r} can't be read: {code.name}")

    def answer(self, correlation_id: int, offset: OffsetSpecification) -> None:
        """Respond to a consumer update."""
        self._send(frames.ConsumerUpdateResponse(correlation_id, offset=_on_the_wire(offset)))

    def credit(self, chunks: int) -> None:
        """Let the node send this many more chunks."""
        self._send(frames.Credit(_SUBSCRIPTION, chunks))

    def store_offset(self, subscription: SacSubscription, offset: int) -> None:
        """Store an offset for the whole group."""
        self._send(frames.StoreOffset(subscription.name, subscription.stream, offset))

    def query_offset(self, subscription: SacSubscription) -> asyncio.Future[int | None]:
        """Return the offset that the group stored last."""
        return self._loop.create_task(self._stored(subscription))

    async def _stored(self, subscription: SacSubscription) -> int | None:
        answer = await self._ask(frames.QueryOffset, subscription.name, subscription.stream)
        assert isinstance(answer, frames.QueryOffsetResponse)
        code = _code(answer)
        if code is ResponseCode.NO_OFFSET:
            return None
        if code is not ResponseCode.OK:
            raise TransportError(f"the node did not return the offset of {subscription.name!r}: {code.name}")
        return answer.offset

    def close(self) -> None:
        """Give the connection up, and notify the node. The listener receives nothing more.

        The socket stays until the node has responded. If the node sends meanwhile and no one reads, the
        system would discard data that the node has not read itself, such as the last offset.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_open or self._transport.is_closing():
            self._transport.close()
            return
        self._number += 1
        self._send(frames.Close(self._number, ResponseCode.OK, "OK"))
        self._timer = self._loop.call_later(CLOSE_TIMEOUT_S, self._transport.abort)

    async def wait_closed(self) -> None:
        """Wait until the node has received everything that was sent, or can't receive it any more."""
        if not self._gone.done():
            await asyncio.wait([self._gone])


def _code(answer: Frame) -> ResponseCode:
    """Return the code of a response; an unknown code counts as an error inside the node."""
    try:
        return ResponseCode(getattr(answer, "code", ResponseCode.INTERNAL_ERROR))
    except ValueError:
        return ResponseCode.INTERNAL_ERROR


def _advertised(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the address in the properties of an open connection; None if there is no usable one."""
    host, port = properties.get("advertised_host"), properties.get("advertised_port", "")
    return (host, int(port)) if host and port.isascii() and port.isdigit() else None


def _on_the_wire(offset: OffsetSpecification) -> WireOffset:
    return WireOffset(OffsetType(offset.kind), offset.value)
