"""The client's half of StreamsGroupHeartbeat (88), version 0 (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.codec.streams_topology import endpoint, shaped_tasks, shaped_topics, task_ids
from fencepost.coordinator.protocol import streams


def encode_heartbeat(request: streams.StreamsGroupHeartbeatRequest, shape: Shape) -> Any:
    """StreamsGroupHeartbeat."""
    brought, at, tags = request.topology, request.user_endpoint, request.client_tags
    return shape.StreamsGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        endpoint_information_epoch=request.endpoint_information_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout=request.rebalance_timeout_ms,
        topology=None if brought is None else _topology(brought, shape),
        active_tasks=_tasks(request.active_tasks, shape),
        standby_tasks=_tasks(request.standby_tasks, shape),
        warmup_tasks=_tasks(request.warmup_tasks, shape),
        process_id=request.process_id,
        user_endpoint=None if at is None else shape.Endpoint(host=at.host, port=at.port),
        client_tags=None
        if tags is None
        else tuple(shape.KeyValue(key=key, value=value) for key, value in tags.items()),
        task_offsets=_offsets(request.task_offsets, shape),
        task_end_offsets=_offsets(request.task_end_offsets, shape),
        shutdown_application=request.shutdown_application,
    )


def _tasks(tasks: streams.TaskIds | None, shape: Shape) -> tuple[Any, ...] | None:
    return None if tasks is None else shaped_tasks(tasks, shape)


def _offsets(offsets: Iterable[streams.TaskOffset] | None, shape: Shape) -> tuple[Any, ...] | None:
    if offsets is None:
        return None
    return tuple(
        shape.TaskOffset(subtopology_id=each.subtopology_id, partition=each.partition, offset=each.offset)
        for each in offsets
    )


def _topology(topology: streams.Topology, shape: Shape) -> Any:
    return shape.Topology(
        epoch=topology.epoch,
        subtopologies=tuple(
            shape.Subtopology(
                subtopology_id=one.subtopology_id,
                source_topics=one.source_topics,
                source_topic_regex=one.source_topic_regex,
                state_changelog_topics=shaped_topics(one.state_changelog_topics, shape),
                repartition_sink_topics=one.repartition_sink_topics,
                repartition_source_topics=shaped_topics(one.repartition_source_topics, shape),
                copartition_groups=tuple(
                    shape.CopartitionGroup(
                        source_topics=group.source_topics,
                        source_topic_regex=group.source_topic_regex,
                        repartition_source_topics=group.repartition_source_topics,
                    )
                    for group in one.copartition_groups
                ),
            )
            for one in topology.subtopologies
        ),
    )


def decode_heartbeat(values: dict[str, Any], version: int) -> streams.StreamsGroupHeartbeatResponse:
    """StreamsGroupHeartbeat. A status that is not known is left out: newer brokers have more of them."""
    statuses, endpoints = values["status"], values["partitions_by_user_endpoint"]
    known = set(map(int, streams.StatusCode))
    return streams.StreamsGroupHeartbeatResponse(
        error_code=error_of(values["error_code"]),
        error_message=values["error_message"],
        member_id=values["member_id"],
        member_epoch=values["member_epoch"],
        heartbeat_interval_ms=values["heartbeat_interval"],
        acceptable_recovery_lag=values["acceptable_recovery_lag"],
        task_offset_interval_ms=values["task_offset_interval"],
        status=None
        if statuses is None
        else tuple(
            streams.Status(streams.StatusCode(status["status_code"]), status["status_detail"])
            for status in statuses
            if status["status_code"] in known
        ),
        tasks=_roles(values),
        endpoint_information_epoch=values["endpoint_information_epoch"],
        partitions_by_endpoint=None
        if endpoints is None
        else tuple(
            streams.EndpointPartitions(
                endpoint=endpoint(entry["user_endpoint"]) or streams.Endpoint("", 0),
                active=_partitions(entry["active_partitions"]),
                standby=_partitions(entry["standby_partitions"]),
            )
            for entry in endpoints
        ),
    )


def _roles(values: Mapping[str, Any]) -> streams.Tasks | None:
    roles = values["active_tasks"], values["standby_tasks"], values["warmup_tasks"]
    if all(role is None for role in roles):
        return None
    return streams.Tasks(*(task_ids(role or ()) for role in roles))


def _partitions(topics: Iterable[Mapping[str, Any]]) -> tuple[streams.TopicPartitions, ...]:
    return tuple(streams.TopicPartitions(each["topic"], tuple(each["partitions"])) for each in topics)
