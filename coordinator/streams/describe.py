"""StreamsGroupDescribe and the rows of ListGroups, read off the hard state."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.coordinator.protocol.consumer import ListedGroup
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.streams import (
    DescribedStreamsGroup,
    DescribedStreamsMember,
    DescribedSubtopology,
    Subtopology,
    Tasks,
    TopicInfo,
    Topology,
)
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.topology import ConfiguredSubtopology, ConfiguredTopology

STREAMS_GROUP_TYPE = "streams"


def describe(group: StreamsGroup, configured: ConfiguredTopology | None) -> DescribedStreamsGroup:
    """The group with all its members, by member id; its topics as they are needed once that is known."""
    epoch: int | None = None
    subtopologies: tuple[DescribedSubtopology, ...] = ()
    if configured is not None and configured.is_ready and configured.subtopologies is not None:
        epoch = configured.topology_epoch
        subtopologies = tuple(_decided(one, found) for one, found in configured.subtopologies.items())
    elif group.topology is not None:
        epoch, subtopologies = group.topology.epoch, _declared(group.topology)
    return DescribedStreamsGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        topology_epoch=epoch,
        subtopologies=subtopologies,
        members=tuple(
            _member(member, group.target(member_id)) for member_id, member in sorted(group.members.items())
        ),
    )


def missing(group_id: str, message: str) -> DescribedStreamsGroup:
    """The answer for a group that is not there, or is none of this kind."""
    if not group_id:
        return DescribedStreamsGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    code = ErrorCode.GROUP_ID_NOT_FOUND
    return DescribedStreamsGroup(group_id=group_id, error_code=code, error_message=message)


def _decided(subtopology_id: str, found: ConfiguredSubtopology) -> DescribedSubtopology:
    return DescribedSubtopology(
        subtopology_id=subtopology_id,
        source_topics=found.source_topics,
        repartition_sink_topics=found.repartition_sink_topics,
        state_changelog_topics=_by_name(found.state_changelog_topics),
        repartition_source_topics=_by_name(found.repartition_source_topics),
    )


def _declared(topology: Topology) -> tuple[DescribedSubtopology, ...]:
    def described(one: Subtopology) -> DescribedSubtopology:
        return DescribedSubtopology(
            subtopology_id=one.subtopology_id,
            source_topics=tuple(sorted(one.source_topics)),
            repartition_sink_topics=tuple(sorted(one.repartition_sink_topics)),
            state_changelog_topics=_by_name(one.state_changelog_topics),
            repartition_source_topics=_by_name(one.repartition_source_topics),
        )

    return tuple(map(described, sorted(topology.subtopologies, key=lambda one: one.subtopology_id)))


def _by_name(topics: Iterable[TopicInfo]) -> tuple[TopicInfo, ...]:
    return tuple(sorted(topics, key=lambda topic: topic.name))


def _member(member: StreamsGroupMember, target: Tasks) -> DescribedStreamsMember:
    return DescribedStreamsMember(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        user_endpoint=member.user_endpoint,
        client_tags=member.client_tags,
        assignment=member.assigned,
        target_assignment=target,
    )


def listed(group: StreamsGroup) -> ListedGroup:
    """The group's row in ListGroups."""
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=STREAMS_GROUP_TYPE,
        group_state=group.state,
        group_type=STREAMS_GROUP_TYPE,
    )
