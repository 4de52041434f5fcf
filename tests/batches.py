"""Record batches as a producer writes them."""

from __future__ import annotations

from collections.abc import Iterable

from aiokafka.record.default_records import DefaultRecordBatchBuilder

Headers = list[tuple[str, bytes | None]]
NOBODY = (-1, -1, -1)


def batch_of(
    records: Iterable[tuple[int, bytes | None, bytes | None, Headers]],
    *,
    compression: int = 0,
    producer: tuple[int, int, int] = NOBODY,
    transactional: bool = False,
) -> bytes:
    """A batch of (timestamp, key, value, headers); the producer is (id, epoch, first sequence number)."""
    producer_id, epoch, sequence = producer
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=compression,
        is_transactional=transactional,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        batch_size=1 << 21,
    )
    for place, record in enumerate(records):
        assert builder.append(place, *record) is not None, "the batch is full"
    return bytes(builder.build())


def batch(
    *values: bytes | None,
    at: int = 1_000,
    compression: int = 0,
    producer: tuple[int, int, int] = NOBODY,
    transactional: bool = False,
) -> bytes:
    """A batch of mere values; record n has the timestamp `at` + n."""
    records = ((at + number, None, value, []) for number, value in enumerate(values))
    return batch_of(records, compression=compression, producer=producer, transactional=transactional)
