"""Checks descriptions of streams groups: the group as it is stored, or an error (KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.simulation.judge.base import Finding, repeated


def descriptions(
    groups: Mapping[str, StreamsGroup], image: TopicsImage, event: Any, reply: Any
) -> Iterator[Finding]:
    """Yield what is wrong with the response to a request for descriptions, if it is one."""
    if not isinstance(event, streams.StreamsGroupDescribeRequest) or not isinstance(
        reply, streams.StreamsGroupDescribeResponse
    ):
        return
    told = tuple(group.group_id for group in reply.groups)
    if told != event.group_ids:
        yield "streams-described", f"groups {event.group_ids} are described as {told}"
        return
    for described in reply.groups:
        group = groups.get(described.group_id)
        for what in _absent(described) if group is None else _wrong(group, image, described):
            yield "streams-described", f"the description of {described.group_id or 'no group'}: {what}"


def _absent(described: streams.DescribedStreamsGroup) -> Iterator[str]:
    expected = ErrorCode.GROUP_ID_NOT_FOUND if described.group_id else ErrorCode.INVALID_GROUP_ID
    if described.error_code is not expected:
        yield f"it has {described.error_code.name}, expected {expected.name}"
    if described.members or described.subtopologies:
        yield "there is no such group, and it has members or a topology"


def _wrong(
    group: StreamsGroup, image: TopicsImage, described: streams.DescribedStreamsGroup
) -> Iterator[str]:
    if described.error_code:
        yield f"it has {described.error_code.name}, and there is such a group"
        return
    told = described.group_state, described.group_epoch, described.assignment_epoch
    right = str(group.state), group.group_epoch, group.assignment_epoch
    if told != right:
        yield f"its state and epochs are {told}, expected {right}"
    ids = [member.member_id for member in described.members]
    if ids != sorted(group.members):
        yield f"its members are {ids}, expected {sorted(group.members)}"
        return
    for shown in described.members:
        member = group.members[shown.member_id]
        stored = streams.DescribedStreamsMember(
            **repeated(member, streams.DescribedStreamsMember),
            assignment=member.assigned,
            target_assignment=group.targets.get(shown.member_id, streams.NO_TASKS),
        )
        if shown != stored:
            yield f"{shown}, expected {stored}"
    yield from _topology(group, image, described)


def _topology(
    group: StreamsGroup, image: TopicsImage, described: streams.DescribedStreamsGroup
) -> Iterator[str]:
    topology = group.topology
    declared = {} if topology is None else {one.subtopology_id: one for one in topology.subtopologies}
    epoch = None if topology is None else topology.epoch
    ids = [one.subtopology_id for one in described.subtopologies]
    if (described.topology_epoch, ids) != (epoch, sorted(declared)):
        yield f"topology {described.topology_epoch} has parts {ids}, expected {epoch} with {sorted(declared)}"
        return
    for shown in described.subtopologies:
        if wrong := _differ(shown, declared[shown.subtopology_id], image):
            yield f"part {shown.subtopology_id} has {wrong}"


def _differ(shown: streams.DescribedSubtopology, declared: streams.Subtopology, image: TopicsImage) -> str:
    """Return the topics that differ from those that were declared.

    Internal topics have the number of partitions that was declared for them, or that they turned out to have.
    """
    for told, right in (
        (shown.source_topics, declared.source_topics),
        (shown.repartition_sink_topics, declared.repartition_sink_topics),
    ):
        if told != tuple(sorted(right)):
            return f"topics {told}, expected {right}"
    for internal, expected in (
        (shown.state_changelog_topics, declared.state_changelog_topics),
        (shown.repartition_source_topics, declared.repartition_source_topics),
    ):
        if [each.name for each in internal] != sorted(each.name for each in expected):
            return f"internal topics {internal}, expected {expected}"
        asked = {each.name: each.partitions for each in expected}
        for each in internal:
            if each.partitions not in (asked[each.name], _partitions(image, each)):
                return f"{each.partitions} partitions for {each.name}"
    return ""


def _partitions(image: TopicsImage, topic: streams.TopicInfo) -> int | None:
    found = image.by_name.get(topic.name)
    return None if found is None else found.partitions
