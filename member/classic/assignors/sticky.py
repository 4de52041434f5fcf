"""Kafka's `sticky` and `cooperative-sticky` of the classic protocol: even, with as few moves as possible.

Members list what they own. If two members of one generation list a partition, neither owns it; the list of a
member of an older generation is ignored (KIP-341). The cooperative assignor gives away no partition that a
member lists: a member that is to lose one releases it first, and joins again (KIP-429). Here that holds for
members of older generations, too. Kafka's assignor gives away at once what such a member still owns.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors.balance import balanced

Partition: TypeAlias = tuple[str, int]
"""A topic and a number."""

_INT32, _INT16 = struct.Struct(">i"), struct.Struct(">h")


class StickyAssignor:
    """Members send their last assignment in bytes of their own, as they join without partitions. Eager."""

    name = "sticky"
    cooperative = False

    def __init__(self) -> None:
        self._given: Mapping[str, tuple[int, ...]] = {}

    def user_data(self) -> bytes | None:
        """Return this member's last assignment."""
        return write_previous(self._given) if self._given else None

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """Return the partitions of each member."""
        claims = {
            member.member_id: read_previous(member.subscription.user_data)
            for member in members
            if member.subscription
        }
        return _assignments(_sticky(partitions, members, claims))

    def on_assignment(self, assignment: ConsumerProtocolAssignment) -> int | None:
        """Keep the assignment for the next generation."""
        self._given = assignment.partitions
        return None


class CooperativeStickyAssignor:
    """Members keep their partitions while they join; the subscription lists them. Cooperative."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self) -> bytes | None:
        """Return None: the subscription has everything. Kafka puts the generation here for readers of older
        versions."""
        return None

    def assign(
        self, partitions: Mapping[str, int], members: Sequence[Subscriber]
    ) -> Mapping[MemberId, ConsumerProtocolAssignment]:
        """Return the partitions of each member, without those that have to change hands: no member gets them
        this time."""
        claims = {
            member.member_id: tuple(
                (topic, number) for topic, numbers in member.subscription.owned.items() for number in numbers
            )
            for member in members
            if member.subscription
        }
        holders: dict[Partition, list[MemberId]] = {}
        for member_id, claimed in claims.items():
            for partition in claimed:
                holders.setdefault(partition, []).append(member_id)
        wanted = _sticky(partitions, members, claims)
        return _assignments(
            {
                member_id: [each for each in given if set(holders.get(each, ())) <= {member_id}]
                for member_id, given in wanted.items()
            }
        )

    def on_assignment(self, assignment: ConsumerProtocolAssignment) -> int | None:
        """Do nothing: the member keeps the assignment itself."""
        return None


def _sticky(
    partitions: Mapping[str, int],
    members: Sequence[Subscriber],
    claims: Mapping[MemberId, Iterable[Partition]],
) -> Mapping[MemberId, Sequence[Partition]]:
    """Assign as evenly as possible, and as close as possible to the claims that count."""
    subscriptions = {
        member.member_id: frozenset(member.subscription.topics).intersection(partitions)
        for member in members
        if member.subscription
    }
    newest = max((member.subscription.generation for member in members if member.subscription), default=-1)
    counted = {
        member.member_id: [
            (topic, number)
            for topic, number in claims[member.member_id]
            if topic in subscriptions[member.member_id] and number < partitions[topic]
        ]
        for member in members
        if member.subscription and member.subscription.generation == newest
    }
    often = Counter(partition for claimed in counted.values() for partition in claimed)
    kept = {
        member_id: [partition for partition in claimed if often[partition] == 1]
        for member_id, claimed in counted.items()
    }
    return balanced(partitions, subscriptions, kept)


def _assignments(given: Mapping[MemberId, Iterable[Partition]]) -> dict[MemberId, ConsumerProtocolAssignment]:
    made = {}
    for member_id, partitions in given.items():
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(partitions):
            topics.setdefault(topic, []).append(number)
        made[member_id] = ConsumerProtocolAssignment(
            partitions={topic: tuple(numbers) for topic, numbers in topics.items()}
        )
    return made


def write_previous(given: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return a member's last assignment in the bytes of Kafka's sticky assignor (version 0)."""
    parts = [_INT32.pack(len(given))]
    for topic, numbers in given.items():
        name = topic.encode()
        parts += [_INT16.pack(len(name)), name, _INT32.pack(len(numbers)), *map(_INT32.pack, numbers)]
    return b"".join(parts)


def read_previous(data: bytes | None) -> tuple[Partition, ...]:
    """Return the partitions in such bytes, or nothing if the bytes are malformed: members may send any bytes.

    Version 1 adds the generation at the end, which is also in the subscription.
    """
    if not data:
        return ()
    found: list[Partition] = []
    at = 4
    try:
        for _ in range(_INT32.unpack_from(data)[0]):
            size = _INT16.unpack_from(data, at)[0]
            topic = data[at + 2 : at + 2 + size].decode()
            count = _INT32.unpack_from(data, at + 2 + size)[0]
            if size < 0 or count < 0:
                return ()
            at += 6 + size
            found += [(topic, number) for (number,) in _INT32.iter_unpack(data[at : at + 4 * count])]
            at += 4 * count
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(dict.fromkeys(found))
