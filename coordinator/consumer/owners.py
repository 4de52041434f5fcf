"""Who holds which partition: the member epoch of each held partition's holder (KIP-848, Partition Epoch)."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol.ids import NO_EPOCH, Partitions, TopicId

_NOTHING: dict[int, int] = {}


class PartitionEpochs:
    """Epochs of all partitions that members hold, assigned or not yet revoked; derived from the members.

    A static member that is away still holds its partitions, at epoch -2.
    """

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[TopicId, dict[int, int]] = {}

    def of(self, topic_id: TopicId, partition: int) -> int:
        """The holder's member epoch; -1 if the partition is free."""
        partitions = self._topics.get(topic_id)
        return NO_EPOCH if partitions is None else partitions.get(partition, NO_EPOCH)

    def of_all(self, topic_id: TopicId, partitions: Iterable[int]) -> list[int]:
        """The same for several partitions of a topic, in their order."""
        held = self._topics.get(topic_id, _NOTHING)
        return [held.get(partition, NO_EPOCH) for partition in partitions]

    def taken(self, topic_id: TopicId, partitions: Iterable[int]) -> set[int]:
        """Those of the topic's partitions that someone holds."""
        held = self._topics.get(topic_id)
        return set() if held is None else {p for p in partitions if held.get(p, NO_EPOCH) != NO_EPOCH}

    def replace(self, old: ConsumerGroupMember | None, new: ConsumerGroupMember | None) -> None:
        """Let go of what `old` holds, then hold what `new` holds.

        An entry of another epoch than old's is left alone: while a log is being compacted a newer holder
        may be read before the old one's release (KAFKA-19862).

        :raises ValueError: if a partition of `new` is held at its epoch or a later one.
        """
        if old is not None and new is not None and self._moved(old, new):
            return
        if old is not None:
            self._remove(old.assigned, old.member_epoch)
            self._remove(old.pending_revocation, old.member_epoch)
        if new is not None:
            self._add(new.assigned, new.member_epoch)
            self._add(new.pending_revocation, new.member_epoch)

    def _moved(self, old: ConsumerGroupMember, new: ConsumerGroupMember) -> bool:
        """Whether that was all: the same partitions, each of them entered as old's, at another epoch."""
        held, before = new.assigned, old.member_epoch
        if held is not old.assigned or old.pending_revocation or new.pending_revocation:
            return False
        topics = self._topics
        for topic_id, partitions in held.items():
            if _entered(topics.get(topic_id, _NOTHING), partitions, before) is not partitions:
                return False
        if new.member_epoch != before:
            for topic_id, partitions in held.items():
                topics[topic_id].update(dict.fromkeys(partitions, new.member_epoch))
        return True

    def _remove(self, held: Partitions, epoch: int) -> None:
        for topic_id, partitions in held.items():
            epochs = self._topics.get(topic_id)
            if epochs is None:
                continue
            for partition in _entered(epochs, partitions, epoch):
                del epochs[partition]
            if not epochs:
                del self._topics[topic_id]

    def _add(self, held: Partitions, epoch: int) -> None:
        for topic_id, partitions in held.items():
            epochs = self._topics.setdefault(topic_id, {})
            for partition in () if epochs.keys().isdisjoint(partitions) else partitions:
                if epochs.get(partition, epoch - 1) >= epoch:
                    raise ValueError(
                        f"{topic_id}-{partition} cannot be held at epoch {epoch}, "
                        f"it is held at epoch {epochs[partition]}"
                    )
            epochs.update(dict.fromkeys(partitions, epoch))

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def as_dict(self) -> dict[TopicId, dict[int, int]]:
        """A copy: epoch by topic id and partition."""
        return {topic_id: dict(epochs) for topic_id, epochs in self._topics.items()}


def _entered(epochs: dict[int, int], partitions: tuple[int, ...], epoch: int) -> Iterable[int]:
    """Those of the partitions that have that epoch; the same object if all of them do, as they should."""
    if list(map(epochs.get, partitions)).count(epoch) == len(partitions):
        return partitions
    return [partition for partition in partitions if epochs.get(partition) == epoch]
