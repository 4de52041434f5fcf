"""ConsumerGroupHeartbeat and ConsumerGroupDescribe without their wire form (KIP-848).

Also ListGroups, DeleteGroups and LeaveGroup, which are about groups of other kinds as well.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from fencepost.coordinator.protocol.asks import Asks
from fencepost.coordinator.protocol.cluster import UNKNOWN_OPERATIONS
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId

CONSUMER_GROUP_TYPE = "consumer"
CLASSIC_GROUP_TYPE = "classic"


class ConsumerGroupHeartbeatRequest(
    Asks["ConsumerGroupHeartbeatResponse"], msgspec.Struct, frozen=True, kw_only=True, gc=False
):
    """One heartbeat of a member. None means "unchanged" in each field that may be None.

    `api_version`, `client_id` and `client_host` are from the request's header and its connection.
    """

    group_id: str
    member_id: MemberId
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_topic_names: tuple[str, ...] | None = None
    subscribed_topic_regex: str | None = None
    """RE2 syntax, matched against the whole name; "" means no regular expression."""
    server_assignor: str | None = None
    topic_partitions: Partitions | None = None
    """The partitions that the member owns; None if it has nothing to report."""
    api_version: int = 1
    client_id: str = ""
    client_host: str = ""
    generated_member_id: MemberId = ""
    """An id that the receiver of a version 0 request made, for a member that joins without one."""


class ConsumerGroupHeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The coordinator's response to one heartbeat."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: MemberId | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """Everything that the member may own; None if nothing changed, empty if it must own nothing."""


class ConsumerGroupDescribeRequest(
    Asks["ConsumerGroupDescribeResponse"], msgspec.Struct, frozen=True, kw_only=True
):
    """Asks for the state of groups as of the last committed record."""

    group_ids: tuple[str, ...]
    include_operations: bool = False


class DescribedPartitions(msgspec.Struct, frozen=True, kw_only=True):
    """Partitions of one topic, with its name for people."""

    topic_id: TopicId
    topic_name: str
    partitions: tuple[int, ...]


class MemberType(enum.IntEnum):
    """The protocol that a member of a consumer group speaks."""

    UNKNOWN = -1
    CLASSIC = 0
    CONSUMER = 1


class DescribedMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member, as ConsumerGroupDescribe shows it."""

    member_id: MemberId
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...]
    subscribed_topic_regex: str | None
    assignment: tuple[DescribedPartitions, ...]
    target_assignment: tuple[DescribedPartitions, ...]
    member_type: MemberType = MemberType.CONSUMER


class DescribedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group, as ConsumerGroupDescribe shows it."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    group_state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor_name: str = ""
    members: tuple[DescribedMember, ...] = ()


class ConsumerGroupDescribeResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A description of each group of the request, in its order."""

    groups: tuple[DescribedGroup, ...]
    authorized_operations: int | Mapping[str, int] = UNKNOWN_OPERATIONS
    """The operations that the client may do with the groups, or with each of them."""
    """Of each group that was found."""


class ListGroupsRequest(Asks["ListGroupsResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the list of groups; filters ignore case, and empty filters match all groups."""

    states_filter: tuple[str, ...] = ()
    types_filter: tuple[str, ...] = ()


class ListedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One row of ListGroups."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str


class ListGroupsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that match, by group id."""

    error_code: ErrorCode = ErrorCode.NONE
    groups: tuple[ListedGroup, ...] = ()


class DeleteGroupsRequest(Asks["DeleteGroupsResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Asks to delete one group, which must be empty, with its offsets."""

    group_id: str


class DeleteGroupsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result of deleting one group."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class LeaveGroupRequest(Asks["LeaveGroupResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Removes one member: by member id, or by instance id when that is given.

    Members of classic groups leave by it, and administrators remove others by it.
    """

    group_id: str
    member_id: MemberId = ""
    instance_id: str | None = None


class LeaveGroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result of removing one member."""

    member_id: MemberId = ""
    instance_id: str | None = None
    error_code: ErrorCode = ErrorCode.NONE


class LeaveGroupBatchRequest(Asks["LeaveGroupBatchResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Removes several members of one group at once: the group's epoch is raised once for all of them."""

    group_id: str
    members: tuple[LeaveGroupRequest, ...]
    """The members to remove; the group id of each is the one above."""


class LeaveGroupBatchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each member, in the order of the request; with an error, no member was removed."""

    error_code: ErrorCode = ErrorCode.NONE
    members: tuple[LeaveGroupResponse, ...] = ()
