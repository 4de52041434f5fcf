"""The same frames at our node and at a RabbitMQ, drawn by a seed, have the same answers and deliveries.

What a RabbitMQ does not know yet is left out, and so is what it does in an order of its own: one message is
published at a time, so that chunks are the same.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from fencepost import EmbeddedRabbitStream
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import ChunkEntry, Frame, Request
from fencepost.coordinator.rabbit_codec.chunks import read_chunk
from fencepost.coordinator.rabbit_codec.codec import decode, encode
from fencepost.coordinator.rabbit_codec.codes import Key, OffsetType
from fencepost.coordinator.rabbit_codec.entries import batch, message, publish
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification

pytestmark = pytest.mark.real

STEPS: Final = 90
QUIET_S: Final = 0.03
"""Nobody has anything to say any more after that."""
LATE_S: Final = 60.0
"""How long a node may take to say what the other has said."""
CLIENTS: Final = range(3)
NONE: Final = WireOffsetSpecification(OffsetType.NONE)


class Connection:
    """One connection of a client. What the node sends is kept in `got`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.got: list[Frame] = []
        self.updates: list[frames.ConsumerUpdate] = []
        self.is_lost = False
        self._data = b""
        self._asked = 0
        self.ask(frames.PeerProperties, {})
        self.ask(frames.SaslHandshake)
        self.ask(frames.SaslAuthenticate, "PLAIN", b"\0guest\0guest")
        self.send(frames.Tune(1 << 20, 0))
        assert self.ask(frames.Open, "/").code == 1
        self.got.clear()

    def send(self, frame: Frame) -> None:
        self.socket.sendall(encode(frame))

    def ask(self, make: type[Request], *values: Any) -> Any:
        """The answer to a request; what came before it is kept."""
        if make is frames.Subscribe:
            self.answer_for(values[0])
        self._asked += 1
        self.send(make(self._asked, *values))
        end = time.monotonic() + 60
        while time.monotonic() < end and not self.is_lost:
            for place, frame in enumerate(self.got):
                if frame.is_response and getattr(frame, "correlation_id", None) == self._asked:
                    return self.got.pop(place)
            if select.select([self.socket], [], [], 1)[0]:
                self.pull()
        raise AssertionError(f"no answer to {make.__name__}{values}")

    def answer_for(self, number: int) -> None:
        """Owe no answer for a subscription of that number: RabbitMQ takes it for the next one's."""
        for question in [each for each in self.updates if each.subscription_id == number]:
            self.updates.remove(question)
            self.send(frames.ConsumerUpdateResponse(question.correlation_id, offset=NONE))

    def all(self, kind: type[Any]) -> list[Any]:
        """The frames of a kind that were sent and not taken."""
        return [frame for frame in self.got if isinstance(frame, kind)]

    def wait_for(self, holds: Callable[[], bool]) -> None:
        """Read until that is true."""
        end = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < end, self.got
            if select.select([self.socket], [], [], 1)[0]:
                self.pull()

    def pull(self) -> None:
        """Take what there is to be read."""
        data = self.socket.recv(1 << 16)
        self.is_lost = self.is_lost or not data
        self._data += data
        while len(self._data) >= 4 and len(self._data) >= (end := 4 + int.from_bytes(self._data[:4])):
            frame = decode(self._data[4:end])
            self.got.append(frame)
            if isinstance(frame, frames.ConsumerUpdate):
                self.updates.append(frame)
            self._data = self._data[end:]


class Side:
    """A node and the connections to it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.connections: dict[int, Connection] = {}

    def client(self, number: int) -> Connection:
        if number not in self.connections:
            self.connections[number] = Connection(self._address)
        return self.connections[number]

    def lose(self, number: int) -> None:
        if (connection := self.connections.pop(number, None)) is not None:
            connection.socket.close()

    def said(self) -> dict[int, list[str]]:
        """What each connection was sent and not told of yet, besides answers."""
        found = {}
        for number, connection in sorted(self.connections.items()):
            got, connection.got = connection.got, []
            found[number] = sorted(map(shown, got)) + ["lost"] * connection.is_lost
        return found


def settle(*sides: Side) -> None:
    """Read until nobody says anything; who has said less than the other may be busy, and is waited for."""
    started = quiet_since = time.monotonic()
    while (now := time.monotonic()) - quiet_since < QUIET_S or (differ(*sides) and now - started < LATE_S):
        open_ones = {c.socket: c for side in sides for c in side.connections.values() if not c.is_lost}
        for ready in select.select([*open_ones], [], [], QUIET_S / 4)[0]:
            open_ones[ready].pull()
            quiet_since = time.monotonic()


def differ(*sides: Side) -> bool:
    """Whether one was sent more than another."""
    counts = [{number: len(each.got) for number, each in side.connections.items()} for side in sides]
    return any(each != counts[0] for each in counts)


def shown(frame: Frame) -> str:
    """A frame without what differs between two nodes: numbers of questions, times, addresses."""
    match frame:
        case frames.Deliver():
            chunk = read_chunk(frame.chunk)
            return f"Deliver {frame.subscription_id} {chunk._replace(timestamp_ms=0, epoch=0)}"
        case frames.MetadataResponse():
            places = sorted((each.stream, each.code) for each in frame.streams)
            return f"Metadata {len(frame.brokers)} {places}"
        case frames.StreamStatsResponse():
            stats = {name: value for name, value in frame.stats.items() if name != "committed_offset"}
            return f"StreamStats {frame.code} {sorted(stats.items())}"
    fields = [name for name in frame.__struct_fields__ if name != "correlation_id"]
    return f"{type(frame).__name__} {[getattr(frame, name) for name in fields]}"


Step = tuple[str, int, Callable[[Connection], Any]]
"""What it is called, which client does it, and how; what comes of it is the answer, if there is one."""


def script(seed: int, weights: Mapping[str, float]) -> Iterator[Step]:
    """What clients do, one after the other: each kind as often as its weight says."""
    rng = random.Random(seed)
    prefix = f"lockstep-{seed}-{time.time_ns()}-"
    streams = [prefix + name for name in "ab"]
    partitions = [f"{prefix}s-{number}" for number in range(3)]
    published = 0
    yield "create", 0, lambda c: c.ask(frames.Create, streams[0])
    yield "create", 0, lambda c: c.ask(frames.CreateSuperStream, prefix + "s", partitions, ["0", "1", "2"])
    for number in CLIENTS:
        yield "declare", number, lambda c: c.ask(frames.DeclarePublisher, 0, "", streams[0])
    for _ in range(STEPS):
        stream = rng.choice(streams + partitions)
        number, which, credit = rng.randrange(3), rng.randrange(3), rng.choice([0, 1, 2, 10])
        name, reference, stored = rng.choice("xy"), rng.choice(["", "r1", "r2"]), rng.randrange(12)
        where = rng.choice(
            [WireOffsetSpecification(OffsetType(kind)) for kind in (1, 2, 3)]
            + [WireOffsetSpecification(OffsetType.OFFSET, rng.randrange(14))]
        )
        single = {"single-active-consumer": "true", "name": name}
        if stream in partitions:
            single["super-stream"] = prefix + "s"
        filtered = {"filter.0": rng.choice(["f1", "f2"]), "match-unfiltered": rng.choice(["true", "false"])}
        properties = rng.choice([{}, single, single, filtered])
        value = rng.choice(["f1", "f2", "", None])
        kind = rng.choices(*zip(*weights.items(), strict=True))[0]
        match kind:
            case "publish" | "batch" | "filtered":
                again = rng.random() < 0.2
                published += not again
                data = batch([b"one", b"two"]) if kind == "batch" else message(b"%d" % published)
                records = 2 if kind == "batch" else 1
                entry = ChunkEntry(published, data, records, value if kind == "filtered" else None)
                publisher = 0 if kind == "filtered" else which
                frame = publish(publisher, [entry])
                yield kind, number, lambda c, frame=frame: c.send(frame)  # type: ignore[misc]
            case "credit" | "store":
                said = (
                    frames.Credit(which, credit)
                    if kind == "credit"
                    else frames.StoreOffset(name, stream, stored)
                )
                yield kind, number, lambda c, said=said: c.send(said)  # type: ignore[misc]
            case "answer":
                place = rng.choice([NONE, where])
                yield kind, number, lambda c, place=place: answered(c, place)  # type: ignore[misc]
            case "lose":
                yield kind, number, lambda c: None
            case _:
                values = {
                    "create": (frames.Create, stream, rng.choice([{}, {"max-age": "1h"}, {"nonsense": "x"}])),
                    "delete": (frames.Delete, stream),
                    "declare": (frames.DeclarePublisher, which, reference, stream),
                    "delete publisher": (frames.DeletePublisher, which),
                    "subscribe": (frames.Subscribe, which, stream, where, credit, properties),
                    "unsubscribe": (frames.Unsubscribe, which),
                    "query": (frames.QueryOffset, name, stream),
                    "sequence": (frames.QueryPublisherSequence, reference or "r1", stream),
                    "stats": (frames.StreamStats, stream),
                    "resolve": (frames.ResolveOffsetSpec, stream, where),
                    "metadata": (frames.Metadata, rng.choice([(stream, prefix + "none", stream), (stream,)])),
                    "partitions": (frames.Partitions, prefix + "s"),
                    "route": (frames.Route, rng.choice("0129"), prefix + "s"),
                }[kind]
                yield f"{kind} {values[1:]}", number, lambda c, values=values: c.ask(*values)  # type: ignore[misc]
    yield "delete", 0, lambda c: c.ask(frames.DeleteSuperStream, prefix + "s")
    for stream in streams + partitions:
        yield "delete", 0, lambda c, stream=stream: c.ask(frames.Delete, stream)  # type: ignore[misc]


def answered(connection: Connection, place: WireOffsetSpecification) -> None:
    """Answer the oldest question whether to be active, if there is one."""
    if connection.updates:
        question = connection.updates.pop(0)
        connection.send(frames.ConsumerUpdateResponse(question.correlation_id, offset=place))


WEIGHTS: Final = {
    "publish": 10,
    "batch": 2,
    "filtered": 2,
    "subscribe": 10,
    "answer": 10,
    "credit": 5,
    "store": 4,
    "query": 3,
    "declare": 4,
    "stats": 4,
    "resolve": 4,
    "create": 2,
    "unsubscribe": 3,
    "sequence": 2,
    "metadata": 1,
    "partitions": 1,
    "route": 1,
    "delete publisher": 1,
    "lose": 1,
    "delete": 0.5,
}


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_same_frames_have_the_same_answers(seed: int, real_rabbitmq: tuple[str, int]) -> None:
    with EmbeddedRabbitStream() as rabbit:
        ours, theirs = Side((rabbit.host, rabbit.port)), Side(real_rabbitmq)
        told = []
        commands = theirs.client(0).ask(frames.ExchangeCommandVersions, ()).versions
        resolves = any(each.key == Key.RESOLVE_OFFSET_SPEC for each in commands)
        try:
            for what, number, do in script(seed, WEIGHTS | ({} if resolves else {"resolve": 0})):
                answers = [
                    shown(a) if (a := do(side.client(number))) is not None else "" for side in (ours, theirs)
                ]
                if what == "lose":
                    ours.lose(number)
                    theirs.lose(number)
                settle(ours, theirs)
                told.append(f"{number} {what}: {answers[0]}")
                assert [answers[0], ours.said()] == [answers[1], theirs.said()], "\n".join(told)
        finally:
            for side in (ours, theirs):
                for number in CLIENTS:
                    side.lose(number)


@pytest.mark.parametrize("count", [31, 33, 100, 1_000])
def test_chunks_have_rabbitmqs_sizes(count: int, real_rabbitmq: tuple[str, int]) -> None:
    with EmbeddedRabbitStream() as rabbit:
        ours = chunk_sizes((rabbit.host, rabbit.port), count)
    # A busy RabbitMQ may begin to write before it has read the whole frame.
    assert ours in (chunk_sizes(real_rabbitmq, count) for _ in range(20))


def chunk_sizes(address: tuple[str, int], count: int) -> list[int]:
    """Return the numbers of messages in the chunks of a new stream, after one frame of so many."""
    client, stream = Connection(address), f"sizes-{count}"
    client.ask(frames.Create, stream, {})
    client.ask(frames.DeclarePublisher, 1, "", stream)
    client.send(publish(1, [ChunkEntry(number, message(b"x")) for number in range(count)]))
    client.wait_for(
        lambda: sum(len(each.publishing_ids) for each in client.all(frames.PublishConfirm)) == count
    )
    client.ask(frames.Subscribe, 1, stream, WireOffsetSpecification(OffsetType.FIRST), count, {})

    def sizes() -> list[int]:
        return [read_chunk(each.chunk).records for each in client.all(frames.Deliver)]

    client.wait_for(lambda: sum(sizes()) == count)
    found = sizes()
    client.ask(frames.Delete, stream)
    client.socket.close()
    return found
