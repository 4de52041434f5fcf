"""StreamsGroupDescribe and the members that tests see, read off the hard state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fencepost.coordinator.kinds import GroupMember, named
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.topology import ConfiguredSubtopology, ConfiguredTopology

STREAMS_GROUP_TYPE = "streams"


def describe(group: StreamsGroup, configured: ConfiguredTopology | None) -> streams.DescribedStreamsGroup:
    """Return the group with all its members, by member id, and its topics as needed once that is known."""
    epoch: int | None = None
    subtopologies: tuple[streams.DescribedSubtopology, ...] = ()
    if configured is not None and configured.is_ready and configured.subtopologies is not None:
        epoch = configured.topology_epoch
        subtopologies = tuple(_decided(one, found) for one, found in configured.subtopologies.items())
    elif group.topology is not None:
        epoch, subtopologies = group.topology.epoch, _declared(group.topology)
    return streams.DescribedStreamsGroup(
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


def missing(group_id: str, message: str) -> streams.DescribedStreamsGroup:
    """Return the response for a group that does not exist, or is of another kind."""
    if not group_id:
        return streams.DescribedStreamsGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    code = ErrorCode.GROUP_ID_NOT_FOUND
    return streams.DescribedStreamsGroup(group_id=group_id, error_code=code, error_message=message)


def _decided(subtopology_id: str, found: ConfiguredSubtopology) -> streams.DescribedSubtopology:
    return streams.DescribedSubtopology(
        subtopology_id=subtopology_id,
        source_topics=found.source_topics,
        repartition_sink_topics=found.repartition_sink_topics,
        state_changelog_topics=_by_name(found.state_changelog_topics),
        repartition_source_topics=_by_name(found.repartition_source_topics),
    )


def _declared(topology: streams.Topology) -> tuple[streams.DescribedSubtopology, ...]:
    def described(one: streams.Subtopology) -> streams.DescribedSubtopology:
        return streams.DescribedSubtopology(
            subtopology_id=one.subtopology_id,
            source_topics=tuple(sorted(one.source_topics)),
            repartition_sink_topics=tuple(sorted(one.repartition_sink_topics)),
            state_changelog_topics=_by_name(one.state_changelog_topics),
            repartition_source_topics=_by_name(one.repartition_source_topics),
        )

    return tuple(map(described, sorted(topology.subtopologies, key=lambda one: one.subtopology_id)))


def _by_name(topics: Iterable[streams.TopicInfo]) -> tuple[streams.TopicInfo, ...]:
    return tuple(sorted(topics, key=lambda topic: topic.name))


def _member(member: StreamsGroupMember, target: streams.Tasks) -> streams.DescribedStreamsMember:
    return streams.DescribedStreamsMember(
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


def members(
    group: StreamsGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
) -> list[GroupMember]:
    """Return the members of a streams group, by member id."""
    return [
        GroupMember(
            member_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            epoch=member.member_epoch,
            protocol=STREAMS_GROUP_TYPE,
            topics=tuple(sorted(group.source_subtopologies)),
            assignment=named(partitions_read(group, member.assigned.active, image), image),
            owned=named(owned.get(member_id, {}), image),
            active_tasks=_task_names(member.assigned.active),
            standby_tasks=_task_names(member.assigned.standby),
            warmup_tasks=_task_names(member.assigned.warmup),
        )
        for member_id, member in sorted(group.members.items())
    ]


def partitions_read(group: StreamsGroup, tasks: streams.TaskIds, image: TopicsImage) -> Partitions:
    """Return the partitions that tasks read, of the topics that there are."""
    found = {}
    for name, subtopology_id in group.source_subtopologies.items():
        topic = image.by_name.get(name)
        if topic is not None and (numbers := tasks.get(subtopology_id)):
            found[topic.topic_id] = tuple(number for number in numbers if number < topic.partitions)
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


def _task_names(tasks: streams.TaskIds) -> tuple[str, ...]:
    return tuple(f"{subtopology}_{number}" for subtopology in sorted(tasks) for number in tasks[subtopology])
