"""Metadata (3), FindCoordinator (10), ApiVersions (18), DescribeCluster (60), DescribeTopicPartitions (75).

Metadata: 0 asks for all topics with an empty list, 1 and later with null; 4 brings automatic creation, 7
leader epochs, 10 topic ids, 12 topics asked for by id, 13 an error for the whole answer.
FindCoordinator: 1 brings the key's type, 4 several keys. ApiVersions: 3 brings features and who asks;
its answer has header version 0 in every version (KIP-511).
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import cluster
from fencepost.coordinator.protocol.errors import ErrorCode

_FIRST_VERSION_BY_ID = 12
_FIRST_VERSION_OF_KEYS = 4
_NOWHERE = cluster.Node(node_id=-1, host="", port=-1)
FEATURES = {"group.version": 1, "transaction.version": 2}
"""The levels that tell clients of KIP-848, and of an epoch for each transaction (KIP-890)."""


def decode_api_versions(values: dict[str, Any], context: RequestContext) -> cluster.ApiVersionsRequest:
    """ApiVersions, versions 0 to 4."""
    return cluster.ApiVersionsRequest(
        client_software_name=values.get("client_software_name", ""),
        client_software_version=values.get("client_software_version", ""),
    )


def encode_api_versions(reply: cluster.ApiVersionsResponse, shape: Shape) -> Any:
    """A supported feature that starts at 0 stays out below version 4: older clients refuse it.

    With an error nothing is told of features.
    """
    supported: tuple[Any, ...] = ()
    is_told = reply.error_code is ErrorCode.NONE
    if shape.version >= 4 and is_told:
        supported = tuple(
            shape.SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in FEATURES.items()
        )
    finalized: tuple[Any, ...] = ()
    if shape.version >= 3 and is_told:
        finalized = tuple(
            shape.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
        )
    return shape.ApiVersionsResponse(
        error_code=reply.error_code,
        api_keys=tuple(
            shape.ApiVersion(api_key=api.api_key, min_version=api.min_version, max_version=api.max_version)
            for api in reply.api_versions
        ),
        throttle_time=0,
        supported_features=supported,
        finalized_features_epoch=0 if is_told else -1,
        finalized_features=finalized,
    )


def decode_metadata(values: dict[str, Any], context: RequestContext) -> cluster.MetadataRequest:
    """Metadata, versions 0 to 13."""
    topics = values["topics"]
    wants_all = topics is None or (context.api_version == 0 and not topics)
    return cluster.MetadataRequest(
        topics=None if wants_all else tuple(_reference(topic, context.api_version) for topic in topics),
        allow_auto_topic_creation=values.get("allow_auto_topic_creation", True),
        include_cluster_operations=values.get("include_cluster_authorized_operations", False),
        include_topic_operations=values.get("include_topic_authorized_operations", False),
    )


def _reference(topic: dict[str, Any], version: int) -> cluster.TopicReference:
    """An id goes before a name: the Java client leaves an empty name beside it."""
    topic_id = topic.get("topic_id")
    if topic_id is not None and version >= _FIRST_VERSION_BY_ID:
        return cluster.TopicReference(topic_id=topic_id)
    return cluster.TopicReference(name=topic["name"], topic_id=topic_id)


def _brokers(nodes: tuple[cluster.Node, ...], make: Any, id_name: str) -> tuple[Any, ...]:
    return tuple(
        make(**{id_name: node.node_id}, host=node.host, port=node.port, rack=node.rack, is_fenced=False)
        for node in nodes
    )


def encode_metadata(reply: cluster.MetadataResponse, shape: Shape) -> Any:
    """Metadata, versions 0 to 13. Replicas that run are in sync."""
    return shape.MetadataResponse(
        throttle_time=0,
        brokers=_brokers(reply.brokers, shape.MetadataResponseBroker, "node_id"),
        cluster_id=reply.cluster_id,
        controller_id=reply.controller_id,
        topics=tuple(_topic_metadata(topic, shape) for topic in reply.topics),
        error_code=reply.error_code,
        cluster_authorized_operations=reply.authorized_operations,
    )


def _offline(partition: cluster.PartitionMetadata) -> tuple[int, ...]:
    return tuple(node_id for node_id in partition.replicas if node_id not in partition.in_sync)


def _topic_metadata(topic: cluster.TopicMetadata, shape: Shape) -> Any:
    return shape.MetadataResponseTopic(
        error_code=topic.error_code,
        name=topic.name if shape.version >= 12 else topic.name or "",
        topic_id=topic.topic_id,
        is_internal=False,
        partitions=tuple(
            shape.MetadataResponsePartition(
                error_code=partition.error_code,
                partition_index=partition.partition,
                leader_id=partition.leader_id,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.in_sync,
                offline_replicas=_offline(partition),
            )
            for partition in topic.partitions
        ),
        topic_authorized_operations=topic.authorized_operations,
    )


def decode_find_coordinator(
    values: dict[str, Any], context: RequestContext
) -> cluster.FindCoordinatorRequest:
    """FindCoordinator, versions 0 to 6."""
    keys = (
        tuple(values["coordinator_keys"])
        if context.api_version >= _FIRST_VERSION_OF_KEYS
        else (values["key"],)
    )
    return cluster.FindCoordinatorRequest(keys=keys, key_type=values.get("key_type", 0))


def encode_find_coordinator(reply: cluster.FindCoordinatorResponse, shape: Shape) -> Any:
    """FindCoordinator, versions 0 to 6. Below 4 the only key's answer stands at the top, without the key."""
    if shape.version >= _FIRST_VERSION_OF_KEYS:
        found = tuple(shape.Coordinator(key=one.key, **_found(one, "")) for one in reply.coordinators)
        return shape.FindCoordinatorResponse(throttle_time=0, coordinators=found)
    (one,) = reply.coordinators
    return shape.FindCoordinatorResponse(throttle_time=0, **_found(one, "NONE"))


def _found(one: cluster.FoundCoordinator, no_error: str) -> dict[str, Any]:
    node = one.node or _NOWHERE
    return {
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": one.error_code,
        "error_message": no_error if one.error_code is ErrorCode.NONE else one.error_message,
    }


def decode_describe_cluster(
    values: dict[str, Any], context: RequestContext
) -> cluster.DescribeClusterRequest:
    """DescribeCluster, versions 0 to 2."""
    return cluster.DescribeClusterRequest(
        endpoint_type=values.get("endpoint_type", 1),
        include_operations=values["include_cluster_authorized_operations"],
    )


def encode_describe_cluster(reply: cluster.DescribeClusterResponse, shape: Shape) -> Any:
    """DescribeCluster, versions 0 to 2."""
    return shape.DescribeClusterResponse(
        throttle_time=0,
        error_code=reply.error_code,
        error_message=reply.error_message,
        endpoint_type=reply.endpoint_type,
        cluster_id=reply.cluster_id,
        controller_id=reply.controller_id,
        brokers=_brokers(reply.brokers, shape.DescribeClusterBroker, "broker_id"),
        cluster_authorized_operations=reply.authorized_operations,
    )


def decode_describe_topic_partitions(
    values: dict[str, Any], context: RequestContext
) -> cluster.DescribeTopicPartitionsRequest:
    """DescribeTopicPartitions, version 0."""
    cursor = values["cursor"]
    return cluster.DescribeTopicPartitionsRequest(
        topics=tuple(topic["name"] for topic in values["topics"]),
        partition_limit=values["response_partition_limit"],
        cursor=cursor and cluster.PartitionCursor(cursor["topic_name"], cursor["partition_index"]),
    )


def encode_describe_topic_partitions(reply: cluster.DescribeTopicPartitionsResponse, shape: Shape) -> Any:
    """DescribeTopicPartitions, version 0."""
    cursor = reply.next_cursor
    return shape.DescribeTopicPartitionsResponse(
        throttle_time=0,
        topics=tuple(
            shape.DescribeTopicPartitionsResponseTopic(
                error_code=topic.error_code,
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    shape.DescribeTopicPartitionsResponsePartition(
                        error_code=one.error_code,
                        partition_index=one.partition,
                        leader_id=one.leader_id,
                        leader_epoch=one.leader_epoch,
                        replica_nodes=one.replicas,
                        isr_nodes=one.in_sync,
                        offline_replicas=_offline(one),
                        eligible_leader_replicas=(),
                        last_known_elr=(),
                    )
                    for one in topic.partitions
                ),
                topic_authorized_operations=topic.authorized_operations,
            )
            for topic in reply.topics
        ),
        next_cursor=cursor and shape.Cursor(topic_name=cursor.topic, partition_index=cursor.partition),
    )
