"""One client's connection, without its socket: frames in, frames out.

The steps are PeerProperties, SaslHandshake, SaslAuthenticate, Tune and Open; any other frame before Open ends
the connection without a message. After Open, an unknown frame gets Close as the response.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fencepost.coordinator.codec.framing import FrameTooLarge, MalformedFrame
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import Frame, Request
from fencepost.coordinator.rabbit_codec.codec import decode, encode
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_server.catalogue import Catalogue
from fencepost.coordinator.rabbit_server.stream import RabbitRequestRefused, SacCoordinatorUnreachable

if TYPE_CHECKING:
    from fencepost.coordinator.rabbit_server.cluster import RabbitCluster
    from fencepost.coordinator.rabbit_server.consuming import Consumer
    from fencepost.coordinator.rabbit_server.publishing import Publisher


class HandshakeStep(enum.IntEnum):
    """The progress of a connection's handshake."""

    CONNECTED = 0
    INTRODUCED = 1
    AUTHENTICATING = 2
    TUNING = 3
    TUNED = 4
    OPEN = 5
    CLOSED = 6
    """No frame is accepted any more."""


class Socket(Protocol):
    """The part of a connection that its session uses."""

    node: str
    """The name of the node that the client is connected to."""
    peer_host: str
    peer_port: int
    local_host: str
    local_port: int
    """The address at which the client reached this node, and at which others can reach it."""

    @property
    def is_writable(self) -> bool:
        """True if the client reads what it is sent."""

    def write(self, data: bytes) -> None:
        """Send."""

    def hang_up(self, reason: str, *, was_told: bool) -> None:
        """Close after pending data is sent. `reason` is for the log if something went wrong; the client may
        have been told it."""


Handler: TypeAlias = Callable[["RabbitSession", Any], Frame | None]
"""Handles a frame and may return a response. `RabbitRequestRefused` becomes the response with its code."""


class RabbitSession:
    """The state of one connection. `handle` takes frames one by one, and never raises."""

    def __init__(
        self, number: int, cluster: RabbitCluster, socket: Socket, handlers: Mapping[type, Handler]
    ) -> None:
        self.number = number
        """Never used again."""
        self.cluster = cluster
        self.socket = socket
        self._handlers = handlers
        self.step = HandshakeStep.CONNECTED
        self.user = ""
        self.virtual_host = ""
        self.properties: Mapping[str, str] = {}
        """The properties that the client sent about itself."""
        self.frame_max = 0
        """Bytes that a frame of the client may have after Open."""
        self.heartbeat_s = 0
        self.deliver_version = 1
        self.publishers: dict[int, Publisher] = {}
        self.consumers: dict[int, Consumer] = {}
        self.leaders_asked: set[str] = set()
        """Streams whose leader was queried for the client: it is notified when one of them is deleted."""
        self.unanswered: dict[int, int] = {}
        """Activation times of removed consumers, in ms, by correlation id: the client still owes these
        responses."""
        self._asked = 0

    @property
    def connection_id(self) -> str:
        """The name by which the coordinator of groups knows the connection."""
        return f"{self.number}@{self.socket.node}"

    @property
    def name(self) -> str:
        """The connection's name, as RabbitMQ lists it."""
        here, there = self.socket, f"{self.socket.peer_host}:{self.socket.peer_port}"
        return f"{there} -> {here.local_host}:{here.local_port}"

    @property
    def client_name(self) -> str:
        """The name that the client gave the connection, or the connection's own."""
        return self.properties.get("connection_name") or self.name

    @property
    def catalogue(self) -> Catalogue:
        """The catalogue of the connection's virtual host."""
        return self.cluster.virtual_hosts[self.virtual_host]

    def send(self, frame: Frame) -> None:
        """Send a frame."""
        self.socket.write(encode(frame))

    def next_correlation_id(self) -> int:
        """Return a number for a request to the client."""
        self._asked += 1
        return self._asked - 1

    def handle(self, data: bytes) -> None:
        """Handle one frame.

        :raises MalformedFrame: if it is not a frame.
        """
        if self.step is HandshakeStep.CLOSED:
            return
        frame = decode(data)
        handler = self._handlers.get(type(frame))
        if handler is None or (self.step is not HandshakeStep.OPEN and type(frame) not in BEFORE_OPEN):
            raise MalformedFrame(f"{type(frame).__name__} is not expected from a client now")
        try:
            answer = handler(self, frame)
        except RabbitRequestRefused as refused:
            answer = response_to(frame, refused.code)
        except SacCoordinatorUnreachable as error:
            self.end(str(error))
            return
        if answer is not None:
            self.send(answer)

    def fail(self, error: Exception) -> None:
        """End the connection, since its data can't be trusted any more."""
        if self.step is HandshakeStep.OPEN:
            too_large = isinstance(error, FrameTooLarge)
            code = ResponseCode.FRAME_TOO_LARGE if too_large else ResponseCode.UNKNOWN_FRAME
            self.send(frames.Close(1, code, "frame too large" if too_large else "unknown frame"))
        self.end(str(error), was_told=self.step is HandshakeStep.OPEN)

    def end(self, reason: str = "", *, was_told: bool = False) -> None:
        """Close the connection after pending data is sent. A reason means that something went wrong."""
        if self.step is not HandshakeStep.CLOSED:
            self.lost()
            self.socket.hang_up(reason, was_told=was_told)

    def lost(self) -> None:
        """Remove the publishers and consumers of a connection that ended."""
        if self.step is HandshakeStep.CLOSED:
            return
        self.step = HandshakeStep.CLOSED
        for consumer in self.consumers.values():
            consumer.close_log()
        self.consumers.clear()
        self.publishers.clear()
        self.cluster.groups.connection_down(self)

    def pump(self) -> None:
        """Continue to send, as the client reads again."""
        for consumer in tuple(self.consumers.values()):
            consumer.pump()

    def stream_gone(self, stream: str, code: ResponseCode) -> None:
        """Forget the publishers and consumers of a stream, and tell the client if it had to do with it."""
        consumers = [each for each in self.consumers.values() if each.stream.name == stream]
        publishers = [number for number, each in self.publishers.items() if each.stream.name == stream]
        try:
            for consumer in consumers:
                consumer.remove()
        except SacCoordinatorUnreachable as error:
            self.end(str(error))
            return
        for number in publishers:
            del self.publishers[number]
        if consumers or publishers or stream in self.leaders_asked:
            self.leaders_asked.discard(stream)
            self.send(frames.MetadataUpdate(code, stream))

    def patience_ms(self, now_ms: int) -> int:
        """Return the time that the client has left for its oldest response, in ms; the whole timeout if it
        owes no response."""
        owed = [consumer.owes_since(now_ms) for consumer in self.consumers.values()]
        owed += [now_ms - since_ms for since_ms in self.unanswered.values()]
        return self.cluster.limits.request_timeout_ms - max(owed, default=0)


BEFORE_OPEN: Final = frozenset(
    {
        frames.PeerProperties,
        frames.SaslHandshake,
        frames.SaslAuthenticate,
        frames.Tune,
        frames.TuneResponse,
        frames.Open,
        frames.Heartbeat,
    }
)

_RESPONSES: Final[dict[type, Any]] = {
    each: getattr(frames, f"{name}Response")
    for name, each in vars(frames).items()
    if isinstance(each, type) and issubclass(each, Request) and hasattr(frames, f"{name}Response")
}


def response_to(request: Frame, code: ResponseCode = ResponseCode.OK, **values: Any) -> Frame | None:
    """Return the response to a request; None for a frame without a response."""
    make = _RESPONSES.get(type(request))
    return None if make is None else make(request.correlation_id, code, **values)  # type: ignore[attr-defined]
