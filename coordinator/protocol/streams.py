"""StreamsGroupHeartbeat and StreamsGroupDescribe without their wire form (KIP-1071)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from fencepost.coordinator.protocol.asks import Asks
from fencepost.coordinator.protocol.cluster import UNKNOWN_OPERATIONS
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId

SubtopologyT = TypeVar("SubtopologyT", bound=int | str)


class TaskId(NamedTuple, Generic[SubtopologyT]):
    """A task: the part of a topology, and the number of the partitions that it works on.

    A coordinator names subtopologies by text (KIP-1071), the metadata of classic groups by number.
    """

    subtopology: SubtopologyT
    partition: int
    topology: str | None = None
    """Only of an application that gives its topologies names."""

    def __str__(self) -> str:
        return f"{self.topology}__{self[0]}_{self[1]}" if self.topology else f"{self[0]}_{self[1]}"


TaskIds: TypeAlias = Mapping[str, tuple[int, ...]]
"""A set of tasks: subtopology id to ascending partition numbers, no empty tuples. Never mutated."""

NO_TASK_IDS: TaskIds = {}


class Tasks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tasks in each of the roles that a member can have for them."""

    active: TaskIds = NO_TASK_IDS
    standby: TaskIds = NO_TASK_IDS
    warmup: TaskIds = NO_TASK_IDS

    def __bool__(self) -> bool:
        return bool(self.active or self.standby or self.warmup)

    def contains_any(self, other: Tasks) -> bool:
        """Return true if a task of `other` is among these, in the same role."""
        return (
            _overlap(self.active, other.active)
            or _overlap(self.standby, other.standby)
            or _overlap(self.warmup, other.warmup)
        )


NO_TASKS = Tasks()


def _overlap(first: TaskIds, second: TaskIds) -> bool:
    return any(
        subtopology in second and not set(numbers).isdisjoint(second[subtopology])
        for subtopology, numbers in first.items()
    )


class TopicInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An internal topic of a topology."""

    name: str
    partitions: int = 0
    """Number of partitions; 0 if it follows from other topics, as it always does for changelogs."""
    replication_factor: int = 0
    """0 for the broker's default."""
    configs: tuple[tuple[str, str], ...] = ()
    """Names and values, in the order of the request."""


class CopartitionGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Topics that must have equal numbers of partitions: indexes into the subtopology's own lists."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


class Subtopology(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A connected part of a topology: its tasks read the same partition number of all its source topics."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()
    copartition_groups: tuple[CopartitionGroup, ...] = ()


class Topology(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The topics that an application reads, writes and keeps, in the application's order."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()


class Endpoint(NamedTuple):
    """The address at which a process serves interactive queries."""

    host: str
    port: int


class TaskOffset(msgspec.Struct, frozen=True):
    """The progress of a task's stores: the sum of its changelogs' offsets."""

    subtopology_id: str
    partition: int
    offset: int


class StreamsGroupHeartbeatRequest(
    Asks["StreamsGroupHeartbeatResponse"], msgspec.Struct, frozen=True, kw_only=True, gc=False
):
    """One heartbeat of a member. None means "unchanged" in each field that may be None.

    `client_id` and `client_host` are from the request's header and its connection.
    """

    group_id: str
    member_id: MemberId
    member_epoch: int
    endpoint_information_epoch: int = -1
    """The newest map of endpoints that the member has."""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology: Topology | None = None
    """Given on joining, and only then."""
    active_tasks: TaskIds | None = None
    standby_tasks: TaskIds | None = None
    warmup_tasks: TaskIds | None = None
    """The member's tasks in each role: a request has all three fields, or none of them."""
    process_id: str | None = None
    """Members with one process id are threads of one process."""
    user_endpoint: Endpoint | None = None
    client_tags: Mapping[str, str] | None = None
    task_offsets: tuple[TaskOffset, ...] | None = None
    task_end_offsets: tuple[TaskOffset, ...] | None = None
    shutdown_application: bool = False
    """True if all members of the group are to stop (KIP-671)."""
    client_id: str = ""
    client_host: str = ""

    @property
    def owned(self) -> Tasks | None:
        """The tasks that the member reports as owned; None if it does not report them."""
        if self.active_tasks is None or self.standby_tasks is None or self.warmup_tasks is None:
            return None
        return Tasks(self.active_tasks, self.standby_tasks, self.warmup_tasks)


class StatusCode(enum.IntEnum):
    """A fact about its group that a member must know, in addition to its tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5


class Status(msgspec.Struct, frozen=True):
    """A status, with a text for people."""

    code: StatusCode
    detail: str


class TopicPartitions(msgspec.Struct, frozen=True):
    """Partitions of one topic."""

    topic: str
    partitions: tuple[int, ...]


class EndpointPartitions(msgspec.Struct, frozen=True):
    """The partitions that can be queried at one endpoint."""

    endpoint: Endpoint
    active: tuple[TopicPartitions, ...] = ()
    standby: tuple[TopicPartitions, ...] = ()


class StreamsGroupHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The coordinator's response to one heartbeat."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: MemberId = ""
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    acceptable_recovery_lag: int = 0
    task_offset_interval_ms: int = 0
    status: tuple[Status, ...] | None = ()
    """All statuses that apply now; None, which Kafka does not send, keeps the previous ones."""
    tasks: Tasks | None = None
    """All tasks that the member may own; None if nothing changed."""
    endpoint_information_epoch: int = 0
    partitions_by_endpoint: tuple[EndpointPartitions, ...] | None = None
    """The map of that epoch; None if the member has it."""


class StreamsGroupDescribeRequest(
    Asks["StreamsGroupDescribeResponse"], msgspec.Struct, frozen=True, kw_only=True
):
    """Asks for the state of groups as of the last committed record."""

    group_ids: tuple[str, ...]
    include_operations: bool = False


class DescribedSubtopology(msgspec.Struct, frozen=True, kw_only=True):
    """A subtopology; its internal topics have the numbers of partitions that were decided, once they were."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    repartition_sink_topics: tuple[str, ...] = ()
    state_changelog_topics: tuple[TopicInfo, ...] = ()
    repartition_source_topics: tuple[TopicInfo, ...] = ()


class DescribedStreamsMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member, as StreamsGroupDescribe shows it."""

    member_id: MemberId
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    user_endpoint: Endpoint | None
    client_tags: Mapping[str, str]
    assignment: Tasks
    target_assignment: Tasks


class DescribedStreamsGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group, as StreamsGroupDescribe shows it."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    topology_epoch: int | None = None
    """The topology's epoch; None without a group."""
    subtopologies: tuple[DescribedSubtopology, ...] = ()
    members: tuple[DescribedStreamsMember, ...] = ()


class StreamsGroupDescribeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A description of each group of the request, in its order."""

    groups: tuple[DescribedStreamsGroup, ...]
    authorized_operations: int | Mapping[str, int] = UNKNOWN_OPERATIONS
    """The operations that the client may do with the groups, or with each of them."""
    """Of each group that was found."""
