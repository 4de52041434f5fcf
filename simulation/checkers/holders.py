"""Who holds what, kept up from one change of a member to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, KeysView, Sequence
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember

Some: TypeAlias = Sequence[tuple[TopicId, frozenset[int]]]
"""Partitions topic by topic."""


def changes(before: Partitions, after: Partitions) -> tuple[Some, Some]:
    """What `before` has and `after` has not, and the other way round; equal topics cost one comparison."""
    lost, gained = [], []
    for topic_id, numbers in before.items():
        now = after.get(topic_id, ())
        if now is numbers or now == numbers:
            continue
        old, new = frozenset(numbers), frozenset(now)
        if gone := old - new:
            lost.append((topic_id, gone))
        if come := new - old:
            gained.append((topic_id, come))
    if not after.keys() <= before.keys():
        gained += [(topic_id, frozenset(after[topic_id])) for topic_id in after if topic_id not in before]
    return lost, gained


def in_order(partitions: Some) -> dict[TopicId, tuple[int, ...]]:
    """The same with topics and their numbers ascending."""
    return {topic_id: tuple(sorted(numbers)) for topic_id, numbers in sorted(partitions, key=itemgetter(0))}


def held(member: ConsumerGroupMember | None) -> Partitions:
    """What a member holds: its assigned partitions, and those it was told to release."""
    if member is None:
        return NO_PARTITIONS
    assigned, pending = member.assigned, member.pending_revocation
    if not pending:
        return assigned
    if not assigned:
        return pending
    union = dict(assigned)
    for topic_id, numbers in pending.items():
        union[topic_id] = tuple(sorted((*union.get(topic_id, ()), *numbers)))
    return union


class Holders:
    """Each partition's holder. Changes are given as what a member lets go, and what it gains (`changes`)."""

    __slots__ = ("_topics", "total")

    def __init__(self) -> None:
        self._topics: dict[TopicId, list[MemberId | None]] = {}
        """By topic and partition number: a list takes a fifth of the room of a mapping."""
        self.total = 0

    @property
    def topics(self) -> KeysView[TopicId]:
        """Topics of which a partition is, or was, held."""
        return self._topics.keys()

    def of(self, topic_id: TopicId, partitions: Iterable[int]) -> list[MemberId | None]:
        """Who holds them, in their order."""
        holders = self._topics.get(topic_id, [])
        known = len(holders)
        return [holders[number] if number < known else None for number in partitions]

    def count(self, topic_id: TopicId, first: int = 0) -> int:
        """How many of the topic's partitions from this number on somebody holds."""
        holders = self._topics.get(topic_id, [])[first:]
        return len(holders) - holders.count(None)

    def release(self, member_id: MemberId, lost: Iterable[tuple[TopicId, Collection[int]]]) -> None:
        """Takes away what the member no longer holds."""
        for topic_id, numbers in lost:
            holders = self._topics.get(topic_id, [])
            for number in numbers:
                if number < len(holders) and holders[number] == member_id:
                    holders[number] = None
                    self.total -= 1

    def grant(
        self, member_id: MemberId, gained: Iterable[tuple[TopicId, Collection[int]]]
    ) -> Iterator[tuple[TopicId, int, MemberId]]:
        """Gives what the member holds newly; yields what another one holds, which keeps it."""
        for topic_id, numbers in gained:
            holders = self._topics.setdefault(topic_id, [])
            holders.extend(repeat(None, max(numbers) + 1 - len(holders)))
            for number in sorted(numbers):
                holder = holders[number]
                if holder is None:
                    holders[number] = member_id
                    self.total += 1
                elif holder != member_id:
                    yield topic_id, number, holder
