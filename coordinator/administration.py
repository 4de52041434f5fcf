"""What administrators ask of a coordinator, and its own housekeeping: over groups of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fencepost.coordinator.classic import describe as describe_classic
from fencepost.coordinator.classic import offset_fencing as classic_fencing
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.consumer import describe, leaving
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.offsets import expiry
from fencepost.coordinator.offsets.store import OffsetStore, tombstones
from fencepost.coordinator.offsets.transactions import pending_tombstones
from fencepost.coordinator.protocol.classic import (
    DescribedClassicGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    LeaveGroupBatchRequest,
    LeaveGroupBatchResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import GroupMetadataKey, Record
from fencepost.coordinator.protocol.topics import TopicsImage

Groups = Mapping[str, ConsumerGroup]
ClassicGroupsById = Mapping[str, ClassicGroup]


def subscribed_in(group: ConsumerGroup | ClassicGroup | None) -> Callable[[str], bool]:
    """Tells of a topic whether the group subscribes to it; a group without members never does."""
    return _never if group is None else group.is_subscribed_to


def _never(_topic: str) -> bool:
    return False


def describe_groups(
    request: ConsumerGroupDescribeRequest, groups: Groups, image: TopicsImage, assignors: Sequence[str]
) -> Outcome:
    """ConsumerGroupDescribe: each group that was asked for, in that order."""

    def described(group_id: str) -> DescribedGroup:
        group = groups.get(group_id)
        if group is not None:
            return describe.describe(group, image, assignors)
        return describe.missing(group_id, f"Group {group_id} not found.")

    return Outcome(reply=ConsumerGroupDescribeResponse(groups=tuple(map(described, request.group_ids))))


def describe_classic_groups(
    request: DescribeGroupsRequest, classic: ClassicGroupsById, groups: Groups, offsets: OffsetStore
) -> Outcome:
    """DescribeGroups: each group that was asked for, in that order. It knows classic groups only."""

    def described(group_id: str) -> DescribedClassicGroup:
        group = classic.get(group_id)
        if group is not None:
            return describe_classic.describe(group)
        if group_id in groups:
            return describe_classic.missing(group_id, f"Group {group_id} is not a classic group.")
        if group_id in offsets:
            return describe_classic.simple(group_id)
        return describe_classic.missing(group_id, f"Group {group_id} not found.")

    return Outcome(reply=DescribeGroupsResponse(groups=tuple(map(described, request.group_ids))))


def list_groups(
    request: ListGroupsRequest, classic: ClassicGroupsById, groups: Groups, offsets: OffsetStore
) -> Outcome:
    """ListGroups: groups of every kind, and those that consist of committed offsets only."""
    rows = [describe.listed(group) for group in groups.values()]
    rows += [describe_classic.listed(group) for group in classic.values()]
    rows += [
        describe.listed_simple(group_id)
        for group_id in offsets.group_ids
        if group_id not in groups and group_id not in classic
    ]
    rows.sort(key=lambda row: row.group_id)
    wanted = (row for row in rows if describe.matches(row, request.states_filter, request.types_filter))
    return Outcome(reply=ListGroupsResponse(groups=tuple(wanted)))


def delete_group(
    request: DeleteGroupsRequest, classic: ClassicGroupsById, groups: Groups, offsets: OffsetStore
) -> Outcome:
    """DeleteGroups: an empty group and its offsets."""
    group_id = request.group_id
    group, other = groups.get(group_id), classic.get(group_id)
    if group is None and other is None and group_id not in offsets:
        return _not_deleted(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    end: tuple[Record, ...] | None = ()
    if group is not None:
        end = leaving.group_tombstones(group) if not group.members else None
    elif other is not None:
        end = end_of_empty(other)
    if end is None:
        return _not_deleted(group_id, ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    records = tombstones(offsets, group_id) + pending_tombstones(offsets, group_id) + end
    return Outcome(records=records, reply=DeleteGroupsResponse(group_id=group_id))


def end_of_empty(group: ClassicGroup) -> tuple[Record, ...] | None:
    """The tombstone of a classic group; None if it is not empty."""
    if not group.is_in(ClassicGroupState.EMPTY):
        return None
    return (Record(GroupMetadataKey(group.group_id), None),)


def _not_deleted(group_id: str, code: ErrorCode, message: str) -> Outcome:
    reply = DeleteGroupsResponse(group_id=group_id, error_code=code, error_message=message)
    return Outcome(reply=reply)


def remove_members(request: LeaveGroupBatchRequest, groups: Groups, removal: leaving.Removal) -> Outcome:
    """LeaveGroup: removes those of several members that are there."""
    records, replies = _removed(request.group_id, request.members, groups, removal)
    return Outcome(records=records, reply=LeaveGroupBatchResponse(members=replies))


def _removed(
    group_id: str, requests: Sequence[LeaveGroupRequest], groups: Groups, removal: leaving.Removal
) -> tuple[tuple[Record, ...], tuple[LeaveGroupResponse, ...]]:
    """The records and what each is told. In a group that is not there nobody is known."""
    group = groups.get(group_id) or ConsumerGroup(group_id)
    found: dict[MemberId, ConsumerGroupMember] = {}
    replies = []
    for request in requests:
        code = ErrorCode.NONE
        try:
            member = leaving.member_to_remove(group, request)
            found[member.member_id] = member
        except ProtocolError as error:
            code = error.code
        reply = LeaveGroupResponse(
            member_id=request.member_id, instance_id=request.instance_id, error_code=code
        )
        replies.append(reply)
    records = removal(group, tuple(found.values())) if found else ()
    return records, tuple(replies)


def sweep(
    classic: ClassicGroupsById, groups: Groups, offsets: OffsetStore, retention_ms: int, now_ms: int
) -> tuple[Record, ...]:
    """The tombstones of all offsets that are due, and of empty groups that have no others."""
    records: list[Record] = []
    for group_id in sorted({*groups, *classic, *offsets.group_ids}):
        group, other = groups.get(group_id), classic.get(group_id)
        due: tuple[Record, ...] = ()
        if other is None or classic_fencing.offsets_may_expire(other):
            due = expiry.expired(
                offsets,
                group_id,
                is_subscribed=subscribed_in(group or other),
                retention_ms=retention_ms,
                since_ms=None if other is None else classic_fencing.retained_since_ms(other),
                now_ms=now_ms,
            )
        records.extend(due)
        left = sum(map(len, offsets.topics(group_id).values())) - len(due)
        if left:
            continue
        if group is not None and not group.members:
            records.extend(leaving.group_tombstones(group))
        elif other is not None:
            records.extend(end_of_empty(other) or ())
    return tuple(records)
