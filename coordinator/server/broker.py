"""A broker in this process: one port, the cluster behind it, and a coordinator."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Mapping
from types import TracebackType

from fencepost.coordinator.codec.framing import KAFKA_MAX_FRAME_BYTES
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError, ProtocolError
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.runtime import CoordinatorRuntime
from fencepost.coordinator.server.clock import LoopClock
from fencepost.coordinator.server.cluster import Cluster
from fencepost.coordinator.server.connection import Connection
from fencepost.coordinator.server.dispatch import handlers
from fencepost.coordinator.server.runner import CoordinatorRunner
from fencepost.coordinator.server.services import Services

NODE_ID = 1
_BACKLOG = 1024
_ACCEPT_TURNS = 2
"""Turns of the loop from a connection's accept to its protocol's connection_made, in asyncio."""
_NO_SUCH_ADDRESS = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


class Broker:
    """Serves the Kafka protocol on one port of the running loop.

        async with Broker(topics={"orders": 12}) as broker:
            consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, ...})

    `port` 0 takes a free one. Topics are held in memory and are gone with the broker.
    :raises FencepostError: for a topic that Kafka would refuse.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        config: GroupCoordinatorConfig | None = None,
        auto_create_topics: bool = False,
        default_partitions: int = 1,
        max_frame_bytes: int = KAFKA_MAX_FRAME_BYTES,
        max_connections: int = 10_000,
    ) -> None:
        self.config = config or GroupCoordinatorConfig()
        self.cluster = Cluster()
        self.coordinator = GroupCoordinator(self.config)
        self._host = host
        self._port = port
        self._auto_create_topics = auto_create_topics
        self._default_partitions = default_partitions
        self._max_frame_bytes = max_frame_bytes
        self._max_connections = max_connections
        self._connections: dict[Connection, None] = {}
        self._closing = False
        self._all_gone: asyncio.Event | None = None
        self._server: asyncio.Server | None = None
        self._runner: CoordinatorRunner | None = None
        try:
            self.cluster.create_topics(topics or {})
        except ProtocolError as error:
            raise FencepostError(error.message) from error

    async def start(self) -> None:
        """Listen.

        :raises EnvironmentLacks: if the port is taken or not allowed, or the host is none of this machine.
        """
        loop = asyncio.get_running_loop()
        self._closing = False
        self._runner = CoordinatorRunner(
            CoordinatorRuntime(self.coordinator, MemoryJournal()), LoopClock(loop)
        )
        services = Services(
            cluster=self.cluster,
            runner=self._runner,
            config=self.config,
            node_id=NODE_ID,
            loop=loop,
            auto_create_topics=self._auto_create_topics,
            default_partitions=self._default_partitions,
        )
        table = handlers()

        def connect() -> Connection:
            return Connection(
                services,
                table,
                max_frame_bytes=self._max_frame_bytes,
                on_made=self._made,
                on_lost=self._lost,
            )

        try:
            # One address: a name with two would get two ports, and clients hear of one.
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
            address = str(found[0][4][0])
            self._server = await loop.create_server(connect, address, self._port, backlog=_BACKLOG)
        except OSError as error:
            raise EnvironmentLacks(_why(error, self._host, self._port)) from error
        self._port = self._server.sockets[0].getsockname()[1]
        self.cluster.nodes = (Node(node_id=NODE_ID, host=self._host, port=self._port),)
        self.cluster.on_change = self._topics_changed
        self._topics_changed(self.cluster.image)

    async def close(self) -> None:
        """Stop listening and close all connections. Members are told nothing, as when a broker dies."""
        if self._server is None:
            return
        self._closing = True
        await self._stop_accepting(self._server)
        self._server.close()
        if self._runner is not None:
            self._runner.close()
        for connection in tuple(self._connections):
            connection.close()
        await self._server.wait_closed()
        self._server = None
        if self._connections:
            self._all_gone = asyncio.Event()
            await self._all_gone.wait()

    @staticmethod
    async def _stop_accepting(server: asyncio.Server) -> None:
        """Let accepted connections be made: asyncio leaves them open if the server closes first."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(NotImplementedError):  # not every loop waits for readers
            for each in server.sockets:
                loop.remove_reader(each)
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """What a client's setting `bootstrap.servers` takes."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def _topics_changed(self, image: TopicsImage) -> None:
        if self._runner is not None:
            self._runner.process(TopicsChanged(image=image))

    def _made(self, connection: Connection) -> str | None:
        self._connections[connection] = None
        if self._closing:
            return "the broker is closing"
        return "too many connections" if len(self._connections) > self._max_connections else None

    def _lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._all_gone is not None:
            self._all_gone.set()


def _why(error: OSError, host: str, port: int) -> str:
    where = f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken: stop what listens there, or choose another port (0: any free)"
        )
    if error.errno == errno.EACCES:
        return f"listening on {where} is not allowed: choose a port from 1024 on"
    if error.errno in _NO_SUCH_ADDRESS or isinstance(error, socket.gaierror):
        return f"{host} is no address of this machine: choose 127.0.0.1, or 0.0.0.0 for all of them"
    return f"can't listen on {where}: {error.strerror or error}"
