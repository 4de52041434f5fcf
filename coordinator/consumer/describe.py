"""ConsumerGroupDescribe and the rows of ListGroups, read off the hard state."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.target import preferred_assignor
from fencepost.coordinator.kinds import GroupMember, named
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.topics import TopicsImage

SIMPLE_GROUP_STATE = "Empty"


def describe(group: ConsumerGroup, image: TopicsImage, assignors: Sequence[str]) -> consumer.DescribedGroup:
    """Return the group with all its members, by member id."""
    return consumer.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.counts, assignors),
        members=tuple(
            _describe_member(member, group.targets.get(member_id, NO_PARTITIONS), image)
            for member_id, member in sorted(group.members.items())
        ),
    )


def missing(group_id: str, message: str) -> consumer.DescribedGroup:
    """Return the response for a group that does not exist, or is of another kind."""
    if not group_id:
        return consumer.DescribedGroup(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    code = ErrorCode.GROUP_ID_NOT_FOUND
    return consumer.DescribedGroup(group_id=group_id, error_code=code, error_message=message)


def _describe_member(
    member: ConsumerGroupMember, target: Partitions, image: TopicsImage
) -> consumer.DescribedMember:
    return consumer.DescribedMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        # Partitions under revocation are still the member's, until it confirms the release (KAFKA-20431).
        assignment=_named((member.assigned, member.pending_revocation), image),
        target_assignment=_named((target,), image),
        member_type=consumer.MemberType.CONSUMER if member.classic is None else consumer.MemberType.CLASSIC,
    )


def _named(parts: Sequence[Partitions], image: TopicsImage) -> tuple[consumer.DescribedPartitions, ...]:
    """Return the partitions under their topics' names; topics that were deleted are left out."""
    held: dict[TopicId, set[int]] = {}
    for part in parts:
        for topic_id, partitions in part.items():
            held.setdefault(topic_id, set()).update(partitions)
    named = [(image.name_of(topic_id), topic_id, numbers) for topic_id, numbers in held.items()]
    return tuple(
        consumer.DescribedPartitions(topic_id=topic_id, topic_name=name, partitions=tuple(sorted(numbers)))
        for name, topic_id, numbers in sorted((n, t, p) for n, t, p in named if n is not None)
    )


def members(
    group: ConsumerGroup, owned: Mapping[MemberId, Partitions], image: TopicsImage
) -> list[GroupMember]:
    """Return the members of a consumer group, by member id; some may speak the classic protocol."""
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
                protocol=consumer.CLASSIC_GROUP_TYPE if is_classic else consumer.CONSUMER_GROUP_TYPE,
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


def listed_simple(group_id: str) -> consumer.ListedGroup:
    """Return the row of a group that consists of committed offsets only."""
    return consumer.ListedGroup(
        group_id=group_id,
        protocol_type="",
        group_state=SIMPLE_GROUP_STATE,
        group_type=consumer.CLASSIC_GROUP_TYPE,
    )


def matches(row: consumer.ListedGroup, states: Collection[str], types: Collection[str]) -> bool:
    """Return true if the row passes the filters. Filters ignore case, and an empty filter passes every row.

    Kafka's filters call a streams group's NotReady `not_ready`.
    """
    wanted_states = [state.strip().lower() for state in states]
    wanted_types = [name.lower() for name in types]
    state = "not_ready" if row.group_state == "NotReady" else row.group_state.lower()
    return (not wanted_states or state in wanted_states) and (
        not wanted_types or row.group_type.lower() in wanted_types
    )
