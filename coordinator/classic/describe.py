"""DescribeGroups and the rows of ListGroups, read off a classic group."""

from __future__ import annotations

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.kinds import GroupMember
from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.classic import DescribedClassicGroup, DescribedClassicMember
from fencepost.coordinator.protocol.consumer import CLASSIC_GROUP_TYPE, ListedGroup
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition


def describe(group: ClassicGroup) -> DescribedClassicGroup:
    """Describe the group with its members and their last assignments. Metadata is shown while the group is
    Stable."""
    stable = group.is_in(ClassicGroupState.STABLE)
    return DescribedClassicGroup(
        group_id=group.group_id,
        group_state=group.state,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=tuple(
            DescribedClassicMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(group.protocol) if stable else b"",
                assignment=member.assignment,
            )
            for member in group.members.values()
        ),
    )


def simple(group_id: str) -> DescribedClassicGroup:
    """Return a group that consists of committed offsets only."""
    return DescribedClassicGroup(group_id=group_id, group_state=ClassicGroupState.EMPTY)


def missing(group_id: str, message: str) -> DescribedClassicGroup:
    """Return the response for a group that does not exist, or is of another kind."""
    return DescribedClassicGroup(
        group_id=group_id,
        group_state=ClassicGroupState.DEAD,
        error_code=ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=message,
    )


def listed(group: ClassicGroup) -> ListedGroup:
    """Return the group's row in ListGroups."""
    return ListedGroup(
        group_id=group.group_id,
        protocol_type=group.protocol_type or "",
        group_state=group.state,
        group_type=CLASSIC_GROUP_TYPE,
    )


def members(group: ClassicGroup) -> list[GroupMember]:
    """Return the members of a classic group, by member id."""
    found = []
    for member_id, member in sorted(group.members.items()):
        topics: tuple[str, ...] = ()
        given: tuple[TopicPartition, ...] = ()
        try:
            topics = tuple(
                sorted(consumer_protocol.read_subscription(member.metadata(group.protocol)).topics)
            )
            if member.assignment:
                assigned = consumer_protocol.read_assignment(member.assignment).partitions
                given = tuple(
                    sorted(TopicPartition(name, n) for name, numbers in assigned.items() for n in numbers)
                )
        except consumer_protocol.MalformedConsumerProtocol:
            pass  # of another protocol type, such as Connect's: its bytes have another format
        found.append(
            GroupMember(
                member_id=member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                epoch=group.generation,
                protocol=CLASSIC_GROUP_TYPE,
                topics=topics,
                assignment=given,
                owned=given,
            )
        )
    return found


def subscribed(metadata: bytes) -> frozenset[str]:
    """Return the topics of a consumer's subscription; no topics if it can't be read."""
    try:
        return frozenset(consumer_protocol.read_subscription(metadata).topics)
    except consumer_protocol.MalformedConsumerProtocol:
        return frozenset()
