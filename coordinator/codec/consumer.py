"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69), versions 0 and 1 (KIP-848).

Version 1 brings regular expressions and client-made member ids to the heartbeat (KIP-1082), and the type of
a member to the description. Every member gets the heartbeat's response all the time, so `pack_heartbeat`
writes it without the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from fencepost.coordinator.codec.groups import operations_of, with_operations
from fencepost.coordinator.codec.layout import ITEMS, Layout, Via, only, row
from fencepost.coordinator.codec.writer import compact_string, unsigned_varint, uuid_bytes
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.ids import NO_TOPIC_ID, Partitions, TopicId, partitions_of

_HEAD = struct.Struct(">ih")
_EPOCH_AND_INTERVAL = struct.Struct(">ii")


def _canonical(topics: Iterable[tuple[TopicId | None, tuple[int, ...]]]) -> Partitions:
    return partitions_of(
        (topic_id or NO_TOPIC_ID, number) for topic_id, numbers in topics for number in numbers
    )


PARTITIONS = Via(of=row("topic_id", "partitions"), read=_canonical, write=ITEMS)
"""Partitions by topic id; read in the canonical form: sorted, without duplicates and empty topics."""

CONSUMER_GROUP_HEARTBEAT_REQUEST = Layout(
    consumer.ConsumerGroupHeartbeatRequest,
    {"rebalance_timeout_ms": "rebalance_timeout"},
    fields={"topic_partitions": PARTITIONS},
)
CONSUMER_GROUP_HEARTBEAT_RESPONSE = Layout(
    consumer.ConsumerGroupHeartbeatResponse,
    {"heartbeat_interval_ms": "heartbeat_interval"},
    fields={"assignment": only("topic_partitions", PARTITIONS)},
)
_DESCRIBED = only("topic_partitions", Layout(consumer.DescribedPartitions))
CONSUMER_GROUP_DESCRIBE_REQUEST = Layout(
    consumer.ConsumerGroupDescribeRequest, {"include_operations": "include_authorized_operations"}
)
CONSUMER_GROUP_DESCRIBE_RESPONSE = Layout(
    consumer.ConsumerGroupDescribeResponse,
    fields={
        "groups": Layout(
            consumer.DescribedGroup,
            fields={
                "members": Layout(
                    consumer.DescribedMember,
                    fields={
                        "assignment": _DESCRIBED,
                        "target_assignment": _DESCRIBED,
                        "member_type": Via(read=consumer.MemberType),
                    },
                    absent={"member_type": consumer.MemberType.UNKNOWN},
                )
            },
            write={"authorized_operations": operations_of},
            within="group",
        )
    },
    write={"groups": with_operations},
)


def pack_heartbeat(reply: consumer.ConsumerGroupHeartbeatResponse) -> bytes:
    """Return the body of a response; versions 0 and 1 do not differ."""
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
