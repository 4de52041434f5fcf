"""The facts a coordinator writes: key and value of each record type of `__consumer_offsets`.

A value of None is a tombstone. The numbers are Kafka's record types (KIP-848, Records). Compaction keeps
the newest record of a key, so a key names exactly one fact.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from fencepost.coordinator.protocol import streams_records
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId


class OffsetCommitKey(msgspec.Struct, frozen=True, tag=1, array_like=True, gc=False):
    """Type 1: the committed position of one partition."""

    group_id: str
    topic: str
    partition: int


class OffsetCommitValue(msgspec.Struct, frozen=True, tag=1, array_like=True, gc=False):
    """A committed position, and when it was committed."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = -1
    topic_id: TopicId | None = None


class GroupMetadataKey(msgspec.Struct, frozen=True, tag=2, array_like=True, gc=False):
    """Type 2: a classic group."""

    group_id: str


class GroupMetadataMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One member of a classic group: its metadata in the chosen protocol, and its assignment."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadataValue(msgspec.Struct, frozen=True, tag=2, array_like=True, gc=False):
    """A classic group as of its last complete generation; without members it is empty."""

    protocol_type: str
    generation: int
    protocol: str | None = None
    leader: MemberId | None = None
    current_state_timestamp_ms: int = -1
    members: tuple[GroupMetadataMember, ...] = ()


class ConsumerGroupMetadataKey(msgspec.Struct, frozen=True, tag=3, array_like=True, gc=False):
    """Type 3: the group itself."""

    group_id: str


class ConsumerGroupMetadataValue(msgspec.Struct, frozen=True, tag=3, array_like=True, gc=False):
    """The group's epoch, and a digest of the topics it subscribes to."""

    epoch: int
    metadata_hash: int = 0


class ClassicMemberMetadata(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The data of a member of a consumer group that speaks the classic protocol (KIP-848, Migration)."""

    session_timeout_ms: int
    supported_protocols: tuple[tuple[str, bytes], ...]
    """Names of protocols and the member's metadata in each, in its order of preference."""


class ConsumerGroupMemberMetadataKey(msgspec.Struct, frozen=True, tag=5, array_like=True, gc=False):
    """Type 5: a member's metadata."""

    group_id: str
    member_id: MemberId


class ConsumerGroupMemberMetadataValue(msgspec.Struct, frozen=True, tag=5, array_like=True, gc=False):
    """A member's identity and subscription."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    """Sorted, without duplicates."""
    subscribed_topic_regex: str | None
    rebalance_timeout_ms: int
    server_assignor: str | None
    classic: ClassicMemberMetadata | None = None


class ConsumerGroupTargetAssignmentMetadataKey(msgspec.Struct, frozen=True, tag=6, array_like=True, gc=False):
    """Type 6: the epoch of the target assignment."""

    group_id: str


class ConsumerGroupTargetAssignmentMetadataValue(
    msgspec.Struct, frozen=True, tag=6, array_like=True, gc=False
):
    """The group epoch for which the target was computed, and when."""

    assignment_epoch: int
    assignment_timestamp_ms: int = 0


class ConsumerGroupTargetAssignmentMemberKey(msgspec.Struct, frozen=True, tag=7, array_like=True, gc=False):
    """Type 7: the target of one member."""

    group_id: str
    member_id: MemberId


class ConsumerGroupTargetAssignmentMemberValue(msgspec.Struct, frozen=True, tag=7, array_like=True, gc=False):
    """The partitions that the assignor wants the member to own."""

    partitions: Partitions


class ConsumerGroupCurrentMemberAssignmentKey(msgspec.Struct, frozen=True, tag=8, array_like=True, gc=False):
    """Type 8: one member's progress towards its target."""

    group_id: str
    member_id: MemberId


class ConsumerGroupCurrentMemberAssignmentValue(
    msgspec.Struct, frozen=True, tag=8, array_like=True, gc=False
):
    """A member's epochs, state, and partitions."""

    member_epoch: int
    previous_member_epoch: int
    state: int
    """A `MemberState` of coordinator.consumer.states."""
    assigned: Partitions = NO_PARTITIONS
    pending_revocation: Partitions = NO_PARTITIONS
    assignment_epochs: dict[TopicId, dict[int, int]] = {}
    """The member epoch at which each held partition became assigned (KIP-1251), by topic and partition."""


class ConsumerGroupRegularExpressionKey(msgspec.Struct, frozen=True, tag=16, array_like=True, gc=False):
    """Type 16: the matches of one regular expression."""

    group_id: str
    regular_expression: str


class ConsumerGroupRegularExpressionValue(msgspec.Struct, frozen=True, tag=16, array_like=True, gc=False):
    """The topics that matched, in which image of the cluster, and when."""

    topics: tuple[str, ...]
    image_version: int
    timestamp_ms: int


class PendingOffsetCommitKey(msgspec.Struct, frozen=True, tag=120, array_like=True, gc=False):
    """A position of one partition in an open transaction. Kafka writes type 1 in a transactional batch."""

    group_id: str
    topic: str
    partition: int
    producer_id: int


class PendingOffsetCommitValue(msgspec.Struct, frozen=True, tag=120, array_like=True, gc=False):
    """The position that counts once the transaction is committed."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    topic_id: TopicId | None = None


RecordKey: TypeAlias = (
    OffsetCommitKey
    | GroupMetadataKey
    | ConsumerGroupMetadataKey
    | ConsumerGroupMemberMetadataKey
    | ConsumerGroupTargetAssignmentMetadataKey
    | ConsumerGroupTargetAssignmentMemberKey
    | ConsumerGroupCurrentMemberAssignmentKey
    | ConsumerGroupRegularExpressionKey
    | PendingOffsetCommitKey
    | streams_records.StreamsGroupRecordKey
)
RecordValue: TypeAlias = (
    OffsetCommitValue
    | GroupMetadataValue
    | ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
    | PendingOffsetCommitValue
    | streams_records.StreamsGroupRecordValue
)


# Records of consumer groups and of streams groups that mean the same, by their keys or their values.
GROUP_KEYS: Final = (ConsumerGroupMetadataKey, streams_records.StreamsGroupMetadataKey)
MEMBER_KEYS: Final = (ConsumerGroupMemberMetadataKey, streams_records.StreamsGroupMemberMetadataKey)
MEMBER_VALUES: Final = (ConsumerGroupMemberMetadataValue, streams_records.StreamsGroupMemberMetadataValue)
ASSIGNMENT_KEYS: Final = (
    ConsumerGroupCurrentMemberAssignmentKey,
    streams_records.StreamsGroupCurrentMemberAssignmentKey,
)
ASSIGNMENT_VALUES: Final = (
    ConsumerGroupCurrentMemberAssignmentValue,
    streams_records.StreamsGroupCurrentMemberAssignmentValue,
)
EPOCH_VALUES: Final = (ConsumerGroupMetadataValue, streams_records.StreamsGroupMetadataValue)
TARGET_VALUES: Final = (
    ConsumerGroupTargetAssignmentMetadataValue,
    streams_records.StreamsGroupTargetAssignmentMetadataValue,
)


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One fact; with value None, its end."""

    key: RecordKey
    value: RecordValue | None
