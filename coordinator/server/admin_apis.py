"""Answers to CreateTopics, DeleteTopics, CreatePartitions and DescribeConfigs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.administration import (
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ConfigType,
    CreatedPartitions,
    CreatedTopic,
    DeletedTopic,
    DescribedConfigs,
    GrownTopic,
    NewTopic,
    ResourceType,
)
from fencepost.coordinator.protocol.cluster import TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.server.cluster import check_partitions, check_topic_name
from fencepost.coordinator.server.logs import MAX_BATCH_BYTES
from fencepost.coordinator.server.services import Asked, Services

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
        topic_id = None
        if not validate_only:
            (created,) = services.cluster.create_topics({topic.name: partitions})
            topic_id = created.topic_id
        return CreatedTopic(name=topic.name, topic_id=topic_id, partitions=partitions, replication_factor=1)
    except ProtocolError as error:
        return CreatedTopic(name=topic.name, error_code=error.code, error_message=error.message)


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


def describe_configs(
    services: Services, request: administration.DescribeConfigsRequest, asked: Asked
) -> administration.DescribeConfigsResponse:
    """What is true here: settings that a topic, the broker or a group really has."""
    return administration.DescribeConfigsResponse(
        resources=tuple(_describe(services, resource) for resource in request.resources)
    )


def _describe(services: Services, resource: ConfigResource) -> DescribedConfigs:
    try:
        entries = _entries(services, resource)
    except ProtocolError as error:
        return DescribedConfigs(
            resource_type=resource.resource_type,
            name=resource.name,
            error_code=error.code,
            error_message=error.message,
        )
    return DescribedConfigs(
        resource_type=resource.resource_type,
        name=resource.name,
        entries=tuple(entry for entry in entries if resource.keys is None or entry.name in resource.keys),
    )


def _entries(services: Services, resource: ConfigResource) -> tuple[ConfigEntry, ...]:
    match resource.resource_type:
        case ResourceType.TOPIC:
            check_topic_name(resource.name)
            services.cluster.find(resource.name, None)
            return _TOPIC
        case ResourceType.BROKER:
            if resource.name not in {"", *(str(node.node_id) for node in services.cluster.nodes)}:
                raise ProtocolError(
                    ErrorCode.INVALID_REQUEST, f"there is no broker {resource.name!r} in this cluster"
                )
            return _settings(services.config)
        case ResourceType.GROUP:
            return _settings(GroupConfig().settings(services.config), prefix="consumer.")
        case unknown:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"resources of type {unknown} have no settings here"
            )


_TOPIC = (
    ConfigEntry(name="cleanup.policy", value="delete", config_type=ConfigType.LIST),
    ConfigEntry(name="compression.type", value="producer", config_type=ConfigType.STRING),
    ConfigEntry(name="max.message.bytes", value=str(MAX_BATCH_BYTES), config_type=ConfigType.INT),
    ConfigEntry(name="message.timestamp.type", value="CreateTime", config_type=ConfigType.STRING),
    ConfigEntry(name="min.insync.replicas", value="1", config_type=ConfigType.INT),
    ConfigEntry(name="retention.bytes", value="-1", config_type=ConfigType.LONG),
    ConfigEntry(name="retention.ms", value="-1", config_type=ConfigType.LONG),
)


def _settings(config: msgspec.Struct, prefix: str = "") -> tuple[ConfigEntry, ...]:
    entries = []
    for field in msgspec.structs.fields(config):
        value = getattr(config, field.name)
        is_default = field.default is msgspec.NODEFAULT or value == field.default
        entries.append(
            ConfigEntry(
                name=prefix + field.name.replace("_", "."),
                value=_text(value),
                source=ConfigSource.DEFAULT if is_default else ConfigSource.STATIC_BROKER,
                config_type=_type_of(value),
            )
        )
    return tuple(entries)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _type_of(value: object) -> ConfigType:
    if isinstance(value, bool):
        return ConfigType.BOOLEAN
    if isinstance(value, int):
        return ConfigType.INT
    return ConfigType.LIST if isinstance(value, tuple) else ConfigType.STRING
