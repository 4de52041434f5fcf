"""The way of a single active consumer to the nodes of a RabbitMQ that has its stream."""

from __future__ import annotations

import asyncio
import random
import ssl

from fencepost.member.driver.transport import Disconnected
from fencepost.member.rabbit.connection import Credentials, StreamConnection
from fencepost.member.sac.transport import ConnectionListener, SacConnection


class RabbitTransport:
    """Connects to any node that has the stream, as RabbitMQ tells where that is.

    ::

        subscription = SacSubscription(stream="orders", name="billing")
        consumer = SingleActiveConsumer(subscription, RabbitTransport("orders", host="127.0.0.1"))

    `client_name` is how RabbitMQ lists the connection. A user, a password or a virtual host that is wrong
    shows when the consumer starts, as SubscriptionRefused.
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
        rng: random.Random | None = None,
    ) -> None:
        self._stream = stream
        self._address = (host, port)
        self._tls = tls
        self._rng = rng or random.Random()
        self._credentials = Credentials(
            username=username,
            password=password,
            virtual_host=virtual_host,
            client_name=client_name or "fencepost",
            heartbeat_s=heartbeat_s,
        )

    def connect(self, listener: ConnectionListener) -> asyncio.Future[SacConnection]:
        """A new connection; the future fails with TransportError."""
        return asyncio.get_running_loop().create_task(self._connected(listener))

    async def _connected(self, listener: ConnectionListener) -> SacConnection:
        first = await self._opened(self._address, listener)
        try:
            nodes = () if first.refusal is not None else await first.nodes_of(self._stream)
        except BaseException:
            first.close()
            raise
        if not nodes or self._address in nodes:
            return first
        first.close()
        # Replicas come first, and the leader has more to do than they have.
        return await self._opened(self._rng.choice(nodes[:-1] or nodes), listener)

    async def _opened(self, address: tuple[str, int], listener: ConnectionListener) -> StreamConnection:
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: StreamConnection(listener), *address, ssl=self._tls
            )
        except OSError as error:
            raise Disconnected(f"{address[0]}:{address[1]}: {error}") from error
        try:
            await connection.open(self._credentials)
        except BaseException:
            connection.close()
            raise
        return connection
