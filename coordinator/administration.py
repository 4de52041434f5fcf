"""What administrators ask of a coordinator, and its own housekeeping: over groups of every kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

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
from fencepost.coordinator.streams import describe as describe_streams
from fencepost.coordinator.streams import leaving as streams_leaving
from fencepost.coordinator.streams.group import StreamsGroup

Groups = Mapping[str, ConsumerGroup]


class AllGroups(NamedTuple):
    """The groups of every kind, by id; an id is in one of them at most."""

    consumer: Groups
    classic: Mapping[str, ClassicGroup]
    streams: Mapping[str, StreamsGroup]

    def find(self, group_id: str) -> ConsumerGroup | ClassicGroup | StreamsGroup | None:
        """The group of that id, of whatever kind."""
        return self.consumer.get(group_id) or self.classic.get(group_id) or self.streams.get(group_id)

    def subscribed_in(self, group_id: str) -> Callable[[str], bool]:
        """Tells of a topic whether the group subscribes to it; one without members never does."""
        group = self.find(group_id)
        return _never if group is None else group.is_subscribed_to

    def end_of_empty(self, group_id: str) -> tuple[Record, ...] | None:
        """The tombstones of a group without members: none if there is no group, None if it has members."""
        group = self.find(group_id)
        if group is None:
            return ()
        if isinstance(group, ClassicGroup):
            return end_of_empty(group)
        if group.members:
            return None
        if isinstance(group, StreamsGroup):
            return streams_leaving.group_tombstones(group)
        return leaving.group_tombstones(group)


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
    request: DescribeGroupsRequest, groups: AllGroups, offsets: OffsetStore
) -> Outcome:
    """DescribeGroups: each group that was asked for, in that order. It knows classic groups only."""

    def described(group_id: str) -> DescribedClassicGroup:
        group = groups.find(group_id)
        if isinstance(group, ClassicGroup):
            return describe_classic.describe(group)
        if group is not None:
            return describe_classic.missing(group_id, f"Group {group_id} is not a classic group.")
        if group_id in offsets:
            return describe_classic.simple(group_id)
        return describe_classic.missing(group_id, f"Group {group_id} not found.")

    return Outcome(reply=DescribeGroupsResponse(groups=tuple(map(described, request.group_ids))))


def list_groups(request: ListGroupsRequest, groups: AllGroups, offsets: OffsetStore) -> Outcome:
    """ListGroups: groups of every kind, and those that consist of committed offsets only."""
    rows = [describe.listed(group) for group in groups.consumer.values()]
    rows += [describe_classic.listed(group) for group in groups.classic.values()]
    rows += [describe_streams.listed(group) for group in groups.streams.values()]
    rows += [
        describe.listed_simple(group_id) for group_id in offsets.group_ids if groups.find(group_id) is None
    ]
    rows.sort(key=lambda row: row.group_id)
    wanted = (row for row in rows if describe.matches(row, request.states_filter, request.types_filter))
    return Outcome(reply=ListGroupsResponse(groups=tuple(wanted)))


def delete_group(request: DeleteGroupsRequest, groups: AllGroups, offsets: OffsetStore) -> Outcome:
    """DeleteGroups: an empty group and its offsets."""
    group_id = request.group_id
    if groups.find(group_id) is None and group_id not in offsets:
        return _not_deleted(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    end = groups.end_of_empty(group_id)
    if end is None:
        return _not_deleted(group_id, ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    records = tombstones(offsets, group_id) + pending_tombstones(offsets, group_id) + end
    return Outcome(records=records, reply=DeleteGroupsResponse(group_id=group_id))


def end_of_empty(group: ClassicGroup) -> tuple[Record, ...] | None:
    """The tombstone of a classic group; None if it is not empty."""
    return end_of_classic(group.group_id) if group.is_in(ClassicGroupState.EMPTY) else None


def end_of_classic(group_id: str) -> tuple[Record, ...]:
    """The tombstone of a classic group, or of one that consists of committed offsets only."""
    return (Record(GroupMetadataKey(group_id), None),)


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


def sweep(groups: AllGroups, offsets: OffsetStore, retention_ms: int, now_ms: int) -> tuple[Record, ...]:
    """The tombstones of all offsets that are due, and of empty groups that have no others."""
    records: list[Record] = []
    for group_id in sorted({*groups.consumer, *groups.classic, *groups.streams, *offsets.group_ids}):
        classic = groups.classic.get(group_id)
        due: tuple[Record, ...] = ()
        if classic is None or classic_fencing.offsets_may_expire(classic):
            due = expiry.expired(
                offsets,
                group_id,
                is_subscribed=groups.subscribed_in(group_id),
                retention_ms=retention_ms,
                since_ms=None if classic is None else classic_fencing.retained_since_ms(classic),
                now_ms=now_ms,
            )
        records.extend(due)
        left = sum(map(len, offsets.topics(group_id).values())) - len(due)
        if not left:
            records.extend(groups.end_of_empty(group_id) or ())
    return tuple(records)
