"""Answers to CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.administration import (
    CreatedPartitions,
    CreatedTopic,
    DeletedTopic,
    GrownTopic,
    NewTopic,
)
from fencepost.coordinator.protocol.cluster import TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.streams import TopicInfo
from fencepost.coordinator.server.cluster import check_partitions, check_topic_name
from fencepost.coordinator.server.config_apis import topic_entries
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.topic_configs import check_topic_configs

DEFAULT = -1


def _repeated(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name, times in Counter(names).items() if times > 1)


def create_topics(
    services: Services, request: administration.CreateTopicsRequest, asked: Asked
) -> administration.CreateTopicsResponse:
    """Each topic by itself."""
    twice = _repeated(topic.name for topic in request.topics)
    return administration.CreateTopicsResponse(
        topics=tuple(
            _create(services, topic, request.validate_only, topic.name in twice) for topic in request.topics
        )
    )


def _create(services: Services, topic: NewTopic, validate_only: bool, twice: bool) -> CreatedTopic:
    try:
        if twice:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"topic {topic.name!r} comes twice")
        partitions = _partitions_of(services, topic)
        check_topic_name(topic.name)
        check_partitions(partitions)
        if topic.name in services.cluster.image.by_name:
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        configs = {name: value for name, value in topic.configs.items() if value is not None}
        check_topic_configs(configs)
        topic_id = None
        if not validate_only:
            (created,) = services.cluster.create_topics({topic.name: partitions}, configs)
            topic_id = created.topic_id
        return CreatedTopic(
            name=topic.name,
            topic_id=topic_id,
            partitions=partitions,
            replication_factor=1,
            configs=topic_entries(configs),
        )
    except ProtocolError as error:
        return CreatedTopic(name=topic.name, error_code=error.code, error_message=error.message)


def create_internal_topic(services: Services, topic: TopicInfo) -> str | None:
    """Create a topic that a Streams application needs; why it could not be created, if it was not."""
    if topic.name in services.cluster.image.by_name:
        return None
    wanted = NewTopic(
        name=topic.name,
        partitions=topic.partitions,
        replication_factor=topic.replication_factor or DEFAULT,
        configs=dict(topic.configs),
    )
    created = _create(services, wanted, False, False)
    return None if created.error_code is ErrorCode.NONE else created.error_message


def _partitions_of(services: Services, topic: NewTopic) -> int:
    """How many partitions a request wants, one replica each."""
    if topic.assignments:
        if topic.partitions != DEFAULT or topic.replication_factor != DEFAULT:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                "with assignments, the number of partitions and the replication factor must be -1",
            )
        if sorted(topic.assignments) != list(range(len(topic.assignments))):
            raise ProtocolError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered from 0 without gaps"
            )
        for replicas in topic.assignments.values():
            _check_replicas(services, replicas)
        return len(topic.assignments)
    if topic.replication_factor not in {DEFAULT, 1}:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {topic.replication_factor}, a partition has one replica here",
        )
    return services.default_partitions if topic.partitions == DEFAULT else topic.partitions


def _check_replicas(services: Services, replicas: tuple[int, ...]) -> None:
    known = [node.node_id for node in services.cluster.nodes]
    if len(replicas) != 1 or replicas[0] not in known:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"replicas {list(replicas)}, expected one broker of {known}",
        )


def delete_topics(
    services: Services, request: administration.DeleteTopicsRequest, asked: Asked
) -> administration.DeleteTopicsResponse:
    """Each topic by itself."""
    return administration.DeleteTopicsResponse(
        topics=tuple(_delete(services, topic) for topic in request.topics)
    )


def _delete(services: Services, reference: TopicReference) -> DeletedTopic:
    try:
        if reference.name is not None and reference.topic_id is not None:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, "a topic is named by its name or its id, not by both"
            )
        topic = services.cluster.find(reference.name, reference.topic_id)
    except ProtocolError as error:
        return DeletedTopic(
            name=reference.name,
            topic_id=reference.topic_id,
            error_code=error.code,
            error_message=error.message,
        )
    services.cluster.delete_topic(topic)
    return DeletedTopic(name=topic.name, topic_id=topic.topic_id)


def create_partitions(
    services: Services, request: administration.CreatePartitionsRequest, asked: Asked
) -> administration.CreatePartitionsResponse:
    """Each topic by itself."""
    twice = _repeated(topic.name for topic in request.topics)
    return administration.CreatePartitionsResponse(
        topics=tuple(
            _grow(services, topic, request.validate_only, topic.name in twice) for topic in request.topics
        )
    )


def _grow(services: Services, grown: GrownTopic, validate_only: bool, twice: bool) -> CreatedPartitions:
    try:
        if twice:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"topic {grown.name!r} comes twice")
        topic = services.cluster.find(grown.name, None)
        services.cluster.check_growth(topic, grown.count)
        if grown.assignments is not None:
            for replicas in grown.assignments:
                _check_replicas(services, replicas)
            if len(grown.assignments) != grown.count - topic.partitions:
                raise ProtocolError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{len(grown.assignments)} assignments for {grown.count - topic.partitions} partitions",
                )
        if not validate_only:
            services.cluster.grow_topic(topic, grown.count)
        return CreatedPartitions(name=grown.name)
    except ProtocolError as error:
        return CreatedPartitions(name=grown.name, error_code=error.code, error_message=error.message)
