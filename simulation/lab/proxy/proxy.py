"""A proxy before the brokers of one cluster, for the length of an `async with` block."""

from __future__ import annotations

import asyncio
import ipaddress
import random
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TypeAlias

from fencepost.coordinator.codec.endpoints import is_readable
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.server.accepting import BACKLOG, Acceptor
from fencepost.coordinator.server.listener import why_not_listening
from fencepost.coordinator.server.listener_config import address_text
from fencepost.simulation.kernel.rules import Matching, NetworkRule, stalling
from fencepost.simulation.lab.proxy.connection import ProxyConnection, ProxyContext
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.lab.proxy.side import ProxySide

Address: TypeAlias = tuple[str, int]
"""A host and a port."""


class Proxy:
    """Stands before the brokers of one cluster: clients that begin at its address never reach a broker's.

        async with Proxy({1: ("127.0.0.1", 9092)}, rng=random.Random(7)) as proxy:
            proxy.rules.append(Matching(dropping, members={"payments-1"}, api_keys={68}, limit=1))
            consumer = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "client.id": "payments-1"})

    `upstreams` are the brokers by node id; node N is called "broker-N" in messages. `members` gives names to
    client ids; without one a client id is its own name. What is random comes from `rng`. TLS can't be read
    and is refused. Each broker's port is that of `ports`, by default a free one. `advertised` has the
    addresses at which clients find the brokers, if these are not those to listen on.
    :raises FencepostError: without any upstream.
    """

    def __init__(
        self,
        upstreams: Mapping[int, Address],
        *,
        rng: random.Random,
        host: str = "127.0.0.1",
        ports: Mapping[int, int] | None = None,
        observer: ProxyObserver | None = None,
        members: Mapping[str, str] | None = None,
        advertised: Mapping[int, Address] | None = None,
    ) -> None:
        if not upstreams:
            raise FencepostError("a proxy before no broker: expected at least one upstream")
        self.rules: list[NetworkRule] = []
        """Rules; the first that does not let a message pass decides."""
        self._upstreams = dict(upstreams)
        self._host = host
        self._surroundings = ProxyContext(
            rng=rng,
            rules=self.rules,
            observer=observer,
            members=members if members is not None else {},
            address_of=self.address,
        )
        self._acceptors: dict[int, Acceptor] = {}
        self._ports: dict[int, int] = {}
        self._wanted_ports = ports or {}
        self._advertised = advertised or {}
        self._nowhere: socket.socket | None = None
        self._stalls: dict[str, tuple[NetworkRule, ...]] = {}
        self._connections: dict[ProxyConnection, None] = {}
        self._all_gone: asyncio.Event | None = None

    async def start(self) -> None:
        """Listen, once for each broker.

        :raises FencepostError: if the host stands for all interfaces, and no other address is advertised.
        :raises EnvironmentLacks: if it can't listen there.
        """
        loop = asyncio.get_running_loop()
        is_readable(ApiKey.METADATA, 0)  # load the schemas now, and not while a heartbeat waits
        where, wanted = "", 0
        try:
            found = await loop.getaddrinfo(self._host, 0, type=socket.SOCK_STREAM)
            family, address = found[0][0], str(found[0][4][0])
            if not self._advertised and ipaddress.ip_address(address.partition("%")[0]).is_unspecified:
                raise FencepostError(
                    f"host {self._host}: clients connect to it, expected an address of this machine, or an "
                    "address to advertise"
                )
            self._nowhere = socket.socket(family)
            self._nowhere.bind((address, 0))
            for node in self._upstreams:
                where, wanted = f"broker {node}: ", self._wanted_ports.get(node, 0)
                listening = socket.create_server((address, wanted), family=family, backlog=BACKLOG)
                self._acceptors[node] = Acceptor(listening, self._connect(node))
                await self._acceptors[node].open()
                self._ports[node] = self._acceptors[node].port
        except OSError as error:
            await self.close()
            raise EnvironmentLacks(where + why_not_listening(error, self._host, wanted)) from error

    async def close(self) -> None:
        """Stop listening, and reset all connections."""
        for acceptor in self._acceptors.values():
            await acceptor.close()
        for connection in tuple(self._connections):
            connection.cut()
        if self._connections:
            self._all_gone = asyncio.Event()
            await self._all_gone.wait()
        self._acceptors.clear()
        if self._nowhere is not None:
            self._nowhere.close()

    async def __aenter__(self) -> Proxy:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def bootstrap_servers(self) -> str:
        """All listeners, as a client's setting `bootstrap.servers` takes them."""
        return ",".join(address_text(*self.address(node)) for node in self._ports)

    def address(self, node: int) -> Address:
        """Return the address at which clients find a node; nothing listens at that of an unknown node."""
        if node in self._advertised:
            return self._advertised[node]
        if node in self._ports:
            return self._host, self._ports[node]
        assert self._nowhere is not None
        host = next((host for host, _ in self._advertised.values()), self._host)
        return host, int(self._nowhere.getsockname()[1])

    def set_upstream(self, node: int, address: Address) -> None:
        """Set the broker's address from now on; connections that are open stay.

        :raises FencepostError: if the proxy does not stand before that node.
        """
        self.check_broker(node)
        self._upstreams[node] = address

    def check_broker(self, node_id: int) -> None:
        """Check that the proxy stands before that node.

        :raises FencepostError: if not.
        """
        if node_id not in self._upstreams:
            raise FencepostError(f"broker {node_id}: the proxy has {', '.join(map(str, self._upstreams))}")

    def cut_all(self, name: str) -> int:
        """Reset all connections of a member or a broker, and return their number."""
        found = [one for one in self._connections if name == one.broker or name in one.members]
        for connection in found:
            connection.cut()
        return len(found)

    def stall(self, name: str) -> None:
        """Let nothing reach or leave a member or a broker from the next message on; connections stay open."""
        if name not in self._stalls:
            rules = (Matching(stalling, members={name}), Matching(stalling, brokers={name}))
            self._stalls[name] = rules
            self.rules[:0] = rules

    def resume(self, name: str) -> None:
        """End a stall: what waited is sent."""
        rules = self._stalls.pop(name, ())
        self.rules[:] = [rule for rule in self.rules if not any(rule is one for one in rules)]

    def _connect(self, node: int) -> Callable[[], ProxySide]:
        def connect() -> ProxySide:
            connection = ProxyConnection(self._surroundings, node, lambda: self._upstreams[node], self._ended)
            self._connections[connection] = None
            return connection.client

        return connect

    def _ended(self, connection: ProxyConnection) -> None:
        self._connections.pop(connection, None)
        if not self._connections and self._all_gone is not None:
            self._all_gone.set()
