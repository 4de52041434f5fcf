"""Group administration: LeaveGroup (13), ListGroups (16), DeleteGroups (42).

The core takes one group or member a request. A request on the wire has several, so each call is a tuple of
the core's requests, and each reply a tuple of its responses. LeaveGroup: 3 brings several members.
ListGroups: 4 filters by state, 5 by type.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from fencepost.coordinator.codec.layout import Layout, Via
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.cluster import UNKNOWN_OPERATIONS
from fencepost.coordinator.protocol.errors import ErrorCode


class DescribedWithOperations(NamedTuple):
    """A description of a group, and the operations that the response allows on each group."""

    group: Any
    operations: int


def with_operations(reply: Any, _: int) -> list[DescribedWithOperations]:
    """Return the groups of a response, each with the operations."""
    told = reply.authorized_operations
    return [
        DescribedWithOperations(group, told if isinstance(told, int) else told[group.group_id])
        for group in reply.groups
    ]


def operations_of(described: DescribedWithOperations, _: int) -> int:
    """Return the operations of one group; they are unknown for a group with an error."""
    return described.operations if described.group.error_code is ErrorCode.NONE else UNKNOWN_OPERATIONS


class LeaveGroupCall(msgspec.Struct, frozen=True, kw_only=True):
    """Members to remove from one group. `single` is the form of versions 0 to 2."""

    group_id: str
    members: tuple[consumer.LeaveGroupRequest, ...]
    single: bool = False


class LeaveGroupReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for the group, and one for each member when that is NONE."""

    error_code: ErrorCode = ErrorCode.NONE
    members: tuple[consumer.LeaveGroupResponse, ...] = ()


class DeleteGroupsCall(msgspec.Struct, frozen=True, kw_only=True):
    """Groups to delete."""

    groups: tuple[consumer.DeleteGroupsRequest, ...]


class DeleteGroupsReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for each group of the request, in its order."""

    groups: tuple[consumer.DeleteGroupsResponse, ...]


def _leave(values: dict[str, Any], context: Any) -> LeaveGroupCall:
    group_id = values["group_id"]
    if "members" not in values:
        only = consumer.LeaveGroupRequest(group_id=group_id, member_id=values["member_id"])
        return LeaveGroupCall(group_id=group_id, members=(only,), single=True)
    members = (msgspec.structs.replace(member, group_id=group_id) for member in values["members"])
    return LeaveGroupCall(group_id=group_id, members=tuple(members))


_STATIC = {"instance_id": "group_instance_id"}

LEAVE_GROUP_REQUEST = Layout(
    LeaveGroupCall,
    fields={"members": Layout(consumer.LeaveGroupRequest, _STATIC, absent={"group_id": ""})},
    write={"member_id": lambda call, _: call.members[0].member_id},
    read=_leave,
)
LEAVE_GROUP_RESPONSE = Layout(
    LeaveGroupReply, fields={"members": Layout(consumer.LeaveGroupResponse, _STATIC)}
)
LIST_GROUPS_REQUEST = Layout(consumer.ListGroupsRequest)
LIST_GROUPS_RESPONSE = Layout(
    consumer.ListGroupsResponse,
    fields={"groups": Layout(consumer.ListedGroup, absent={"group_state": "", "group_type": ""})},
)
DELETE_GROUPS_REQUEST = Layout(
    DeleteGroupsCall,
    {"groups": "groups_names"},
    fields={
        "groups": Via(
            read=lambda ids: tuple(consumer.DeleteGroupsRequest(group_id=group_id) for group_id in ids),
            write=lambda groups: tuple(group.group_id for group in groups),
        )
    },
)
DELETE_GROUPS_RESPONSE = Layout(
    DeleteGroupsReply, {"groups": "results"}, fields={"groups": Layout(consumer.DeleteGroupsResponse)}
)
