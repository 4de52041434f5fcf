"""The client's half of the classic group protocol: requests to write, answers to read.

JoinGroup (11), Heartbeat (12), SyncGroup (14), DescribeGroups (15). The messages are the server's.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.protocol import classic


def encode_join(request: classic.JoinGroupRequest, shape: Shape) -> Any:
    """JoinGroup, versions 0 to 9. What the version lacks is left out."""
    return shape.JoinGroupRequest(
        group_id=request.group_id,
        session_timeout=request.session_timeout_ms,
        rebalance_timeout=request.rebalance_timeout_ms,
        member_id=request.member_id,
        group_instance_id=request.instance_id,
        protocol_type=request.protocol_type,
        protocols=tuple(
            shape.JoinGroupRequestProtocol(name=protocol.name, metadata=protocol.metadata)
            for protocol in request.protocols
        ),
        reason=None,
    )


def decode_join(values: dict[str, Any], version: int) -> classic.JoinGroupResponse:
    """JoinGroup, versions 0 to 9."""
    return classic.JoinGroupResponse(
        error_code=error_of(values["error_code"]),
        generation=values["generation_id"],
        protocol_type=values.get("protocol_type"),
        protocol_name=values["protocol_name"],
        leader=values["leader"],
        skip_assignment=values.get("skip_assignment", False),
        member_id=values["member_id"],
        members=tuple(
            classic.JoinGroupMember(
                member_id=member["member_id"],
                instance_id=member.get("group_instance_id"),
                metadata=member["metadata"],
            )
            for member in values["members"]
        ),
    )


def encode_sync(request: classic.SyncGroupRequest, shape: Shape) -> Any:
    """SyncGroup, versions 0 to 5."""
    return shape.SyncGroupRequest(
        group_id=request.group_id,
        generation_id=request.generation,
        member_id=request.member_id,
        group_instance_id=request.instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple(
            shape.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
            for member_id, assignment in request.assignments.items()
        ),
    )


def decode_sync(values: dict[str, Any], version: int) -> classic.SyncGroupResponse:
    """SyncGroup, versions 0 to 5."""
    return classic.SyncGroupResponse(
        error_code=error_of(values["error_code"]),
        protocol_type=values.get("protocol_type"),
        protocol_name=values.get("protocol_name"),
        assignment=values["assignment"],
    )


def encode_heartbeat(request: classic.HeartbeatRequest, shape: Shape) -> Any:
    """Heartbeat, versions 0 to 4."""
    return shape.HeartbeatRequest(
        group_id=request.group_id,
        generation_id=request.generation,
        member_id=request.member_id,
        group_instance_id=request.instance_id,
    )


def decode_heartbeat(values: dict[str, Any], version: int) -> classic.HeartbeatResponse:
    """Heartbeat, versions 0 to 4."""
    return classic.HeartbeatResponse(error_code=error_of(values["error_code"]))


def encode_describe_groups(request: classic.DescribeGroupsRequest, shape: Shape) -> Any:
    """DescribeGroups, versions 0 to 6."""
    return shape.DescribeGroupsRequest(groups=request.group_ids, include_authorized_operations=False)


def decode_describe_groups(values: dict[str, Any], version: int) -> classic.DescribeGroupsResponse:
    """DescribeGroups, versions 0 to 6."""
    return classic.DescribeGroupsResponse(
        groups=tuple(
            classic.DescribedClassicGroup(
                group_id=group["group_id"],
                group_state=group["group_state"],
                error_code=error_of(group["error_code"]),
                error_message=group.get("error_message"),
                protocol_type=group["protocol_type"],
                protocol_data=group["protocol_data"],
                members=tuple(
                    classic.DescribedClassicMember(
                        member_id=member["member_id"],
                        instance_id=member.get("group_instance_id"),
                        client_id=member["client_id"],
                        client_host=member["client_host"],
                        metadata=member["member_metadata"],
                        assignment=member["member_assignment"],
                    )
                    for member in group["members"]
                ),
            )
            for group in values["groups"]
        )
    )
