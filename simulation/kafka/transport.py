"""A member's transport over the simulated network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.member.base.transport import Disconnected, Reply
from fencepost.simulation.kafka.requests import (
    CoordinatorFound,
    FindCoordinator,
    LogOffsets,
    MatchingTopics,
    OffsetsSince,
    PartitionCounts,
    TopicNames,
)
from fencepost.simulation.kernel.host import Host
from fencepost.simulation.kernel.network import CLOSED, Call, Network, SimulatedConnection

if TYPE_CHECKING:
    from fencepost.simulation.kafka.broker import BrokerHost


class SimulatedTransport:
    """The connection of one member's host to the brokers. Metadata requests go to one broker after the other.

    `on_search` is called when the member looks up a group's coordinator, `on_lookup` with each request for
    metadata or for offsets of logs. A transport `of_transactions` connects a producer to the coordinator of
    transactions.
    """

    def __init__(
        self,
        host: Host,
        network: Network,
        brokers: Mapping[str, BrokerHost],
        *,
        first: int,
        timeout_us: int,
        on_search: Callable[[], None] | None = None,
        on_lookup: Callable[[object], None] | None = None,
        of_transactions: bool = False,
    ) -> None:
        self._host = host
        self._network = network
        self._brokers = tuple(brokers.values())
        self._next = first
        self._timeout_us = timeout_us
        self._on_search = on_search
        self._on_lookup = on_lookup
        self._of_transactions = of_transactions
        self._connections: dict[str, SimulatedConnection] = {}
        self._coordinator: BrokerHost | None = None
        self._connection: SimulatedConnection | None = None
        """The connection to the coordinator."""

    def send(self, request: object, timeout_ms: int) -> Call | asyncio.Future[Any]:
        """Send a request to the coordinator that was found last."""
        connection = self._connection
        if connection is None or connection.pipe is CLOSED:
            if self._coordinator is None:
                future: asyncio.Future[Any] = self._network.loop.create_future()
                future.set_exception(Disconnected("no coordinator is known"))
                return future
            connection = self._connection = self._connected(self._coordinator)
        return self._network.send(connection, request, timeout_ms * 1_000)

    def find_coordinator(self, group_id: str) -> Call:
        """Ask a broker for the coordinator of the group, or of the transactional id.

        The call notifies the transport first, which turns a response with an error into a failure.
        """
        if self._on_search is not None:
            self._on_search()
        call = self._ask(FindCoordinator(group_id, self._of_transactions))
        call.add_done_callback(self._found)
        return call

    def _found(self, asked: Call) -> None:
        answer = asked.response
        if not isinstance(answer, CoordinatorFound):
            self._next += 1
        elif answer.error_code:
            asked.response = ProtocolError(answer.error_code, "there is no coordinator")
        else:
            self._coordinator = next(broker for broker in self._brokers if broker.name == answer.host)
            self._connection = None

    def topic_names(self, topic_ids: Iterable[TopicId]) -> Reply[Mapping[TopicId, str]]:
        """Return the names of topics, as the cluster knows them now."""
        return self._asked(TopicNames(tuple(topic_ids)))

    def partition_counts(self, topics: Iterable[str]) -> Reply[Mapping[str, int]]:
        """Return the number of partitions of each topic, as the cluster knows them now."""
        return self._asked(PartitionCounts(tuple(topics)))

    def matching_topics(self, pattern: str) -> Call:
        """Return the names of all topics that the expression matches now, as a tuple."""
        return self._asked(MatchingTopics(pattern))

    def log_offsets(self, partitions: Iterable[TopicPartition], *, earliest: bool) -> Call:
        """Return the first or the next offset of each partition's log, as a mapping."""
        return self._asked(LogOffsets(tuple(partitions), earliest))

    def offsets_by_duration(self, partitions: Iterable[TopicPartition], duration_ms: int) -> Call:
        """Return the offset of each log's first record that is not older, by the time of the world, as a
        mapping."""
        return self._asked(OffsetsSince(tuple(partitions), self._host.loop.now_us - duration_ms * 1_000))

    @property
    def is_connected(self) -> bool:
        """True if it has connections, perhaps broken ones."""
        return bool(self._connections)

    def close(self) -> None:
        """Close all connections."""
        connections, self._connections, self._connection = self._connections, {}, None
        for connection in connections.values():
            self._network.close(connection)

    def _asked(self, request: object) -> Call:
        if self._on_lookup is not None:
            self._on_lookup(request)
        call = self._ask(request)
        call.add_done_callback(self._try_another)
        return call

    def _try_another(self, asked: Call) -> None:
        if asked.exception() is not None:
            self._next += 1

    def _ask(self, request: object) -> Call:
        broker = self._brokers[self._next % len(self._brokers)]
        return self._network.send(self._connected(broker), request, self._timeout_us)

    def _connected(self, broker: BrokerHost) -> SimulatedConnection:
        connection = self._connections.get(broker.name)
        if connection is None or connection.pipe is CLOSED:
            connection = self._connections[broker.name] = self._network.connect(self._host, broker)
        return connection
