"""The objects behind an `EmbeddedRabbitStream`; they live on one loop."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.rabbit_server.broker import StreamBroker, node_name
from fencepost.coordinator.rabbit_server.catalogue import Catalogue
from fencepost.coordinator.rabbit_server.cluster import Limits
from fencepost.coordinator.rabbit_server.groups import Groups
from fencepost.simulation.embedded.waiting import Waiting


class StreamMessage(NamedTuple):
    """A message of a stream."""

    offset: int
    value: bytes
    """The message as its publisher encoded it."""
    timestamp_ms: int


class RabbitEndpoint:
    """A broker, and the tests that wait for its groups."""

    def __init__(
        self,
        *,
        host: str,
        ports: Sequence[int],
        users: Mapping[str, str] | None,
        tls: ssl.SSLContext | None,
        request_timeout_s: float,
        disconnected_timeout_s: float,
    ) -> None:
        limits = Limits(request_timeout_ms=max(1, round(request_timeout_s * 1000)))
        self.broker = StreamBroker(host=host, ports=ports, users=users, tls=tls, limits=limits)
        self.waiting = Waiting()
        self._disconnected_timeout_ms = round(disconnected_timeout_s * 1000)

    async def start(self) -> None:
        """Start to listen."""
        await self.broker.start()
        self.groups.on_change = self.waiting.wake
        if self._disconnected_timeout_ms != sac.DEFAULT_DISCONNECTED_TIMEOUT_MS:
            self.groups.process(
                sac.UpdateConfiguration({sac.DISCONNECTED_TIMEOUT: self._disconnected_timeout_ms})
            )

    @property
    def groups(self) -> Groups:
        """The groups of single active consumers."""
        return self.broker.cluster.groups

    @property
    def catalogue(self) -> Catalogue:
        """The streams."""
        return self.broker.cluster.virtual_hosts[sac.DEFAULT_VHOST]

    def node(self, number: int) -> str:
        """Return the name of a node by its number.

        :raises FencepostError: if there is no such node.
        """
        name = node_name(number)
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if not is_number or name not in self.broker.cluster.ports:
            raise FencepostError(f"there is no node {number!r}; there are 1 to {len(self.broker.ports)}")
        return name
