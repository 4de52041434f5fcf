"""What is inside of stored record batches: for a log that keeps one record of each key, and to find times."""

from __future__ import annotations

from typing import Any, NamedTuple

from fencepost.coordinator.codec.batches import (
    COMPRESSION,
    LOG_APPEND_TIME,
    BatchHeader,
    placed,
    rewritten,
    stored_batch,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError


class KeyedRecord(NamedTuple):
    """A record without its value; the timestamp is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool


def keyed_records(batch: bytes) -> list[KeyedRecord]:
    """The records of a stored batch.

    :raises ProtocolError: CORRUPT_MESSAGE if they can't be read.
    """
    return [
        KeyedRecord(record.offset, timestamp_of(record), record.key, record.value is None)
        for record in records_in(batch)
    ]


def without(batch: bytes, dropped: frozenset[int]) -> bytes | None:
    """A stored batch without the records at some offsets; None if none is left.

    The other records keep their offsets, and the batch its first and its last one, as Kafka's cleaner has it.
    """
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    kept = [record for record in records_in(batch) if record.offset not in dropped]
    if not kept:
        return None
    header = stored_batch(batch)
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=header.attributes & COMPRESSION,
        is_transactional=header.is_transactional,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        batch_size=2**31 - 1,
    )
    for record in kept:
        delta = record.offset - header.base_offset
        builder.append(delta, timestamp_of(record), record.key, record.value, record.headers)
    built = rewritten(
        bytes(builder.build()),
        attributes=header.attributes,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=max(map(timestamp_of, kept)),
    )
    return placed(built, header.base_offset, header.leader_epoch)


def timed(batch: bytes | memoryview, header: BatchHeader, max_timestamp: int, *, stamps: bool) -> bytes:
    """The batch with its latest time; with `stamps` that is the time of all its records (KIP-32)."""
    kept = header.attributes & ~LOG_APPEND_TIME
    return rewritten(
        bytes(batch),
        attributes=kept | LOG_APPEND_TIME if stamps else kept,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=max_timestamp,
    )


def timestamps(batch: bytes) -> list[tuple[int, int]]:
    """(offset, timestamp in ms) of each record of a stored batch.

    :raises ProtocolError: CORRUPT_MESSAGE if its records can't be read.
    """
    return [(record.offset, timestamp_of(record)) for record in records_in(batch)]


def records_in(batch: bytes) -> list[Any]:
    """aiokafka's records of a stored batch. Where one has no time, aiokafka says None: ask `timestamp_of`.

    :raises ProtocolError: CORRUPT_MESSAGE if they can't be read.
    """
    from aiokafka.record.memory_records import MemoryRecords

    try:
        return list(MemoryRecords(batch).next_batch())
    except Exception as error:
        # Codecs and readers raise what they like on bytes that no producer should have sent.
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"records can't be read: {error}") from error


def timestamp_of(record: Any) -> int:
    """The time of one of aiokafka's records, in ms; -1 where it has none."""
    return -1 if record.timestamp is None else int(record.timestamp)
