"""A node without sockets, and clients that speak frames to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.host import ManualClock
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import ChunkEntry, Frame, Request
from fencepost.coordinator.rabbit_codec.chunks import Chunk, read_chunk
from fencepost.coordinator.rabbit_codec.codec import decode, encode
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_codec.entries import message, messages_of, publish
from fencepost.coordinator.rabbit_codec.fields import FIRST, NONE, WireOffsetSpecification
from fencepost.coordinator.rabbit_server.cluster import Limits, RabbitCluster
from fencepost.coordinator.rabbit_server.connection import HANDLERS
from fencepost.coordinator.rabbit_server.groups import Groups
from fencepost.coordinator.rabbit_server.session import RabbitSession

F = TypeVar("F", bound=Frame)


class Client:
    """One connection. What the node sends is kept in `got` until it is taken."""

    local_host = "127.0.0.1"
    local_port = 5552

    def __init__(self, rig: Rig, number: int, peer_host: str = "127.0.0.1", node: str = "n1") -> None:
        self.rig = rig
        self.node = node
        self.peer_host = peer_host
        self.peer_port = 40_000 + number
        self.is_writable = True
        self.got: list[Frame] = []
        self.hung_up: str | None = None
        """Why, once the node has ended the connection."""
        self.session = RabbitSession(number, rig.cluster, self, HANDLERS)
        rig.cluster.sessions[self.session] = None
        self._correlation_id = 100

    # the session's side

    def write(self, data: bytes) -> None:
        if self.hung_up is None:
            size = int.from_bytes(data[:4], "big")
            assert len(data) == size + 4
            self.got.append(decode(data[4:]))

    def hang_up(self, reason: str, *, was_told: bool) -> None:
        self.hung_up = reason

    # the client's side

    def send(self, frame: Frame) -> None:
        """A frame, and all that comes of it."""
        try:
            self.session.handle(encode(frame)[4:])
        except MalformedFrame as error:
            self.session.fail(error)
        self.rig.settle()

    def ask(self, make: type[Request], *values: Any, **fields: Any) -> Any:
        """The response to a request; what came besides is left in `got`."""
        self._correlation_id += 1
        self.send(make(self._correlation_id, *values, **fields))
        for place, frame in enumerate(self.got):
            if frame.is_response and getattr(frame, "correlation_id", None) == self._correlation_id:
                return self.got.pop(place)
        raise AssertionError(f"no answer among {self.got}")

    def code(self, make: type[Request], *values: Any, **fields: Any) -> ResponseCode:
        """The code of the response to a request."""
        return ResponseCode(self.ask(make, *values, **fields).code)

    def take(self, kind: type[F]) -> F:
        """The next frame of that kind; others are left."""
        for place, frame in enumerate(self.got):
            if isinstance(frame, kind):
                del self.got[place]
                return frame
        raise AssertionError(f"no {kind.__name__} among {self.got}")

    def open(self, user: str = "guest", password: str = "guest", name: str = "") -> Client:
        """From connecting to Open."""
        self.ask(frames.PeerProperties, {"connection_name": name} if name else {})
        assert "PLAIN" in self.ask(frames.SaslHandshake).mechanisms
        self.ask(frames.SaslAuthenticate, "PLAIN", f"\0{user}\0{password}".encode())
        self.take(frames.Tune)
        self.send(frames.Tune(1_048_576, 60))
        assert self.code(frames.Open, "/") is ResponseCode.OK
        return self

    def lose(self) -> None:
        """The connection breaks."""
        del self.rig.cluster.sessions[self.session]
        self.session.lost()
        self.rig.settle()

    def publish(self, stream: str, *values: bytes, publisher_id: int = 0) -> None:
        """One chunk of messages."""
        if publisher_id not in self.session.publishers:
            assert self.code(frames.DeclarePublisher, publisher_id, "", stream) is ResponseCode.OK
        self.send(publish(publisher_id, [ChunkEntry(n, message(value)) for n, value in enumerate(values)]))
        assert self.take(frames.PublishConfirm).publishing_ids == tuple(range(len(values)))

    def subscribe(
        self,
        stream: str,
        subscription_id: int = 0,
        offset: WireOffsetSpecification = FIRST,
        credit: int = 10,
        **properties: str,
    ) -> ResponseCode:
        """The code of the answer; an underscore in a property's name stands for a hyphen."""
        named = {key.replace("_", "-"): value for key, value in properties.items()}
        return self.code(frames.Subscribe, subscription_id, stream, offset, credit, named)

    def join(
        self, stream: str, subscription_id: int = 0, name: str = "app", **properties: str
    ) -> ResponseCode:
        """Subscribe as a single active consumer."""
        return self.subscribe(stream, subscription_id, single_active_consumer="true", name=name, **properties)

    def chunks(self) -> list[Chunk]:
        """All that was delivered and not taken yet."""
        delivered = [frame for frame in self.got if isinstance(frame, frames.Deliver)]
        self.got = [frame for frame in self.got if not isinstance(frame, frames.Deliver)]
        return [read_chunk(frame.chunk) for frame in delivered]

    def messages(self) -> list[bytes | None]:
        """The messages of all that was delivered."""
        return [each for chunk in self.chunks() for each in messages_of(chunk.data)]

    def updates(self) -> list[int]:
        """What ConsumerUpdates said, all taken; the newest is answered by `answer`."""
        asked = [frame for frame in self.got if isinstance(frame, frames.ConsumerUpdate)]
        self.got = [frame for frame in self.got if not isinstance(frame, frames.ConsumerUpdate)]
        self._asked = [*getattr(self, "_asked", ()), *asked]
        return [frame.active for frame in asked]

    def answer(self, offset: WireOffsetSpecification = NONE, place: int = 0) -> None:
        """Answer a ConsumerUpdate that was taken: the oldest one, or that at a place."""
        question = self._asked.pop(place)
        self.send(frames.ConsumerUpdateResponse(question.correlation_id, offset=offset))


class Rig:
    """A node, and a clock that tests move."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualClock(1_000_000)
        self._later: list[Callable[[], None]] = []
        groups = Groups(self.clock, self._later.append)
        self.cluster = RabbitCluster(
            groups, now_ms=self.clock.now_ms, secret=b"secret", limits=Limits(**limits)
        )
        self.cluster.ports["n1"] = 5552
        self._count = 0

    @property
    def now_ms(self) -> int:
        return self.clock.time_ms

    @now_ms.setter
    def now_ms(self, time_ms: int) -> None:
        self.clock.time_ms = time_ms

    def settle(self) -> None:
        while self._later:
            self._later.pop(0)()

    def connect(self, peer_host: str = "127.0.0.1", node: str = "n1") -> Client:
        """A connection that has not said anything."""
        self._count += 1
        return Client(self, self._count, peer_host, node)

    def client(self, name: str = "", node: str = "n1") -> Client:
        """A connection that is open."""
        return self.connect(node=node).open(name=name)

    def streams(self, *names: str) -> None:
        for name in names:
            self.cluster.virtual_hosts["/"].create(name, {})

    def super_stream(self, name: str, partitions: int) -> Sequence[str]:
        names = [f"{name}-{n}" for n in range(partitions)]
        self.cluster.virtual_hosts["/"].create_super(name, names, [str(n) for n in range(partitions)], {})
        return names


@pytest.fixture
def rig() -> Rig:
    return Rig()
