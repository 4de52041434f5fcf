"""The classic group protocol: JoinGroup (11), Heartbeat (12), SyncGroup (14), DescribeGroups (15).

JoinGroup: 1 brings a rebalance time-out of its own, 5 static members, 7 the protocol type in answers, 9 the
flag to skip the assignment. SyncGroup and Heartbeat: 3 static members; SyncGroup: 5 the protocol. Before
DescribeGroups 6 a missing group has no error, only the state Dead.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.groups import operations_of
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.errors import ErrorCode


def decode_join(values: dict[str, Any], context: RequestContext) -> classic.JoinGroupRequest:
    """JoinGroup, versions 0 to 9."""
    return classic.JoinGroupRequest(
        group_id=values["group_id"],
        member_id=values["member_id"],
        instance_id=values.get("group_instance_id"),
        protocol_type=values["protocol_type"],
        protocols=tuple(
            classic.JoinGroupProtocol(protocol["name"], protocol["metadata"])
            for protocol in values["protocols"]
        ),
        session_timeout_ms=values["session_timeout"],
        rebalance_timeout_ms=values.get("rebalance_timeout", values["session_timeout"]),
        api_version=context.api_version,
        client_id=context.client_id,
        client_host=context.client_host,
    )


def encode_join(reply: classic.JoinGroupResponse, shape: Shape) -> Any:
    """JoinGroup, versions 0 to 9. Up to 6 the protocol's name can't be null."""
    name = reply.protocol_name
    return shape.JoinGroupResponse(
        throttle_time=0,
        error_code=reply.error_code,
        generation_id=reply.generation,
        protocol_type=reply.protocol_type,
        protocol_name=(name or "") if shape.version < 7 else name,
        leader=reply.leader,
        skip_assignment=reply.skip_assignment,
        member_id=reply.member_id,
        members=tuple(
            shape.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in reply.members
        ),
    )


def decode_sync(values: dict[str, Any], context: RequestContext) -> classic.SyncGroupRequest:
    """SyncGroup, versions 0 to 5. From 5 on the protocol must be named."""
    protocol = values.get("protocol_type"), values.get("protocol_name")
    return classic.SyncGroupRequest(
        group_id=values["group_id"],
        generation=values["generation_id"],
        member_id=values["member_id"],
        instance_id=values.get("group_instance_id"),
        protocol_type=protocol[0],
        protocol_name=protocol[1],
        lacks_protocol=context.api_version >= 5 and None in protocol,
        assignments={each["member_id"]: each["assignment"] for each in values["assignments"]},
    )


def encode_sync(reply: classic.SyncGroupResponse, shape: Shape) -> Any:
    """SyncGroup, versions 0 to 5."""
    return shape.SyncGroupResponse(
        throttle_time=0,
        error_code=reply.error_code,
        protocol_type=reply.protocol_type,
        protocol_name=reply.protocol_name,
        assignment=reply.assignment,
    )


def decode_heartbeat(values: dict[str, Any], context: RequestContext) -> classic.HeartbeatRequest:
    """Heartbeat, versions 0 to 4."""
    return classic.HeartbeatRequest(
        group_id=values["group_id"],
        generation=values["generation_id"],
        member_id=values["member_id"],
        instance_id=values.get("group_instance_id"),
    )


def encode_heartbeat(reply: classic.HeartbeatResponse, shape: Shape) -> Any:
    """Heartbeat, versions 0 to 4."""
    return shape.HeartbeatResponse(throttle_time=0, error_code=reply.error_code)


def decode_describe_groups(values: dict[str, Any], context: RequestContext) -> classic.DescribeGroupsRequest:
    """DescribeGroups, versions 0 to 6."""
    return classic.DescribeGroupsRequest(
        group_ids=tuple(values["groups"]),
        include_operations=values.get("include_authorized_operations", False),
    )


def encode_describe_groups(reply: classic.DescribeGroupsResponse, shape: Shape) -> Any:
    """DescribeGroups, versions 0 to 6."""
    return shape.DescribeGroupsResponse(
        throttle_time=0,
        groups=tuple(_described(group, reply.authorized_operations, shape) for group in reply.groups),
    )


def _described(group: classic.DescribedClassicGroup, operations: int, shape: Shape) -> Any:
    code = group.error_code
    if shape.version < 6 and code is ErrorCode.GROUP_ID_NOT_FOUND:
        code = ErrorCode.NONE
    return shape.DescribedGroup(
        error_code=code,
        error_message=group.error_message,
        group_id=group.group_id,
        group_state=group.group_state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_data,
        members=tuple(
            shape.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ),
        authorized_operations=operations_of(code, operations),
    )
