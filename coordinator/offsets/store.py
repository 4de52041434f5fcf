"""The committed offsets, and those of open transactions. Only `apply` and `apply_pending` write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.records import (
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetCommitKey,
    PendingOffsetCommitValue,
    Record,
)

_NONE: Mapping[str, Mapping[int, OffsetCommitValue]] = MappingProxyType({})


class OffsetStore:
    """Committed offsets by group, topic and partition, and the simple groups: those that never had members.

    Kafka keeps a simple group after its last offset, until a tombstone of the group or a load of a log that
    was compacted since (OffsetMetadataManager). That is soft state here: no record says so, and stores that
    differ only in it are equal. `has_group` returns true for a group of any kind, which is no simple group.
    """

    __slots__ = ("_emptied", "_groups", "_has_group", "_overtaken", "_pending")

    def __init__(self, has_group: Callable[[str], bool] = lambda group_id: False) -> None:
        self._has_group = has_group
        self._emptied: dict[str, None] = {}
        """Simple groups without offsets."""
        self._groups: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}
        self._pending: dict[str, dict[int, dict[TopicPartition, PendingOffsetCommitValue]]] = {}
        """By group and producer."""
        self._overtaken: dict[tuple[str, int, TopicPartition], None] = {}
        """Those of them that something else was committed behind."""

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Apply one record. A tombstone without an offset is accepted: compaction leaves such tombstones."""
        if self._pending and key.group_id in self._pending:
            self._overtake(key.group_id, TopicPartition(key.topic, key.partition), value is not None)
        if value is not None:
            try:
                self._groups[key.group_id][key.topic][key.partition] = value
            except KeyError:
                self._emptied.pop(key.group_id, None)
                topics = self._groups.setdefault(key.group_id, {})
                topics.setdefault(key.topic, {})[key.partition] = value
            return
        topics = self._groups.get(key.group_id, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if not partitions:
            topics.pop(key.topic, None)
        if not topics and self._groups.pop(key.group_id, None) is not None:
            self.keep_emptied(key.group_id)

    def apply_pending(self, key: PendingOffsetCommitKey, value: PendingOffsetCommitValue | None) -> None:
        """Apply one record of a transaction; its tombstone may be without an offset, too."""
        partition = TopicPartition(key.topic, key.partition)
        self._overtaken.pop((key.group_id, key.producer_id, partition), None)
        if value is not None:
            self._emptied.pop(key.group_id, None)
            producers = self._pending.setdefault(key.group_id, {})
            producers.setdefault(key.producer_id, {})[partition] = value
            return
        producers = self._pending.get(key.group_id, {})
        partitions = producers.get(key.producer_id, {})
        partitions.pop(partition, None)
        if not partitions:
            producers.pop(key.producer_id, None)
        if not producers and self._pending.pop(key.group_id, None) is not None:
            self.keep_emptied(key.group_id)

    def keep_emptied(self, group_id: str) -> None:
        """Keep a simple group without offsets: its last one was deleted, or its first one was refused."""
        if group_id not in self and not self._has_group(group_id):
            self._emptied[group_id] = None

    def forget_emptied(self, group_id: str) -> None:
        """Forget a simple group without offsets: there is a record of the group itself."""
        self._emptied.pop(group_id, None)

    def loaded(self) -> None:
        """End a load, in which records of a group may follow those of its offsets."""
        for group_id in tuple(self._emptied):
            if self._has_group(group_id):
                del self._emptied[group_id]

    def _overtake(self, group_id: str, partition: TopicPartition, there: bool) -> None:
        for producer_id, partitions in self._pending[group_id].items():
            if partition in partitions:
                if there:
                    self._overtaken[group_id, producer_id, partition] = None
                else:
                    self._overtaken.pop((group_id, producer_id, partition), None)

    def __contains__(self, group_id: object) -> bool:
        """Return true if the group has offsets, may get some from a transaction, or is simple without any."""
        return group_id in self._groups or group_id in self._pending or group_id in self._emptied

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OffsetStore)
            and self._groups == other._groups
            and self._pending == other._pending
            and self._overtaken == other._overtaken
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The groups with offsets, sorted; those in open transactions count, and simple groups."""
        return tuple(sorted({*self._groups, *self._pending, *self._emptied}))

    def topics(self, group_id: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        """Return a group's offsets by topic and partition, in the order of their first commits."""
        return self._groups.get(group_id, _NONE)

    def get(self, group_id: str, partition: TopicPartition | OffsetCommitKey) -> OffsetCommitValue | None:
        """Return the offset committed for a partition, or None."""
        try:
            return self._groups[group_id][partition.topic].get(partition.partition)
        except KeyError:
            return None

    def committed(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        """Return all offsets of a group, sorted by topic and partition."""
        for topic, partitions in sorted(self.topics(group_id).items()):
            for partition, value in sorted(partitions.items()):
                yield TopicPartition(topic, partition), value

    def pending(self, group_id: str) -> Mapping[int, Mapping[TopicPartition, PendingOffsetCommitValue]]:
        """Return a group's offsets in open transactions, by producer and partition."""
        return self._pending.get(group_id, {})

    def is_overtaken(self, group_id: str, producer_id: int, partition: TopicPartition) -> bool:
        """Return true if an offset was committed behind the one in the producer's transaction."""
        return (group_id, producer_id, partition) in self._overtaken

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Return true if any open transaction has an offset of the partition."""
        return any(partition in offsets for offsets in self._pending.get(group_id, {}).values())


def tombstone(group_id: str, partition: TopicPartition) -> Record:
    """Return the record that forgets one committed offset."""
    return Record(OffsetCommitKey(group_id, partition.topic, partition.partition), None)


def tombstones(store: OffsetStore, group_id: str) -> tuple[Record, ...]:
    """Return the records that forget all offsets of a group: they go with it when it is deleted."""
    return tuple(tombstone(group_id, partition) for partition, _ in store.committed(group_id))
