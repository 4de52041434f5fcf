"""What values of streams groups in `__consumer_offsets` look like (KIP-1071; as in Kafka 4.3.1).

As in `group_record_schemas`; keys have the same forms as those of consumer groups.
"""

from dataclasses import dataclass, field
from typing import Any

from fencepost.coordinator.codec.group_record_schemas import Flexible

_STRING = {"kafka_type": "string"}
_INT8 = {"kafka_type": "int8"}
_INT16 = {"kafka_type": "int16"}
_UINT16 = {"kafka_type": "uint16"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_TAG_0: dict[str, Any] = {"tag": 0}
_TAG_1: dict[str, Any] = {"tag": 1}


@dataclass(frozen=True, kw_only=True)
class Pair(Flexible):
    """A name and a value: a tag of a client, a configuration of a topic or of the assignor."""

    key: str = field(metadata=_STRING)
    value: str = field(metadata=_STRING)


@dataclass(frozen=True, kw_only=True)
class StreamsGroupMetadataValueSchema(Flexible):
    """Value 17."""

    epoch: int = field(metadata=_INT32)
    metadata_hash: int = field(metadata=_INT64)
    validated_topology_epoch: int = field(default=-1, metadata=_INT32 | _TAG_0)
    last_assignment_configs: tuple[Pair, ...] | None = field(default=None, metadata=_TAG_1)


@dataclass(frozen=True, kw_only=True)
class UserEndpoint(Flexible):
    """Where a process answers interactive queries."""

    host: str = field(metadata=_STRING)
    port: int = field(metadata=_UINT16)


@dataclass(frozen=True, kw_only=True)
class StreamsMemberMetadataValue(Flexible):
    """Value 19."""

    instance_id: str | None = field(metadata=_STRING)
    rack_id: str | None = field(metadata=_STRING)
    client_id: str = field(metadata=_STRING)
    client_host: str = field(metadata=_STRING)
    rebalance_timeout_ms: int = field(metadata=_INT32)
    topology_epoch: int = field(metadata=_INT32)
    process_id: str = field(metadata=_STRING)
    user_endpoint: UserEndpoint | None
    client_tags: tuple[Pair, ...]


@dataclass(frozen=True, kw_only=True)
class StreamsTargetMetadataValue(Flexible):
    """Value 20."""

    assignment_epoch: int = field(metadata=_INT32)
    assignment_timestamp: int = field(default=0, metadata=_INT64 | _TAG_0)


@dataclass(frozen=True, kw_only=True)
class SubtopologyTasks(Flexible):
    """Tasks of one subtopology."""

    subtopology_id: str = field(metadata=_STRING)
    partitions: tuple[int, ...] = field(metadata=_INT32)


@dataclass(frozen=True, kw_only=True)
class SubtopologyTasksSince(SubtopologyTasks):
    """Tasks of one subtopology, and beside each active one the epoch at which it was assigned."""

    assignment_epochs: tuple[int, ...] | None = field(default=None, metadata=_INT32 | _TAG_0)


@dataclass(frozen=True, kw_only=True)
class StreamsTargetMemberValue(Flexible):
    """Value 21."""

    active_tasks: tuple[SubtopologyTasks, ...]
    standby_tasks: tuple[SubtopologyTasks, ...]
    warmup_tasks: tuple[SubtopologyTasks, ...]


@dataclass(frozen=True, kw_only=True)
class StreamsCurrentAssignmentValue(Flexible):
    """Value 22."""

    member_epoch: int = field(metadata=_INT32)
    previous_member_epoch: int = field(metadata=_INT32)
    state: int = field(metadata=_INT8)
    active_tasks: tuple[SubtopologyTasksSince, ...]
    standby_tasks: tuple[SubtopologyTasksSince, ...]
    warmup_tasks: tuple[SubtopologyTasksSince, ...]
    active_tasks_pending_revocation: tuple[SubtopologyTasksSince, ...]
    standby_tasks_pending_revocation: tuple[SubtopologyTasksSince, ...]
    warmup_tasks_pending_revocation: tuple[SubtopologyTasksSince, ...]


@dataclass(frozen=True, kw_only=True)
class TopicInfoForm(Flexible):
    """An internal topic."""

    name: str = field(metadata=_STRING)
    partitions: int = field(metadata=_INT32)
    replication_factor: int = field(metadata=_INT16)
    topic_configs: tuple[Pair, ...]


@dataclass(frozen=True, kw_only=True)
class CopartitionGroupForm(Flexible):
    """Indexes of topics that are read together."""

    source_topics: tuple[int, ...] = field(metadata=_INT16)
    source_topic_regex: tuple[int, ...] = field(metadata=_INT16)
    repartition_source_topics: tuple[int, ...] = field(metadata=_INT16)


@dataclass(frozen=True, kw_only=True)
class SubtopologyForm(Flexible):
    """One subtopology."""

    subtopology_id: str = field(metadata=_STRING)
    source_topics: tuple[str, ...] = field(metadata=_STRING)
    source_topic_regex: tuple[str, ...] = field(metadata=_STRING)
    state_changelog_topics: tuple[TopicInfoForm, ...]
    repartition_sink_topics: tuple[str, ...] = field(metadata=_STRING)
    repartition_source_topics: tuple[TopicInfoForm, ...]
    copartition_groups: tuple[CopartitionGroupForm, ...]


@dataclass(frozen=True, kw_only=True)
class StreamsTopologyValue(Flexible):
    """Value 23."""

    epoch: int = field(metadata=_INT32)
    subtopologies: tuple[SubtopologyForm, ...]
