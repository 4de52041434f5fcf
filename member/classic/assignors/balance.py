"""The even distribution of partitions that moves as few as possible away from their owners."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from fencepost.coordinator.protocol.ids import MemberId

Partition: TypeAlias = tuple[str, int]
"""A topic and a number."""


def balanced(
    partitions: Mapping[str, int],
    subscriptions: Mapping[MemberId, frozenset[str]],
    kept: Mapping[MemberId, Sequence[Partition]],
) -> dict[MemberId, list[Partition]]:
    """Give each partition of a subscribed topic to one member that subscribes to it.

    `partitions` is the partition count of each topic, `kept` the partitions that members have and may keep,
    none of them twice. Members that subscribe alike get numbers that differ by one at most.
    """
    given: dict[MemberId, list[Partition]] = {
        member_id: sorted(kept.get(member_id, ())) for member_id in sorted(subscriptions)
    }
    if len(set(subscriptions.values())) == 1:
        topics = next(iter(subscriptions.values()))
        _trim(given, sum(partitions[topic] for topic in topics))
    taken = {partition for mine in given.values() for partition in mine}
    _fill(given, partitions, subscriptions, taken)
    if len(set(subscriptions.values())) > 1:
        _level(given, subscriptions)
    return given


def _trim(given: dict[MemberId, list[Partition]], total: int) -> None:
    """Take from members the partitions beyond their share; those that have most keep the one that is left
    over."""
    least, larger = divmod(total, len(given))
    for mine in sorted(given.values(), key=len, reverse=True):
        quota = least
        if larger and len(mine) > least:
            quota, larger = least + 1, larger - 1
        del mine[quota:]


def _fill(
    given: dict[MemberId, list[Partition]],
    partitions: Mapping[str, int],
    subscriptions: Mapping[MemberId, frozenset[str]],
    taken: set[Partition],
) -> None:
    """Give free partitions to the member that has least; topics with few subscribers come first."""
    subscribers: dict[str, list[MemberId]] = {}
    for member_id in given:
        for topic in subscriptions[member_id]:
            subscribers.setdefault(topic, []).append(member_id)
    for topic in sorted(subscribers, key=lambda topic: (len(subscribers[topic]), topic)):
        queue = [(len(given[member_id]), member_id) for member_id in subscribers[topic]]
        heapq.heapify(queue)
        for number in range(partitions[topic]):
            if (topic, number) not in taken:
                size, member_id = queue[0]
                given[member_id].append((topic, number))
                heapq.heapreplace(queue, (size + 1, member_id))


def _level(given: dict[MemberId, list[Partition]], subscriptions: Mapping[MemberId, frozenset[str]]) -> None:
    """Move partitions from a member to one that has at least two fewer and wants them, while there are such
    pairs."""
    moved = True
    while moved:
        moved = False
        for poor in sorted(given, key=lambda member_id: (len(given[member_id]), member_id)):
            for rich in sorted(given, key=lambda member_id: (-len(given[member_id]), member_id)):
                if len(given[rich]) < len(given[poor]) + 2:
                    break
                place = _movable(given[rich], subscriptions[poor])
                if place is not None:
                    given[poor].append(given[rich].pop(place))
                    moved = True
                    break


def _movable(mine: Sequence[Partition], topics: frozenset[str]) -> int | None:
    return next((place for place in reversed(range(len(mine))) if mine[place][0] in topics), None)
