"""Real sockets: an embedded Kafka with a member; for the proxy raw clients, and brokers that say anything."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.registry import ApiKey, codec_of
from fencepost.coordinator.protocol import cluster
from fencepost.simulation.kernel.rules import Direction, Matching
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.lab.proxy.proxy import Proxy
from tests.unit.simulation.pytest_runs import Runs
from tests.unit.simulation.wire_member import WireMember
from tests.waiting import until


@pytest.fixture(autouse=True)
def _no_member_is_left() -> Iterator[None]:
    yield
    WireMember.close_all()


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """One that has `orders` of four partitions; files that want another make it under the same name."""
    with EmbeddedKafka(topics={"orders": 4}) as running:
        yield running


@pytest.fixture
def member(kafka: EmbeddedKafka) -> WireMember:
    """A member of `g` that has all of `orders`, and has said so."""
    one = WireMember(kafka.bootstrap_servers, "g", "m")
    one.join("orders")
    one.confirm()
    return one


@pytest.fixture
def run_pytest(processes: None, tmp_path: Path) -> Runs:
    """Runs pytest on a file of tests; its folder is the test's own."""
    return Runs(tmp_path)


LIST_OFFSETS = 2
"""An API without endpoints, which these brokers answer with what they got."""
PATIENCE_S = 10.0
QUIET_S = 0.15


class EchoBroker:
    """Answers each request with its body, behind the correlation id; what it knows of Metadata, properly."""

    def __init__(self, node: int) -> None:
        self.node = node
        self.frames: list[bytes] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.nodes: tuple[cluster.Node, ...] = ()
        self.answer: Callable[[bytes], bytes | None] = lambda frame: frame[4:8] + self.body(frame)

    async def start(self, port: int = 0) -> EchoBroker:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", port)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    def body(self, frame: bytes) -> bytes:
        key, version = struct.unpack_from(">hh", frame)
        reply: Any = None
        if key == ApiKey.METADATA:
            reply = cluster.MetadataResponse(cluster_id="c", controller_id=1, brokers=self.nodes, topics=())
        elif key == ApiKey.FIND_COORDINATOR:
            reply = cluster.FindCoordinatorResponse(
                coordinators=(cluster.FoundCoordinator(key="g", node=self.nodes[1]),)
            )
        if reply is None:
            return frame[8:]
        codec = codec_of(key, version)
        assert codec is not None
        return b"".join(codec.encode(0, reply))[8:]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, ValueError, struct.error):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = await reader.readexactly(size)
                self.frames.append(frame)
                answer = self.answer(frame)
                if answer is not None:
                    writer.write(struct.pack(">i", len(answer)) + answer)
        writer.close()

    @property
    def bodies(self) -> list[bytes]:
        return [frame[frame.index(b"|") :] for frame in self.frames if b"|" in frame]

    async def stop(self) -> None:
        self.server.close()
        for writer in self.writers:
            writer.transport.abort()
        await self.server.wait_closed()


class Client:
    """One connection that sends raw requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self.reader, self.writer, self.name = reader, writer, name
        self.number = 0

    def send(self, body: bytes, key: int = LIST_OFFSETS, version: int = 1) -> None:
        self.number += 1
        name = self.name.encode()
        frame = struct.pack(">hhih", key, version, self.number, len(name)) + name + body
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await asyncio.wait_for(self.reader.readexactly(4), PATIENCE_S))
        return await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_S)

    async def body(self) -> bytes:
        """The next answer from its mark on."""
        frame = await self.frame()
        return frame[frame.index(b"|") :]

    async def ask(self, body: bytes, key: int = LIST_OFFSETS) -> bytes:
        self.send(body, key)
        return await self.body()

    async def hears_nothing(self) -> bool:
        try:
            await asyncio.wait_for(self.reader.readexactly(1), QUIET_S)
        except TimeoutError:
            return True
        return False

    async def is_reset(self) -> bool:
        try:
            await asyncio.wait_for(self.reader.read(), PATIENCE_S)
        except ConnectionResetError:
            return True
        return False

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(), PATIENCE_S) == b""
        return True


class Ledger(ProxyObserver):
    """All that was told, in its order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def on_request(self, member: str, broker: str, request: object, t_us: int) -> None:
        self.told.append(("request", member, broker, request, t_us))

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        self.told.append(("response", member, broker, request, response, t_us))

    def on_loss(self, member: str, broker: str, direction: Direction, request: object, t_us: int) -> None:
        self.told.append((f"lost {direction}", member, broker, request, t_us))

    @property
    def kinds(self) -> list[str]:
        return [what[0] for what in self.told]


class Stage:
    """Three brokers, the proxy before them, and clients."""

    def __init__(self, brokers: dict[int, EchoBroker], proxy: Proxy, ledger: Ledger) -> None:
        self.brokers, self.proxy, self.ledger = brokers, proxy, ledger
        self.clients: list[Client] = []

    async def client(self, name: str = "m1", node: int = 1) -> Client:
        host, port = self.proxy.address(node)
        client = Client(*await asyncio.open_connection(host, port), name)
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def start(self, node: int) -> EchoBroker:
        """The node is back, on another port."""
        broker = self.brokers[node] = await EchoBroker(node).start()
        self.proxy.set_upstream(node, ("127.0.0.1", broker.port))
        return broker

    def rule(self, verdict: Any, **filters: Any) -> Matching:
        rule = Matching((lambda _: verdict) if not callable(verdict) else verdict, **filters)
        self.proxy.rules.append(rule)
        return rule


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    brokers = {node: await EchoBroker(node).start() for node in (1, 2, 3)}
    nodes = tuple(cluster.Node(node_id=b.node, host="127.0.0.1", port=b.port) for b in brokers.values())
    for broker in brokers.values():
        broker.nodes = nodes
    ledger = Ledger()
    upstreams = {node: ("127.0.0.1", broker.port) for node, broker in brokers.items()}
    async with Proxy(
        upstreams, rng=random.Random(5), observer=ledger, members={"client-7": "payments"}
    ) as proxy:
        stage = Stage(brokers, proxy, ledger)
        yield stage
        for client in stage.clients:
            client.writer.transport.abort()
    for broker in brokers.values():
        await broker.stop()
