"""aiokafka's client, with two facts that it hides: why brokers can't be connected to, and that they refuse.

Next to engine.py and fetcher.py, this file uses aiokafka's private names.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import weakref
from collections.abc import Callable
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import AIOKafkaConnection, CloseReason, create_conn
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAuthorizationFailedError
from aiokafka.protocol.metadata import MetadataRequest

from fencepost.member.kafka.errors import AuthenticationError, as_connection_error

_aiokafka_log = logging.getLogger("aiokafka.client")
_RECONNECT_S = 0.05
"""The wait before a broker that can't be connected to is tried again; Kafka's reconnect.backoff.ms."""
_RECONNECT_MAX_S = 1.0
"""The longest such wait; each failure doubles it. Kafka's reconnect.backoff.max.ms."""
_BOOTSTRAP = ("bootstrap", ConnectionGroup.DEFAULT)
"""The key under which aiokafka keeps its first connection, as long as it knows of no brokers."""


class _Reconnects:
    """The attempts to connect to one broker since the last connection."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """Held by the one attempt under way."""
        self.failures = 0
        self.failed_at = 0.0
        self.next_at = 0.0
        """Time at which the back-off ends."""

    def failed(self, now: float) -> None:
        """Note a failure: the back-off begins, twice as long as the last one."""
        self.failed_at = now
        self.next_at = now + min(_RECONNECT_S * 2.0 ** min(self.failures, 30), _RECONNECT_MAX_S)
        self.failures += 1


class KafkaClient(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's client, which hides why it can't connect; this one reports refused credentials.

    A connection ends here with the task that reads from it. A loop that ends cancels all tasks, these as
    well, and aiokafka would keep such a connection: each request would wait until it times out. Here the
    waiting request fails, and the next one connects anew. And as long as a topic does not exist, or has no
    leader, aiokafka would request metadata as fast as brokers respond; here there is a back-off between.

    A broker that can't be connected to is tried again after a growing back-off, as Kafka's clients do.
    aiokafka would try at once for each request, and log a line each time. Requests that wait for the same
    broker share one attempt. They wait for the back-off only if no other broker can be tried.
    """

    refused: AuthenticationError | None = None
    """The error of the last attempt to log in, if a broker refused it; the code that raises it removes it."""
    on_refused: Callable[[], None] | None = None
    _is_refused = False
    _asked_about: frozenset[str] | None = None
    """The topics of the last metadata request."""
    _asked_at = 0.0
    _sync_task: asyncio.Task[None] | None

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._reconnects: dict[Any, _Reconnects] = {}
        """By node id, for brokers that can't be connected to."""

    async def bootstrap(self) -> None:
        """Connect as aiokafka does, which leaves its connection open if it is cancelled.

        :raises KafkaConnectionError: if no broker responds.
        """
        for host, port, _ in self.hosts:
            try:
                await self._learn_from(host, port)
            except (OSError, KafkaError, TimeoutError) as error:
                _aiokafka_log.error('Unable to bootstrap from "%s:%s": %s', host, port, error)
            else:
                break
        else:
            raise KafkaConnectionError(f"Unable to bootstrap from {self.hosts}")
        if self._sync_task is None:
            self._sync_task = asyncio.create_task(self._md_synchronizer())

    async def _learn_from(self, host: str, port: int) -> None:
        connection = await _connect(self, host, port)
        is_needed = False
        try:
            self.cluster.update_metadata(await connection.send(MetadataRequest([])))
            if is_needed := not self.cluster.brokers():
                self._conns[_BOOTSTRAP] = connection
        finally:
            if not is_needed:
                connection.close()

    async def _metadata_update(self, cluster_metadata: ClusterMetadata, topics: set[str] | None) -> bool:
        about = frozenset(topics or ())
        if cluster_metadata is self.cluster and about == self._asked_about:
            await asyncio.sleep(self._asked_at + self._retry_backoff - self._loop.time())
        try:
            is_new: bool = await super()._metadata_update(cluster_metadata, topics)
        finally:
            self._asked_about, self._asked_at = about, self._loop.time()
        return is_new

    def _on_connection_closed(self, conn: AIOKafkaConnection, reason: CloseReason | None) -> None:
        self._is_refused |= reason is CloseReason.AUTH_FAILURE
        super()._on_connection_closed(conn, reason)

    async def _get_conn(
        self, node_id: Any, *, group: int = ConnectionGroup.DEFAULT, no_hint: bool = False
    ) -> AIOKafkaConnection | None:
        before = self._conns.get((node_id, group))
        if before is not None and before._read_task is not None and before._read_task.done():
            before.close(reason=CloseReason.CONNECTION_BROKEN)
        connection = await self._reconnected(node_id, group, no_hint=no_hint)
        if connection is not None and connection is not before and connection._read_task is not None:
            connection._read_task.add_done_callback(functools.partial(_unread, weakref.ref(connection)))
        if connection is None and self._is_refused:
            self._is_refused = False
            await self._tell_why(self.cluster.broker_metadata(node_id))
        return connection

    async def _reconnected(self, node_id: Any, group: int, *, no_hint: bool) -> AIOKafkaConnection | None:
        """Return the open connection, or try to make one as soon as the back-off allows it."""
        found = self._conns.get((node_id, group))
        if found is not None and found.connected():
            return await super()._get_conn(node_id, group=group, no_hint=no_hint)
        began_at = self._loop.time()
        broker = self._reconnects.setdefault(node_id, _Reconnects())
        async with broker.lock:
            if broker.failures and broker.failed_at >= began_at:
                return None  # an attempt that others waited for as well
            if (left := broker.next_at - self._loop.time()) > 0:
                if self._another_is_ready(node_id):
                    return None
                await asyncio.sleep(left)
            connection = await super()._get_conn(node_id, group=group, no_hint=no_hint)
            if connection is None:
                broker.failed(self._loop.time())
            else:
                broker.failures, broker.next_at = 0, 0.0
            return connection

    def _another_is_ready(self, node_id: Any) -> bool:
        """True if the client knows another broker that it may connect to now."""
        now = self._loop.time()
        others = {each.nodeId for each in self.cluster.brokers()} - {node_id}
        return any(each not in self._reconnects or self._reconnects[each].next_at <= now for each in others)

    async def _tell_why(self, broker: Any) -> None:
        error = await why_not(self, broker.host, broker.port, f"{broker.host}:{broker.port}")
        if isinstance(error, AuthenticationError):
            self.refused = error
            if self.on_refused is not None:
                self.on_refused()

    def check(self) -> None:
        """Check that brokers accept the credentials, and let this client know of its topics.

        :raises AuthenticationError: if one has refused them since the last call.
        :raises TopicAuthorizationFailedError: if the last response refused access to a topic.
        """
        refused, self.refused = self.refused, None
        if refused is not None:
            raise refused
        hidden = sorted(self.cluster.unauthorized_topics & self._topics)
        if hidden:
            raise TopicAuthorizationFailedError(", ".join(hidden))


def _unread(connection: weakref.ref[AIOKafkaConnection], reader: asyncio.Task[None]) -> None:
    """Close a connection that has lost its reader; one that was closed stays closed."""
    found = connection()
    if found is not None:
        found.close(reason=CloseReason.CONNECTION_BROKEN)


async def why_not(client: AIOKafkaClient, host: str, port: int, what: object) -> KafkaConnectionError:
    """Return the reason why a client can't connect to that broker: aiokafka only logs it."""
    try:
        connection = await _connect(client, host, port)
    except (OSError, KafkaError, TimeoutError) as error:
        return as_connection_error(what, error)
    await connection.close()
    return KafkaConnectionError(f"{what}: it accepts connections but does not respond")


async def _connect(client: AIOKafkaClient, host: str, port: int) -> AIOKafkaConnection:
    """Return a connection of the client's own kind, which the client does not track."""
    return await create_conn(
        host,
        port,
        client_id=client._client_id,
        request_timeout_ms=client._request_timeout_ms,
        max_idle_ms=client._connections_max_idle_ms,
        ssl_context=client._ssl_context,
        security_protocol=client._security_protocol,
        sasl_mechanism=client._sasl_mechanism,
        sasl_plain_username=client._sasl_plain_username,
        sasl_plain_password=client._sasl_plain_password,
        sasl_kerberos_service_name=client._sasl_kerberos_service_name,
        sasl_kerberos_domain_name=client._sasl_kerberos_domain_name,
        sasl_oauth_token_provider=client._sasl_oauth_token_provider,
    )


async def why_no_start(client: Any, failed: KafkaConnectionError) -> KafkaConnectionError:
    """Return the reason why a client, or a consumer, a producer or an admin client on one, could not learn of
    its cluster."""
    inner = getattr(client, "_client", None) or getattr(client, "client", client)
    host, port, _ = inner.hosts[0]
    return await why_not(inner, host, port, failed)
