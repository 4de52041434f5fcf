"""What is inside of stored record batches, for a log that keeps one record of each key, or sets the time."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from fencepost.coordinator.codec.batches import (
    COMPRESSION,
    BatchHeader,
    placed,
    rewritten,
    stored_batch,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError

_LOG_APPEND_TIME = 0x08


class KeyedRecord(NamedTuple):
    """A record without its value; the timestamp is in milliseconds."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool


def keyed_records(batch: bytes | memoryview) -> list[KeyedRecord]:
    """The records of a batch; the offsets of one that has no place yet count from what the producer said.

    :raises ProtocolError: CORRUPT_MESSAGE if they can't be read.
    """
    return [
        KeyedRecord(record.offset, record.timestamp, record.key, record.value is None)
        for record in _records(batch)
    ]


def without(batch: bytes, dropped: frozenset[int]) -> bytes | None:
    """A stored batch without the records at some offsets; None if none is left.

    The other records keep their offsets, and the batch its first and its last one, as Kafka's cleaner has it.
    """
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    kept = [record for record in _records(batch) if record.offset not in dropped]
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
        builder.append(delta, record.timestamp, record.key, record.value, record.headers)
    built = rewritten(
        bytes(builder.build()),
        attributes=header.attributes,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=max(record.timestamp for record in kept),
    )
    return placed(built, header.base_offset, header.leader_epoch)


def stamped(batch: bytes | memoryview, header: BatchHeader, now_ms: int) -> bytes:
    """The batch with the time at which it was appended, for all its records (KIP-32)."""
    return rewritten(
        bytes(batch),
        attributes=header.attributes | _LOG_APPEND_TIME,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=now_ms,
    )


def _records(batch: bytes | memoryview) -> Iterator[Any]:
    from aiokafka.record.memory_records import MemoryRecords

    try:
        yield from MemoryRecords(bytes(batch)).next_batch()
    except (
        ArithmeticError,
        LookupError,
        ValueError,
        TypeError,
        RuntimeError,
        OSError,
        struct.error,
    ) as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"records can't be read: {error}") from error
