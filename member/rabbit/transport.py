"""The way of a single active consumer to the nodes of a RabbitMQ that has its stream."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Final

from fencepost.member.arguments import check_whole
from fencepost.member.driver.transport import Disconnected
from fencepost.member.rabbit.connection import Credentials, StreamConnection
from fencepost.member.sac.settings import check_text, check_tls
from fencepost.member.sac.transport import ConnectionListener, SacConnection

MAX_LOGIN_BYTES: Final = 4_000
"""Of each text that is sent before a connection is open: a frame of two of them is below 8,192 bytes."""
MAX_HEARTBEAT_S: Final = (1 << 32) - 1


class RabbitTransport:
    """Connects to any node that has the stream, as RabbitMQ tells where that is.

    ::

        subscription = SacSubscription(stream="orders", name="billing")
        consumer = SingleActiveConsumer(subscription, RabbitTransport("orders", host="127.0.0.1"))

    `client_name` is how RabbitMQ lists the connection. A user, a password or a virtual host that is wrong, or
    a subscription to another stream, shows when the consumer starts, as SubscriptionRefused. Heartbeats are
    `heartbeat_s` seconds apart, or less if the node wants that; with 0 the node decides.

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
        rng: random.Random | None = None,
    ) -> None:
        self._stream = check_text("stream", stream)
        self._address = (
            check_text("host", host, high=MAX_LOGIN_BYTES),
            check_whole("port", port, 1, 65_535),
        )
        self._tls = check_tls(tls)
        self._rng = rng or random.Random()
        self._credentials = Credentials(
            username=check_text("username", username, high=MAX_LOGIN_BYTES),
            password=check_text("password", password, low=0, high=MAX_LOGIN_BYTES, is_secret=True),
            virtual_host=check_text("virtual_host", virtual_host, high=MAX_LOGIN_BYTES),
            client_name=check_text("client_name", client_name, low=0, high=MAX_LOGIN_BYTES) or "fencepost",
            heartbeat_s=check_whole("heartbeat_s", heartbeat_s, 0, MAX_HEARTBEAT_S),
        )

    def connect(self, listener: ConnectionListener) -> asyncio.Future[SacConnection]:
        """A new connection; the future fails with TransportError."""
        return asyncio.get_running_loop().create_task(self._connected(listener))

    async def _connected(self, listener: ConnectionListener) -> SacConnection:
        first = await self._opened(self._address, listener)
        try:
            nodes = () if first.refusal is not None else await first.nodes()
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
                lambda: StreamConnection(listener, self._stream), *address, ssl=self._tls
            )
        except OSError as error:
            why = str(error) or type(error).__name__  # as where TLS is spoken to a port that speaks none
            raise Disconnected(f"{address[0]}:{address[1]}: {why}") from error
        try:
            await connection.open(self._credentials)
        except BaseException:
            connection.close()
            raise
        return connection
