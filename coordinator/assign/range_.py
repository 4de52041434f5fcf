"""The `range` assignor: contiguous ranges of each topic's partitions, in a fixed order of members.

Topics with the same partition count and subscribers give a member the same partition numbers. So joins of
co-partitioned topics stay within one member. The result depends on members, subscriptions and counts alone:
nothing sticks. (Kafka's RangeAssignor, KIP-848 Server-side Assignors.)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

from fencepost.coordinator.assign.spec import GroupSpec
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId

_Ranges: TypeAlias = list[tuple[int, ...]]


def range_(spec: GroupSpec) -> Mapping[MemberId, Partitions]:
    """Return the target by ranges; every member is in it, and an unchanged target is the same object."""
    members = _ordered(spec)
    target: dict[MemberId, dict[TopicId, tuple[int, ...]]] = {member: {} for member in members}
    split = lru_cache(maxsize=None)(_split)
    for topic, interested in _subscribers(spec, members).items():
        if interested:
            for member, numbers in zip(
                interested, split(spec.partitions[topic], len(interested)), strict=False
            ):
                target[member][topic] = numbers
    old = spec.targets.get
    result: dict[MemberId, Partitions] = {}
    for member in spec.subscriptions:
        before, now = old(member, NO_PARTITIONS), target[member]
        result[member] = before if before == now else now
    return result


def _subscribers(spec: GroupSpec, members: list[MemberId]) -> dict[TopicId, list[MemberId]]:
    """Return each topic's subscribers, in the order of `members`."""
    if spec.homogeneous and members:
        return dict.fromkeys(spec.subscriptions[members[0]], members)
    subscribers: dict[TopicId, list[MemberId]] = {topic: [] for topic in sorted(spec.partitions)}
    for member in members:
        for topic in spec.subscriptions[member]:
            subscribers[topic].append(member)
    return subscribers


def _ordered(spec: GroupSpec) -> list[MemberId]:
    """Static members by instance id, so that a restart changes nothing; then dynamic ones by member id."""
    instances = spec.instance_ids
    static = sorted((m for m in spec.subscriptions if m in instances), key=instances.__getitem__)
    return static + sorted(m for m in spec.subscriptions if m not in instances)


def _split(partitions: int, members: int) -> _Ranges:
    """Return the ranges of the members that get any; the first members get one more if the number does not
    divide."""
    share, more = divmod(partitions, members)
    ranges: _Ranges = []
    start = 0
    for index in range(min(partitions, members)):
        end = start + share + (index < more)
        ranges.append(tuple(range(start, end)))
        start = end
    return ranges
