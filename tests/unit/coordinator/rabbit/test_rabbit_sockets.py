"""Connections over real sockets: whatever a client sends or leaves out, nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
from typing import Any

import pytest
import structlog

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import ChunkEntry, Frame
from fencepost.coordinator.rabbit_codec.codec import decode, encode
from fencepost.coordinator.rabbit_codec.codes import Key, ResponseCode
from fencepost.coordinator.rabbit_codec.entries import message, publish
from fencepost.coordinator.rabbit_codec.fields import FIRST
from fencepost.coordinator.rabbit_server import connection
from fencepost.coordinator.rabbit_server.broker import StreamBroker
from fencepost.coordinator.rabbit_server.cluster import Limits
from fencepost.coordinator.server import accepting, turns
from fencepost.coordinator.server.access import tls_context
from tests.waiting import until

pytestmark = pytest.mark.real

SECONDS = 20


class Peer:
    """A client of frames over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @staticmethod
    async def connected(broker: StreamBroker) -> Peer:
        return Peer(*await asyncio.open_connection("127.0.0.1", broker.ports[0]))

    @staticmethod
    async def opened(broker: StreamBroker, heartbeat_s: int = 0) -> Peer:
        peer = await Peer.connected(broker)
        peer.send(frames.PeerProperties(1), frames.SaslHandshake(2))
        peer.send(frames.SaslAuthenticate(3, "PLAIN", b"\0guest\0guest"))
        for _ in range(3):
            await peer.receive()
        assert isinstance(await peer.receive(), frames.Tune)
        peer.send(frames.Tune(0, heartbeat_s), frames.Open(4, "/"))
        answer: Any = await peer.receive()
        assert answer.code == ResponseCode.OK
        return peer

    def send(self, *sent: Frame) -> None:
        self.writer.write(b"".join(map(encode, sent)))

    async def receive(self) -> Frame:
        async with asyncio.timeout(SECONDS):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return decode(await self.reader.readexactly(size))

    async def rest(self) -> bytes:
        """What comes until the other side has ended."""
        try:
            async with asyncio.timeout(SECONDS):
                return await self.reader.read()
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def thrown(broker: StreamBroker, data: bytes, *, opened: bool) -> None:
    """These bytes from a client of their own, which waits until it is sent away, or goes."""
    peer = await (Peer.opened(broker) if opened else Peer.connected(broker))
    try:
        peer.writer.write(data)
        peer.writer.write_eof()
        await peer.rest()
    except ConnectionError:
        pass
    finally:
        await peer.close()


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def body(rng: random.Random) -> bytes:
    numbers = (0, 0, 0, 1, 1, 2, 3, 127, 128, 255, rng.randrange(256))
    return bytes(rng.choice(numbers) for _ in range(rng.randrange(60)))


async def test_thousands_of_wrong_frames_disturb_nobody():
    rng = random.Random(5_552)
    async with StreamBroker(ports=(0,)) as broker:
        witness = await Peer.opened(broker)
        witness.send(frames.Create(1, "s"), frames.DeclarePublisher(2, 0, "", "s"))
        witness.send(frames.Subscribe(3, 0, "s", FIRST, 10_000))
        for _ in range(3):
            await witness.receive()
        with structlog.testing.capture_logs() as logs:
            for round_ in range(25):
                wrong = [(rng.randbytes(rng.randrange(200)), bool(rng.randrange(2))) for _ in range(6)]
                for _ in range(30):
                    head = bytes(
                        (rng.choice((0, 0, 0, 0x80)), rng.choice(list(Key)), 0, rng.choice((1, 1, 2)))
                    )
                    data = framed(head + body(rng)) + framed(encode(frames.Heartbeat())[4:])
                    wrong.append((data, bool(rng.randrange(4))))
                await asyncio.gather(*(thrown(broker, data, opened=opened) for data, opened in wrong))
                witness.send(publish(0, [ChunkEntry(round_, message(b"x"))]))
                kinds = {type(await witness.receive()), type(await witness.receive())}
                assert kinds == {frames.Deliver, frames.PublishConfirm}, f"round {round_}"
        assert {line["event"] for line in logs} <= {"connection_closed"}, logs[:3]
        assert [each.session for each in broker.connections] == list(broker.cluster.sessions)
        assert len(broker.connections) == 1
        await witness.close()


async def test_frames_that_come_byte_by_byte_are_answered():
    async with StreamBroker(ports=(0,)) as broker:
        peer = await Peer.connected(broker)
        for byte in encode(frames.PeerProperties(7)):
            peer.writer.write(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert isinstance(await peer.receive(), frames.PeerPropertiesResponse)
        await peer.close()


async def test_a_frame_that_is_too_large_is_answered_once_the_connection_is_open():
    async with StreamBroker(ports=(0,)) as broker:
        early = await Peer.connected(broker)
        early.writer.write((8193).to_bytes(4, "big"))
        assert await early.rest() == b""
        await early.close()
        late = await Peer.opened(broker)
        late.writer.write((1_048_577).to_bytes(4, "big") + bytes(100_000))
        close: Any = await late.receive()
        assert close.code == ResponseCode.FRAME_TOO_LARGE
        assert await late.rest() == b""
        await late.close()


async def test_a_connection_ends_with_the_answer_to_close(monkeypatch):
    monkeypatch.setattr(connection, "_LAST_WORDS_S", 10 * SECONDS)
    async with StreamBroker(ports=(0,)) as broker:
        peer = await Peer.opened(broker)
        peer.send(frames.Close(5, ResponseCode.OK, "OK"))
        assert await peer.receive() == frames.CloseResponse(5)
        assert await peer.rest() == b""
        await peer.close()


async def test_one_connection_too_many_is_refused():
    async with StreamBroker(ports=(0,), limits=Limits(max_connections=1)) as broker:
        first = await Peer.opened(broker)
        second = await Peer.connected(broker)
        assert await second.rest() == b""
        await second.close()
        first.send(frames.Metadata(1, ()))
        assert isinstance(await first.receive(), frames.MetadataResponse)
        await first.close()


async def test_who_does_not_say_who_he_is_is_sent_away():
    async with StreamBroker(ports=(0,), limits=Limits(handshake_timeout_ms=50)) as broker:
        peer = await Peer.connected(broker)
        assert await peer.rest() == b""
        await peer.close()


async def test_heartbeats_come_and_are_missed():
    async with StreamBroker(ports=(0,)) as broker:
        peer = await Peer.opened(broker, heartbeat_s=1)
        assert isinstance(await peer.receive(), frames.Heartbeat)
        beats = await peer.rest()
        assert beats.endswith(encode(frames.Heartbeat()))
        await peer.close()


async def test_who_does_not_answer_a_consumer_update_is_sent_away():
    async with StreamBroker(ports=(0,), limits=Limits(request_timeout_ms=100)) as broker:
        one, two = await Peer.opened(broker), await Peer.opened(broker)
        one.send(frames.Create(1, "s"))
        await one.receive()
        properties = {"single-active-consumer": "true", "name": "app"}
        for peer in (one, two):
            peer.send(frames.Subscribe(2, 0, "s", FIRST, 1, properties))
            assert isinstance(await peer.receive(), frames.SubscribeResponse)
        assert isinstance(await one.receive(), frames.ConsumerUpdate)
        assert await one.rest() == b""
        assert isinstance(await two.receive(), frames.ConsumerUpdate)
        await one.close()
        await two.close()


async def test_a_client_that_reads_nothing_is_sent_no_more_than_buffers_hold():
    async with StreamBroker(ports=(0,)) as broker:
        slow, quick = await Peer.opened(broker), await Peer.opened(broker)
        quick.send(frames.Create(1, "s"), frames.DeclarePublisher(2, 0, "", "s"))
        await quick.receive()
        await quick.receive()
        slow.send(frames.Subscribe(1, 0, "s", FIRST, 1000))
        assert isinstance(await slow.receive(), frames.SubscribeResponse)
        for number in range(60):
            quick.send(publish(0, [ChunkEntry(number, message(bytes(500_000)))]))
            assert isinstance(await quick.receive(), frames.PublishConfirm)
        writing = next(each for each in broker.connections if each.session.consumers)
        assert not writing.is_writable
        assert writing.session.consumers[0].credit > 940
        for _ in range(60):
            assert isinstance(await slow.receive(), frames.Deliver)
        await slow.close()
        await quick.close()


async def test_a_node_that_closes_hangs_up_also_on_those_who_read_nothing():
    async with StreamBroker(ports=(0,)) as broker:
        peer = await Peer.opened(broker)
        peer.send(frames.Create(1, "s"), frames.DeclarePublisher(2, 0, "", "s"))
        peer.send(frames.Subscribe(3, 0, "s", FIRST, 1000))
        for number in range(40):
            peer.send(publish(0, [ChunkEntry(number, message(bytes(500_000)))]))
    await peer.rest()
    await peer.close()


async def test_a_node_that_closes_waits_for_no_goodbye_of_tls(pem, monkeypatch):
    monkeypatch.setattr(accepting, "_GOODBYE_S", 60)
    certificate, key = pem
    trust = ssl.create_default_context(cafile=certificate)

    def silent(port: int) -> ssl.SSLSocket:
        return trust.wrap_socket(socket.create_connection(("127.0.0.1", port)), server_hostname="127.0.0.1")

    async with StreamBroker(ports=(0,), tls=tls_context(certificate, key)) as broker:
        client = await asyncio.to_thread(silent, broker.ports[0])
        await until(lambda: broker.connections)  # the client is the first to know
        async with asyncio.timeout(SECONDS):
            await broker.close()
    client.close()


async def test_a_port_that_is_taken_is_told():
    async with StreamBroker(ports=(0,)) as broker:
        with pytest.raises(EnvironmentLacks, match=f"port {broker.ports[0]} on 127.0.0.1 is taken"):
            await StreamBroker(ports=broker.ports).start()


async def test_the_frames_of_a_client_that_hangs_up_take_several_turns_and_all_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns.FairTurns, "is_long", True)
    pieces = 0
    work = connection.RabbitServerConnection._work

    def counted(self: connection.RabbitServerConnection) -> None:
        nonlocal pieces
        pieces += 1
        work(self)

    monkeypatch.setattr(connection.RabbitServerConnection, "_work", counted)
    async with StreamBroker(ports=(0,)) as broker:
        peer = await Peer.opened(broker)
        peer.send(*(frames.Create(number, f"stream-{number}", {}) for number in range(1_000)))
        await peer.writer.drain()
        peer.writer.close()
        streams = broker.cluster.virtual_hosts["/"].streams
        while len(streams) < 1_000:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert pieces >= 1_000, "other clients had no turn between"


async def test_all_clients_together_may_leave_a_limited_number_of_bytes_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "MAX_UNFINISHED_BYTES", 500_000)
    async with StreamBroker(ports=(0,)) as broker:
        peers = [await Peer.opened(broker) for _ in range(3)]
        for peer in peers[:2]:
            peer.writer.write((1_000_000).to_bytes(4, "big") + bytes(200_000))
            await peer.writer.drain()
        while broker.cluster.unfinished_bytes < 400_000:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        peers[2].writer.write((1_000_000).to_bytes(4, "big") + bytes(200_000))
        await peers[2].rest()
        assert broker.cluster.unfinished_bytes <= 500_000
        assert len(broker.connections) == 2
        for peer in peers:
            peer.writer.close()
