"""Turns a classic group into a consumer group, when a consumer with the newer protocol joins it.

Its members become members of the consumer group, with the generation as their epoch, and keep their
assignments. They speak the classic protocol until they change it themselves.
"""

from __future__ import annotations

from collections import Counter

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.config import ConsumerGroupMigrationPolicy, GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.subscription import topic_ids
from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.classic import JoinGroupResponse, SyncGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import Partitions, TopicId, partitions_of
from fencepost.coordinator.protocol.outcome import ParkedResponse
from fencepost.coordinator.protocol.records import (
    ClassicMemberMetadata,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash

_ALLOWING = (ConsumerGroupMigrationPolicy.BIDIRECTIONAL, ConsumerGroupMigrationPolicy.UPGRADE)


def check_may_upgrade(group: ClassicGroup, config: GroupCoordinatorConfig) -> None:
    """Check that the group, which has members, may become a consumer group.

    :raises ProtocolError: GROUP_ID_NOT_FOUND if it may not: for the requesting member, it is not a consumer
        group.
    """
    if (
        config.group_consumer_migration_policy not in _ALLOWING
        or not group.uses_consumer_protocol
        or len(group.members) > config.group_consumer_max_size
    ):
        raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")


def upgrade(
    group: ClassicGroup, image: TopicsImage, *, stale: bool = False
) -> tuple[ConsumerGroup, tuple[Record, ...]]:
    """Return the consumer group that the classic group becomes, and the records of that.

    With `stale`, its target is out of date and a new one is due.

    :raises ProtocolError: GROUP_ID_NOT_FOUND if the members' metadata or assignments can't be read, or an
        assignor of the members made them, whose data would be lost.
    """
    held: set[tuple[TopicId, int]] = set()
    members = [_member(group, member, image, held) for member in group.members.values()]
    group_id, epoch = group.group_id, group.generation
    topics = sorted({topic for member in members for topic in member.subscribed_topic_names})
    records = (
        Record(GroupMetadataKey(group_id), None),
        *(member.metadata_record(group_id) for member in members),
        Record(
            ConsumerGroupMetadataKey(group_id),
            ConsumerGroupMetadataValue(epoch + stale, metadata_hash(topics, image)),
        ),
        *(
            Record(
                ConsumerGroupTargetAssignmentMemberKey(group_id, member.member_id),
                ConsumerGroupTargetAssignmentMemberValue(member.assigned),
            )
            for member in members
        ),
        Record(
            ConsumerGroupTargetAssignmentMetadataKey(group_id),
            ConsumerGroupTargetAssignmentMetadataValue(epoch),
        ),
        *(member.assignment_record(group_id) for member in members),
    )
    upgraded = {group_id: ConsumerGroup(group_id)}
    for record in records[1:]:
        ConsumerGroup.apply(upgraded, record.key, record.value)
    return upgraded[group_id], records


def leaves_out(group: ConsumerGroup, image: TopicsImage) -> bool:
    """Return true if the group's targets lack partitions of subscribed topics that the last leader did not
    know."""
    given: Counter[TopicId] = Counter()
    for target in group.targets.values():
        given.update({topic_id: len(numbers) for topic_id, numbers in target.items()})
    return any(
        given[topic_id] < image.by_id[topic_id].partitions
        for topic_id in topic_ids(group.counts.topics(), image)
    )


def released(group: ClassicGroup) -> tuple[ParkedResponse, ...]:
    """Return responses to the requests parked in the classic group. They tell members to join again, now in
    the consumer group."""
    code = ErrorCode.REBALANCE_IN_PROGRESS
    answers = []
    for member in group.members.values():
        if member.join is not None:
            response = JoinGroupResponse(error_code=code, member_id=member.member_id)
            answers.append(ParkedResponse(token=member.join, response=response))
        if member.sync is not None:
            answers.append(ParkedResponse(token=member.sync, response=SyncGroupResponse(error_code=code)))
    return tuple(answers)


def _member(
    group: ClassicGroup, member: ClassicGroupMember, image: TopicsImage, held: set[tuple[TopicId, int]]
) -> ConsumerGroupMember:
    try:
        # A member that has just joined may not offer the protocol of the generation before.
        subscription = consumer_protocol.read_subscription(
            member.metadata(group.protocol) or member.protocols[0].metadata
        )
        assignment = consumer_protocol.read_assignment(member.assignment)
    except consumer_protocol.MalformedConsumerProtocol as error:
        raise _refused(group, f"the data of member {member.member_id} is malformed: {error}") from error
    if assignment.user_data:
        raise _refused(group, "its members use their own assignor")
    wanted = {
        (image.by_name[topic].topic_id, partition)
        for topic, partitions in assignment.partitions.items()
        if topic in image.by_name
        for partition in partitions
    }
    if held & wanted:
        raise _refused(group, "a partition is assigned to two members")
    held |= wanted
    assigned: Partitions = partitions_of(wanted)
    return ConsumerGroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=tuple(sorted(set(subscription.topics))),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        member_epoch=group.generation,
        previous_member_epoch=group.generation,
        assigned=assigned,
        assignment_epochs={t: dict.fromkeys(numbers, group.generation) for t, numbers in assigned.items()},
        classic=ClassicMemberMetadata(
            member.session_timeout_ms,
            tuple((protocol.name, protocol.metadata) for protocol in member.protocols),
        ),
    )


def _refused(group: ClassicGroup, why: str) -> ProtocolError:
    return ProtocolError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group.group_id}: {why}."
    )
