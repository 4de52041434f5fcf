"""Nodes on ports of the running loop."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from types import TracebackType
from typing import Final, TypeVar

from fencepost.coordinator.rabbit_server.cluster import Limits, RabbitCluster
from fencepost.coordinator.rabbit_server.connection import RabbitServerConnection
from fencepost.coordinator.rabbit_server.groups import Groups
from fencepost.coordinator.server.listener import Listener
from fencepost.coordinator.server.loop import ServerClock
from fencepost.coordinator.server.turns import FairTurns

DEFAULT_PORT: Final = 5552

Self = TypeVar("Self", bound="StreamBroker")


class StreamBroker:
    """Serves the RabbitMQ stream protocol; streams, offsets and groups are in memory.

    `ports` has one for each node, 0 takes a free one. All nodes have all streams. `users` are passwords by
    name, guest's among them unless others are given; guest may connect from this machine only. With `tls`
    clients have to speak TLS.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        ports: Sequence[int] = (DEFAULT_PORT,),
        users: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._users = users
        self._limits = limits or Limits()
        self._listeners: dict[str, Listener[RabbitServerConnection]] = {
            node_name(number): Listener(host, port, max_connections=self._limits.max_connections, tls=tls)
            for number, port in enumerate(ports, 1)
        }
        self._cluster: RabbitCluster | None = None
        self._clock: ServerClock | None = None

    @property
    def cluster(self) -> RabbitCluster:
        """The state that connections share, once started."""
        assert self._cluster is not None
        return self._cluster

    async def start(self) -> None:
        """Listen.

        :raises FencepostError: for an invalid user.
        :raises EnvironmentLacks: if a port is taken or not allowed, or the host is not one of this machine.
        """
        loop = asyncio.get_running_loop()
        self._clock = clock = ServerClock(loop)
        self._cluster = RabbitCluster(
            Groups(clock, loop.call_soon),
            now_ms=clock.now_ms,
            secret=secrets.token_bytes(32),
            users=self._users,
            limits=self._limits,
        )
        connect = partial(RabbitServerConnection, self.cluster, count(1), turns=FairTurns())
        try:
            for node, listener in self._listeners.items():
                await listener.open(partial(connect, node))
                self._cluster.ports[node] = listener.port
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop listening and close all connections. Clients get no message, as when nodes die."""
        for listener in self._listeners.values():
            await listener.close()
        if self._cluster is not None:
            self._cluster.groups.close()

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
        return next(iter(self._listeners.values())).host

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that are listened on, once started."""
        return tuple(listener.port for listener in self._listeners.values())

    @property
    def addresses(self) -> tuple[str, ...]:
        """Host and port of each node."""
        return tuple(listener.address for listener in self._listeners.values())

    @property
    def connections(self) -> tuple[RabbitServerConnection, ...]:
        """All that are open."""
        return tuple(each for listener in self._listeners.values() for each in listener.connections)


def node_name(number: int) -> str:
    """Return the name of a node by its number, from 1."""
    return f"node-{number}"
