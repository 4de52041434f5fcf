"""A group's members, as its coordinator sees them: values for tests to look at."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING

import msgspec

from fencepost.coordinator.protocol.consumer_protocol import (
    MalformedConsumerProtocol,
    read_assignment,
    read_subscription,
)
from fencepost.coordinator.protocol.ids import (
    MemberId,
    Partitions,
    TopicPartition,
    topic_partitions,
)
from fencepost.coordinator.protocol.streams import TaskIds
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash
from fencepost.coordinator.streams.topology import required_topics

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.coordinator.streams.group import StreamsGroup


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a group. `epoch` is the generation of a member that speaks the classic protocol."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    protocol: str
    """`consumer` (KIP-848), `classic` or `streams` (KIP-1071)."""
    topics: tuple[str, ...]
    """The names that it subscribes to, that its regular expression matches, or that its topology reads."""
    assignment: tuple[TopicPartition, ...]
    """What the coordinator has given it; of a Streams application what its active tasks read."""
    owned: tuple[TopicPartition, ...]
    """What it said last that it owns; a classic member never says, and is believed to own what it got."""
    active_tasks: tuple[str, ...] = ()
    """Tasks of a Streams application by Kafka's names, such as `0_3`: subtopology and partition."""
    standby_tasks: tuple[str, ...] = ()
    warmup_tasks: tuple[str, ...] = ()


def is_member(coordinator: GroupCoordinator, group_id: str, member_id: MemberId) -> bool:
    """Whether somebody is in a group, whatever it speaks, or was told that id to join with."""
    group, streams = coordinator.groups.get(group_id), coordinator.streams.groups.get(group_id)
    return (
        (group is not None and member_id in group.members)
        or (streams is not None and member_id in streams.members)
        or member_id in classic_member_ids(coordinator, group_id)
    )


def classic_member_ids(coordinator: GroupCoordinator, group_id: str) -> Set[MemberId]:
    """Who is in a classic group, or was told an id to join with; nobody if the group is of another kind."""
    group = coordinator.classic.groups.get(group_id)
    return frozenset() if group is None else group.members.keys() | group.pending_joins.keys()


def named(partitions: Partitions, image: TopicsImage) -> tuple[TopicPartition, ...]:
    """Partitions under their topics' names, sorted; those of deleted topics are left out."""
    by_name = [
        (name, numbers) for topic_id, numbers in partitions.items() if (name := image.name_of(topic_id))
    ]
    return tuple(one for name, numbers in sorted(by_name) for one in topic_partitions(name, numbers))


def consumer_members(
    group: ConsumerGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
) -> list[GroupMember]:
    """The members of a consumer group, by member id; some may speak the classic protocol."""
    found = []
    for member_id, member in sorted(group.members.items()):
        is_classic = member.classic is not None
        given = named(member.assigned, image)
        found.append(
            GroupMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                epoch=member.member_epoch,
                protocol="classic" if is_classic else "consumer",
                topics=_subscribed(group, member),
                assignment=given,
                owned=given if is_classic else named(owned.get(member_id, {}), image),
            )
        )
    return found


def _subscribed(group: ConsumerGroup, member: ConsumerGroupMember) -> tuple[str, ...]:
    resolution = group.resolved.get(member.regex or "")
    names = member.subscribed_topic_names
    return names if resolution is None else tuple(sorted({*names, *resolution.topics}))


def knows_its_topics(coordinator: GroupCoordinator, group_id: str) -> bool:
    """Whether a group was assigned what its topics are now, and all that its expressions match was found.

    Coordinators look at topics that changed in the next heartbeat; until then groups are as they were. True
    for classic groups, whose clients look.
    """
    image = coordinator.image
    if (group := coordinator.groups.get(group_id)) is not None:
        found = all(each.regex in group.resolved for each in group.members.values() if each.regex)
        return found and group.metadata_hash == metadata_hash(group.counts.topics(), image)
    streams = coordinator.streams.groups.get(group_id)
    if streams is None or streams.topology is None:
        return True
    return streams.metadata_hash == metadata_hash(sorted(required_topics(streams.topology)), image)


def streams_members(
    group: StreamsGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
) -> list[GroupMember]:
    """The members of a streams group, by member id."""
    return [
        GroupMember(
            member_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            epoch=member.member_epoch,
            protocol="streams",
            topics=tuple(sorted(group.source_subtopologies)),
            assignment=named(partitions_read(group, member.assigned.active, image), image),
            owned=named(owned.get(member_id, {}), image),
            active_tasks=_task_names(member.assigned.active),
            standby_tasks=_task_names(member.assigned.standby),
            warmup_tasks=_task_names(member.assigned.warmup),
        )
        for member_id, member in sorted(group.members.items())
    ]


def partitions_read(group: StreamsGroup, tasks: TaskIds, image: TopicsImage) -> Partitions:
    """The partitions that tasks read, of the topics that there are."""
    found = {}
    for name, subtopology_id in group.source_subtopologies.items():
        topic = image.by_name.get(name)
        if topic is not None and (numbers := tasks.get(subtopology_id)):
            found[topic.topic_id] = tuple(number for number in numbers if number < topic.partitions)
    return {topic_id: numbers for topic_id, numbers in found.items() if numbers}


def _task_names(tasks: TaskIds) -> tuple[str, ...]:
    return tuple(f"{subtopology}_{number}" for subtopology in sorted(tasks) for number in tasks[subtopology])


def classic_members(group: ClassicGroup) -> list[GroupMember]:
    """The members of a classic group, by member id."""
    found = []
    for member_id, member in sorted(group.members.items()):
        topics: tuple[str, ...] = ()
        given: tuple[TopicPartition, ...] = ()
        try:
            topics = tuple(sorted(read_subscription(member.metadata(group.protocol)).topics))
            if member.assignment:
                assigned = read_assignment(member.assignment).partitions
                given = tuple(
                    sorted(TopicPartition(name, n) for name, numbers in assigned.items() for n in numbers)
                )
        except MalformedConsumerProtocol:
            pass  # of another protocol type, such as Connect's: what it says is its own business
        found.append(
            GroupMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                epoch=group.generation,
                protocol="classic",
                topics=topics,
                assignment=given,
                owned=given,
            )
        )
    return found
