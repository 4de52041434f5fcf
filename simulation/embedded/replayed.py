"""The replayed worlds of an embedded cluster, by shard and by group, for judges and trace writers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition, topic_partitions
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.groups import Shard
from fencepost.simulation.embedded.shadow import ShadowCoordinator

if TYPE_CHECKING:
    from fencepost.member.consumer.driver import ConsumerDriver

WORLD = "embedded"


def host_of(node_id: int) -> str:
    """The name of a broker in the trace."""
    return f"broker-{node_id}"


class EmbeddedCoordinator:
    """The broker that leads a shard."""

    def __init__(self, world: ReplayedShard) -> None:
        self._world = world

    @property
    def name(self) -> str:
        """The broker's name."""
        return host_of(self._world.shard.node_id)

    @property
    def status(self) -> str:
        """`active`, or `loading`."""
        return "loading" if self._world.shard.host is None else "active"

    @property
    def coordinator(self) -> GroupCoordinator | None:
        """The coordinator, once it is loaded."""
        return self._world.active


class EmbeddedMember:
    """A member of which only the requests are known. Its name is its id."""

    status = "running"

    def __init__(self, member_id: MemberId) -> None:
        self.name = self.member_id = member_id
        self.instance_id: str | None = None

    @property
    def driver(self) -> ConsumerDriver | None:
        """None: the member runs in a client of the user."""
        return None


class _Names(Mapping[MemberId, str]):
    """Names members by their ids."""

    def __getitem__(self, member_id: MemberId) -> str:
        return member_id

    def __iter__(self) -> Iterator[MemberId]:
        return iter(())

    def __len__(self) -> int:
        return 0


class ReplayedShard:
    """A shard as a world: the groups of one coordinator, their journal and their members.

    The coordinator is the shadow coordinator at the time of the observed step.
    """

    faults_over = False
    settling_ms = 0
    group_id = ""
    hosts_by_member: Mapping[MemberId, str] = _Names()

    def __init__(self, brokers: Brokers, shard: Shard) -> None:
        self._brokers = brokers
        self.shard = shard
        self.now_us = 0
        """The time of the step that is being observed."""
        self.shadow: ShadowCoordinator | None = None
        self.seen: dict[MemberId, EmbeddedMember] = {}
        self.members: Mapping[MemberId, EmbeddedMember] = MappingProxyType(self.seen)
        self.heartbeat_requests: tuple[type, ...] = ()
        """Requests in which members report what they own."""
        self.member_keys: tuple[type, ...] = ()
        """Record keys whose tombstone removes a member."""

    def shadowed_by(self, shadow: ShadowCoordinator) -> None:
        """Use this shadow coordinator from now on."""
        self.shadow = shadow
        kinds = tuple(shadow.coordinator.kinds)
        self.heartbeat_requests = tuple(each for kind in kinds for each in kind.heartbeat_requests)
        self.member_keys = tuple(kind.member_key for kind in kinds if kind.member_key is not None)

    @property
    def config(self) -> GroupCoordinatorConfig:
        """The coordinator's configuration."""
        return self._brokers.config

    @property
    def topics(self) -> TopicsImage:
        """The topics as the coordinator knows them; it is the first to be notified of changes."""
        coordinator = self.active
        return self._brokers.cluster.image if coordinator is None else coordinator.image

    @property
    def journal(self) -> MemoryJournal:
        """The records of the shard; they form one batch, unless their own batches are known."""
        journal = self.shard.journal
        if isinstance(journal, MemoryJournal):
            return journal
        return MemoryJournal([tuple(journal)])

    @property
    def coordinators(self) -> Mapping[str, EmbeddedCoordinator]:
        """The broker that leads the shard."""
        seen = EmbeddedCoordinator(self)
        return {seen.name: seen}

    @property
    def active(self) -> GroupCoordinator | None:
        """The coordinator, while the shard has one."""
        return None if self.shard.host is None or self.shadow is None else self.shadow.coordinator

    @property
    def log_ends(self) -> Mapping[TopicPartition, int]:
        """The next offset of each partition's log."""
        return _LogEnds(self._brokers.cluster)


class _LogEnds(Mapping[TopicPartition, int]):
    """Computes the end of a log when it is read."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def __getitem__(self, partition: TopicPartition) -> int:
        topic = self._cluster.image.by_name.get(partition.topic)
        if topic is None or not 0 <= partition.partition < topic.partitions:
            raise KeyError(partition)
        return self._cluster.log(topic, partition.partition).high_watermark

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic in self._cluster.image.by_name.values():
            yield from topic_partitions(topic.name, range(topic.partitions))

    def __len__(self) -> int:
        return sum(topic.partitions for topic in self._cluster.image.by_name.values())


class ReplayedGroup(ReplayedShard):
    """One group of a shard."""

    def __init__(self, shard: ReplayedShard, group_id: str) -> None:
        self._of = shard
        self._brokers = shard._brokers
        self.shard = shard.shard
        self.group_id = group_id
        self.seen = shard.seen
        self.members = shard.members
        self.heartbeat_requests = shard.heartbeat_requests
        self.member_keys = shard.member_keys

    @property
    def active(self) -> GroupCoordinator | None:
        """The coordinator of the shard."""
        return self._of.active
