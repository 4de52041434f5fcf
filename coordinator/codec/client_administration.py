"""The client's half of administration: topics, partitions and configurations.

CreateTopics (19), DeleteTopics (20), DescribeConfigs (32), CreatePartitions (37), and
IncrementalAlterConfigs (44).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.errors import ErrorCode

TIMEOUT = 30_000
"""How long a broker may take to make a change known."""
_FIRST_DELETION_BY_STATE = 6
_SET = 0
_DELETE = 1


def encode_create_topics(request: administration.CreateTopicsRequest, shape: Shape) -> Any:
    """CreateTopics, versions 2 to 7."""
    return shape.CreateTopicsRequest(
        topics=tuple(
            shape.CreatableTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                assignments=tuple(
                    shape.CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
                    for number, brokers in topic.assignments
                ),
                configs=tuple(
                    shape.CreatableTopicConfig(name=name, value=value)
                    for name, value in topic.configs.items()
                ),
            )
            for topic in request.topics
        ),
        timeout=TIMEOUT,
        validate_only=request.validate_only,
    )


def decode_create_topics(values: dict[str, Any], version: int) -> administration.CreateTopicsResponse:
    """CreateTopics, versions 2 to 7."""
    return administration.CreateTopicsResponse(
        topics=tuple(
            administration.CreatedTopic(
                name=topic["name"],
                topic_id=topic.get("topic_id"),
                partitions=topic.get("num_partitions", -1),
                replication_factor=topic.get("replication_factor", -1),
                error_code=error_of(topic["error_code"]),
                error_message=topic["error_message"],
            )
            for topic in values["topics"]
        )
    )


def encode_delete_topics(request: administration.DeleteTopicsRequest, shape: Shape) -> Any:
    """DeleteTopics, versions 1 to 6. Below version 6 topics go by name."""
    by_state = shape.version >= _FIRST_DELETION_BY_STATE
    return shape.DeleteTopicsRequest(
        topics=tuple(
            shape.DeleteTopicState(name=topic.name, topic_id=topic.topic_id) for topic in request.topics
        )
        if by_state
        else (),
        topic_names=tuple(topic.name for topic in request.topics),
        timeout=TIMEOUT,
    )


def decode_delete_topics(values: dict[str, Any], version: int) -> administration.DeleteTopicsResponse:
    """DeleteTopics, versions 1 to 6."""
    return administration.DeleteTopicsResponse(
        topics=tuple(
            administration.DeletedTopic(
                name=topic["name"],
                topic_id=topic.get("topic_id"),
                error_code=error_of(topic["error_code"]),
                error_message=topic.get("error_message"),
            )
            for topic in values["responses"]
        )
    )


def encode_create_partitions(request: administration.CreatePartitionsRequest, shape: Shape) -> Any:
    """CreatePartitions, versions 0 to 3."""
    return shape.CreatePartitionsRequest(
        topics=tuple(
            shape.CreatePartitionsTopic(
                name=topic.name,
                count=topic.count,
                assignments=None
                if topic.assignments is None
                else tuple(
                    shape.CreatePartitionsAssignment(broker_ids=brokers) for brokers in topic.assignments
                ),
            )
            for topic in request.topics
        ),
        timeout=TIMEOUT,
        validate_only=request.validate_only,
    )


def decode_create_partitions(values: dict[str, Any], version: int) -> administration.CreatePartitionsResponse:
    """CreatePartitions, versions 0 to 3."""
    return administration.CreatePartitionsResponse(
        topics=tuple(
            administration.CreatedPartitions(
                name=topic["name"],
                error_code=error_of(topic["error_code"]),
                error_message=topic["error_message"],
            )
            for topic in values["results"]
        )
    )


def encode_describe_configs(request: administration.DescribeConfigsRequest, shape: Shape) -> Any:
    """DescribeConfigs, versions 1 to 4."""
    return shape.DescribeConfigsRequest(
        resources=tuple(
            shape.DescribeConfigsResource(
                resource_type=one.resource_type, resource_name=one.name, configuration_keys=one.keys
            )
            for one in request.resources
        ),
        include_synonyms=False,
        include_documentation=False,
    )


def decode_describe_configs(values: dict[str, Any], version: int) -> administration.DescribeConfigsResponse:
    """DescribeConfigs, versions 1 to 4. Where a value comes from, and its type, are left out."""
    return administration.DescribeConfigsResponse(
        resources=tuple(
            administration.DescribedConfigs(
                resource_type=one["resource_type"],
                name=one["resource_name"],
                entries=tuple(
                    administration.ConfigEntry(
                        name=entry["name"], value=entry["value"], read_only=entry["read_only"]
                    )
                    for entry in one["configs"]
                ),
                error_code=error_of(one["error_code"]),
                error_message=one["error_message"],
            )
            for one in values["results"]
        )
    )


class AlterConfigsCall(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one resource; the others stay as they are."""

    resource_type: int
    name: str
    values: Mapping[str, str | None]
    """None takes a setting away: the default holds again."""


class AlterConfigsReply(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the settings were set."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


def encode_alter_configs(call: AlterConfigsCall, shape: Shape) -> Any:
    """IncrementalAlterConfigs, versions 0 and 1."""
    return shape.IncrementalAlterConfigsRequest(
        resources=(
            shape.AlterConfigsResource(
                resource_type=call.resource_type,
                resource_name=call.name,
                configs=tuple(
                    shape.AlterableConfig(
                        name=name, config_operation=_DELETE if value is None else _SET, value=value
                    )
                    for name, value in call.values.items()
                ),
            ),
        ),
        validate_only=False,
    )


def decode_alter_configs(values: dict[str, Any], version: int) -> AlterConfigsReply:
    """IncrementalAlterConfigs, versions 0 and 1, for one resource."""
    (only,) = values["responses"]
    return AlterConfigsReply(error_code=error_of(only["error_code"]), error_message=only["error_message"])
