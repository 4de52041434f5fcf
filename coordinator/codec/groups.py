"""Group administration: LeaveGroup (13), ListGroups (16), DeleteGroups (42).

The core takes one group or member a request; the wire has several, so each call is a tuple of the core's
requests and each reply a tuple of its answers. LeaveGroup: 3 brings several members. ListGroups: 4 filters
by state, 5 by type.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.cluster import UNKNOWN_OPERATIONS
from fencepost.coordinator.protocol.errors import ErrorCode


def operations_of(code: ErrorCode, operations: int) -> int:
    """What may be done with a group; nothing is told of one that has an error."""
    return operations if code is ErrorCode.NONE else UNKNOWN_OPERATIONS


class LeaveGroupCall(msgspec.Struct, frozen=True, kw_only=True):
    """Members to remove from one group. `single` is the form of versions 0 to 2."""

    group_id: str
    members: tuple[consumer.LeaveGroupRequest, ...]
    single: bool = False


class LeaveGroupReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for the group, and one for each member when that is NONE."""

    error_code: ErrorCode = ErrorCode.NONE
    members: tuple[consumer.LeaveGroupResponse, ...] = ()


def decode_leave(values: dict[str, Any], context: RequestContext) -> LeaveGroupCall:
    """LeaveGroup, versions 0 to 5."""
    group_id = values["group_id"]
    if context.api_version < 3:
        only = consumer.LeaveGroupRequest(group_id=group_id, member_id=values["member_id"])
        return LeaveGroupCall(group_id=group_id, members=(only,), single=True)
    return LeaveGroupCall(
        group_id=group_id,
        members=tuple(
            consumer.LeaveGroupRequest(
                group_id=group_id, member_id=member["member_id"], instance_id=member["group_instance_id"]
            )
            for member in values["members"]
        ),
    )


def encode_leave(reply: LeaveGroupReply, shape: Shape) -> Any:
    """LeaveGroup, versions 0 to 5."""
    members: tuple[Any, ...] = ()
    if shape.version >= 3:
        members = tuple(
            shape.MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                error_code=member.error_code,
            )
            for member in reply.members
        )
    return shape.LeaveGroupResponse(throttle_time=0, error_code=reply.error_code, members=members)


def decode_list(values: dict[str, Any], context: RequestContext) -> consumer.ListGroupsRequest:
    """ListGroups, versions 0 to 5."""
    return consumer.ListGroupsRequest(
        states_filter=tuple(values.get("states_filter", ())),
        types_filter=tuple(values.get("types_filter", ())),
    )


def encode_list(reply: consumer.ListGroupsResponse, shape: Shape) -> Any:
    """ListGroups, versions 0 to 5."""
    return shape.ListGroupsResponse(
        throttle_time=0,
        error_code=reply.error_code,
        groups=tuple(
            shape.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.group_state,
                group_type=group.group_type,
            )
            for group in reply.groups
        ),
    )


class DeleteGroupsCall(msgspec.Struct, frozen=True, kw_only=True):
    """Groups to delete."""

    groups: tuple[consumer.DeleteGroupsRequest, ...]


class DeleteGroupsReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for each group of the request, in its order."""

    groups: tuple[consumer.DeleteGroupsResponse, ...]


def decode_delete_groups(values: dict[str, Any], context: RequestContext) -> DeleteGroupsCall:
    """DeleteGroups, versions 0 to 2."""
    return DeleteGroupsCall(
        groups=tuple(consumer.DeleteGroupsRequest(group_id=group_id) for group_id in values["groups_names"])
    )


def encode_delete_groups(reply: DeleteGroupsReply, shape: Shape) -> Any:
    """DeleteGroups, versions 0 to 2."""
    return shape.DeleteGroupsResponse(
        throttle_time=0,
        results=tuple(
            shape.DeletableGroupResult(group_id=group.group_id, error_code=group.error_code)
            for group in reply.groups
        ),
    )
