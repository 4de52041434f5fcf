"""Every verb of an embedded RabbitMQ, and what it says to mistakes. Real clients are in conformance."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fencepost import EmbeddedRabbitStream
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import ChunkEntry
from fencepost.coordinator.rabbit_codec.codec import decode, encode
from fencepost.coordinator.rabbit_codec.fields import FIRST
from fencepost.coordinator.rabbit_codec.frames import ConsumerUpdate, Deliver
from fencepost.simulation.embedded import rabbit_groups


class Client:
    """A consumer by hand."""

    def __init__(self, rabbit: EmbeddedRabbitStream, name: str, node: int = 1) -> None:
        self.socket = socket.create_connection((rabbit.host, rabbit.ports[node - 1]), timeout=60)
        try:
            self._open(name)
        except EOFError:
            self.socket.close()
            raise

    def _open(self, name: str) -> None:
        self.send(frames.PeerProperties(1, {"connection_name": name}), frames.SaslHandshake(2))
        self.send(frames.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"))
        while not isinstance(self.receive(), frames.Tune):
            pass
        self.send(frames.Tune(0, 0), frames.Open(4, "/"))
        assert isinstance(self.receive(), frames.OpenResponse)

    def send(self, *sent: Any) -> None:
        self.socket.sendall(b"".join(map(encode, sent)))

    def receive(self) -> Any:
        size = int.from_bytes(self._exactly(4), "big")
        return decode(self._exactly(size))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def join(self, stream: str, **properties: str) -> None:
        named = {key.replace("_", "-"): value for key, value in properties.items()}
        named |= {"single-active-consumer": "true", "name": "g"}
        self.send(frames.Subscribe(5, 0, stream, FIRST, 10, named))
        assert isinstance(self.receive(), frames.SubscribeResponse)

    def answer(self, active: int) -> None:
        update = self.receive()
        assert isinstance(update, ConsumerUpdate)
        assert update.active == active
        self.send(frames.ConsumerUpdateResponse(update.correlation_id))


@pytest.fixture
def rabbit() -> Iterator[EmbeddedRabbitStream]:
    with EmbeddedRabbitStream() as running:
        yield running


@pytest.fixture
def clients(rabbit: EmbeddedRabbitStream) -> Iterator[Any]:
    made: list[Client] = []

    def connect(name: str) -> Client:
        made.append(Client(rabbit, name))
        return made[-1]

    yield connect
    for each in made:
        each.socket.close()


def test_streams_are_made_filled_read_and_deleted(rabbit: EmbeddedRabbitStream) -> None:
    rabbit.create_stream("s", {"max-length-bytes": 1000})
    assert rabbit.publish("s", "a", b"b") == [0, 1]
    assert rabbit.publish("s", "c") == [2]
    assert [(each.offset, each.value) for each in rabbit.messages("s")] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert rabbit.offsets("s") == {}
    assert rabbit.create_super_stream("x", 2) == ["x-0", "x-1"]
    assert rabbit.create_super_stream("y", ("eu", "us")) == ["y-eu", "y-us"]
    assert rabbit.add_partition("x") == "x-2"
    assert rabbit.add_partition("y", "asia", {"max-age": "1h"}) == "y-asia"
    rabbit.delete_stream("x")
    rabbit.delete_stream("s")
    assert rabbit.streams() == ["y-asia", "y-eu", "y-us"]


def test_a_batch_that_no_client_can_read_is_told(rabbit: EmbeddedRabbitStream) -> None:
    rabbit.create_stream("s")
    rabbit.publish("s", "fine")
    stream = rabbit.endpoint.catalogue.stream("s")
    broken = struct.pack(">BHII", 0x80, 1, 9, 9) + struct.pack(">I", 100) + b"short"
    stream.append([ChunkEntry(0, broken)], "", 0)
    with pytest.raises(
        FencepostError, match="stream 's', from offset 1 on: a publisher sent a batch that no client"
    ):
        rabbit.messages("s")


def test_a_group_is_waited_for_and_looked_at(rabbit: EmbeddedRabbitStream, clients: Any) -> None:
    rabbit.create_super_stream("x", 2)
    rabbit.publish("x-1", "a")
    group = rabbit.group("x-1", "g")
    assert (group.consumers(), group.active, group.partition_index) == ([], None, None)
    one = clients("one")
    one.join("x-1", super_stream="x")
    one.answer(1)
    assert isinstance(one.receive(), Deliver)
    (alone,) = group.wait_settled(consumers=1)
    assert (alone.client_name, alone.state, alone.is_active) == ("one", "active (connected)", True)
    assert group.partition_index == 1

    two = clients("two")
    two.join("x-1", super_stream="x")
    with pytest.raises(TimeoutError, match=r"one is deactivating \(connected\); two is waiting"):
        group.wait_settled(timeout=0)
    one.answer(0)
    two.answer(1)
    group.wait_settled(consumers=2)
    assert group.active is not None
    assert group.active.client_name == "two"

    rabbit.disconnect(group.active)
    one.answer(1)
    assert [each.client_name for each in group.wait_settled(consumers=1)] == ["one"]
    rabbit.disconnect("one")
    assert group.wait_settled(consumers=0) == []
    with pytest.raises(TimeoutError, match="it has no consumers, 3 expected"):
        group.wait_settled(consumers=3, timeout=0)


def test_an_operator_can_let_a_group_choose_anew(rabbit: EmbeddedRabbitStream, clients: Any) -> None:
    rabbit.create_super_stream("x", 2)
    one, two = clients("one"), clients("two")
    one.join("x-1", super_stream="x")
    one.answer(1)
    two.join("x-1", super_stream="x")
    assert one.receive().active == 0
    rabbit.group("x-1", "g").activate()
    two.answer(1)
    assert rabbit.group("x-1", "g").active.client_name == "two"


@pytest.mark.real
async def test_the_same_is_awaited(clients: Any, rabbit: EmbeddedRabbitStream) -> None:
    rabbit.create_stream("s")
    one = clients("one")
    one.join("s")
    one.answer(1)
    (settled,) = await rabbit.awaited.group("s", "g").wait_settled(consumers=1)
    assert settled.is_active


def test_a_consumer_that_never_answers_is_cut_off() -> None:
    with EmbeddedRabbitStream(request_timeout=0.05) as rabbit:
        rabbit.create_stream("s")
        one = Client(rabbit, "one")
        one.join("s")
        rabbit.group("s", "g").wait_settled(consumers=0)
        one.socket.close()


def test_nodes_are_cut_off_and_come_back() -> None:
    with EmbeddedRabbitStream(nodes=2, disconnected_timeout=0.2) as rabbit:
        rabbit.create_stream("s")
        one, two = Client(rabbit, "one"), Client(rabbit, "two", node=2)
        one.join("s")
        one.answer(1)
        two.join("s")
        group = rabbit.group("s", "g")
        assert [each.node for each in group.wait_settled(consumers=2)] == [1, 2]
        rabbit.cut(1)
        assert group.active is not None
        assert group.active.client_name == "one"
        two.answer(1)
        found = {each.client_name: each.state for each in group.wait_settled(consumers=2)}
        assert found == {"one": "active (presumed down)", "two": "active (connected)"}
        assert group.active is not None
        assert group.active.client_name == "two"
        rabbit.heal(1)
        one.answer(0)
        one.answer(1)
        two.answer(0)
        group.wait_settled(consumers=2)
        for each in (one, two):
            each.socket.close()


def test_groups_settle_whatever_words_are_shown_for_states(
    rabbit: EmbeddedRabbitStream, clients: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rabbit_groups, "described", lambda one: f"<{one.status}>")
    rabbit.create_stream("s")
    one = clients("one")
    one.join("s")
    one.answer(1)
    (settled,) = rabbit.group("s", "g").wait_settled(consumers=1)
    assert (settled.state, settled.is_active) == ("<CONNECTED_ACTIVE>", True)


def test_other_users_than_guest(rabbit: EmbeddedRabbitStream) -> None:
    with EmbeddedRabbitStream(users={"anna": "secret"}) as other, pytest.raises(EOFError):
        Client(other, "guest is nobody here")


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda rabbit: rabbit.create_stream("there"), "the stream 'there' exists"),
        (lambda rabbit: rabbit.create_stream(""), "expected 1 to 255 bytes"),
        (
            lambda rabbit: rabbit.create_stream("x", {"max-age": "old"}),
            "max-age='old': expected a number",
        ),
        (lambda rabbit: rabbit.create_stream(3), "the name 3: expected text"),
        (lambda rabbit: rabbit.create_stream("\ud800"), "expected text that UTF-8 can express"),
        (lambda rabbit: rabbit.create_stream("x", ["max-age"]), "arguments=.*: expected a mapping"),
        (lambda rabbit: rabbit.create_stream("x", {3: "1h"}), "arguments: 3 is not the name of an argument"),
        (lambda rabbit: rabbit.create_super_stream(3), "the name 3: expected text"),
        (lambda rabbit: rabbit.create_super_stream("x", 1, "1h"), "arguments='1h': expected a mapping"),
        (lambda rabbit: rabbit.create_super_stream("x", []), "expected at least one binding key"),
        (lambda rabbit: rabbit.create_super_stream("x", ["\ud800"]), "text that UTF-8 can express"),
        (lambda rabbit: rabbit.create_super_stream("x", 0), "partitions=0: expected a whole number"),
        (
            lambda rabbit: rabbit.create_super_stream("x", 10**12),
            "partitions=.*: expected a whole",
        ),
        (lambda rabbit: rabbit.group("there", 3), "group 3: expected the name of its consumers"),
        (lambda rabbit: rabbit.group("", "g"), "stream '': expected a name"),
        (lambda rabbit: rabbit.create_super_stream("x", "eu"), "partitions='eu': expected a number, or"),
        (lambda rabbit: rabbit.create_super_stream("x", ["a", "a"]), "all different"),
        (lambda rabbit: rabbit.add_partition("none"), "there is no super stream 'none'"),
        (lambda rabbit: rabbit.add_partition("none", "0"), "there is no super stream 'none'"),
        (lambda rabbit: rabbit.add_partition("x", 3), "the name 3: expected text"),
        (lambda rabbit: rabbit.delete_stream("none"), "there is no stream 'none'"),
        (lambda rabbit: rabbit.publish("none", "x"), "there is no stream 'none'"),
        (lambda rabbit: rabbit.publish("there", "x", 5), "value=5: expected bytes or text"),
        (lambda rabbit: rabbit.publish("there", None), "value=None: expected bytes or text"),
        (lambda rabbit: rabbit.publish("there", "\ud800"), "value=.*: expected text that UTF-8 can express"),
        (lambda rabbit: rabbit.messages("none"), "there is no stream 'none'"),
        (lambda rabbit: rabbit.disconnect("nobody"), "no connection 'nobody' is open"),
        (lambda rabbit: rabbit.start(), "is running already"),
        (lambda rabbit: rabbit.group("there", "g").wait_settled(consumers=-1), "consumers=-1"),
        (lambda rabbit: rabbit.cut(2), "there is no node 2; there are 1 to 1"),
        (lambda rabbit: rabbit.cut("1"), "there is no node '1'; there are 1 to 1"),
        (lambda rabbit: rabbit.cut(True), "there is no node True"),
        (lambda rabbit: rabbit.heal("one"), "there is no node 'one'"),
        (lambda rabbit: rabbit.group("there", "g").activate(), "group 'g' of 'there': not_found"),
        (lambda rabbit: EmbeddedRabbitStream(nodes=0), "nodes=0: expected a whole number"),
        (lambda rabbit: EmbeddedRabbitStream(nodes=2, port=5552), "port=5552: expected with one node"),
        (lambda rabbit: EmbeddedRabbitStream(port=70_000), "port=70000"),
        (lambda rabbit: EmbeddedRabbitStream(request_timeout=-1), "request_timeout=-1: expected seconds"),
        (lambda rabbit: EmbeddedRabbitStream().publish("s"), "this RabbitMQ is not running"),
        (lambda rabbit: EmbeddedRabbitStream().port, "this RabbitMQ is not running"),
    ],
)
def test_mistakes_are_told_in_one_line(rabbit: EmbeddedRabbitStream, call: Any, why: str) -> None:
    rabbit.create_stream("there")
    with pytest.raises(FencepostError, match=why) as caught:
        call(rabbit)
    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken_is_told(rabbit: EmbeddedRabbitStream) -> None:
    other = EmbeddedRabbitStream(port=rabbit.port)
    with pytest.raises(EnvironmentLacks, match="is taken"):
        other.start()
    other.close()


@pytest.mark.processes
def test_it_needs_no_library_of_kafkas() -> None:
    code = (
        "import sys\n"
        "sys.modules['kio'] = sys.modules['aiokafka'] = None\n"
        "from fencepost import EmbeddedRabbitStream\n"
        "with EmbeddedRabbitStream() as rabbit:\n"
        "    rabbit.create_stream('s')\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
