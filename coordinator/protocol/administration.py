"""CreateTopics, DeleteTopics, CreatePartitions and DescribeConfigs without their wire form."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from fencepost.coordinator.protocol.cluster import TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId


class NewTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic to create. `partitions` -1 means the default, unless `assignments` tell."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Partitions and the broker ids of each, if the request places replicas manually."""
    configs: Mapping[str, str | None] = {}


class CreateTopicsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to create topics; with `validate_only`, only whether that would work."""

    topics: tuple[NewTopic, ...]
    validate_only: bool = False


class CreatedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one topic of CreateTopics."""

    name: str
    topic_id: TopicId | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: tuple[ConfigEntry, ...] = ()
    topic_config_error_code: ErrorCode = ErrorCode.NONE
    """Why the numbers and the settings are left out."""
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class CreateTopicsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each topic of the request, in its order."""

    topics: tuple[CreatedTopic, ...]


class DeleteTopicsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to delete topics and their records."""

    topics: tuple[TopicReference, ...]


class DeletedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one topic of DeleteTopics."""

    name: str | None
    topic_id: TopicId | None = None
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class DeleteTopicsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each topic of the request, in its order."""

    topics: tuple[DeletedTopic, ...]


class GrownTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that shall have `count` partitions in all."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None
    """Broker ids of each new partition, if the request places replicas manually."""


class CreatePartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks to add partitions; with `validate_only`, only whether that would work."""

    topics: tuple[GrownTopic, ...]
    validate_only: bool = False


class CreatedPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one topic of CreatePartitions."""

    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class CreatePartitionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each topic of the request, in its order."""

    topics: tuple[CreatedPartitions, ...]


class ResourceType(enum.IntEnum):
    """The kinds of resources that have settings in Kafka; here topics, brokers and groups have them."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(enum.IntEnum):
    """The source of a setting's value."""

    DYNAMIC_TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class ConfigType(enum.IntEnum):
    """The type of a setting's value."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ConfigResource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource; without `keys`, all of its settings. `resource_type` may be an unknown number."""

    resource_type: int
    name: str
    keys: tuple[str, ...] | None = None


class DescribeConfigsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the settings of resources, and optionally for the values that would apply without each."""

    resources: tuple[ConfigResource, ...]
    include_synonyms: bool = False


class ConfigEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One setting."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.DEFAULT
    config_type: ConfigType = ConfigType.UNKNOWN
    read_only: bool = True
    synonyms: tuple[tuple[str, str | None, ConfigSource], ...] = ()
    """Name, value and source of each that would hold if those before it were not there."""


class DescribedConfigs(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one resource."""

    resource_type: int
    name: str
    entries: tuple[ConfigEntry, ...] = ()
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class DescribeConfigsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A description for each resource of the request, in its order."""

    resources: tuple[DescribedConfigs, ...]


class ConfigOperation(enum.IntEnum):
    """The change that IncrementalAlterConfigs makes to one setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(msgspec.Struct, frozen=True):
    """A change of one setting. `operation` may be an unknown number."""

    name: str
    value: str | None
    operation: int = ConfigOperation.SET


class ChangedResource(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of one resource."""

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...]


class AlterConfigsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Changes settings; with `validate_only`, asks only whether that would work.

    If not `incremental`, the changes of a resource replace all settings that were set on it.
    """

    resources: tuple[ChangedResource, ...]
    validate_only: bool = False
    incremental: bool = True


class AlteredConfigs(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one resource."""

    resource_type: int
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AlterConfigsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each resource of the request, in its order."""

    resources: tuple[AlteredConfigs, ...]
