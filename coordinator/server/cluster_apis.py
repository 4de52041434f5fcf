"""Handlers of ApiVersions, Metadata, FindCoordinator, DescribeCluster and DescribeTopicPartitions."""

from __future__ import annotations

import re

import msgspec

from fencepost.coordinator.codec.registry import SPOKEN
from fencepost.coordinator.codec.releases import spoken_by
from fencepost.coordinator.protocol import cluster
from fencepost.coordinator.protocol.acls import AclOperation, AclResourceType
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC, Topic
from fencepost.coordinator.server.leaders import NO_LEADER, running
from fencepost.coordinator.server.new_topics import check_replicas, check_topic_name
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.turns import Work, in_turns

_NO_SHARE_GROUPS = "Groups and transactions are coordinated here, share groups are not."
MOST_DESCRIBED_PARTITIONS = 2_000
"""Kafka's default of max.request.partition.size.limit."""
_SPOKEN = cluster.ApiVersionsResponse(api_versions=SPOKEN)
_NAMELESS = cluster.ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST, api_versions=())
_NAMED_FROM = 3
"""The first version of ApiVersions with a client's name and version."""
_BY_ID_FROM = 12
"""The first version of Metadata that may ask for topics by their ids alone."""
_NAMES_LISTENERS_FROM = 6
"""The first version of Metadata that has LISTENER_NOT_FOUND."""
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def api_versions(
    services: Services, request: cluster.ApiVersionsRequest, asked: Asked
) -> cluster.ApiVersionsResponse:
    """Return the versions in the registry. A client that names itself must use a valid name and version
    (KIP-511)."""
    if asked.context.api_version >= _NAMED_FROM and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return _NAMELESS
    if services.max_versions is not None:
        return cluster.ApiVersionsResponse(api_versions=spoken_by(services.max_versions))
    return _SPOKEN


@in_turns
def metadata(
    services: Services, request: cluster.MetadataRequest, asked: Asked
) -> Work[cluster.MetadataResponse]:
    """Return the brokers, and all topics or the named ones; a named topic may be created."""
    found: list[cluster.TopicMetadata] = []
    if request.topics is None:
        for topic in services.cluster.shown.by_name.values():
            found.append(_described(services, topic))
            yield 1 + topic.partitions
        topics = tuple(found)
    elif any(_is_senseless(each, asked.context.api_version) for each in request.topics):
        topics = tuple(each.refused(ErrorCode.INVALID_REQUEST) for each in request.topics)
        return cluster.MetadataResponse(topics=topics)
    else:
        create = services.new_topics.auto_create_topics_enable and request.allow_auto_topic_creation
        # If the request has a topic by id, topics by name are left out.
        by_id = [each for each in request.topics if each.topic_id is not None]
        for each in dict.fromkeys(by_id or request.topics):
            found.append(_wanted(services, each, create))
            yield 1 + len(found[-1].partitions)
        topics = tuple(sorted(found, key=_place))
    if asked.context.api_version < _NAMES_LISTENERS_FROM:
        topics = tuple(_listener_found(topic, ErrorCode.LEADER_NOT_AVAILABLE) for topic in topics)
    if request.include_topic_operations:
        topics = tuple(map(_with_operations, topics))
    return cluster.MetadataResponse(
        cluster_id=services.cluster.cluster_id,
        controller_id=services.cluster.controller_id,
        brokers=services.nodes_seen_from(asked.local_host),
        topics=topics,
        authorized_operations=(
            cluster.CLUSTER_OPERATIONS if request.include_cluster_operations else cluster.UNKNOWN_OPERATIONS
        ),
    )


def _is_senseless(topic: cluster.TopicReference, api_version: int) -> bool:
    """Return true if the reference is not valid in this version. Versions 10 and 11 have ids, but look up
    names only."""
    return topic.topic_id is not None if topic.name is not None else api_version < _BY_ID_FROM


def _listener_found(topic: cluster.TopicMetadata, instead: ErrorCode) -> cluster.TopicMetadata:
    """Return the topic with another error in place of LISTENER_NOT_FOUND."""
    if all(each.error_code is not ErrorCode.LISTENER_NOT_FOUND for each in topic.partitions):
        return topic
    partitions = tuple(
        msgspec.structs.replace(each, error_code=instead)
        if each.error_code is ErrorCode.LISTENER_NOT_FOUND
        else each
        for each in topic.partitions
    )
    return msgspec.structs.replace(topic, partitions=partitions)


def _place(topic: cluster.TopicMetadata) -> int:
    """Return the position in Kafka's order: unknown ids first, then topics, then unknown names."""
    if topic.error_code is ErrorCode.NONE:
        return 1
    return 0 if topic.name is None else 2


def _with_operations(topic: cluster.TopicMetadata) -> cluster.TopicMetadata:
    """Return the topic with all operations allowed; a topic with an unknown id has no operations."""
    if topic.name is None:
        return topic
    return msgspec.structs.replace(topic, authorized_operations=cluster.TOPIC_OPERATIONS)


def _wanted(services: Services, reference: cluster.TopicReference, create: bool) -> cluster.TopicMetadata:
    try:
        if reference.name is not None:
            check_topic_name(reference.name)
            if create and reference.name not in services.cluster.shown.by_name:
                _create(services, reference.name)
                if services.new_topics.auto_create_topics_retry_enable:
                    return cluster.TopicMetadata(
                        name=reference.name, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    )
        return _described(services, services.cluster.find(reference.name, reference.topic_id))
    except ProtocolError as error:
        return reference.refused(error.code)


def _create(services: Services, name: str) -> None:
    """Create a topic on demand.

    :raises ProtocolError: as `Cluster.create_topics`, and INVALID_REPLICATION_FACTOR.
    """
    if name == OFFSETS_TOPIC:
        services.cluster.show_offsets_topic()
        return
    new = services.new_topics
    check_replicas(new.default_replication_factor, len(services.cluster.nodes))
    services.cluster.check_room(new.num_partitions)
    services.cluster.create_topics({name: new.num_partitions}, replicas=new.default_replication_factor)


def _described(services: Services, topic: Topic) -> cluster.TopicMetadata:
    return cluster.TopicMetadata(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=tuple(_partition(services, topic, number) for number in range(topic.partitions)),
    )


def _partition(services: Services, topic: Topic, number: int) -> cluster.PartitionMetadata:
    state, stopped = services.cluster.leadership(topic, number), services.cluster.stopped
    leader_id, code = state.leader_id, ErrorCode.NONE
    if leader_id == NO_LEADER:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    elif not services.cluster.advertises(services.listener_name, leader_id):
        leader_id, code = NO_LEADER, ErrorCode.LISTENER_NOT_FOUND
    return cluster.PartitionMetadata(
        partition=number,
        leader_id=leader_id,
        leader_epoch=state.epoch,
        replicas=state.replicas,
        in_sync=running(state.in_sync, stopped),
        offline=() if not stopped else tuple(each for each in state.replicas if each in stopped),
        error_code=code,
    )


@in_turns
def find_coordinator(
    services: Services, request: cluster.FindCoordinatorRequest, asked: Asked
) -> Work[cluster.FindCoordinatorResponse]:
    """Return coordinators of groups and transactions, but not of share groups. Each key has one result."""
    found = []
    for key in dict.fromkeys(request.keys):
        found.append(_found(services, key, request.key_type, asked))
        yield 1
    return cluster.FindCoordinatorResponse(coordinators=tuple(found))


def _found(services: Services, key: str, key_type: int, asked: Asked) -> cluster.FoundCoordinator:
    match key_type:
        case cluster.KeyType.GROUP:
            services.cluster.show_offsets_topic()
            leader_id = services.groups.leader_id(key)
        case cluster.KeyType.TRANSACTION:
            leader_id = services.transactions.leader_id(key)
        case _:
            code = ErrorCode.INVALID_REQUEST
            return cluster.FoundCoordinator(key=key, error_code=code, error_message=_NO_SHARE_GROUPS)
    node = services.cluster.node_seen_from(services.listener_name, asked.local_host, leader_id)
    if node is None:
        return cluster.FoundCoordinator(key=key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return cluster.FoundCoordinator(key=key, node=node)


def describe_cluster(
    services: Services, request: cluster.DescribeClusterRequest, asked: Asked
) -> cluster.DescribeClusterResponse:
    """Return brokers only; a client that wants controllers used the wrong endpoint (KIP-919)."""
    match request.endpoint_type:
        case 1:
            return cluster.DescribeClusterResponse(
                cluster_id=services.cluster.cluster_id,
                controller_id=_controller_id(services),
                brokers=services.nodes_seen_from(asked.local_host),
                authorized_operations=(
                    cluster.CLUSTER_OPERATIONS if request.include_operations else cluster.UNKNOWN_OPERATIONS
                ),
            )
        case 2:
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
            message = (
                "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
                "CONTROLLER"
            )
        case unknown:
            code, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {unknown}"
    return cluster.DescribeClusterResponse(
        cluster_id="", controller_id=-1, error_code=code, error_message=message
    )


def _controller_id(services: Services) -> int:
    """Return the broker for administrators; NO_LEADER if this listener's clients receive no address of it."""
    controller_id = services.cluster.controller_id
    return controller_id if services.cluster.advertises(services.listener_name, controller_id) else NO_LEADER


@in_turns
def describe_topic_partitions(
    services: Services, request: cluster.DescribeTopicPartitionsRequest, asked: Asked
) -> Work[cluster.DescribeTopicPartitionsResponse]:
    """Topics by name, from the cursor on, until the limit is reached."""
    image, cursor = services.cluster.shown, request.cursor
    if cursor is not None and (
        cursor.partition < 0 or (request.topics and cursor.topic not in request.topics)
    ):
        return cluster.DescribeTopicPartitionsResponse(
            topics=tuple(
                cluster.TopicMetadata(name=name, error_code=ErrorCode.INVALID_REQUEST)
                for name in request.topics
            )
        )
    names = sorted(set(request.topics) or image.by_name)
    if (may := asked.may) is not None and not request.topics:  # the cursor tells names, too
        names = [name for name in names if may(AclOperation.DESCRIBE, AclResourceType.TOPIC, name)]
    left = max(1, min(request.partition_limit, MOST_DESCRIBED_PARTITIONS))
    topics: list[cluster.TopicMetadata] = []
    for name in names:
        if cursor is not None and name < cursor.topic:
            continue
        first = cursor.partition if cursor is not None and name == cursor.topic else 0
        if left <= 0:
            following = cluster.PartitionCursor(name, first)
            return cluster.DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=following)
        described = _wanted(services, cluster.TopicReference(name=name), create=False)
        described = _listener_found(described, ErrorCode.NONE)
        partitions = described.partitions[first : first + left]
        topics.append(_with_operations(msgspec.structs.replace(described, partitions=partitions)))
        left -= len(partitions)
        yield 1 + len(described.partitions)
        if first + len(partitions) < len(described.partitions):
            following = cluster.PartitionCursor(name, first + len(partitions))
            return cluster.DescribeTopicPartitionsResponse(topics=tuple(topics), next_cursor=following)
    return cluster.DescribeTopicPartitionsResponse(topics=tuple(topics))
