"""The services that the handlers of one broker share, and the data they receive about each request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar, overload

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.config import NO_NEW_TOPICS, GroupCoordinatorConfig, NewTopicConfig
from fencepost.coordinator.protocol.acls import AclOperation, AclResourceType
from fencepost.coordinator.protocol.asks import Asks, AsksAndWaits
from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_EPOCH
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.sasl.credentials import Credentials
from fencepost.coordinator.server.buffers import MAX_QUEUED_REQUEST_BYTES
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.groups import GroupCoordinators
from fencepost.coordinator.server.leaders import NO_LEADER
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.storage import Gate
from fencepost.coordinator.server.transactions import TransactionCoordinators
from fencepost.coordinator.server.turns import FairTurns, Share, WorkQueue

if TYPE_CHECKING:
    from fencepost.coordinator.server.login import Login
    from fencepost.coordinator.server.quota_apis import QuotaAccount
    from fencepost.coordinator.server.rights import Rights


R = TypeVar("R")

May: TypeAlias = Callable[[AclOperation, AclResourceType, str], bool]
"""Returns true if a client may do something with the resource of that kind and name."""


class NoReply:
    """The reply to a request that wants no response (Produce with acks 0)."""


NO_REPLY = NoReply()


class ThrottledReply(NamedTuple):
    """A reply whose client is throttled for some milliseconds: it says so, and is read from no earlier
    (KIP-219). Only a future may have it."""

    reply: Any
    throttle_time_ms: int


class Unanswered(Exception):
    """A request gets no response: the connection is closed instead. The text has the reason."""


class Services(NamedTuple):
    """The parts of a broker that handle requests."""

    cluster: KafkaCluster
    groups: GroupCoordinators
    transactions: TransactionCoordinators
    config: GroupCoordinatorConfig
    node_id: int
    loop: asyncio.AbstractEventLoop
    work_queue: WorkQueue
    rights: Rights
    gate: Gate = Gate()  # always open
    new_topics: NewTopicConfig = NO_NEW_TOPICS
    listener_name: str = ""
    """The listener that the client came in by."""
    credentials: Credentials | None = None
    """The users that may connect; None if any client may connect."""
    max_versions: Mapping[int, int] | None = None
    """The newest version of each API, if they are those of an older release."""
    turns: FairTurns | None = None
    queued_max_request_bytes: int = MAX_QUEUED_REQUEST_BYTES
    """Divides the loop's time among clients; None if the loop is not shared with other clients."""

    @overload
    def ask(self, request: Asks[R]) -> R: ...
    @overload
    def ask(self, request: AsksAndWaits[R]) -> R | asyncio.Future[R]: ...
    def ask(self, request: Any) -> Any:
        """Return the coordinator's reply, or a future of it if the request has to wait."""
        return self.groups.ask(request, self.node_id)

    def then(self, reply: Any, change: Callable[[Any], Any]) -> Any:
        """Return the changed reply, at once or as a future, like the given one and its change."""
        if not isinstance(reply, asyncio.Future):
            return change(reply)

        async def changed() -> Any:
            return await _arrived(change(await _arrived(reply)))

        return self.loop.create_task(changed())

    def nodes_seen_from(self, local_host: str) -> tuple[Node, ...]:
        """Return the running brokers, as they are advertised to a client that connected to `local_host`."""
        return self.cluster.nodes_seen_from(self.listener_name, local_host)

    def log(self, topic: Topic, partition: int, current_epoch: int = NO_EPOCH) -> PartitionLog:
        """Return the log of a partition that this broker leads.

        :raises ProtocolError: as `replica_log`, and NOT_LEADER_OR_FOLLOWER on a follower.
        """
        log = self.replica_log(topic, partition, current_epoch)
        leader_id = self.cluster.leader_id(topic, partition)
        if leader_id != self.node_id:
            raise self._led_elsewhere(topic, partition, leader_id)
        return log

    def replica_log(self, topic: Topic, partition: int, current_epoch: int = NO_EPOCH) -> PartitionLog:
        """Return the log of a partition that this broker leads or follows.

        `current_epoch` is the leader epoch that the client knows; -1 is not compared.
        :raises ProtocolError: UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH or
            UNKNOWN_LEADER_EPOCH (KIP-320).
        """
        log = self.cluster.log(topic, partition)
        leader_id = self.cluster.leader_id(topic, partition)
        if leader_id != self.node_id not in self.cluster.replica_ids(topic, partition):
            raise self._led_elsewhere(topic, partition, leader_id)
        if current_epoch == NO_EPOCH:
            return log
        epoch = self.cluster.leader_epoch(topic, partition)
        if current_epoch != epoch:
            is_old = current_epoch < epoch
            raise ProtocolError(
                ErrorCode.FENCED_LEADER_EPOCH if is_old else ErrorCode.UNKNOWN_LEADER_EPOCH,
                f"{topic.name}-{partition}: leader epoch {current_epoch}, here it is {epoch}",
            )
        return log

    def _led_elsewhere(self, topic: Topic, partition: int, leader_id: int) -> ProtocolError:
        return ProtocolError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"{topic.name}-{partition} is led by broker {leader_id}, this is {self.node_id}",
        )

    def current_leader(self, topic: Topic, partition: int) -> tuple[int, int]:
        """Return the broker that leads a partition, or NO_LEADER, and the leader epoch."""
        state = self.cluster.leadership(topic, partition)
        return state.leader_id, state.epoch

    def leaders(self, topics: Iterable[OfTopic[Any]], asked: Asked) -> tuple[Node, ...]:
        """Return the addresses of the current leaders in these results (KIP-951)."""
        current = (one.current_leader for topic in topics for one in topic.partitions)
        ids = {leader[0] for leader in current if leader is not None} - {NO_LEADER}
        nodes = (
            self.cluster.node_seen_from(self.listener_name, asked.local_host, each) for each in sorted(ids)
        )
        return tuple(node for node in nodes if node is not None)


class OpenConnection(Protocol):
    """A client's connection, as long as it is there."""

    @property
    def share(self) -> Share:
        """Its share of the server's time."""

    @property
    def principal(self) -> str:
        """Its user in Kafka's words, such as `User:alice`."""

    @property
    def is_closed(self) -> bool:
        """True if no response is sent on it any more."""

    def close(self) -> None:
        """Close it without another response."""


class Asked(NamedTuple):
    """One request as it was received."""

    context: RequestContext
    local_host: str
    """The address of ours that the client used."""
    connection: OpenConnection
    login: Login | None = None
    """The login that the client must complete before it is served; None if it is done, or not required."""
    may: May | None = None
    """Decides what the client may do; None if it may do everything."""
    account: QuotaAccount | None = None
    """The use of quotas by a Fetch; None if there are no quotas."""


Handler: TypeAlias = Callable[[Services, Any, Asked], Any]
"""Handles a message and returns its reply, a future of it, or NO_REPLY; or raises `Unanswered`."""


async def _arrived(reply: Any) -> Any:
    """Return the reply, once it is there."""
    while isinstance(reply, asyncio.Future):
        reply = await reply
    return reply
