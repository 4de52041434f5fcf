"""Answers to CreateTopics, DeleteTopics and CreatePartitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

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
_Name = TypeVar("_Name", str, int)


def _repeated(names: Iterable[_Name]) -> frozenset[_Name]:
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
        partitions, replicas = _places_of(services, topic)
        check_topic_name(topic.name)
        if topic.name in services.cluster.image.by_name:
            raise ProtocolError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        configs = {name: value for name, value in topic.configs.items() if value is not None}
        check_topic_configs(configs)
        topic_id = None
        if not validate_only:
            (created,) = services.cluster.create_topics({topic.name: partitions}, configs, replicas=replicas)
            topic_id = created.topic_id
        return CreatedTopic(
            name=topic.name,
            topic_id=topic_id,
            partitions=partitions,
            replication_factor=replicas,
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


def _places_of(services: Services, topic: NewTopic) -> tuple[int, int]:
    """How many partitions a request wants, and how many replicas of each.

    :raises ProtocolError: INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT or
        INVALID_REQUEST.
    """
    if topic.assignments:
        return _places_by_hand(services, topic)
    replicas = 1 if topic.replication_factor == DEFAULT else topic.replication_factor
    if replicas < 1:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    partitions = services.default_partitions if topic.partitions == DEFAULT else topic.partitions
    if partitions < 1:
        raise ProtocolError(
            ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    check_partitions(partitions)
    brokers = len(services.cluster.nodes)
    if replicas > brokers:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {replicas} time(s): The target replication factor of "
            f"{replicas} cannot be reached because only {brokers} broker(s) are registered or some brokers "
            "have all their log directories cordoned.",
        )
    return partitions, replicas


def _places_by_hand(services: Services, topic: NewTopic) -> tuple[int, int]:
    for name, number in (
        ("replication factor", topic.replication_factor),
        ("numPartitions", topic.partitions),
    ):
        if number != DEFAULT:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    expected = None
    for replicas in topic.assignments.values():
        _check_replicas(services, replicas, expected)
        expected = len(replicas)
    if sorted(topic.assignments) != list(range(len(topic.assignments))):
        raise ProtocolError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        )
    assert expected is not None
    check_partitions(len(topic.assignments))
    return len(topic.assignments), expected


def _check_replicas(services: Services, replicas: tuple[int, ...], expected: int | None) -> None:
    """Refuse brokers that there are not, and another number of them than `expected`.

    :raises ProtocolError: INVALID_REPLICA_ASSIGNMENT.
    """
    known = {node.node_id for node in services.cluster.nodes}
    problem = None
    if not replicas:
        problem = "an empty replica list."
    elif unknown := sorted(set(replicas) - known):
        problem = f"broker {unknown[0]}, but no such broker is registered."
    elif twice := _repeated(replicas):
        problem = f"the broker {min(twice)} more than once."
    elif expected not in {None, len(replicas)}:
        problem = (
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous "
            f"partitions, which have {expected} replica(s)."
        )
    if problem is not None:
        raise ProtocolError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {problem}"
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
            more = grown.count - topic.partitions
            if len(grown.assignments) != more:
                raise ProtocolError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Attempted to add {more} additional partition(s), but only {len(grown.assignments)} "
                    "assignment(s) were specified.",
                )
            for replicas in grown.assignments:
                _check_replicas(services, replicas, topic.replicas)
        if not validate_only:
            services.cluster.grow_topic(topic, grown.count)
        return CreatedPartitions(name=grown.name)
    except ProtocolError as error:
        return CreatedPartitions(name=grown.name, error_code=error.code, error_message=error.message)
