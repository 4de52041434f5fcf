"""The removal of members: they leave, leave for a while, time out, or are removed by an administrator
(KIP-848)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from fencepost.coordinator.config import ReleaseVersion
from fencepost.coordinator.consumer import regular_expressions, validation
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, STATIC_LEAVE_EPOCH, MemberId
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash

Removal: TypeAlias = Callable[[ConsumerGroup, Sequence[ConsumerGroupMember]], tuple[Record, ...]]
"""The records that remove members for good: `removal_records`, or those that turn the group into another
kind."""


def leave(group: ConsumerGroup, request: consumer.ConsumerGroupHeartbeatRequest, removal: Removal) -> Outcome:
    """Return the outcome of a heartbeat with epoch -1 or -2.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member has the instance id.
    """
    reply = consumer.ConsumerGroupHeartbeatResponse(
        member_id=request.member_id, member_epoch=request.member_epoch
    )
    instance_id = request.instance_id
    if instance_id is None:
        member = group.member(request.member_id)
    else:
        member = validation.check_instance_known(group.static_member(instance_id), instance_id)
        validation.check_instance_holder(member, request.member_id, instance_id)
        if request.member_epoch == STATIC_LEAVE_EPOCH:
            return Outcome(records=(_away(member).assignment_record(group.group_id),), reply=reply)
    return Outcome(records=removal(group, (member,)), reply=reply)


def _away(member: ConsumerGroupMember) -> ConsumerGroupMember:
    """Return the static member as it is while away: it keeps its assigned partitions, and nothing else."""
    return msgspec.structs.replace(
        member,
        member_epoch=STATIC_LEAVE_EPOCH,
        pending_revocation=NO_PARTITIONS,
        assignment_epochs={topic: dict.fromkeys(numbers, 0) for topic, numbers in member.assigned.items()},
    )


def member_to_remove(group: ConsumerGroup, request: consumer.LeaveGroupRequest) -> ConsumerGroupMember:
    """Return the member that an administrator means: by instance id if that is given, else by member id.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if both are given and differ.
    """
    if request.instance_id is None:
        return group.member(request.member_id)
    member = validation.check_instance_known(group.static_member(request.instance_id), request.instance_id)
    if request.member_id:
        validation.check_instance_holder(member, request.member_id, request.instance_id)
    return member


def remove_members(
    group: ConsumerGroup, request: consumer.LeaveGroupBatchRequest, removal: Removal
) -> Outcome:
    """LeaveGroup: remove those of several members that exist."""
    found: dict[MemberId, ConsumerGroupMember] = {}
    replies = []
    for one in request.members:
        code = ErrorCode.NONE
        try:
            member = member_to_remove(group, one)
            found[member.member_id] = member
        except ProtocolError as error:
            code = error.code
        replies.append(
            consumer.LeaveGroupResponse(member_id=one.member_id, instance_id=one.instance_id, error_code=code)
        )
    records = removal(group, tuple(found.values())) if found else ()
    return Outcome(records=records, reply=consumer.LeaveGroupBatchResponse(members=tuple(replies)))


def removal_records(
    group: ConsumerGroup,
    members: Sequence[ConsumerGroupMember],
    image: TopicsImage,
    release: ReleaseVersion,
) -> tuple[Record, ...]:
    """Return the records that remove members for good and raise the group epoch, once for all of them."""
    records = [record for member in members for record in group.member_tombstones(member.member_id)]
    counts = group.counts.copy()
    for member in members:
        counts.replace(member, None)
    records.extend(regular_expressions.end_unused(group, counts))
    epoch = group.group_epoch + 1
    value = ConsumerGroupMetadataValue(epoch, metadata_hash(counts.topics(), image))
    records.append(Record(ConsumerGroupMetadataKey(group.group_id), value))
    return (*records, *group.target_without_members(epoch, len(members), release))


def group_tombstones(group: ConsumerGroup) -> tuple[Record, ...]:
    """Return the tombstones of a group, with those of its expressions."""
    resolved = sorted(group.resolved)
    return group.tombstones(before=[regular_expressions.tombstone(group.group_id, each) for each in resolved])
