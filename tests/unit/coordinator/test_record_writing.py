"""Batches that are written here and read by aiokafka, and the other way round."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.codec.batches import stored_batch
from fencepost.coordinator.codec.record_contents import records_in
from fencepost.coordinator.codec.record_writing import BatchWriter
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from tests.batches import batch_of

DATA = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=5), DATA), max_size=3)
RECORDS = st.lists(st.tuples(st.integers(0, 2**40), DATA, DATA, HEADERS), min_size=1, max_size=20)


def written(records: list[Any]) -> bytes:
    writer = BatchWriter(1 << 20)
    assert all(writer.add(*record) for record in records)
    return writer.batch()


@given(RECORDS)
def test_aiokafka_reads_what_is_written(records: list[Any]) -> None:
    found = list(MemoryRecords(written(records)).next_batch())
    assert [(one.timestamp, one.key, one.value, list(one.headers)) for one in found] == records
    assert [one.offset for one in found] == list(range(len(records)))


@pytest.mark.parametrize("compression", range(5))
@given(records=RECORDS)
def test_what_aiokafka_writes_is_read(compression: int, records: list[Any]) -> None:
    found = records_in(batch_of(records, compression=compression))
    assert [(one.timestamp, one.key, one.value, list(one.headers)) for one in found] == records
    assert [one.offset for one in found] == list(range(len(records)))


def test_a_full_batch_takes_no_more_and_any_first_record() -> None:
    writer = BatchWriter(20)
    assert writer.add(1_000, None, b"v" * 100, ())
    assert not writer.add(1_000, None, b"", ())
    header = stored_batch(writer.batch())
    assert (header.records, header.last_offset_delta, header.max_timestamp) == (1, 0, 1_000)


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [(b"k", b"v", [("\N{GREEK SMALL LETTER PI}", b"1")]), (b"k", None, [("h", None)])],
)
def test_changed_bytes_of_contents_are_refused(key: bytes, value: bytes | None, headers: Any) -> None:
    batch = bytearray(batch_of([(1_000, key, value, headers)]))
    for place in range(61, len(batch)):
        changed = batch.copy()
        changed[place] = 0xFF
        with pytest.raises(ProtocolError) as told:
            records_in(bytes(changed))
        assert told.value.code is ErrorCode.CORRUPT_MESSAGE
