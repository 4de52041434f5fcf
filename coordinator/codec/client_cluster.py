"""The client's half of Metadata (3), FindCoordinator (10) and ApiVersions (18)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.protocol import cluster
from fencepost.coordinator.protocol.errors import ErrorCode


class BrokerVersions(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker speaks, and the cluster's features with their finalized levels (KIP-584)."""

    error_code: ErrorCode
    api_versions: Mapping[int, cluster.ApiVersion]
    """By API key."""
    features: Mapping[str, int]


def encode_api_versions(request: cluster.ApiVersionsRequest, shape: Shape) -> Any:
    """ApiVersions, versions 0 to 4."""
    return shape.ApiVersionsRequest(
        client_software_name=request.client_software_name,
        client_software_version=request.client_software_version,
    )


def decode_api_versions(values: dict[str, Any], version: int) -> BrokerVersions:
    """ApiVersions, versions 0 to 4."""
    return BrokerVersions(
        error_code=error_of(values["error_code"]),
        api_versions={
            one["api_key"]: cluster.ApiVersion(one["api_key"], one["min_version"], one["max_version"])
            for one in values["api_keys"]
        },
        features={one["name"]: one["max_version_level"] for one in values.get("finalized_features", ())},
    )


def encode_metadata(request: cluster.MetadataRequest, shape: Shape) -> Any:
    """Metadata, versions 1 to 13."""
    topics = request.topics
    return shape.MetadataRequest(
        topics=None
        if topics is None
        else tuple(shape.MetadataRequestTopic(name=topic.name, topic_id=topic.topic_id) for topic in topics),
        allow_auto_topic_creation=request.allow_auto_topic_creation,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )


def decode_metadata(values: dict[str, Any], version: int) -> cluster.MetadataResponse:
    """Metadata, versions 1 to 13."""
    return cluster.MetadataResponse(
        cluster_id=values.get("cluster_id") or "",
        controller_id=values["controller_id"],
        brokers=tuple(
            cluster.Node(node_id=one["node_id"], host=one["host"], port=one["port"], rack=one["rack"])
            for one in values["brokers"]
        ),
        topics=tuple(map(_topic, values["topics"])),
        error_code=error_of(values.get("error_code", ErrorCode.NONE)),
    )


def _topic(values: dict[str, Any]) -> cluster.TopicMetadata:
    return cluster.TopicMetadata(
        name=values["name"],
        topic_id=values.get("topic_id"),
        error_code=error_of(values["error_code"]),
        partitions=tuple(
            cluster.PartitionMetadata(
                partition=one["partition_index"],
                leader_id=one["leader_id"],
                leader_epoch=one.get("leader_epoch", 0),
                error_code=error_of(one["error_code"]),
            )
            for one in values["partitions"]
        ),
    )


def encode_find_coordinator(request: cluster.FindCoordinatorRequest, shape: Shape) -> Any:
    """FindCoordinator, versions 0 to 6. Below version 4 only the first key goes."""
    return shape.FindCoordinatorRequest(
        key=request.keys[0], key_type=request.key_type, coordinator_keys=request.keys
    )


def decode_find_coordinator(values: dict[str, Any], version: int) -> cluster.FindCoordinatorResponse:
    """FindCoordinator, versions 0 to 6. Below version 4 the answer does not name its key."""
    found = values["coordinators"] if version >= 4 else [values]
    return cluster.FindCoordinatorResponse(coordinators=tuple(map(_coordinator, found)))


def _coordinator(values: dict[str, Any]) -> cluster.FoundCoordinator:
    code = error_of(values["error_code"])
    return cluster.FoundCoordinator(
        key=values.get("key", ""),
        node=None
        if code is not ErrorCode.NONE
        else cluster.Node(node_id=values["node_id"], host=values["host"], port=values["port"]),
        error_code=code,
        # Beside no error there is "NONE" or nothing, by version.
        error_message=values.get("error_message") if code is not ErrorCode.NONE else None,
    )
