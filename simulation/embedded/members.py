"""A group's members, as its coordinator sees them: values for tests to look at."""

from __future__ import annotations

from collections.abc import Mapping
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
from fencepost.coordinator.protocol.topics import TopicsImage

if TYPE_CHECKING:
    from fencepost.coordinator.classic.group import ClassicGroup
    from fencepost.coordinator.consumer.group import ConsumerGroup


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a group. `epoch` is the generation of a member that speaks the classic protocol."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    epoch: int
    protocol: str
    """`consumer` (KIP-848) or `classic`."""
    topics: tuple[str, ...]
    """The names that it subscribes to."""
    assignment: tuple[TopicPartition, ...]
    """What the coordinator has given it."""
    owned: tuple[TopicPartition, ...]
    """What it said last that it owns; a classic member never says, and is believed to own what it got."""


def named(partitions: Partitions, image: TopicsImage) -> tuple[TopicPartition, ...]:
    """Partitions under their topics' names, sorted; those of deleted topics are left out."""
    by_name = [
        (name, numbers) for topic_id, numbers in partitions.items() if (name := image.name_of(topic_id))
    ]
    return tuple(one for name, numbers in sorted(by_name) for one in topic_partitions(name, numbers))


def consumer_members(
    group: ConsumerGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
) -> list[GroupMember]:
    """The members of a consumer group, by member id."""
    return [
        GroupMember(
            member_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            epoch=member.member_epoch,
            protocol="consumer",
            topics=member.subscribed_topic_names,
            assignment=named(member.assigned, image),
            owned=named(owned.get(member_id, {}), image),
        )
        for member_id, member in sorted(group.members.items())
    ]


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
