"""The classic group protocol without its wire form: JoinGroup, SyncGroup, Heartbeat, DescribeGroups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.asks import Asks, AsksAndWaits
from fencepost.coordinator.protocol.cluster import UNKNOWN_OPERATIONS
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId

NO_GENERATION = -1
"""The generation in a response without one."""
CONSUMER_PROTOCOL_TYPE = "consumer"
"""The protocol type of groups whose members are consumers; others, such as Connect's, have their own."""

Token: TypeAlias = int
"""A number that the shell gives to a request which may have to wait; no two that wait have the same."""


class JoinGroupProtocol(msgspec.Struct, frozen=True, gc=False):
    """An assignment protocol that a member offers, and its metadata in that protocol."""

    name: str
    metadata: bytes


class JoinGroupRequest(AsksAndWaits["JoinGroupResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Asks to join a group, or to stay in it. The response is sent when all members have joined."""

    group_id: str
    member_id: MemberId = ""
    instance_id: str | None = None
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    """In the member's order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    api_version: int = 9
    client_id: str = ""
    client_host: str = ""
    new_member_suffix: str = ""
    """A UUID that the receiver of the request made, for a member that gets its id here."""
    token: Token = 0


class JoinGroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member, in the list for the leader."""

    member_id: MemberId
    instance_id: str | None = None
    metadata: bytes


class JoinGroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The generation that a member is in. `members` is for the leader, who assigns."""

    error_code: ErrorCode = ErrorCode.NONE
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: MemberId = ""
    skip_assignment: bool = False
    """True if the leader must not change the assignment, because a member only rejoined."""
    member_id: MemberId = ""
    members: tuple[JoinGroupMember, ...] = ()


class SyncGroupRequest(AsksAndWaits["SyncGroupResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the member's assignment; the leader's request has those of all members."""

    group_id: str
    generation: int
    member_id: MemberId
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    lacks_protocol: bool = False
    """Of a version that has to name the protocol, and does not name all of it."""
    assignments: dict[MemberId, bytes] = {}
    token: Token = 0


class SyncGroupResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The member's assignment, in the bytes that the leader chose."""

    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class HeartbeatRequest(Asks["HeartbeatResponse"], msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Reports that a member is alive."""

    group_id: str
    generation: int
    member_id: MemberId
    instance_id: str | None = None


class HeartbeatResponse(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The response to a heartbeat; REBALANCE_IN_PROGRESS tells the member to join again."""

    error_code: ErrorCode = ErrorCode.NONE


class DescribeGroupsRequest(Asks["DescribeGroupsResponse"], msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the state of classic groups."""

    group_ids: tuple[str, ...]
    include_operations: bool = False


class DescribedClassicMember(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a classic group; its metadata is shown while the group is Stable."""

    member_id: MemberId
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


class DescribedClassicGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One classic group; a group that is missing or of another kind has the state Dead."""

    group_id: str
    group_state: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    protocol_type: str = ""
    protocol_data: str = ""
    """The protocol that was chosen, while the group is Stable."""
    members: tuple[DescribedClassicMember, ...] = ()


class DescribeGroupsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A description of each group of the request, in its order."""

    groups: tuple[DescribedClassicGroup, ...]
    authorized_operations: int | Mapping[str, int] = UNKNOWN_OPERATIONS
    """The operations that the client may do with the groups, or with each of them."""
    """Of each group that was found."""
