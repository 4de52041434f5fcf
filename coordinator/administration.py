"""What administrators ask of a coordinator, and its own housekeeping: over groups of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fencepost.coordinator.consumer import describe, leaving
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.offsets import expiry
from fencepost.coordinator.offsets.store import OffsetStore, tombstones
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
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage

Groups = Mapping[str, ConsumerGroup]


def subscribed_in(group: ConsumerGroup | None) -> Callable[[str], bool]:
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


def list_groups(request: ListGroupsRequest, groups: Groups, offsets: OffsetStore) -> Outcome:
    """ListGroups: consumer groups, and groups that consist of committed offsets only."""
    rows = [describe.listed(group) for group in groups.values()]
    rows += [describe.listed_simple(group_id) for group_id in offsets.group_ids if group_id not in groups]
    rows.sort(key=lambda row: row.group_id)
    wanted = (row for row in rows if describe.matches(row, request.states_filter, request.types_filter))
    return Outcome(reply=ListGroupsResponse(groups=tuple(wanted)))


def delete_group(request: DeleteGroupsRequest, groups: Groups, offsets: OffsetStore) -> Outcome:
    """DeleteGroups: an empty group and its offsets."""
    group_id = request.group_id
    group = groups.get(group_id)
    if group is None and group_id not in offsets:
        return _not_deleted(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    if group is not None and group.members:
        return _not_deleted(group_id, ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    end = () if group is None else leaving.group_tombstones(group)
    return Outcome(records=tombstones(offsets, group_id) + end, reply=DeleteGroupsResponse(group_id=group_id))


def _not_deleted(group_id: str, code: ErrorCode, message: str) -> Outcome:
    reply = DeleteGroupsResponse(group_id=group_id, error_code=code, error_message=message)
    return Outcome(reply=reply)


def remove_member(request: LeaveGroupRequest, groups: Groups, image: TopicsImage) -> Outcome:
    """LeaveGroup: removes one member for good."""
    records, (reply,) = _removed(request.group_id, (request,), groups, image)
    return Outcome(records=records, reply=reply)


def remove_members(request: LeaveGroupBatchRequest, groups: Groups, image: TopicsImage) -> Outcome:
    """LeaveGroup: removes those of several members that are there."""
    records, replies = _removed(request.group_id, request.members, groups, image)
    return Outcome(records=records, reply=LeaveGroupBatchResponse(members=replies))


def _removed(
    group_id: str, requests: Sequence[LeaveGroupRequest], groups: Groups, image: TopicsImage
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
    records = leaving.removal_records(group, tuple(found.values()), image) if found else ()
    return records, tuple(replies)


def sweep(groups: Groups, offsets: OffsetStore, retention_ms: int, now_ms: int) -> tuple[Record, ...]:
    """The tombstones of all offsets that are due, and of empty groups that have no others."""
    records: list[Record] = []
    for group_id in sorted({*groups, *offsets.group_ids}):
        group = groups.get(group_id)
        due = expiry.expired(
            offsets, group_id, is_subscribed=subscribed_in(group), retention_ms=retention_ms, now_ms=now_ms
        )
        records.extend(due)
        left = sum(map(len, offsets.topics(group_id).values())) - len(due)
        if group is not None and not group.members and not left:
            records.extend(leaving.group_tombstones(group))
    return tuple(records)
