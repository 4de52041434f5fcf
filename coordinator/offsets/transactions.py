"""The effect of a transaction's end on the offsets in it (KIP-98, KIP-447)."""

from __future__ import annotations

from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.records import (
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetCommitKey,
    PendingOffsetCommitValue,
    Record,
)


def ended(store: OffsetStore, group_id: str, producer_id: int, *, commit: bool) -> tuple[Record, ...]:
    """Return the records that forget a producer's offsets in its transaction, and with `commit` make them
    count.

    One that was committed later without a transaction stays as it is.
    """
    records = []
    for partition, value in sorted(store.pending(group_id).get(producer_id, {}).items()):
        if commit and not store.is_overtaken(group_id, producer_id, partition):
            records.append(_committed(group_id, partition, value))
        records.append(pending_tombstone(group_id, producer_id, partition))
    return tuple(records)


def _committed(group_id: str, partition: TopicPartition, value: PendingOffsetCommitValue) -> Record:
    return Record(
        OffsetCommitKey(group_id, partition.topic, partition.partition),
        OffsetCommitValue(
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            commit_timestamp_ms=value.commit_timestamp_ms,
            topic_id=value.topic_id,
        ),
    )


def pending_tombstone(group_id: str, producer_id: int, partition: TopicPartition) -> Record:
    """Return the record that forgets one offset of an open transaction."""
    return Record(PendingOffsetCommitKey(group_id, partition.topic, partition.partition, producer_id), None)


def pending_tombstones(store: OffsetStore, group_id: str) -> tuple[Record, ...]:
    """Return the records that forget all offsets of a group in open transactions: it is deleted."""
    return tuple(
        pending_tombstone(group_id, producer_id, partition)
        for producer_id, partitions in sorted(store.pending(group_id).items())
        for partition in sorted(partitions)
    )
