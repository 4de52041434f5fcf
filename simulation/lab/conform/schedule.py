"""Schedules: lists of steps, as values that can be printed, shrunk and run again.

A step says what a member does in terms that hold on any coordinator: "its last epoch", "its assignment, less
one partition". So a schedule stays meaningful when steps are taken out of it, and when it runs against
another coordinator.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError


class Epoch(enum.StrEnum):
    """The epoch that a request carries, by the epochs that the member has received."""

    LAST = "last"
    PREVIOUS = "previous"
    """The one before the last."""
    OLDER = "older"
    """The one before that."""
    AHEAD = "ahead"
    """One more than the last."""


class Owned(enum.StrEnum):
    """The partitions that a heartbeat says its member owns."""

    NULL = "null"
    EMPTY = "empty"
    ASSIGNED = "assigned"
    """The last assignment."""
    PARTIAL = "partial"
    """The last assignment, less its first partition."""
    BEFORE = "before"
    """The assignment before the last: the member has not released it yet."""
    FOREIGN = "foreign"
    """The last assignment, and those of all other members."""
    UNKNOWN = "unknown"
    """The last assignment, and a partition of a topic id that does not exist."""


class _Step(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag=True
):
    pass


class _OfMember(_Step, frozen=True, kw_only=True):
    member: str
    """The name of its sender, whose id it carries unless `member_id` gives another one."""
    instance: str | None = None
    member_id: str | None = None
    group: str | None = None
    """A group other than the schedule's: a blank or a name."""


class _Heartbeat(_OfMember, frozen=True, kw_only=True):
    epoch: Epoch | int = Epoch.LAST
    owned: Owned = Owned.NULL
    rack: str | None = None
    rebalance_timeout_ms: int = -1
    lost: bool = False
    """True if the member does not get the response."""


class Beat(_Heartbeat, frozen=True, kw_only=True, tag="beat"):
    """A heartbeat of a member. With the id "" and version 0 the coordinator makes one, which it keeps."""

    names: tuple[str, ...] | None = None
    """Topics, by their names in the schedule."""
    regex: str | None = None
    """Matched against the topics' names in the schedule."""
    assignor: str | None = None
    version: int = 1


class StreamsBeat(_Heartbeat, frozen=True, kw_only=True, tag="streams_beat"):
    """A heartbeat of a streams member. `unknown` is a task of a subtopology that does not exist."""

    incomplete: bool = False
    """True if one of the lists of tasks is missing."""
    topology: str | None = None
    """The topology's name in `streams_requests.TOPOLOGIES`."""
    topology_epoch: int = 0
    process: str | None = None
    endpoint: str | None = None
    endpoint_epoch: int = 0
    tags: Mapping[str, str] | None = None
    shutdown: bool = False


class DescribeStreams(_Step, frozen=True, kw_only=True, tag="describe_streams"):
    """StreamsGroupDescribe of the schedule's group, or of another one."""

    group: str | None = None


TOLD = "told"
"""Placeholder for a protocol's name: the one that the member received when it joined."""


class ClassicJoinStep(_OfMember, frozen=True, kw_only=True, tag="classic_join"):
    """JoinGroup. It may have to wait, and the steps after it are taken meanwhile.

    A member that was given no id has none, unless `member_id` gives one.
    """

    protocols: tuple[str, ...] = ("range",)
    topics: tuple[str, ...] = ("x",)
    owned: Owned = Owned.NULL
    """The partitions that its subscription says it owns; `null` is nothing, as eager members have it."""
    session_timeout_ms: int = 30_000
    rebalance_timeout_ms: int = 30_000
    protocol_type: str = "consumer"
    malformed: bool = False
    """True if its subscription can't be read."""
    version: int = 9
    lost: bool = False
    """True if the member does not get the response."""


class ClassicSyncStep(_OfMember, frozen=True, kw_only=True, tag="classic_sync"):
    """SyncGroup. Its sender may give partitions to members; they count if it leads."""

    gives: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    """Partitions by topic, by the member's name in the schedule."""
    user_data: bool = False
    """True if the leader's assignor has added data of its own."""
    generation: Epoch | int = Epoch.LAST
    protocol: str | None = TOLD
    protocol_type: str | None = "consumer"
    version: int = 5


class ClassicBeat(_OfMember, frozen=True, kw_only=True, tag="classic_beat"):
    """Heartbeat."""

    generation: Epoch | int = Epoch.LAST
    version: int = 4


class AwaitStep(_Step, frozen=True, kw_only=True, tag="await"):
    """Send nothing until no request waits, but no longer than that."""

    ms: int


class Describe(_Step, frozen=True, kw_only=True, tag="describe"):
    """ConsumerGroupDescribe of the schedule's group, or of another one."""

    group: str | None = None
    version: int = 1


class DescribeClassic(_Step, frozen=True, kw_only=True, tag="describe_classic"):
    """DescribeGroups, the request of the classic protocol."""

    version: int = 6


class List(_Step, frozen=True, kw_only=True, tag="list"):
    """ListGroups; only the schedule's own group is looked at."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    version: int = 5


class CommitStep(_Step, frozen=True, kw_only=True, tag="commit"):
    """OffsetCommit, by a member or by none."""

    topics: Mapping[str, tuple[int, ...]]
    offset: int = 1
    member: str | None = None
    epoch: Epoch | int = Epoch.LAST
    instance: str | None = None
    metadata_bytes: int = 0
    version: int = 9
    group: str | None = None
    lost: bool = False


class Fetch(_Step, frozen=True, kw_only=True, tag="fetch"):
    """OffsetFetch, by a member or by none; `topics` None asks for all."""

    topics: Mapping[str, tuple[int, ...]] | None = None
    member: str | None = None
    epoch: Epoch | int = Epoch.LAST
    version: int = 9
    group: str | None = None
    stable: bool = False


class Forget(_Step, frozen=True, kw_only=True, tag="forget"):
    """OffsetDelete."""

    topics: Mapping[str, tuple[int, ...]]
    group: str | None = None


class Removed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The target of an administrator's removal: a member, an instance, or a member under an instance id."""

    member: str = ""
    instance: str | None = None


class Remove(_Step, frozen=True, kw_only=True, tag="remove"):
    """LeaveGroup, as an administrator sends it."""

    members: tuple[Removed, ...]
    version: int = 5
    group: str | None = None


class DeleteGroup(_Step, frozen=True, kw_only=True, tag="delete_group"):
    """DeleteGroups."""

    group: str | None = None


class CreateTopicStep(_Step, frozen=True, kw_only=True, tag="create"):
    """CreateTopics."""

    topic: str
    partitions: int


class Grow(_Step, frozen=True, kw_only=True, tag="grow"):
    """CreatePartitions."""

    topic: str
    partitions: int


class DeleteTopicStep(_Step, frozen=True, kw_only=True, tag="delete"):
    """DeleteTopics."""

    topic: str


class Configure(_Step, frozen=True, kw_only=True, tag="configure"):
    """IncrementalAlterConfigs of the schedule's group."""

    values: Mapping[str, str]


class Wait(_Step, frozen=True, kw_only=True, tag="wait"):
    """Send nothing for a while."""

    ms: int


Step: TypeAlias = (
    Beat
    | StreamsBeat
    | DescribeStreams
    | ClassicJoinStep
    | ClassicSyncStep
    | ClassicBeat
    | AwaitStep
    | Describe
    | DescribeClassic
    | List
    | CommitStep
    | Fetch
    | Forget
    | Remove
    | DeleteGroup
    | CreateTopicStep
    | Grow
    | DeleteTopicStep
    | Configure
    | Wait
)

TOPIC_STEPS = (CreateTopicStep, Grow, DeleteTopicStep, StreamsBeat)
"""Steps that change topics, or may: a broker creates the internal topics of Streams applications."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Steps for one group, over topics that exist when it begins."""

    name: str
    topics: Mapping[str, int]
    """Partitions by the topic's name in the schedule."""
    steps: tuple[Step, ...]

    @property
    def changes_topics(self) -> bool:
        """True if it needs topics that no other schedule uses."""
        return any(isinstance(step, TOPIC_STEPS) for step in self.steps)


def schedules_of(text: bytes, source: str) -> list[Schedule]:
    """Return the schedules of a JSON document: one, or a list.

    :raises FencepostError: if the document is something else; the text says where.
    """
    try:
        found = msgspec.json.decode(text, type=Schedule | list[Schedule])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FencepostError(f"{source} holds no schedules: {error}") from error
    if found == []:
        raise FencepostError(f"{source} holds no schedules: the list is empty")
    return found if isinstance(found, list) else [found]
