"""The committed offsets. `apply` is the only thing that writes them; everything else here reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.records import OffsetCommitKey, OffsetCommitValue, Record

_NONE: Mapping[str, Mapping[int, OffsetCommitValue]] = MappingProxyType({})


class OffsetStore:
    """Committed offsets by group, topic and partition. Nothing is kept for a group without any."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Replays one record. A tombstone of what is not there is accepted: compaction leaves such."""
        if value is not None:
            topics = self._groups.setdefault(key.group_id, {})
            topics.setdefault(key.topic, {})[key.partition] = value
            return
        topics = self._groups.get(key.group_id, {})
        partitions = topics.get(key.topic, {})
        partitions.pop(key.partition, None)
        if not partitions:
            topics.pop(key.topic, None)
        if not topics:
            self._groups.pop(key.group_id, None)

    def __contains__(self, group_id: object) -> bool:
        """Whether the group has any committed offset."""
        return group_id in self._groups

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetStore) and self._groups == other._groups

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def group_ids(self) -> tuple[str, ...]:
        """The groups with committed offsets, sorted."""
        return tuple(sorted(self._groups))

    def topics(self, group_id: str) -> Mapping[str, Mapping[int, OffsetCommitValue]]:
        """A group's offsets by topic and partition, in the order of their first commits."""
        return self._groups.get(group_id, _NONE)

    def get(self, group_id: str, partition: TopicPartition) -> OffsetCommitValue | None:
        """The offset committed for a partition, or None."""
        return self.topics(group_id).get(partition.topic, {}).get(partition.partition)

    def committed(self, group_id: str) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        """All offsets of a group, by topic and partition: the order in which they came does not show."""
        for topic, partitions in sorted(self.topics(group_id).items()):
            for partition, value in sorted(partitions.items()):
                yield TopicPartition(topic, partition), value


def tombstone(group_id: str, partition: TopicPartition) -> Record:
    """The record that forgets one committed offset."""
    return Record(OffsetCommitKey(group_id, partition.topic, partition.partition), None)


def tombstones(store: OffsetStore, group_id: str) -> tuple[Record, ...]:
    """The records that forget all offsets of a group: they go with it when it is deleted."""
    return tuple(tombstone(group_id, partition) for partition, _ in store.committed(group_id))
