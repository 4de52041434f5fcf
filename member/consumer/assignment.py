"""The subscription of a member, and set algebra on the `Partitions` that it is assigned.

Inputs and results are canonical: ascending tuples, no empty ones.
A set is never mutated: a result that equals an input may be that input.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

import msgspec

from fencepost.coordinator.protocol.ids import Partitions, TopicId, TopicPartition, topic_partitions


class Subscription(msgspec.Struct, frozen=True, gc=False):
    """Topic names, a regular expression in RE2's syntax, or both: a topic that either matches counts."""

    names: tuple[str, ...] = ()
    """Sorted, without duplicates."""
    regex: str | None = None

    @classmethod
    def of(cls, topics: Iterable[str], pattern: str | None) -> Subscription:
        """Return the subscription in its canonical form; an empty pattern is no pattern."""
        return cls(tuple(sorted(set(topics))), pattern or None)

    def __bool__(self) -> bool:
        return bool(self.names) or self.regex is not None


NO_SUBSCRIPTION = Subscription()


def canonical(partitions: Partitions) -> Partitions:
    """Return the same set with ascending tuples, without duplicates and without empty topics."""
    return {topic_id: tuple(sorted(set(numbers))) for topic_id, numbers in partitions.items() if numbers}


def difference(left: Partitions, right: Partitions) -> Partitions:
    """Return the partitions that are in the left set only."""
    if not left or not right:
        return left
    result: dict[TopicId, tuple[int, ...]] = {}
    for topic_id, numbers in left.items():
        other = right.get(topic_id)
        if other is None:
            result[topic_id] = numbers
        elif other != numbers and (rest := set(numbers).difference(other)):
            result[topic_id] = tuple(sorted(rest))
    return result


def intersection(left: Partitions, right: Partitions) -> Partitions:
    """Return the partitions that are in both sets."""
    result: dict[TopicId, tuple[int, ...]] = {}
    for topic_id, numbers in left.items():
        other = right.get(topic_id)
        if other == numbers:
            result[topic_id] = numbers
        elif other is not None and (both := set(numbers).intersection(other)):
            result[topic_id] = tuple(sorted(both))
    return result


def union(left: Partitions, right: Partitions) -> Partitions:
    """Return the partitions that are in either set."""
    if not right or left == right:
        return left
    if not left:
        return right
    result = dict(left)
    for topic_id, numbers in right.items():
        mine = result.get(topic_id)
        if mine is None:
            result[topic_id] = numbers
        elif mine != numbers:
            result[topic_id] = tuple(sorted({*mine, *numbers}))
    return result


def only_topics(partitions: Partitions, topic_ids: Container[TopicId]) -> Partitions:
    """Return the part of the set that belongs to these topics."""
    return {topic_id: numbers for topic_id, numbers in partitions.items() if topic_id in topic_ids}


def named(partitions: Partitions, names: Mapping[TopicId, str]) -> tuple[TopicPartition, ...]:
    """Return the set under topic names, sorted. Every topic must have a name."""
    found: list[TopicPartition] = []
    for name, numbers in sorted([(names[topic_id], numbers) for topic_id, numbers in partitions.items()]):
        found += topic_partitions(name, numbers)
    return tuple(found)
