"""Waiting until a group coordinator knows what topics there are.

A broker's coordinators hear of topics later than what answers Metadata, and each of the parts of
`__consumer_offsets` hears by itself. A group of its own, in the same part, tells: its only member is
assigned all that there is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping

from fencepost.coordinator.codec.groups import DeleteGroupsCall
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeleteGroupsRequest,
)
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, NO_PARTITIONS, TopicId
from fencepost.simulation.brokers.connection import BrokerConnection, to_the_end

_MEMBER = "probe"
_POLL_S = 0.01
_LIMIT_S = 10.0
_numbers = itertools.count()


def offsets_partition(group_id: str, partitions: int) -> int:
    """The part of `__consumer_offsets` that has the group: Java's hash of its id."""
    value = 0
    raw = group_id.encode("utf-16-be")
    for high, low in zip(raw[::2], raw[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def neighbour(group_id: str, partitions: int) -> str:
    """An id that nobody has, in the same part as the group."""
    place = offsets_partition(group_id, partitions)
    candidates = (f"{group_id}-probe{number}" for number in _numbers)
    return next(name for name in candidates if offsets_partition(name, partitions) == place)


async def await_topics(
    connection: BrokerConnection, group_id: str, topics: Mapping[str, tuple[TopicId, int]], partitions: int
) -> None:
    """Wait until the group's coordinator knows these topics, with so many partitions; 0 is one that is gone.

    `partitions` is how many `__consumer_offsets` has.

    :raises TimeoutError: if it does not come to know them.
    """
    expected = {topic_id: tuple(range(count)) for topic_id, count in topics.values() if count}
    deadline = asyncio.get_running_loop().time() + _LIMIT_S
    names = tuple(topics)
    while await to_the_end(_assigned(connection, neighbour(group_id, partitions), names)) != expected:
        if asyncio.get_running_loop().time() > deadline:
            raise TimeoutError
        await asyncio.sleep(_POLL_S)


async def _assigned(
    connection: BrokerConnection, group_id: str, names: tuple[str, ...]
) -> Mapping[TopicId, tuple[int, ...]]:
    join = ConsumerGroupHeartbeatRequest(
        group_id=group_id,
        member_id=_MEMBER,
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=names,
        topic_partitions=NO_PARTITIONS,
    )
    leave = ConsumerGroupHeartbeatRequest(group_id=group_id, member_id=_MEMBER, member_epoch=LEAVE_EPOCH)
    answer: ConsumerGroupHeartbeatResponse = await connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, join)
    await connection.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, leave)
    group = DeleteGroupsRequest(group_id=group_id)
    await connection.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsCall(groups=(group,)))
    return answer.assignment or NO_PARTITIONS
