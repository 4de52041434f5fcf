"""Who holds what, kept up from one change of a member to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, KeysView
from itertools import repeat

from fencepost.coordinator.protocol.ids import MemberId, Partitions, TopicId

_NOTHING: frozenset[int] = frozenset()


def added(before: Partitions, after: Partitions) -> Iterator[tuple[TopicId, frozenset[int]]]:
    """What `after` has and `before` has not, topic by topic; unchanged topics cost one comparison."""
    for topic_id, numbers in after.items():
        old = before.get(topic_id)
        if old is None:
            yield topic_id, frozenset(numbers)
        elif old is not numbers and old != numbers and (gained := frozenset(numbers).difference(old)):
            yield topic_id, gained


def merged(one: Partitions, other: Partitions) -> Partitions:
    """The union of two disjoint sets; canonical."""
    if not other:
        return one
    if not one:
        return other
    union = dict(one)
    for topic_id, numbers in other.items():
        union[topic_id] = tuple(sorted((*union.get(topic_id, ()), *numbers)))
    return union


class Holders:
    """Each partition's holder. Changes are given as what a member lets go, and what it gains (`added`)."""

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

    def held(self, topic_id: TopicId) -> list[int]:
        """The partitions of the topic that somebody holds, ascending."""
        return [number for number, holder in enumerate(self._topics.get(topic_id, ())) if holder is not None]

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
