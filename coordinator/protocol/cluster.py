"""Requests of clients about a cluster without their wire form: versions, brokers, topics, coordinators."""

from __future__ import annotations

import enum

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId

UNKNOWN_OPERATIONS = -2147483648
"""The bit field of authorized operations if the client did not ask for it."""
TOPIC_OPERATIONS = 3576
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS (KIP-430)."""
CLUSTER_OPERATIONS = 8096
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS and IDEMPOTENT_WRITE."""
GROUP_OPERATIONS = 3400
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ApiVersionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the APIs and versions of a broker, and names the client."""

    client_software_name: str = ""
    client_software_version: str = ""


class ApiVersion(msgspec.Struct, frozen=True):
    """One API and its versions, both ends included."""

    api_key: int
    min_version: int
    max_version: int


class ApiVersionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The APIs and versions that the broker speaks. On UNSUPPORTED_VERSION the client asks again with a
    listed version."""

    error_code: ErrorCode = ErrorCode.NONE
    api_versions: tuple[ApiVersion, ...] = ()


class TopicReference(msgspec.Struct, frozen=True, kw_only=True):
    """A topic by its id if the request has one, otherwise by its name."""

    name: str | None = None
    topic_id: TopicId | None = None

    def refused(self, code: ErrorCode) -> TopicMetadata:
        """Return the description that has only this error."""
        return TopicMetadata(name=self.name, topic_id=self.topic_id, error_code=code)


class MetadataRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for brokers and topics; `topics` None means all topics."""

    topics: tuple[TopicReference, ...] | None = None
    allow_auto_topic_creation: bool = True
    include_cluster_operations: bool = False
    include_topic_operations: bool = False


class PartitionMetadata(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition and its leader."""

    partition: int
    leader_id: int
    replicas: tuple[int, ...] = ()
    """The brokers that have a replica."""
    in_sync: tuple[int, ...] = ()
    """Those replicas that run and have all records."""
    offline: tuple[int, ...] = ()
    """Those replicas whose brokers are stopped."""
    leader_epoch: int = 0
    error_code: ErrorCode = ErrorCode.NONE


class TopicMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """One topic; with an error, the name or id from the request."""

    name: str | None
    topic_id: TopicId | None = None
    partitions: tuple[PartitionMetadata, ...] = ()
    error_code: ErrorCode = ErrorCode.NONE
    authorized_operations: int = UNKNOWN_OPERATIONS


class MetadataResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster as one broker sees it; an invalid request gets no information."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: tuple[Node, ...] = ()
    topics: tuple[TopicMetadata, ...]
    authorized_operations: int = UNKNOWN_OPERATIONS
    error_code: ErrorCode = ErrorCode.NONE
    """The error of the whole response, which version 13 and later can carry (KIP-1102)."""


class PartitionCursor(msgspec.Struct, frozen=True):
    """The position from which a description of topics continues."""

    topic: str
    partition: int


class DescribeTopicPartitionsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for topics by name, or all topics, with a limit of partitions in one response (KIP-966)."""

    topics: tuple[str, ...]
    partition_limit: int
    cursor: PartitionCursor | None = None


class DescribeTopicPartitionsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Topics by name, and the position at which the next response begins if there is more."""

    topics: tuple[TopicMetadata, ...]
    next_cursor: PartitionCursor | None = None


class KeyType(enum.IntEnum):
    """The kind of coordinator that FindCoordinator looks for."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class FindCoordinatorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the coordinator of each key. `key_type` is a `KeyType`, or an unknown number."""

    keys: tuple[str, ...]
    key_type: int = KeyType.GROUP


class FoundCoordinator(msgspec.Struct, frozen=True, kw_only=True):
    """The coordinator of one key, or an error."""

    key: str
    node: Node | None = None
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class FindCoordinatorResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinator for each key of the request, in its order."""

    coordinators: tuple[FoundCoordinator, ...]


class DescribeClusterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the brokers alone. `endpoint_type` is 1 for brokers, 2 for controllers."""

    endpoint_type: int = 1
    include_operations: bool = False


class DescribeClusterResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers of the cluster."""

    cluster_id: str
    controller_id: int
    brokers: tuple[Node, ...] = ()
    endpoint_type: int = 1
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    authorized_operations: int = UNKNOWN_OPERATIONS
