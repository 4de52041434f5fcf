"""The holders of partitions as the coordinator sees them: one for each, and its map of them exact."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, KeysView, Sequence
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

from fencepost.coordinator.protocol.ids import NO_EPOCH, NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.simulation.checkers.base import Finding, shown

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.simulation.checkers.step import GroupStep, MemberChange


Some: TypeAlias = Sequence[tuple[TopicId, frozenset[int]]]
"""Partitions topic by topic."""


def changes(before: Partitions, after: Partitions) -> tuple[Some, Some]:
    """Return the partitions in `before` only, and those in `after` only; equal topics cost one comparison."""
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
    """Return the partitions that a member holds: the assigned ones, and those that it has to release."""
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
    """Each partition's holder. Changes are the partitions that a member releases and gains (`changes`)."""

    __slots__ = ("_topics", "total")

    def __init__(self) -> None:
        self._topics: dict[TopicId, list[MemberId | None]] = {}
        """By topic and partition number: a list takes a fifth of the room of a mapping."""
        self.total = 0

    @property
    def topics(self) -> KeysView[TopicId]:
        """Topics with partitions that are, or were, held."""
        return self._topics.keys()

    def of(self, topic_id: TopicId, partitions: Iterable[int]) -> list[MemberId | None]:
        """Return the holders of partitions, in the order of the partitions."""
        holders = self._topics.get(topic_id, [])
        known = len(holders)
        return [holders[number] if number < known else None for number in partitions]

    def count(self, topic_id: TopicId, first: int = 0) -> int:
        """Return the number of the topic's partitions, from this number on, that have a holder."""
        holders = self._topics.get(topic_id, [])[first:]
        return len(holders) - holders.count(None)

    def release(self, member_id: MemberId, lost: Iterable[tuple[TopicId, Collection[int]]]) -> None:
        """Remove the partitions that the member no longer holds."""
        for topic_id, numbers in lost:
            holders = self._topics.get(topic_id, [])
            for number in numbers:
                if number < len(holders) and holders[number] == member_id:
                    holders[number] = None
                    self.total -= 1

    def grant(
        self, member_id: MemberId, gained: Iterable[tuple[TopicId, Collection[int]]]
    ) -> Iterator[tuple[TopicId, int, MemberId]]:
        """Give the member the partitions that it holds newly; yield those that another one holds, which keeps
        them."""
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


_OfTopic: TypeAlias = tuple[TopicId, Collection[int]]
"""Partitions of one topic."""


class Ownership:
    """Checks one-owner and owners-map of one group; `holders` is the group as its members hold it."""

    def __init__(self) -> None:
        self.holders = Holders()

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Findings of one event."""
        for change in step.members:
            if change.lost:
                self.holders.release(change.member_id, change.lost)
        for change in step.members:
            if not change.holds_the_same:
                yield from self._grant(step, change)
        if step.group is None:
            return
        for change in step.members:
            before = NO_EPOCH if change.before is None else change.before.member_epoch
            epoch = NO_EPOCH if change.after is None else change.after.member_epoch
            if epoch != before:
                yield from self._compare(step, change.holds.items(), epoch)
            elif change.gained:
                yield from self._compare(step, in_order(change.gained).items(), epoch)
            if change.lost:
                yield from self._compare(step, in_order(change.lost).items(), NO_EPOCH)

    def _grant(self, step: GroupStep, change: MemberChange) -> Iterator[Finding]:
        if change.after is None:
            return
        pending = change.after.pending_revocation
        if pending and (twice := _overlap(change.after.assigned, pending)):
            yield (
                "one-owner",
                f"{change.member_id} of {step.group_id} is assigned {shown(twice)} and is to release it",
            )
        for topic_id, number, holder in self.holders.grant(change.member_id, change.gained):
            other = None if step.group is None else step.group.members.get(holder)
            epoch = "removed" if other is None else f"epoch {other.member_epoch}"
            yield (
                "one-owner",
                f"{step.group_id}: partition {topic_id}-{number} was given to {change.member_id} at epoch"
                f" {change.after.member_epoch} while {holder} ({epoch}) holds it",
            )

    def _compare(self, step: GroupStep, partitions: Iterable[_OfTopic], expected: int) -> Iterator[Finding]:
        """Compare the coordinator's own map on the partitions that the event gave, took, or moved to another
        epoch.

        `expected` is the epoch of the member that holds them now, -1 if no member does. The holder is looked
        up only if the map differs: one event may give to others what a member releases.
        """
        group = step.group
        assert group is not None
        for topic_id, numbers in partitions:
            epochs = group.partition_epochs.of_all(topic_id, numbers)
            if epochs.count(expected) == len(epochs):
                continue
            holders = self.holders.of(topic_id, numbers)
            for number, holder, stored in zip(numbers, holders, epochs, strict=True):
                member = None if holder is None else group.members.get(holder)
                epoch = NO_EPOCH if member is None else member.member_epoch
                if stored != epoch:
                    yield (
                        "owners-map",
                        f"{step.group_id}: the map has epoch {stored} for {topic_id}-{number}, which"
                        f" {holder or 'no member'} holds at epoch {epoch}",
                    )

    @staticmethod
    def is_at(group: ConsumerGroup, partitions: Partitions, epoch: int) -> bool:
        """Return true if the coordinator's own map has all of these at that epoch."""
        of_all = group.partition_epochs.of_all
        for topic_id, numbers in partitions.items():
            epochs = of_all(topic_id, numbers)
            if epochs.count(epoch) != len(epochs):
                return False
        return True

    def compare_all(self, group: ConsumerGroup) -> Iterator[Finding]:
        """Compare the whole map with all members; for failovers and the end."""
        expected: dict[TopicId, dict[int, int]] = {}
        for member in group.members.values():
            for topic_id, numbers in held(member).items():
                expected.setdefault(topic_id, {}).update(dict.fromkeys(numbers, member.member_epoch))
        stored = group.partition_epochs.as_dict()
        if stored != expected:
            differing = sorted(t for t in stored.keys() | expected.keys() if stored.get(t) != expected.get(t))
            yield (
                "owners-map",
                f"{group.group_id}: the map of partition epochs differs from the members on"
                f" {', '.join(differing)}",
            )

    def others(self, member_id: MemberId, partitions: Partitions) -> Iterator[tuple[TopicId, int, MemberId]]:
        """Yield those of these partitions that another member holds, with the holder."""
        for topic_id, numbers in partitions.items():
            holders = self.holders.of(topic_id, numbers)
            if holders.count(member_id) == len(holders):
                continue
            for number, holder in zip(numbers, holders, strict=True):
                if holder is not None and holder != member_id:
                    yield topic_id, number, holder


def _overlap(one: Partitions, other: Partitions) -> Partitions:
    common = {t: tuple(sorted({*one[t]} & {*numbers})) for t, numbers in other.items() if t in one}
    return {topic_id: numbers for topic_id, numbers in common.items() if numbers}
