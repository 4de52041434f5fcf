"""StreamsGroupHeartbeat (88) and StreamsGroupDescribe (89), version 0 (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.groups import operations_of
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.codec.streams_topology import (
    endpoint,
    pairs,
    shaped_tasks,
    shaped_topics,
    task_ids,
    topology,
)
from fencepost.coordinator.protocol import streams


def decode_heartbeat(values: dict[str, Any], context: RequestContext) -> streams.StreamsGroupHeartbeatRequest:
    """What a member owns becomes canonical; its topology stays as it was sent."""
    brought, tags = values["topology"], values["client_tags"]
    return streams.StreamsGroupHeartbeatRequest(
        group_id=values["group_id"],
        member_id=values["member_id"],
        member_epoch=values["member_epoch"],
        endpoint_information_epoch=values["endpoint_information_epoch"],
        instance_id=values["instance_id"],
        rack_id=values["rack_id"],
        rebalance_timeout_ms=values["rebalance_timeout"],
        topology=None if brought is None else topology(brought),
        active_tasks=_owned(values["active_tasks"]),
        standby_tasks=_owned(values["standby_tasks"]),
        warmup_tasks=_owned(values["warmup_tasks"]),
        process_id=values["process_id"],
        user_endpoint=endpoint(values["user_endpoint"]),
        client_tags=None if tags is None else pairs(tags),
        task_offsets=_offsets(values["task_offsets"]),
        task_end_offsets=_offsets(values["task_end_offsets"]),
        shutdown_application=values["shutdown_application"],
        client_id=context.client_id,
        client_host=context.client_host,
    )


def _owned(entries: Iterable[dict[str, Any]] | None) -> streams.TaskIds | None:
    return None if entries is None else task_ids(entries)


def _offsets(entries: Iterable[dict[str, Any]] | None) -> tuple[streams.TaskOffset, ...] | None:
    if entries is None:
        return None
    return tuple(
        streams.TaskOffset(entry["subtopology_id"], entry["partition"], entry["offset"]) for entry in entries
    )


def encode_heartbeat(reply: streams.StreamsGroupHeartbeatResponse, shape: Shape) -> Any:
    """StreamsGroupHeartbeat."""
    tasks, endpoints = reply.tasks, reply.partitions_by_endpoint
    return shape.StreamsGroupHeartbeatResponse(
        throttle_time=0,
        error_code=reply.error_code,
        error_message=reply.error_message,
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval=reply.heartbeat_interval_ms,
        acceptable_recovery_lag=reply.acceptable_recovery_lag,
        task_offset_interval=reply.task_offset_interval_ms,
        status=None
        if reply.status is None
        else tuple(
            shape.Status(status_code=int(status.code), status_detail=status.detail) for status in reply.status
        ),
        active_tasks=None if tasks is None else shaped_tasks(tasks.active, shape),
        standby_tasks=None if tasks is None else shaped_tasks(tasks.standby, shape),
        warmup_tasks=None if tasks is None else shaped_tasks(tasks.warmup, shape),
        endpoint_information_epoch=reply.endpoint_information_epoch,
        partitions_by_user_endpoint=None
        if endpoints is None
        else tuple(
            shape.EndpointToPartitions(
                user_endpoint=shape.Endpoint(host=entry.endpoint.host, port=entry.endpoint.port),
                active_partitions=_partitions(entry.active, shape),
                standby_partitions=_partitions(entry.standby, shape),
            )
            for entry in endpoints
        ),
    )


def _partitions(topics: Iterable[streams.TopicPartitions], shape: Shape) -> tuple[Any, ...]:
    return tuple(shape.TopicPartition(topic=topic.topic, partitions=topic.partitions) for topic in topics)


def decode_describe(values: dict[str, Any], context: RequestContext) -> streams.StreamsGroupDescribeRequest:
    """StreamsGroupDescribe."""
    return streams.StreamsGroupDescribeRequest(
        group_ids=tuple(values["group_ids"]), include_operations=values["include_authorized_operations"]
    )


def encode_describe(reply: streams.StreamsGroupDescribeResponse, shape: Shape) -> Any:
    """StreamsGroupDescribe."""
    return shape.StreamsGroupDescribeResponse(
        throttle_time=0,
        groups=tuple(_group(group, reply.authorized_operations, shape) for group in reply.groups),
    )


def _group(group: streams.DescribedStreamsGroup, operations: int, shape: Shape) -> Any:
    found = None
    if group.topology_epoch is not None:
        found = shape.Topology(
            epoch=group.topology_epoch,
            subtopologies=tuple(_subtopology(one, shape) for one in group.subtopologies),
        )
    return shape.DescribedGroup(
        error_code=group.error_code,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.group_state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology=found,
        members=tuple(_member(member, shape) for member in group.members),
        authorized_operations=operations_of(group.error_code, operations),
    )


def _subtopology(one: streams.DescribedSubtopology, shape: Shape) -> Any:
    return shape.Subtopology(
        subtopology_id=one.subtopology_id,
        source_topics=one.source_topics,
        repartition_sink_topics=one.repartition_sink_topics,
        state_changelog_topics=shaped_topics(one.state_changelog_topics, shape),
        repartition_source_topics=shaped_topics(one.repartition_source_topics, shape),
    )


def _member(member: streams.DescribedStreamsMember, shape: Shape) -> Any:
    at = member.user_endpoint
    return shape.Member(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=None if at is None else shape.Endpoint(host=at.host, port=at.port),
        client_tags=tuple(shape.KeyValue(key=key, value=value) for key, value in member.client_tags.items()),
        task_offsets=(),
        task_end_offsets=(),
        assignment=_assignment(member.assignment, shape),
        target_assignment=_assignment(member.target_assignment, shape),
        is_classic=False,
    )


def _assignment(tasks: streams.Tasks, shape: Shape) -> Any:
    return shape.Assignment(
        active_tasks=shaped_tasks(tasks.active, shape),
        standby_tasks=shaped_tasks(tasks.standby, shape),
        warmup_tasks=shaped_tasks(tasks.warmup, shape),
    )
