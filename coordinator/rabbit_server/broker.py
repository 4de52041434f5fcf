"""A node on a port of the running loop."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from types import TracebackType
from typing import Final, TypeVar

from fencepost.coordinator.rabbit_server.connection import Connection
from fencepost.coordinator.rabbit_server.groups import Groups
from fencepost.coordinator.rabbit_server.node import Limits, Node
from fencepost.coordinator.server.clock import LoopClock
from fencepost.coordinator.server.listener import Listener

DEFAULT_PORT: Final = 5552
NODE_NAME: Final = "rabbit@fencepost"

Self = TypeVar("Self", bound="StreamBroker")


class StreamBroker:
    """Serves the RabbitMQ stream protocol; streams, offsets and groups are in memory.

    `port` 0 takes a free one. `users` are passwords by name, guest's among them unless others are given;
    guest may connect from this machine only. With `tls` clients have to speak TLS.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        users: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        virtual_hosts: Iterable[str] = ("/",),
        limits: Limits | None = None,
    ) -> None:
        self._users = users
        self._virtual_hosts = tuple(virtual_hosts)
        self._limits = limits or Limits()
        self._listener: Listener[Connection] = Listener(
            host, port, max_connections=self._limits.max_connections, tls=tls
        )
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        """What connections share, once started."""
        assert self._node is not None
        return self._node

    async def start(self) -> None:
        """Listen.

        :raises FencepostError: for a user that can't be one.
        :raises EnvironmentLacks: if the port is taken or not allowed, or the host is none of this machine.
        """
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop)
        later: Callable[[Callable[[], None]], object] = loop.call_soon
        self._node = Node(
            Groups(clock.now_ms, later, node=NODE_NAME),
            now_ms=clock.now_ms,
            secret=secrets.token_bytes(32),
            users=self._users,
            virtual_hosts=self._virtual_hosts,
            limits=self._limits,
        )
        numbers = count(1)

        def connect(
            *, on_made: Callable[[Connection], str | None], on_lost: Callable[[Connection], None]
        ) -> Connection:
            return Connection(self.node, next(numbers), on_made=on_made, on_lost=on_lost)

        await self._listener.open(connect)

    async def close(self) -> None:
        """Stop listening and close all connections. Clients are told nothing, as when a node dies."""
        await self._listener.close()

    async def __aenter__(self: Self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def host(self) -> str:
        """The host that is listened on."""
        return self._listener.host

    @property
    def address(self) -> str:
        """Host and port."""
        return self._listener.address

    @property
    def port(self) -> int:
        """The port that is listened on, once started."""
        return self._listener.port

    @property
    def connections(self) -> tuple[Connection, ...]:
        """All that are open."""
        return tuple(self._listener.connections)
