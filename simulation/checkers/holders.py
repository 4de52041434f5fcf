"""Who holds what, kept up from one change of a member to the next."""

from __future__ import annotations

from collections.abc import Iterator

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
    """Each partition's holder. Changes are given as what a member held before and holds after."""

    __slots__ = ("by_topic", "total")

    def __init__(self) -> None:
        self.by_topic: dict[TopicId, dict[int, MemberId]] = {}
        self.total = 0

    def of(self, topic_id: TopicId, partition: int) -> MemberId | None:
        """Who holds it."""
        return self.by_topic.get(topic_id, {}).get(partition)

    def release(self, member_id: MemberId, before: Partitions, after: Partitions) -> None:
        """Takes away what the member no longer holds."""
        for topic_id, numbers in added(after, before):
            holders = self.by_topic.get(topic_id, {})
            for number in numbers:
                if holders.get(number) == member_id:
                    del holders[number]
                    self.total -= 1
            if not holders:
                self.by_topic.pop(topic_id, None)

    def grant(
        self, member_id: MemberId, before: Partitions, after: Partitions
    ) -> Iterator[tuple[TopicId, int, MemberId]]:
        """Gives what the member holds newly; yields what another one holds, which keeps it."""
        for topic_id, numbers in added(before, after):
            holders = self.by_topic.setdefault(topic_id, {})
            for number in sorted(numbers):
                holder = holders.setdefault(number, member_id)
                if holder != member_id:
                    yield topic_id, number, holder
                else:
                    self.total += 1
