"""The client's half of StreamsGroupDescribe (89), version 0 (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.codec.streams_topology import endpoint, pairs, task_ids, topic_info
from fencepost.coordinator.protocol import streams


def encode_describe(request: streams.StreamsGroupDescribeRequest, shape: Shape) -> Any:
    """StreamsGroupDescribe."""
    return shape.StreamsGroupDescribeRequest(group_ids=request.group_ids, include_authorized_operations=False)


def decode_describe(values: dict[str, Any], version: int) -> streams.StreamsGroupDescribeResponse:
    """StreamsGroupDescribe."""
    return streams.StreamsGroupDescribeResponse(groups=tuple(map(_group, values["groups"])))


def _group(values: Mapping[str, Any]) -> streams.DescribedStreamsGroup:
    topology = values["topology"]
    return streams.DescribedStreamsGroup(
        group_id=values["group_id"],
        error_code=error_of(values["error_code"]),
        error_message=values["error_message"],
        group_state=values["group_state"],
        group_epoch=values["group_epoch"],
        assignment_epoch=values["assignment_epoch"],
        topology_epoch=None if topology is None else topology["epoch"],
        subtopologies=() if topology is None else tuple(map(_subtopology, topology["subtopologies"] or ())),
        members=tuple(map(_member, values["members"])),
    )


def _subtopology(values: Mapping[str, Any]) -> streams.DescribedSubtopology:
    return streams.DescribedSubtopology(
        subtopology_id=values["subtopology_id"],
        source_topics=tuple(values["source_topics"]),
        repartition_sink_topics=tuple(values["repartition_sink_topics"]),
        state_changelog_topics=_topics(values["state_changelog_topics"]),
        repartition_source_topics=_topics(values["repartition_source_topics"]),
    )


def _topics(entries: Iterable[Mapping[str, Any]]) -> tuple[streams.TopicInfo, ...]:
    return tuple(map(topic_info, entries))


def _member(values: Mapping[str, Any]) -> streams.DescribedStreamsMember:
    return streams.DescribedStreamsMember(
        member_id=values["member_id"],
        member_epoch=values["member_epoch"],
        instance_id=values["instance_id"],
        rack_id=values["rack_id"],
        client_id=values["client_id"],
        client_host=values["client_host"],
        topology_epoch=values["topology_epoch"],
        process_id=values["process_id"],
        user_endpoint=endpoint(values["user_endpoint"]),
        client_tags=pairs(values["client_tags"]),
        assignment=_tasks(values["assignment"]),
        target_assignment=_tasks(values["target_assignment"]),
    )


def _tasks(values: Mapping[str, Any]) -> streams.Tasks:
    return streams.Tasks(
        task_ids(values["active_tasks"]), task_ids(values["standby_tasks"]), task_ids(values["warmup_tasks"])
    )
