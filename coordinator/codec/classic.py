"""The classic group protocol: JoinGroup (11), Heartbeat (12), SyncGroup (14), DescribeGroups (15).

JoinGroup: 1 brings a separate rebalance timeout, 5 static members, 7 the protocol type in responses, 9 the
flag to skip the assignment. SyncGroup and Heartbeat: 3 static members; SyncGroup: 5 the protocol. Before
DescribeGroups 6 a missing group has no error, only the state Dead.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.groups import DescribedWithOperations, operations_of, with_operations
from fencepost.coordinator.codec.layout import NULL_IF_POSSIBLE, Layout, Via, mapping
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.errors import ErrorCode

_MISSING_FROM = 6
"""The first version of DescribeGroups with an error for a missing group."""
_STATIC = {"instance_id": "group_instance_id"}


def _join(values: dict[str, Any], _: Any) -> classic.JoinGroupRequest:
    values.pop("reason", None)
    values.setdefault("rebalance_timeout_ms", values["session_timeout_ms"])
    return classic.JoinGroupRequest(**values)


def _sync(values: dict[str, Any], context: Any) -> classic.SyncGroupRequest:
    """Return the request, which from version 5 on must name its protocol."""
    lacks = context.api_version >= 5 and None in (values.get("protocol_type"), values.get("protocol_name"))
    return classic.SyncGroupRequest(**values, lacks_protocol=lacks)


def _operations(described: DescribedWithOperations, version: int) -> int:
    if version < _MISSING_FROM and described.group.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
        return described.operations
    return operations_of(described, version)


JOIN_GROUP_REQUEST = Layout(
    classic.JoinGroupRequest,
    _STATIC | {"session_timeout_ms": "session_timeout", "rebalance_timeout_ms": "rebalance_timeout"},
    fields={"protocols": Layout(classic.JoinGroupProtocol)},
    read=_join,
)
JOIN_GROUP_RESPONSE = Layout(
    classic.JoinGroupResponse,
    {"generation": "generation_id"},
    fields={"protocol_name": NULL_IF_POSSIBLE, "members": Layout(classic.JoinGroupMember, _STATIC)},
)
SYNC_GROUP_REQUEST = Layout(
    classic.SyncGroupRequest,
    _STATIC | {"generation": "generation_id"},
    fields={"assignments": mapping("member_id", "assignment")},
    read=_sync,
)
SYNC_GROUP_RESPONSE = Layout(classic.SyncGroupResponse)
HEARTBEAT_REQUEST = Layout(classic.HeartbeatRequest, _STATIC | {"generation": "generation_id"})
HEARTBEAT_RESPONSE = Layout(classic.HeartbeatResponse)
DESCRIBE_GROUPS_REQUEST = Layout(
    classic.DescribeGroupsRequest,
    {"group_ids": "groups", "include_operations": "include_authorized_operations"},
)
DESCRIBE_GROUPS_RESPONSE = Layout(
    classic.DescribeGroupsResponse,
    fields={
        "groups": Layout(
            classic.DescribedClassicGroup,
            fields={
                "error_code": Via(codes={ErrorCode.GROUP_ID_NOT_FOUND: (_MISSING_FROM, ErrorCode.NONE)}),
                "members": Layout(
                    classic.DescribedClassicMember,
                    _STATIC | {"metadata": "member_metadata", "assignment": "member_assignment"},
                    absent={"instance_id": None},
                ),
            },
            write={"authorized_operations": _operations},
            within="group",
        )
    },
    write={"groups": with_operations},
)
