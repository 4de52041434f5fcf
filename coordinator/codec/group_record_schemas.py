"""What records of `__consumer_offsets` look like, in the form from which readers and writers are made.

Field by field and in their order as in Kafka 4.3.1's group coordinator. Keys are never flexible; values of
consumer groups always are, those of offsets from version 4 on. A tag is a field that may be left out, then
it has its default (KIP-482); without a default it is always written.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fencepost.coordinator.protocol.ids import TopicId

_STRING = {"kafka_type": "string"}
_UUID = {"kafka_type": "uuid"}
_BYTES = {"kafka_type": "bytes"}
_INT8 = {"kafka_type": "int8"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_TAG_0: dict[str, Any] = {"tag": 0}


class _Plain:
    __flexible__: ClassVar[bool] = False


class Flexible:
    """A value with compact lengths, and tags at its end."""

    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class OffsetCommitKeySchema(_Plain):
    """Keys 0 and 1."""

    group: str = field(metadata=_STRING)
    topic: str = field(metadata=_STRING)
    partition: int = field(metadata=_INT32)


@dataclass(frozen=True, kw_only=True)
class GroupKey(_Plain):
    """Keys 2, 3, 4 and 6."""

    group: str = field(metadata=_STRING)


@dataclass(frozen=True, kw_only=True)
class MemberKey(_Plain):
    """Keys 5, 7 and 8."""

    group: str = field(metadata=_STRING)
    member: str = field(metadata=_STRING)


@dataclass(frozen=True, kw_only=True)
class RegularExpressionKey(_Plain):
    """Key 16."""

    group: str = field(metadata=_STRING)
    regular_expression: str = field(metadata=_STRING)


@dataclass(frozen=True, kw_only=True)
class OffsetCommitValue0(_Plain):
    """Value 1, versions 0 and 2."""

    offset: int = field(metadata=_INT64)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, kw_only=True)
class OffsetCommitValue1(OffsetCommitValue0):
    """Value 1, version 1: with a time at which it expires."""

    expire_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, kw_only=True)
class OffsetCommitValue3(_Plain):
    """Value 1, version 3: with the leader epoch."""

    offset: int = field(metadata=_INT64)
    leader_epoch: int = field(metadata=_INT32)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)


@dataclass(frozen=True, kw_only=True)
class OffsetCommitValue4(Flexible):
    """Value 1, version 4: with the topic's id."""

    offset: int = field(metadata=_INT64)
    leader_epoch: int = field(metadata=_INT32)
    metadata: str = field(metadata=_STRING)
    commit_timestamp: int = field(metadata=_INT64)
    topic_id: TopicId | None = field(default=None, metadata=_UUID | _TAG_0)


@dataclass(frozen=True, kw_only=True)
class ClassicMember0(_Plain):
    """A member in value 2, version 0."""

    member_id: str = field(metadata=_STRING)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    session_timeout: int = field(metadata=_INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, kw_only=True)
class ClassicMember1(_Plain):
    """A member in value 2, versions 1 and 2: with a rebalance time-out of its own."""

    member_id: str = field(metadata=_STRING)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    rebalance_timeout: int = field(metadata=_INT32)
    session_timeout: int = field(metadata=_INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, kw_only=True)
class ClassicMember3(_Plain):
    """A member in value 2, version 3: static, if it wants."""

    member_id: str = field(metadata=_STRING)
    group_instance_id: str | None = field(metadata=_STRING)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    rebalance_timeout: int = field(metadata=_INT32)
    session_timeout: int = field(metadata=_INT32)
    subscription: bytes = field(metadata=_BYTES)
    assignment: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, kw_only=True)
class ClassicMember4(ClassicMember3):
    """A member in value 2, version 4."""

    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class _ClassicGroup(_Plain):
    protocol_type: str = field(metadata=_STRING)
    generation: int = field(metadata=_INT32)
    protocol: str | None = field(metadata=_STRING)
    leader: str | None = field(metadata=_STRING)


@dataclass(frozen=True, kw_only=True)
class ClassicGroupValue0(_ClassicGroup):
    """Value 2, version 0."""

    members: tuple[ClassicMember0, ...]


@dataclass(frozen=True, kw_only=True)
class ClassicGroupValue1(_ClassicGroup):
    """Value 2, version 1."""

    members: tuple[ClassicMember1, ...]


@dataclass(frozen=True, kw_only=True)
class ClassicGroupValue2(_ClassicGroup):
    """Value 2, version 2: with the time of the last change of state."""

    current_state_timestamp: int = field(metadata=_INT64)
    members: tuple[ClassicMember1, ...]


@dataclass(frozen=True, kw_only=True)
class ClassicGroupValue3(_ClassicGroup):
    """Value 2, version 3: the one that Kafka writes."""

    current_state_timestamp: int = field(metadata=_INT64)
    members: tuple[ClassicMember3, ...]


@dataclass(frozen=True, kw_only=True)
class ClassicGroupValue4(_ClassicGroup):
    """Value 2, version 4."""

    __flexible__: ClassVar[bool] = True
    current_state_timestamp: int = field(metadata=_INT64)
    members: tuple[ClassicMember4, ...]


@dataclass(frozen=True, kw_only=True)
class GroupMetadataValueSchema(Flexible):
    """Value 3."""

    epoch: int = field(metadata=_INT32)
    metadata_hash: int = field(default=0, metadata=_INT64 | _TAG_0)


@dataclass(frozen=True, kw_only=True)
class ClassicProtocolSchema(Flexible):
    """A protocol that a member supports."""

    name: str = field(metadata=_STRING)
    metadata: bytes = field(metadata=_BYTES)


@dataclass(frozen=True, kw_only=True)
class ClassicMemberMetadataSchema(Flexible):
    """The tag of value 5: a member that speaks the classic protocol."""

    session_timeout_ms: int = field(metadata=_INT32)
    supported_protocols: tuple[ClassicProtocolSchema, ...]


@dataclass(frozen=True, kw_only=True)
class MemberMetadataValue(Flexible):
    """Value 5. Kafka writes its tag for every member, for most of them with null in it."""

    instance_id: str | None = field(metadata=_STRING)
    rack_id: str | None = field(metadata=_STRING)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    subscribed_topic_names: tuple[str, ...] = field(metadata=_STRING)
    subscribed_topic_regex: str | None = field(metadata=_STRING)
    rebalance_timeout_ms: int = field(metadata=_INT32)
    server_assignor: str | None = field(metadata=_STRING)
    classic: ClassicMemberMetadataSchema | None = field(metadata=_TAG_0)


@dataclass(frozen=True, kw_only=True)
class TargetMetadataValue(Flexible):
    """Value 6."""

    assignment_epoch: int = field(metadata=_INT32)
    assignment_timestamp: int = field(default=0, metadata=_INT64 | _TAG_0)


@dataclass(frozen=True, kw_only=True)
class TopicPartitionsSchema(Flexible):
    """Partitions of one topic."""

    topic_id: TopicId | None = field(metadata=_UUID)
    partitions: tuple[int, ...] = field(metadata=_INT32)


@dataclass(frozen=True, kw_only=True)
class TopicPartitionsSince(TopicPartitionsSchema):
    """Partitions of one topic, and beside each the member epoch at which it was assigned (KIP-1251)."""

    assignment_epochs: tuple[int, ...] | None = field(default=None, metadata=_INT32 | _TAG_0)


@dataclass(frozen=True, kw_only=True)
class TargetMemberValue(Flexible):
    """Value 7."""

    topic_partitions: tuple[TopicPartitionsSchema, ...]


@dataclass(frozen=True, kw_only=True)
class CurrentAssignmentValue(Flexible):
    """Value 8."""

    member_epoch: int = field(metadata=_INT32)
    previous_member_epoch: int = field(metadata=_INT32)
    state: int = field(metadata=_INT8)
    assigned_partitions: tuple[TopicPartitionsSince, ...]
    partitions_pending_revocation: tuple[TopicPartitionsSince, ...]


@dataclass(frozen=True, kw_only=True)
class RegularExpressionValue(Flexible):
    """Value 16."""

    topics: tuple[str, ...] = field(metadata=_STRING)
    version: int = field(metadata=_INT64)
    timestamp: int = field(metadata=_INT64)
