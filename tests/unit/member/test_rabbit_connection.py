"""The transport of single active consumers at nodes that do not do what they should."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import BrokerAddress, Frame, StreamPlace
from fencepost.coordinator.rabbit_codec.chunks import write_chunk
from fencepost.coordinator.rabbit_codec.codec import decode, encode
from fencepost.coordinator.rabbit_codec.entries import message
from fencepost.member.base.transport import Disconnected, TransportError
from fencepost.member.rabbit import connection as rabbit_connection
from fencepost.member.rabbit.transport import RabbitTransport
from fencepost.member.sac.consumer import SingleActiveConsumer
from fencepost.member.sac.transport import SacSubscription, SubscriptionRefused

pytestmark = pytest.mark.real

ORDERS = SacSubscription(stream="orders", name="billing")


class Ear:
    """What a connection tells its consumer."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.is_gone = asyncio.Event()

    def consumer_update(self, correlation_id: int, active: bool) -> None:
        self.heard.append(f"update {correlation_id} {active}")

    def delivered(self, first: int, messages: Sequence[bytes]) -> None:
        self.heard.append(f"delivered {first} {messages!r}")

    def unreadable(self, first: int, count: int, reason: str) -> None:
        self.heard.append(f"unreadable {first} {count}: {reason}")

    def disconnected(self, reason: str) -> None:
        self.heard.append(f"disconnected: {reason}")
        self.is_gone.set()


class Node:
    """Answers frames as it is told: a list of frames for each that comes; bytes are sent as they are."""

    def __init__(self, **answers: Callable[[Any], list[Frame | bytes]]) -> None:
        self.answers: dict[str, Callable[[Any], list[Frame | bytes]]] = {
            "PeerProperties": lambda asked: [frames.PeerPropertiesResponse(asked.correlation_id)],
            "SaslHandshake": lambda asked: [frames.SaslHandshakeResponse(asked.correlation_id)],
            "SaslAuthenticate": lambda asked: [
                frames.SaslAuthenticateResponse(asked.correlation_id),
                frames.Tune(0, self.heartbeat_s),
            ],
            "Open": lambda asked: [frames.OpenResponse(asked.correlation_id)],
            "Metadata": lambda asked: [self.places(asked)],
            "Subscribe": lambda asked: [frames.SubscribeResponse(asked.correlation_id)],
            "Close": lambda asked: [frames.CloseResponse(asked.correlation_id)],
            **answers,
        }
        self.heartbeat_s = 0
        self.heard: list[str] = []
        self.port = 0
        self.replicas: list[int] = []
        self._serving: dict[Any, asyncio.StreamWriter] = {}
        self._is_over = False
        """It has hung up, and only listens until its clients have."""

    def places(self, asked: Any) -> frames.MetadataResponse:
        ports = [*self.replicas, self.port]
        brokers = [BrokerAddress(n, "127.0.0.1", port) for n, port in enumerate(ports)]
        place = StreamPlace("orders", 1, len(ports) - 1, range(len(self.replicas)))
        return frames.MetadataResponse(asked.correlation_id, brokers, [place])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving[asyncio.current_task()] = writer
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                asked = decode(await reader.readexactly(size))
                name = type(asked).__name__
                self.heard.append(name)
                for each in () if self._is_over else self.answers.get(name, lambda asked: [])(asked):
                    writer.write(each if isinstance(each, bytes) else encode(each))

    def pause(self, seconds: float) -> None:
        """Read nothing for so long."""
        (writer,) = self._serving.values()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_later(seconds, writer.transport.resume_reading)  # type: ignore[attr-defined]

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Node]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self._is_over = True
            for writer in self._serving.values():
                if not writer.transport.is_closing():
                    writer.write_eof()
            # A loop that ends before a client has heard of it would leave the client's socket open.
            await asyncio.gather(*self._serving)
            for writer in self._serving.values():
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()


async def connected(node: Node, ear: Ear, **settings: Any) -> Any:
    transport = RabbitTransport("orders", port=node.port, rng=random.Random(1), **settings)
    return await asyncio.wait_for(transport.connect(ear), 20)


async def test_a_node_that_is_not_there_is_a_lost_connection() -> None:
    async with Node().listening() as node:
        pass
    with pytest.raises(Disconnected, match=f"127.0.0.1:{node.port}"):
        await connected(node, Ear())


@pytest.mark.parametrize("answer", [b"\0\0\0\4\0\x63\0\1", b"\x7f\xff\xff\xff", b"\0\0\0\0"])
async def test_a_node_that_says_what_makes_no_sense_is_a_lost_connection(answer: bytes) -> None:
    async with Node(SaslHandshake=lambda asked: [answer]).listening() as node:
        with pytest.raises(Disconnected):
            await connected(node, Ear())


async def test_replicas_are_preferred_to_the_leader() -> None:
    async with Node().listening() as replica, Node().listening() as leader:
        async with Node().listening() as entrance:
            entrance.replicas = [replica.port]
            entrance.port, there = leader.port, entrance.port
            transport = RabbitTransport("orders", port=there)
            connection = await asyncio.wait_for(transport.connect(Ear()), 20)
            connection.close()
        assert "Open" in replica.heard
        assert leader.heard == []


async def test_a_stream_that_nobody_has_now_is_tried_again_later() -> None:
    nowhere = StreamPlace("orders", 6, 65535)
    answer = {"Metadata": lambda asked: [frames.MetadataResponse(asked.correlation_id, (), (nowhere,))]}
    async with Node(**answer).listening() as node:
        with pytest.raises(TransportError, match="no node has the stream 'orders' now"):
            await connected(node, Ear())


async def test_a_stream_that_is_not_available_is_tried_again_later() -> None:
    busy = {"Subscribe": lambda asked: [frames.SubscribeResponse(asked.correlation_id, 6)]}
    async with Node(**busy).listening() as node:
        connection = await connected(node, Ear())
        with pytest.raises(TransportError, match="STREAM_NOT_AVAILABLE"):
            await connection.subscribe(ORDERS)
        connection.close()


async def test_a_stream_that_goes_away_ends_the_connection() -> None:
    gone = {
        "Subscribe": lambda asked: [
            frames.SubscribeResponse(asked.correlation_id),
            frames.ConsumerUpdate(9, 0, 1),
            frames.MetadataUpdate(6, "orders"),
        ]
    }
    async with Node(**gone).listening() as node:
        ear = Ear()
        connection = await connected(node, ear)
        await connection.subscribe(ORDERS)
        await asyncio.wait_for(ear.is_gone.wait(), 20)
        assert ear.heard == [
            "update 9 True",
            "disconnected: 'orders' was deleted or is moving: STREAM_NOT_AVAILABLE",
        ]
        with pytest.raises(TransportError):
            await connection.query_offset(ORDERS)


async def test_a_chunk_that_was_damaged_ends_the_connection() -> None:
    damaged = {"Subscribe": lambda asked: [frames.Deliver(0, bytes(48))]}
    async with Node(**damaged).listening() as node:
        ear = Ear()
        connection = await connected(node, ear)
        with pytest.raises(TransportError, match="expected 0x50"):
            await connection.subscribe(ORDERS)
        assert ear.heard == ["disconnected: chunk 0x00 of type 0, expected 0x50 of type 0"]


GOODBYE = frames.Close(1, 13, "unknown frame")
WHY = "the node closes the connection: unknown frame (13)"


async def test_messages_that_cannot_be_read_do_not_end_the_connection() -> None:
    bad = write_chunk(7, 0, 1, [b"\xb0\0\2\0\0\0\x08\0\0\0\1x"], 2)
    said = [frames.Deliver(0, bad), frames.Deliver(0, write_chunk(9, 0, 1, [message(b"x")], 1))]
    answers = {"Subscribe": lambda asked: [frames.SubscribeResponse(asked.correlation_id), *said, GOODBYE]}
    async with Node(**answers).listening() as node:
        ear = Ear()
        connection = await connected(node, ear)
        await connection.subscribe(ORDERS)
        await asyncio.wait_for(ear.is_gone.wait(), 20)
        unreadable, *others = ear.heard
        assert unreadable.startswith("unreadable 7 2: a batch marked as lz4 that is not: ")
        assert others == ["delivered 9 [b'x']", f"disconnected: {WHY}"]


async def test_the_consumer_hears_why_a_connection_is_given_up() -> None:
    answers = {"Subscribe": lambda asked: [frames.SubscribeResponse(asked.correlation_id), GOODBYE]}
    async with Node(**answers).listening() as node:
        ear = Ear()
        connection = await connected(node, ear)
        await connection.subscribe(ORDERS)
        await asyncio.wait_for(ear.is_gone.wait(), 20)
        assert ear.heard == [f"disconnected: {WHY}"]


async def test_a_connection_that_is_closed_tells_nothing_more() -> None:
    async with Node().listening() as node:
        ear = Ear()
        connection = await connected(node, ear)
        asked = connection.query_offset(ORDERS)
        await asyncio.sleep(0)
        connection.close()
        with pytest.raises(TransportError):
            await asked
        with pytest.raises(TransportError):
            await connection.subscribe(ORDERS)
        assert ear.heard == []


async def test_a_node_hears_all_that_was_said_before_a_connection_is_closed() -> None:
    """What the client does not read while it goes would reset the socket, and take along what was sent."""
    chunk = frames.Deliver(0, write_chunk(0, 0, 1, [message(bytes(1000))], 1))

    def busy(asked: Any) -> list[Frame | bytes]:
        node.pause(0.1)
        return [frames.SubscribeResponse(asked.correlation_id), *[chunk] * 300]

    async with Node(Subscribe=busy).listening() as node:
        connection = await connected(node, Ear())
        await connection.subscribe(ORDERS)
        for offset in range(5):
            connection.store_offset(ORDERS, offset)
        connection.close()
        connection.close()
        for _ in range(2):
            await asyncio.wait_for(connection.wait_closed(), 20)
        assert node.heard[-6:] == ["StoreOffset"] * 5 + ["Close"]


async def test_a_node_that_does_not_answer_close_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbit_connection, "CLOSE_TIMEOUT_S", 0.05)
    async with Node(Close=lambda asked: []).listening() as node:
        connection = await connected(node, Ear())
        connection.close()
        await asyncio.wait_for(connection.wait_closed(), 20)
        assert node.heard[-1] == "Close"


async def test_silence_ends_the_connection_where_heartbeats_are_agreed() -> None:
    node = Node()
    node.heartbeat_s = 1
    async with node.listening():
        ear = Ear()
        await connected(node, ear)
        await asyncio.wait_for(ear.is_gone.wait(), 30)
        assert "Heartbeat" in node.heard
        assert ear.heard[-1].startswith("disconnected: the node has sent nothing for 2.")


@pytest.mark.parametrize(
    ("settings", "kind", "why"),
    [
        ({"stream": 3}, TypeError, "stream should be text, got 3"),
        ({"host": ""}, ValueError, "host should be 1 to 4,000 bytes of text, got ''"),
        ({"port": "x"}, TypeError, "port should be a whole number, got 'x'"),
        ({"port": True}, TypeError, "port should be a whole number, got True"),
        ({"port": 0}, ValueError, "port should be 1 to 65,535, got 0"),
        ({"port": 65_536}, ValueError, "port should be 1 to 65,535, got 65536"),
        ({"username": None}, TypeError, "username should be text, got None"),
        ({"username": ""}, ValueError, "username should be 1 to 4,000 bytes of text"),
        ({"password": b"secret"}, TypeError, "password should be text$"),
        ({"password": "secret" * 1_000}, ValueError, "password should be 0 to 4,000 bytes of text$"),
        ({"virtual_host": 1}, TypeError, "virtual_host should be text, got 1"),
        ({"client_name": 7}, TypeError, "client_name should be text, got 7"),
        ({"client_name": "x" * 40_000}, ValueError, "client_name should be 0 to 4,000 bytes .* 'xxx"),
        ({"tls": True}, TypeError, "tls should be an ssl.SSLContext, got True"),
        ({"heartbeat_s": 0.5}, TypeError, "heartbeat_s should be a whole number, got 0.5"),
        (
            {"address_resolver": ("h", 1)},
            TypeError,
            "address_resolver should be a function of a host and a port",
        ),
        ({"heartbeat_s": -1}, ValueError, "heartbeat_s should be 0 to 4,294,967,295, got -1"),
    ],
)
def test_settings_are_checked_before_anything_is_connected(
    settings: dict[str, Any], kind: type[Exception], why: str
) -> None:
    with pytest.raises(kind, match=why) as caught:
        RabbitTransport(**{"stream": "orders", **settings})
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 200


async def test_settings_at_their_limits_are_understood_by_a_node() -> None:
    async with Node().listening() as node:
        longest = "x" * 4_000
        connection = await connected(
            node, Ear(), username=longest, password=longest, client_name=longest, virtual_host=longest
        )
        connection.close()


async def test_a_node_that_speaks_no_tls_is_a_lost_connection() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport = RabbitTransport("orders", port=port, tls=ssl.create_default_context())
    with pytest.raises(Disconnected, match=f":{port}: .*Connection"):
        await asyncio.wait_for(transport.connect(Ear()), 20)
    server.close()


async def test_a_node_that_answers_about_no_stream_is_a_lost_connection() -> None:
    def nothing(asked: Any) -> list[Frame | bytes]:
        return [frames.MetadataResponse(asked.correlation_id, [], [])]

    async with Node(Metadata=nothing).listening() as node:
        with pytest.raises(TransportError, match="about 'orders'"):
            await connected(node, Ear())


async def test_a_subscription_to_another_stream_than_the_transports_is_refused() -> None:
    async with Node().listening() as node:
        payments = SacSubscription(stream="payments", name="billing")
        consumer = SingleActiveConsumer(payments, RabbitTransport("orders", port=node.port))
        with pytest.raises(SubscriptionRefused, match="is to 'payments', and its transport is for 'orders'"):
            await asyncio.wait_for(consumer.start(), 20)
        await consumer.close()
    assert "Subscribe" not in node.heard


async def test_a_partition_index_is_refused_because_the_protocol_carries_none() -> None:
    async with Node().listening() as node:
        for super_stream in (None, "sales"):
            wanted = SacSubscription(
                stream="orders", name="billing", super_stream=super_stream, partition_index=0
            )
            consumer = SingleActiveConsumer(wanted, RabbitTransport("orders", port=node.port))
            with pytest.raises(SubscriptionRefused, match=r"partition_index is 0, .* set super_stream"):
                await asyncio.wait_for(consumer.start(), 20)
            await consumer.close()
    assert "Subscribe" not in node.heard


def calling_itself(node: Node, port: int) -> None:
    """Let a node advertise this port."""
    properties = {"advertised_host": "127.0.0.1", "advertised_port": str(port)}
    node.answers["Open"] = lambda asked: [frames.OpenResponse(asked.correlation_id, properties=properties)]


async def test_it_stays_on_a_node_that_has_the_stream_whatever_address_leads_there() -> None:
    async with Node().listening() as node:
        there = node.port
        node.port = 1  # what it advertises: nothing listens there
        calling_itself(node, 1)
        transport = RabbitTransport("orders", port=there)
        connection = await asyncio.wait_for(transport.connect(Ear()), 20)
        connection.close()
    assert node.heard.count("Open") == 1


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_address_resolver_leads_to_nodes_whose_own_address_is_out_of_reach(is_async: bool) -> None:
    asked: list[tuple[str, int]] = []
    async with Node().listening() as entrance, Node().listening() as other, Node().listening() as owner:
        ways = [other.port, owner.port]

        def resolve(host: str, port: int) -> tuple[str, int]:
            asked.append((host, port))
            return "127.0.0.1", ways[min(len(asked), 2) - 1]

        async def resolve_later(host: str, port: int) -> tuple[str, int]:
            return resolve(host, port)

        there = entrance.port
        entrance.port = 1
        for node, port in ((entrance, 3), (other, 2), (owner, 1)):
            calling_itself(node, port)
        resolver = resolve_later if is_async else resolve
        transport = RabbitTransport("orders", port=there, address_resolver=resolver)
        connection = await asyncio.wait_for(transport.connect(Ear()), 20)
        assert connection.advertised == ("127.0.0.1", 1)  # type: ignore[attr-defined]
        connection.close()
    assert asked == [("127.0.0.1", 1)] * 2
    assert [node.heard.count("Open") for node in (entrance, other, owner)] == [1, 1, 1]


async def test_an_address_resolver_that_leads_nowhere_is_tried_again_later() -> None:
    async with Node().listening() as entrance:
        there = entrance.port
        entrance.port = 1
        calling_itself(entrance, 2)
        transport = RabbitTransport(
            "orders", port=there, address_resolver=lambda host, port: ("127.0.0.1", there)
        )
        with pytest.raises(TransportError, match=f"no node that has the stream 'orders' in 10 .*:{there}"):
            await asyncio.wait_for(transport.connect(Ear()), 20)


@pytest.mark.parametrize(
    ("found", "kind", "why"),
    [
        ("localhost:1", TypeError, r"address_resolver should return \(host, port\), got 'localhost:1'"),
        ((None, 1), TypeError, "the host from address_resolver should be text, got None"),
        (("localhost", 0), ValueError, "the port from address_resolver should be 1 to 65,535, got 0"),
    ],
)
async def test_what_an_address_resolver_returns_is_checked(
    found: Any, kind: type[Exception], why: str
) -> None:
    async with Node().listening() as entrance:
        there = entrance.port
        entrance.port = 1
        transport = RabbitTransport("orders", port=there, address_resolver=lambda host, port: found)
        consumer = SingleActiveConsumer(ORDERS, transport)
        with pytest.raises(kind, match=why):
            await asyncio.wait_for(consumer.start(), 20)
        await consumer.close()
