"""The way of a single active consumer to the nodes of a RabbitMQ that has its stream."""

from __future__ import annotations

import asyncio
import inspect
import random
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from fencepost.member.base.arguments import check_callable, check_whole
from fencepost.member.base.transport import Disconnected, TransportError
from fencepost.member.rabbit.connection import RabbitLogin, StreamConnection
from fencepost.member.sac.settings import check_text, check_tls
from fencepost.member.sac.transport import ConnectionListener, SacConnection

MAX_LOGIN_BYTES: Final = 4_000
"""The limit for each text that is sent before a connection is open: a frame of two of them is below 8,192
bytes."""
MAX_HEARTBEAT_S: Final = (1 << 32) - 1
_TRIES: Final = 10
"""Number of attempts to find a node that has the stream, behind an address that leads to several nodes."""

Address: TypeAlias = tuple[str, int]
"""Host and port."""
AddressResolver: TypeAlias = Callable[[str, int], Address | Awaitable[Address]]
"""Takes the host and the port that a node advertises, and returns the address to connect to. Plain or async.
"""


class RabbitTransport:
    """Connects to a node that has the stream.

    ::

        subscription = SacSubscription(stream="orders", name="billing")
        consumer = SingleActiveConsumer(subscription, RabbitTransport("orders", host="127.0.0.1"))

    It asks the node at `host` and `port` which nodes have the stream, and stays if that node is one of them.
    Otherwise it connects to the address that another node advertises. Behind a proxy, a load balancer or a
    mapped port, `address_resolver` returns the address to connect to instead, as in RabbitMQ's own clients:
    `address_resolver=lambda host, port: ("127.0.0.1", 15552)`. If the connection leads to a node without the
    stream, the transport connects again, at most 10 times.

    `client_name` is the name under which RabbitMQ lists the connection. A user, a password or a virtual host
    that is wrong, or a subscription to another stream, shows when the consumer starts, as
    SubscriptionRefused. Heartbeats are `heartbeat_s` seconds apart, or less if the node wants that; with 0
    the node decides.

    :raises TypeError: if a setting is not of its type.
    :raises ValueError: if a setting can't be used.
    """

    def __init__(
        self,
        stream: str,
        *,
        host: str = "127.0.0.1",
        port: int = 5552,
        username: str = "guest",
        password: str = "guest",
        virtual_host: str = "/",
        client_name: str = "",
        tls: ssl.SSLContext | None = None,
        heartbeat_s: int = 60,
        address_resolver: AddressResolver | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._stream = check_text("stream", stream)
        self._address = (
            check_text("host", host, high=MAX_LOGIN_BYTES),
            check_whole("port", port, 1, 65_535),
        )
        self._tls = check_tls(tls)
        self._resolve = check_callable(
            "address_resolver", address_resolver, "a function of a host and a port that returns both"
        )
        self._rng = rng or random.Random()
        self._credentials = RabbitLogin(
            username=check_text("username", username, high=MAX_LOGIN_BYTES),
            password=check_text("password", password, low=0, high=MAX_LOGIN_BYTES, is_secret=True),
            virtual_host=check_text("virtual_host", virtual_host, high=MAX_LOGIN_BYTES),
            client_name=check_text("client_name", client_name, low=0, high=MAX_LOGIN_BYTES) or "fencepost",
            heartbeat_s=check_whole("heartbeat_s", heartbeat_s, 0, MAX_HEARTBEAT_S),
        )

    def connect(self, listener: ConnectionListener) -> asyncio.Future[SacConnection]:
        """Open a new connection; the future fails with TransportError."""
        return asyncio.get_running_loop().create_task(self._connected(listener))

    async def _connected(self, listener: ConnectionListener) -> SacConnection:
        first = await self._opened(self._address, listener)
        try:
            nodes = () if first.refusal is not None else await first.nodes()
        except BaseException:
            first.close()
            raise
        if not nodes or self._address in nodes or first.advertised in nodes:
            return first
        first.close()
        # Replicas come first, since the leader has more work than they have.
        candidates = nodes[:-1] or nodes
        if self._resolve is None:
            return await self._opened(self._rng.choice(candidates), listener)
        return await self._found(nodes, candidates, listener)

    async def _found(
        self, nodes: Sequence[Address], candidates: Sequence[Address], listener: ConnectionListener
    ) -> StreamConnection:
        """Open a connection to a node that has the stream, through the resolver."""
        for _ in range(_TRIES):
            address = await self._resolved(*self._rng.choice(candidates))
            connection = await self._opened(address, listener)
            if connection.refusal is not None or connection.advertised in (None, *nodes):
                return connection
            connection.close()
        raise TransportError(
            f"address_resolver led to no node that has the stream {self._stream!r} in {_TRIES} tries;"
            f" the last one was {address[0]}:{address[1]}"
        )

    async def _resolved(self, host: str, port: int) -> Address:
        """Return the address to connect to in place of one that a node advertises.

        :raises TypeError: if the resolver returns no host and port.
        :raises ValueError: if they can't be used.
        """
        assert self._resolve is not None
        found = self._resolve(host, port)
        address = await found if inspect.isawaitable(found) else found
        if not isinstance(address, tuple) or len(address) != 2:
            raise TypeError(f"address_resolver should return (host, port), got {address!r}")
        return (
            check_text("the host from address_resolver", address[0], high=MAX_LOGIN_BYTES),
            check_whole("the port from address_resolver", address[1], 1, 65_535),
        )

    async def _opened(self, address: Address, listener: ConnectionListener) -> StreamConnection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: StreamConnection(listener, self._stream), *address, ssl=self._tls
            )
        except OSError as error:
            why = str(error) or type(error).__name__  # such as a TLS handshake on a port without TLS
            raise Disconnected(f"{address[0]}:{address[1]}: {why}") from error
        try:
            await connection.open(self._credentials)
        except BaseException:
            connection.close()
            raise
        return connection
