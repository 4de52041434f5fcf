"""Names of topics, partitions and members, and the epochs with a special meaning."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

TopicId: TypeAlias = str
"""A topic's UUID as Kafka prints it: 22 characters of unpadded base64url."""

NO_TOPIC_ID: TopicId = "A" * 22
"""The zero UUID, which no topic has."""

MemberId: TypeAlias = str

Partitions: TypeAlias = Mapping[TopicId, tuple[int, ...]]
"""A set of partitions: topic id to ascending partition numbers, no empty tuples. Never mutated."""

NO_PARTITIONS: Partitions = {}

JOIN_EPOCH = 0
"""Member epoch of a member that asks to join (or to rejoin)."""
LEAVE_EPOCH = -1
"""Member epoch of a member that leaves for good."""
STATIC_LEAVE_EPOCH = -2
"""Member epoch of a static member that leaves and intends to return (KIP-848, Static Membership)."""
NO_EPOCH = -1
"""Epoch of a commit or fetch that belongs to no member, and of a leader that is not known."""


class TopicPartition(NamedTuple):
    """A partition under its topic's name."""

    topic: str
    partition: int


class _PartitionsOfTopic(dict[int, TopicPartition]):
    """Partitions of one topic by number, made on first use."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __missing__(self, number: int) -> TopicPartition:
        found = self[number] = TopicPartition(self._topic, number)
        return found


_partitions_of_topic = lru_cache(maxsize=256)(_PartitionsOfTopic)


def topic_partitions(topic: str, numbers: Iterable[int]) -> Iterator[TopicPartition]:
    """Return partitions of one topic, in the order of the numbers.

    They are usually the same objects each time, because each owned partition appears in a dozen places.
    """
    return map(_partitions_of_topic(topic).__getitem__, numbers)


def partitions_of(pairs: Iterable[tuple[TopicId, int]]) -> dict[TopicId, tuple[int, ...]]:
    """Return the canonical form of a collection of (topic id, partition): sorted, without duplicates."""
    grouped: dict[TopicId, list[int]] = {}
    for topic_id, partition in sorted(set(pairs)):
        grouped.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(numbers) for topic_id, numbers in grouped.items()}


def partition_count(partitions: Partitions) -> int:
    """Return the number of partitions in the set."""
    if len(partitions) == 1:  # as a rule a member holds partitions of one topic, and a group has thousands
        (numbers,) = partitions.values()
        return len(numbers)
    return sum(map(len, partitions.values()))


def topic_id_from_uuid(value: uuid.UUID) -> TopicId:
    """Return a UUID in Kafka's printed form."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode("ascii")


def uuid_from_topic_id(topic_id: TopicId) -> uuid.UUID:
    """Return the UUID of a printed topic id.

    :raises ValueError: if the text is not 22 characters of base64url.
    """
    return uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))
