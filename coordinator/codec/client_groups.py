"""The client's half of the group APIs: requests to write, answers to read.

ConsumerGroupHeartbeat (68), ConsumerGroupDescribe (69), LeaveGroup (13), ListGroups (16),
DeleteGroups (42). The messages are the server's, so what one half writes the other one reads.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.groups import (
    DeleteGroupsCall,
    DeleteGroupsReply,
    LeaveGroupCall,
    LeaveGroupReply,
)
from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.ids import partitions_of


def encode_heartbeat(request: consumer.ConsumerGroupHeartbeatRequest, shape: Shape) -> Any:
    """ConsumerGroupHeartbeat, versions 0 and 1."""
    owned = request.topic_partitions
    return shape.ConsumerGroupHeartbeatRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout=request.rebalance_timeout_ms,
        subscribed_topic_names=request.subscribed_topic_names,
        subscribed_topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        topic_partitions=None if owned is None else shape.topic_partitions(owned),
    )


def decode_heartbeat(values: dict[str, Any], version: int) -> consumer.ConsumerGroupHeartbeatResponse:
    """ConsumerGroupHeartbeat, versions 0 and 1."""
    assignment = values["assignment"]
    return consumer.ConsumerGroupHeartbeatResponse(
        error_code=error_of(values["error_code"]),
        error_message=values["error_message"],
        member_id=values["member_id"],
        member_epoch=values["member_epoch"],
        heartbeat_interval_ms=values["heartbeat_interval"],
        assignment=None
        if assignment is None
        else partitions_of(
            (topic["topic_id"], partition)
            for topic in assignment["topic_partitions"]
            for partition in topic["partitions"]
        ),
    )


def encode_describe(request: consumer.ConsumerGroupDescribeRequest, shape: Shape) -> Any:
    """ConsumerGroupDescribe, versions 0 and 1."""
    return shape.ConsumerGroupDescribeRequest(
        group_ids=request.group_ids, include_authorized_operations=False
    )


def decode_describe(values: dict[str, Any], version: int) -> consumer.ConsumerGroupDescribeResponse:
    """ConsumerGroupDescribe, versions 0 and 1. The order of topics and partitions is the answer's."""
    return consumer.ConsumerGroupDescribeResponse(
        groups=tuple(
            consumer.DescribedGroup(
                group_id=group["group_id"],
                error_code=error_of(group["error_code"]),
                error_message=group["error_message"],
                group_state=group["group_state"],
                group_epoch=group["group_epoch"],
                assignment_epoch=group["assignment_epoch"],
                assignor_name=group["assignor_name"],
                members=tuple(map(_member, group["members"])),
            )
            for group in values["groups"]
        )
    )


def _member(values: dict[str, Any]) -> consumer.DescribedMember:
    return consumer.DescribedMember(
        member_id=values["member_id"],
        instance_id=values["instance_id"],
        rack_id=values["rack_id"],
        member_epoch=values["member_epoch"],
        client_id=values["client_id"],
        client_host=values["client_host"],
        subscribed_topic_names=tuple(values["subscribed_topic_names"]),
        subscribed_topic_regex=values["subscribed_topic_regex"],
        assignment=_described(values["assignment"]),
        target_assignment=_described(values["target_assignment"]),
        member_type=consumer.MemberType(values.get("member_type", consumer.MemberType.UNKNOWN)),
    )


def _described(values: dict[str, Any]) -> tuple[consumer.DescribedPartitions, ...]:
    return tuple(
        consumer.DescribedPartitions(
            topic_id=topic["topic_id"],
            topic_name=topic["topic_name"],
            partitions=tuple(topic["partitions"]),
        )
        for topic in values["topic_partitions"]
    )


def encode_leave(call: LeaveGroupCall, shape: Shape) -> Any:
    """LeaveGroup, versions 0 to 5. Below version 3 only the first member goes."""
    members: tuple[Any, ...] = ()
    first_id = ""
    if shape.version < 3:
        first_id = call.members[0].member_id
    else:
        members = tuple(
            shape.MemberIdentity(
                member_id=member.member_id, group_instance_id=member.instance_id, reason=None
            )
            for member in call.members
        )
    return shape.LeaveGroupRequest(group_id=call.group_id, member_id=first_id, members=members)


def decode_leave(values: dict[str, Any], version: int) -> LeaveGroupReply:
    """LeaveGroup, versions 0 to 5."""
    return LeaveGroupReply(
        error_code=error_of(values["error_code"]),
        members=tuple(
            consumer.LeaveGroupResponse(
                member_id=member["member_id"],
                instance_id=member["group_instance_id"],
                error_code=error_of(member["error_code"]),
            )
            for member in values.get("members", ())
        ),
    )


def encode_list(request: consumer.ListGroupsRequest, shape: Shape) -> Any:
    """ListGroups, versions 0 to 5. Filters that the version lacks are left out."""
    return shape.ListGroupsRequest(states_filter=request.states_filter, types_filter=request.types_filter)


def decode_list(values: dict[str, Any], version: int) -> consumer.ListGroupsResponse:
    """ListGroups, versions 0 to 5. What the version lacks is empty."""
    return consumer.ListGroupsResponse(
        error_code=error_of(values["error_code"]),
        groups=tuple(
            consumer.ListedGroup(
                group_id=group["group_id"],
                protocol_type=group["protocol_type"],
                group_state=group.get("group_state", ""),
                group_type=group.get("group_type", ""),
            )
            for group in values["groups"]
        ),
    )


def encode_delete_groups(call: DeleteGroupsCall, shape: Shape) -> Any:
    """DeleteGroups, versions 0 to 2."""
    return shape.DeleteGroupsRequest(groups_names=tuple(group.group_id for group in call.groups))


def decode_delete_groups(values: dict[str, Any], version: int) -> DeleteGroupsReply:
    """DeleteGroups, versions 0 to 2."""
    return DeleteGroupsReply(
        groups=tuple(
            consumer.DeleteGroupsResponse(
                group_id=group["group_id"], error_code=error_of(group["error_code"])
            )
            for group in values["results"]
        )
    )
