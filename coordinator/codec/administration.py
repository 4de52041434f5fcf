"""CreateTopics (19), DeleteTopics (20), DescribeConfigs (32), AlterConfigs (33), CreatePartitions (37),
IncrementalAlterConfigs (44).

CreateTopics: 5 brings partition counts to the answer, 7 topic ids. DeleteTopics: 6 takes ids.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.cluster import TopicReference

_CONFIGS_FROM = 5
"""The first version of CreateTopics that answers with settings."""


def decode_create_topics(
    values: dict[str, Any], context: RequestContext
) -> administration.CreateTopicsRequest:
    """CreateTopics, versions 2 to 7."""
    return administration.CreateTopicsRequest(
        topics=tuple(
            administration.NewTopic(
                name=topic["name"],
                partitions=topic["num_partitions"],
                replication_factor=topic["replication_factor"],
                assignments=tuple(
                    (one["partition_index"], tuple(one["broker_ids"])) for one in topic["assignments"]
                ),
                configs={one["name"]: one["value"] for one in topic["configs"]},
            )
            for topic in values["topics"]
        ),
        validate_only=values["validate_only"],
    )


def encode_create_topics(reply: administration.CreateTopicsResponse, shape: Shape) -> Any:
    """CreateTopics, versions 2 to 7."""
    return shape.CreateTopicsResponse(
        throttle_time=0,
        topics=tuple(
            shape.CreatableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                error_code=topic.error_code,
                error_message=topic.error_message,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                configs=()
                if shape.version < _CONFIGS_FROM
                else tuple(
                    shape.CreatableTopicConfigs(
                        name=entry.name,
                        value=entry.value,
                        read_only=entry.read_only,
                        config_source=int(entry.source),
                        is_sensitive=False,
                    )
                    for entry in topic.configs
                ),
            )
            for topic in reply.topics
        ),
    )


def decode_delete_topics(
    values: dict[str, Any], context: RequestContext
) -> administration.DeleteTopicsRequest:
    """DeleteTopics, versions 1 to 6."""
    if context.api_version >= 6:
        topics = tuple(TopicReference(name=one["name"], topic_id=one["topic_id"]) for one in values["topics"])
    else:
        topics = tuple(TopicReference(name=name) for name in values["topic_names"])
    return administration.DeleteTopicsRequest(topics=topics)


def encode_delete_topics(reply: administration.DeleteTopicsResponse, shape: Shape) -> Any:
    """DeleteTopics, versions 1 to 6."""
    return shape.DeleteTopicsResponse(
        throttle_time=0,
        responses=tuple(
            shape.DeletableTopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                error_code=topic.error_code,
                error_message=topic.error_message,
            )
            for topic in reply.topics
        ),
    )


def decode_create_partitions(
    values: dict[str, Any], context: RequestContext
) -> administration.CreatePartitionsRequest:
    """CreatePartitions, versions 0 to 3."""
    return administration.CreatePartitionsRequest(
        topics=tuple(
            administration.GrownTopic(
                name=topic["name"],
                count=topic["count"],
                assignments=(
                    None
                    if topic["assignments"] is None
                    else tuple(tuple(one["broker_ids"]) for one in topic["assignments"])
                ),
            )
            for topic in values["topics"]
        ),
        validate_only=values["validate_only"],
    )


def encode_create_partitions(reply: administration.CreatePartitionsResponse, shape: Shape) -> Any:
    """CreatePartitions, versions 0 to 3."""
    return shape.CreatePartitionsResponse(
        throttle_time=0,
        results=tuple(
            shape.CreatePartitionsTopicResult(
                name=topic.name, error_code=topic.error_code, error_message=topic.error_message
            )
            for topic in reply.topics
        ),
    )


def decode_describe_configs(
    values: dict[str, Any], context: RequestContext
) -> administration.DescribeConfigsRequest:
    """DescribeConfigs, versions 1 to 4."""
    return administration.DescribeConfigsRequest(
        resources=tuple(
            administration.ConfigResource(
                resource_type=one["resource_type"],
                name=one["resource_name"],
                keys=None if one["configuration_keys"] is None else tuple(one["configuration_keys"]),
            )
            for one in values["resources"]
        ),
        include_synonyms=values["include_synonyms"],
    )


def encode_describe_configs(reply: administration.DescribeConfigsResponse, shape: Shape) -> Any:
    """DescribeConfigs, versions 1 to 4."""
    return shape.DescribeConfigsResponse(
        throttle_time=0,
        results=tuple(
            shape.DescribeConfigsResult(
                error_code=one.error_code,
                error_message=one.error_message,
                resource_type=one.resource_type,
                resource_name=one.name,
                configs=tuple(
                    shape.DescribeConfigsResourceResult(
                        name=entry.name,
                        value=entry.value,
                        read_only=entry.read_only,
                        config_source=int(entry.source),
                        is_sensitive=False,
                        synonyms=tuple(
                            shape.DescribeConfigsSynonym(name=name, value=value, source=int(source))
                            for name, value, source in entry.synonyms
                        ),
                        config_type=int(entry.config_type),
                        documentation=None,
                    )
                    for entry in one.entries
                ),
            )
            for one in reply.resources
        ),
    )


def decode_alter_configs(
    values: dict[str, Any], context: RequestContext
) -> administration.AlterConfigsRequest:
    """AlterConfigs, versions 0 to 2."""
    return _changes(values, incremental=False)


def decode_incremental_alter_configs(
    values: dict[str, Any], context: RequestContext
) -> administration.AlterConfigsRequest:
    """IncrementalAlterConfigs, versions 0 and 1."""
    return _changes(values, incremental=True)


def _changes(values: dict[str, Any], *, incremental: bool) -> administration.AlterConfigsRequest:
    return administration.AlterConfigsRequest(
        resources=tuple(
            administration.ChangedResource(
                resource_type=one["resource_type"],
                name=one["resource_name"],
                changes=tuple(
                    administration.ConfigChange(
                        change["name"],
                        change["value"],
                        change.get("config_operation", administration.ConfigOperation.SET),
                    )
                    for change in one["configs"]
                ),
            )
            for one in values["resources"]
        ),
        validate_only=values["validate_only"],
        incremental=incremental,
    )


def encode_alter_configs(reply: administration.AlterConfigsResponse, shape: Shape) -> Any:
    """AlterConfigs, versions 0 to 2."""
    return shape.AlterConfigsResponse(throttle_time=0, responses=_altered(reply, shape))


def encode_incremental_alter_configs(reply: administration.AlterConfigsResponse, shape: Shape) -> Any:
    """IncrementalAlterConfigs, versions 0 and 1."""
    return shape.IncrementalAlterConfigsResponse(throttle_time=0, responses=_altered(reply, shape))


def _altered(reply: administration.AlterConfigsResponse, shape: Shape) -> tuple[Any, ...]:
    return tuple(
        shape.AlterConfigsResourceResponse(
            error_code=one.error_code,
            error_message=one.error_message,
            resource_type=one.resource_type,
            resource_name=one.name,
        )
        for one in reply.resources
    )
