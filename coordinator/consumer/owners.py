"""The holder of each partition, and the member epoch of each holder (KIP-848, Partition Epoch)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import repeat
from typing import TypeAlias

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol.ids import NO_EPOCH, MemberId, TopicId

_Held: TypeAlias = Mapping[TopicId, Collection[int]]

_NOBODY: list[MemberId | None] = []
_NOTHING: Mapping[TopicId, dict[int, int]] = {}


class PartitionEpochs:
    """Holders of all partitions that members hold, assigned or not yet revoked; derived from the members.

    A partition's epoch is its holder's, so a member that moves to another epoch and keeps its partitions
    changes one entry. A static member that is away still holds its partitions, at epoch -2.
    """

    __slots__ = ("_epochs", "_held", "_ousted", "_topics")

    def __init__(self) -> None:
        self._topics: dict[TopicId, list[MemberId | None]] = {}
        """Holders by topic and partition number, as far as the last one that is held: a list takes a tenth of
        the room of a mapping."""
        self._held = 0
        self._epochs: dict[MemberId, int] = {}
        """The epoch of each holder."""
        self._ousted: set[MemberId] = set()
        """Members that lost partitions to another member's record before their own release was read."""

    def of(self, topic_id: TopicId, partition: int) -> int:
        """Return the holder's member epoch; -1 if the partition is free."""
        return self.of_all(topic_id, (partition,))[0]

    def of_all(self, topic_id: TopicId, partitions: Iterable[int]) -> list[int]:
        """Return the same for several partitions of a topic, in their order."""
        holders, epochs = self._topics.get(topic_id, _NOBODY), self._epochs
        known = len(holders)
        found = [holders[number] if number < known else None for number in partitions]
        if found and found.count(found[0]) == len(found):  # mostly they belong to one member
            holder = found[0]
            return [NO_EPOCH if holder is None else epochs[holder]] * len(found)
        return [NO_EPOCH if holder is None else epochs[holder] for holder in found]

    def taken(self, topic_id: TopicId, partitions: Iterable[int]) -> set[int]:
        """Return those of the topic's partitions that any member holds."""
        holders = self._topics.get(topic_id, _NOBODY)
        known = len(holders)
        return {number for number in partitions if number < known and holders[number] is not None}

    def replace(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        """Release the partitions of `old`, then hold those of `new`: one member, before and after.

        An entry of another member is not changed. In a compacted log, a newer holder may be read before the
        old one's release (KAFKA-19862).

        :raises ValueError: if a partition of `new` is held by another member at its epoch or a later one;
            nothing changes then.
        """
        member = new or old
        if member is None:
            return
        member_id = member.member_id
        before = _NOTHING if old is None else old.assignment_epochs
        after = _NOTHING if new is None else new.assignment_epochs
        ousted = member_id in self._ousted
        if ousted or after is not before:
            # Usually only the difference is entered. An ousted member lost entries: all are entered again.
            lost, gained = (before, after) if ousted else _exchanged(before, after)
            if gained:
                self._check_free(member, gained)
            if lost:
                self._remove(member_id, lost)
            self._ousted.discard(member_id)
            if gained:
                self._add(member_id, gained)
        if after:
            self._epochs[member_id] = member.member_epoch
        else:
            self._epochs.pop(member_id, None)

    def _check_free(self, member: ConsumerGroupMember, gained: _Held) -> None:
        member_id, epoch = member.member_id, member.member_epoch
        for topic_id, partitions in gained.items():
            holders = self._topics.get(topic_id, _NOBODY)
            known = len(holders)
            for partition in partitions:
                other = holders[partition] if partition < known else None
                if other is not None and other != member_id and self._epochs[other] >= epoch:
                    raise ValueError(
                        f"{topic_id}-{partition} cannot be held at epoch {epoch}, "
                        f"it is held at epoch {self._epochs[other]}"
                    )

    def _remove(self, member_id: MemberId, held: _Held) -> None:
        for topic_id, partitions in held.items():
            holders = self._topics.get(topic_id)
            if holders is None:
                continue
            known = len(holders)
            for partition in partitions:
                if partition < known and holders[partition] == member_id:
                    holders[partition] = None
                    self._held -= 1
            while holders and holders[-1] is None:
                holders.pop()
            if not holders:
                del self._topics[topic_id]

    def _add(self, member_id: MemberId, held: _Held) -> None:
        for topic_id, partitions in held.items():
            if not partitions:
                continue
            holders = self._topics.setdefault(topic_id, [])
            if (missing := max(partitions) + 1 - len(holders)) > 0:
                holders.extend(repeat(None, missing))
            for partition in partitions:
                other = holders[partition]
                if other is None:
                    self._held += 1
                else:
                    self._ousted.add(other)
                holders[partition] = member_id

    def __len__(self) -> int:
        return self._held

    def as_dict(self) -> dict[TopicId, dict[int, int]]:
        """Return a copy: epoch by topic id and partition."""
        epochs = self._epochs
        return {
            topic_id: {number: epochs[holder] for number, holder in enumerate(holders) if holder is not None}
            for topic_id, holders in self._topics.items()
        }


def _exchanged(
    before: Mapping[TopicId, dict[int, int]], after: Mapping[TopicId, dict[int, int]]
) -> tuple[_Held, _Held]:
    """Return the partitions that only the first has, and those that only the second has."""
    if not before or not after:
        return before, after
    lost: dict[TopicId, Collection[int]] = {
        topic_id: numbers for topic_id, numbers in before.items() if topic_id not in after
    }
    gained: dict[TopicId, Collection[int]] = {}
    for topic_id, numbers in after.items():
        known = before.get(topic_id)
        if known is None:
            gained[topic_id] = numbers
        elif known != numbers:  # a change seldom affects all topics
            if gone := known.keys() - numbers.keys():
                lost[topic_id] = gone
            if numbers.keys() - known.keys():
                gained[topic_id] = [number for number in numbers if number not in known]
    return lost, gained
