"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), versions 0 and 1 (KIP-848).

Version 1 brings regular expressions and client-made member ids to the heartbeat (KIP-1082), and the
member's type to the description. The heartbeat's answer is the one message that every member gets all the
time, so it is packed by hand.
"""

from __future__ import annotations

import struct
from typing import Any

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.groups import operations_of
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.codec.writer import compact_string, unsigned_varint, uuid_bytes
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.ids import NO_TOPIC_ID, Partitions, partitions_of

_HEAD = struct.Struct(">ih")
_EPOCH_AND_INTERVAL = struct.Struct(">ii")


def decode_heartbeat(
    values: dict[str, Any], context: RequestContext
) -> consumer.ConsumerGroupHeartbeatRequest:
    """What a member owns becomes canonical: sorted, without duplicates and empty topics."""
    names = values["subscribed_topic_names"]
    owned = values["topic_partitions"]
    return consumer.ConsumerGroupHeartbeatRequest(
        group_id=values["group_id"],
        member_id=values["member_id"],
        member_epoch=values["member_epoch"],
        instance_id=values["instance_id"],
        rack_id=values["rack_id"],
        rebalance_timeout_ms=values["rebalance_timeout"],
        subscribed_topic_names=None if names is None else tuple(names),
        subscribed_topic_regex=values.get("subscribed_topic_regex"),
        server_assignor=values["server_assignor"],
        topic_partitions=None if owned is None else _owned(owned),
        api_version=context.api_version,
        client_id=context.client_id,
        client_host=context.client_host,
    )


def _owned(topics: list[dict[str, Any]]) -> Partitions:
    return partitions_of(
        (topic["topic_id"] or NO_TOPIC_ID, partition) for topic in topics for partition in topic["partitions"]
    )


def pack_heartbeat(reply: consumer.ConsumerGroupHeartbeatResponse, shape: Shape | None = None) -> bytes:
    """The answer's body; versions 0 and 1 do not differ. Not throttled."""
    return b"".join(
        (
            _HEAD.pack(0, reply.error_code),
            compact_string(reply.error_message),
            compact_string(reply.member_id),
            _EPOCH_AND_INTERVAL.pack(reply.member_epoch, reply.heartbeat_interval_ms),
            b"\xff" if reply.assignment is None else _assignment(reply.assignment),
            b"\x00",
        )
    )


def _assignment(partitions: Partitions) -> bytes:
    parts = [b"\x01", unsigned_varint(len(partitions) + 1)]
    for topic_id, numbers in partitions.items():
        parts.append(uuid_bytes(topic_id))
        parts.append(unsigned_varint(len(numbers) + 1))
        parts.append(struct.pack(f">{len(numbers)}i", *numbers))
        parts.append(b"\x00")
    parts.append(b"\x00")
    return b"".join(parts)


def decode_describe(values: dict[str, Any], context: RequestContext) -> consumer.ConsumerGroupDescribeRequest:
    """ConsumerGroupDescribe, versions 0 and 1."""
    return consumer.ConsumerGroupDescribeRequest(
        group_ids=tuple(values["group_ids"]), include_operations=values["include_authorized_operations"]
    )


def encode_describe(reply: consumer.ConsumerGroupDescribeResponse, shape: Shape) -> Any:
    """ConsumerGroupDescribe, versions 0 and 1."""
    return shape.ConsumerGroupDescribeResponse(
        throttle_time=0,
        groups=tuple(
            shape.DescribedGroup(
                error_code=group.error_code,
                error_message=group.error_message,
                group_id=group.group_id,
                group_state=group.group_state,
                group_epoch=group.group_epoch,
                assignment_epoch=group.assignment_epoch,
                assignor_name=group.assignor_name,
                members=tuple(_member(member, shape) for member in group.members),
                authorized_operations=operations_of(group.error_code, reply.authorized_operations),
            )
            for group in reply.groups
        ),
    )


def _member(member: consumer.DescribedMember, shape: Shape) -> Any:
    return shape.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=_described(member.assignment, shape),
        target_assignment=_described(member.target_assignment, shape),
        member_type=int(member.member_type),
    )


def _described(topics: tuple[consumer.DescribedPartitions, ...], shape: Shape) -> Any:
    return shape.Assignment(
        topic_partitions=tuple(
            shape.TopicPartitions(
                topic_id=topic.topic_id, topic_name=topic.topic_name, partitions=topic.partitions
            )
            for topic in topics
        )
    )
