"""Topics, partitions, settings and replicas.

CreateTopics (19), DeleteTopics (20), DescribeConfigs (32), AlterConfigs (33), CreatePartitions (37),
IncrementalAlterConfigs (44). CreateTopics: 5 brings partition counts to the response, 7 topic ids.
DeleteTopics: 6 takes ids. Only clients use ElectLeaders (43) and AlterPartitionReassignments (45).
"""

from __future__ import annotations

from typing import Any

import msgspec

from fencepost.coordinator.codec.layout import Layout, Via, mapping, only, row
from fencepost.coordinator.protocol import administration
from fencepost.coordinator.protocol.cluster import TopicReference
from fencepost.coordinator.protocol.errors import ErrorCode

_TIMEOUT = {"timeout": 30_000}
"""Time that a broker may take to make a change known, in ms."""
_REPLICAS_TIMEOUT = {"timeout": 10_000}
_PREFERRED = 0


class ReassignCall(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers that are to hold one partition, the preferred leader first."""

    topic: str
    partition: int
    replicas: tuple[int, ...]


class ElectCall(msgspec.Struct, frozen=True, kw_only=True):
    """Let the preferred leader of one partition lead it."""

    topic: str
    partition: int


class ReplicaReply(msgspec.Struct, frozen=True, kw_only=True):
    """The result of either: the request's error, or its one partition's."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


CREATE_TOPICS_REQUEST = Layout(
    administration.CreateTopicsRequest,
    fields={
        "topics": Layout(
            administration.NewTopic,
            {"partitions": "num_partitions"},
            fields={
                "assignments": row("partition_index", "broker_ids"),
                "configs": mapping("name", "value"),
            },
        )
    },
    write=_TIMEOUT,
)
_ENTRY = Layout(
    administration.ConfigEntry,
    {"source": "config_source"},
    fields={"synonyms": row("name", "value", "source")},
    # Clients do not need to know where a value comes from, and a broker may name unknown sources and types.
    read=lambda values, _: administration.ConfigEntry(
        name=values["name"], value=values["value"], read_only=values["read_only"]
    ),
)
CREATE_TOPICS_RESPONSE = Layout(
    administration.CreateTopicsResponse,
    fields={
        "topics": Layout(
            administration.CreatedTopic,
            {"partitions": "num_partitions"},
            fields={"configs": Via(of=_ENTRY, read=lambda _: (), null=())},
        )
    },
)


def _delete_topics(values: dict[str, Any], _: Any) -> administration.DeleteTopicsRequest:
    topics = values.get("topics")
    if topics is None:
        topics = tuple(TopicReference(name=name) for name in values["topic_names"])
    return administration.DeleteTopicsRequest(topics=topics)


DELETE_TOPICS_REQUEST = Layout(
    administration.DeleteTopicsRequest,
    fields={"topics": Layout(TopicReference)},
    write=_TIMEOUT | {"topic_names": lambda request, _: tuple(topic.name for topic in request.topics)},
    read=_delete_topics,
)
DELETE_TOPICS_RESPONSE = Layout(
    administration.DeleteTopicsResponse,
    {"topics": "responses"},
    fields={"topics": Layout(administration.DeletedTopic)},
)
CREATE_PARTITIONS_REQUEST = Layout(
    administration.CreatePartitionsRequest,
    fields={"topics": Layout(administration.GrownTopic, fields={"assignments": only("broker_ids")})},
    write=_TIMEOUT,
)
CREATE_PARTITIONS_RESPONSE = Layout(
    administration.CreatePartitionsResponse,
    {"topics": "results"},
    fields={"topics": Layout(administration.CreatedPartitions)},
)
_NAME = {"name": "resource_name"}
DESCRIBE_CONFIGS_REQUEST = Layout(
    administration.DescribeConfigsRequest,
    fields={"resources": Layout(administration.ConfigResource, _NAME | {"keys": "configuration_keys"})},
)
DESCRIBE_CONFIGS_RESPONSE = Layout(
    administration.DescribeConfigsResponse,
    {"resources": "results"},
    fields={
        "resources": Layout(
            administration.DescribedConfigs, _NAME | {"entries": "configs"}, fields={"entries": _ENTRY}
        )
    },
)
_CHANGED = Layout(
    administration.ChangedResource,
    _NAME | {"changes": "configs"},
    fields={"changes": Layout(administration.ConfigChange, {"operation": "config_operation"})},
)
ALTER_CONFIGS_REQUEST = Layout(
    administration.AlterConfigsRequest,
    fields={"resources": _CHANGED},
    read=lambda values, _: administration.AlterConfigsRequest(**values, incremental=False),
)
INCREMENTAL_ALTER_CONFIGS_REQUEST = Layout(administration.AlterConfigsRequest, fields={"resources": _CHANGED})
_ALTERED = Layout(administration.AlteredConfigs, _NAME)
ALTER_CONFIGS_RESPONSE = Layout(
    administration.AlterConfigsResponse, {"resources": "responses"}, fields={"resources": _ALTERED}
)
INCREMENTAL_ALTER_CONFIGS_RESPONSE = ALTER_CONFIGS_RESPONSE


def _replica_reply(values: dict[str, Any], topics: str) -> ReplicaReply:
    whole = values.get("error_code", ErrorCode.NONE)
    results: list[ReplicaReply] = [one for topic in values[topics] for one in topic]
    if whole is not ErrorCode.NONE or not results:
        return ReplicaReply(error_code=whole, error_message=values.get("error_message"))
    return results[0]


REASSIGN_CALL = Layout(
    ReassignCall,
    fields={"topics": row("name", "partitions", fields={"partitions": row("partition_index", "replicas")})},
    write=_REPLICAS_TIMEOUT | {"topics": lambda call, _: ((call.topic, ((call.partition, call.replicas),)),)},
)
REASSIGN_REPLY = Layout(
    ReplicaReply,
    fields={"responses": only("partitions", Layout(ReplicaReply))},
    read=lambda values, _: _replica_reply(values, "responses"),
)
ELECT_CALL = Layout(
    ElectCall,
    fields={"topic_partitions": row("topic", "partitions")},
    write=_REPLICAS_TIMEOUT
    | {
        "election_type": _PREFERRED,
        "topic_partitions": lambda call, _: ((call.topic, (call.partition,)),),
    },
)
ELECT_REPLY = Layout(
    ReplicaReply,
    fields={"replica_election_results": only("partition_result", Layout(ReplicaReply))},
    read=lambda values, _: _replica_reply(values, "replica_election_results"),
)
