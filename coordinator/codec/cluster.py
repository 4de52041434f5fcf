"""Metadata (3), FindCoordinator (10), ApiVersions (18), DescribeCluster (60), DescribeTopicPartitions (75).

Metadata: 0 asks for all topics with an empty list, 1 and later with null; 4 brings automatic creation, 7
leader epochs, 10 topic ids, 12 topics asked for by id, 13 an error for the whole response.
FindCoordinator: 1 brings the key's type, 4 several keys. ApiVersions: 3 brings features and the client's
name; its response has header version 0 in every version (KIP-511).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fencepost.coordinator.codec.layout import EMPTY_FOR_NULL, NULL_IF_POSSIBLE, Layout, only, row
from fencepost.coordinator.protocol import cluster
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.topics import INTERNAL_TOPICS

_FIRST_VERSION_BY_ID = 12
_FIRST_VERSION_OF_KEYS = 4
_NOWHERE = cluster.Node(node_id=-1, host="", port=-1)
FEATURES = {"group.version": 1, "streams.version": 1, "transaction.version": 2}
"""The levels that tell clients of KIP-848, KIP-1071, and of an epoch for each transaction (KIP-890)."""


class BrokerVersions(msgspec.Struct, frozen=True, kw_only=True):
    """The API versions that a broker supports, and the cluster's finalized feature levels (KIP-584)."""

    error_code: ErrorCode
    api_versions: Mapping[int, cluster.ApiVersion]
    """By API key."""
    features: Mapping[str, int]


# -- ApiVersions -----------------------------------------------------------------------------------------


def _levels(reply: cluster.ApiVersionsResponse) -> list[tuple[str, int]]:
    """Return the feature levels; a response with an error has no features."""
    return list(FEATURES.items()) if reply.error_code is ErrorCode.NONE else []


def _supported(reply: cluster.ApiVersionsResponse, version: int) -> tuple[tuple[str, int, int], ...]:
    """Clients of versions before 4 refuse a feature that starts at 0."""
    return tuple((name, 0, level) for name, level in _levels(reply)) if version >= 4 else ()


def _broker_versions(values: dict[str, Any], _: int) -> BrokerVersions:
    return BrokerVersions(
        error_code=values["error_code"],
        api_versions={one.api_key: one for one in values["api_versions"]},
        features={name: level for name, level, _ in values.get("finalized_features", ())},
    )


API_VERSIONS_REQUEST = Layout(cluster.ApiVersionsRequest)
API_VERSIONS_RESPONSE = Layout(
    cluster.ApiVersionsResponse,
    {"api_versions": "api_keys"},
    fields={
        "api_versions": Layout(cluster.ApiVersion),
        "supported_features": row("name", "min_version", "max_version"),
        "finalized_features": row("name", "max_version_level", "min_version_level"),
    },
    write={
        "supported_features": _supported,
        "finalized_features_epoch": lambda reply, _: 0 if reply.error_code is ErrorCode.NONE else -1,
        "finalized_features": lambda reply, _: tuple((name, level, level) for name, level in _levels(reply)),
    },
    read=_broker_versions,
)


# -- topics and brokers ----------------------------------------------------------------------------------


def _reference(values: dict[str, Any], version: int) -> cluster.TopicReference:
    """Return a reference by id if there is one, else by name: the Java client leaves an empty name next to an
    id."""
    topic_id = values.get("topic_id")
    if topic_id is not None and version >= _FIRST_VERSION_BY_ID:
        return cluster.TopicReference(topic_id=topic_id)
    return cluster.TopicReference(name=values["name"], topic_id=topic_id)


def _metadata_request(values: dict[str, Any], context: Any) -> cluster.MetadataRequest:
    if context.api_version == 0 and not values["topics"]:
        values["topics"] = None
    return cluster.MetadataRequest(**values)


METADATA_REQUEST = Layout(
    cluster.MetadataRequest,
    {
        "include_cluster_operations": "include_cluster_authorized_operations",
        "include_topic_operations": "include_topic_authorized_operations",
    },
    fields={"topics": Layout(cluster.TopicReference, read=_reference)},
    write={
        "topics": lambda request, version: () if request.topics is None and not version else request.topics
    },
    read=_metadata_request,
)


_TOPIC = Layout(
    cluster.TopicMetadata,
    {"authorized_operations": "topic_authorized_operations"},
    fields={
        "name": NULL_IF_POSSIBLE,
        "partitions": Layout(
            cluster.PartitionMetadata,
            {
                "partition": "partition_index",
                "replicas": "replica_nodes",
                "in_sync": "isr_nodes",
                "offline": "offline_replicas",
            },
            write={"eligible_leader_replicas": (), "last_known_elr": ()},
        ),
    },
    write={"is_internal": lambda topic, _: topic.name in INTERNAL_TOPICS},
)
_CLUSTER_OPERATIONS = {"authorized_operations": "cluster_authorized_operations"}
METADATA_RESPONSE = Layout(
    cluster.MetadataResponse,
    _CLUSTER_OPERATIONS,
    fields={"brokers": Layout(cluster.Node), "topics": _TOPIC, "cluster_id": EMPTY_FOR_NULL},
    absent={"cluster_id": ""},
)
DESCRIBE_CLUSTER_REQUEST = Layout(
    cluster.DescribeClusterRequest, {"include_operations": "include_cluster_authorized_operations"}
)
DESCRIBE_CLUSTER_RESPONSE = Layout(
    cluster.DescribeClusterResponse,
    _CLUSTER_OPERATIONS,
    fields={"brokers": Layout(cluster.Node, {"node_id": "broker_id"})},
)
_CURSOR = Layout(cluster.PartitionCursor, {"topic": "topic_name", "partition": "partition_index"})
DESCRIBE_TOPIC_PARTITIONS_REQUEST = Layout(
    cluster.DescribeTopicPartitionsRequest,
    {"partition_limit": "response_partition_limit"},
    fields={"topics": only("name"), "cursor": _CURSOR},
)
DESCRIBE_TOPIC_PARTITIONS_RESPONSE = Layout(
    cluster.DescribeTopicPartitionsResponse, fields={"topics": _TOPIC, "next_cursor": _CURSOR}
)


# -- coordinators ----------------------------------------------------------------------------------------


def _find_request(values: dict[str, Any], _: Any) -> cluster.FindCoordinatorRequest:
    keys = values["keys"] if "keys" in values else (values["key"],)
    return cluster.FindCoordinatorRequest(keys=keys, key_type=values.get("key_type", 0))


def _message(one: cluster.FoundCoordinator, version: int) -> str | None:
    """Return the text for no error: "NONE" or nothing, by version."""
    if one.error_code is ErrorCode.NONE:
        return "NONE" if version < _FIRST_VERSION_OF_KEYS else ""
    return one.error_message


_PLACE: dict[str, Any] = {
    "node_id": lambda one, _: (one.node or _NOWHERE).node_id,
    "host": lambda one, _: (one.node or _NOWHERE).host,
    "port": lambda one, _: (one.node or _NOWHERE).port,
    "error_code": lambda one, _: one.error_code,
    "error_message": _message,
}


def _found(values: dict[str, Any], _: int) -> cluster.FoundCoordinator:
    code, failed = values["error_code"], values["error_code"] is not ErrorCode.NONE
    return cluster.FoundCoordinator(
        key=values.get("key", ""),
        node=None
        if failed
        else cluster.Node(node_id=values["node_id"], host=values["host"], port=values["port"]),
        error_code=code,
        error_message=values.get("error_message") if failed else None,
    )


def _find_reply(values: dict[str, Any], version: int) -> cluster.FindCoordinatorResponse:
    """Before version 4 the response has one coordinator, and does not name its key."""
    found = values["coordinators"] if "coordinators" in values else (_found(values, version),)
    return cluster.FindCoordinatorResponse(coordinators=found)


def _of_only(write: Any) -> Any:
    return lambda reply, version: write(reply.coordinators[0], version)


FIND_COORDINATOR_REQUEST = Layout(
    cluster.FindCoordinatorRequest,
    {"keys": "coordinator_keys"},
    write={"key": lambda request, _: request.keys[0]},
    read=_find_request,
)
FIND_COORDINATOR_RESPONSE = Layout(
    cluster.FindCoordinatorResponse,
    fields={"coordinators": Layout(cluster.FoundCoordinator, write=_PLACE, read=_found)},
    write={name: _of_only(write) for name, write in _PLACE.items()},
    read=_find_reply,
)
