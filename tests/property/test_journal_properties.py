from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.journal.encoding import BrokenRecord, decode, encode
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records
from fencepost.coordinator.protocol.records import Record, RecordKey, RecordValue
from tests.property.drawn_records import PAIRS, Pairs, int32, int64, maybe, records_of, short

PENDING: Pairs = [
    (
        st.builds(records.PendingOffsetCommitKey, short, short, int32, int64),
        st.builds(records.PendingOffsetCommitValue, int64, int32, short, int64, maybe),
    )
]
any_record = records_of(PAIRS + PENDING)
few_keys = st.builds(
    Record,
    st.builds(records.ConsumerGroupMetadataKey, st.sampled_from("abc")),
    st.none() | st.builds(records.ConsumerGroupMetadataValue, st.integers(0, 9)),
)
batches = st.lists(st.lists(few_keys, max_size=4).map(tuple), max_size=6)


def facts(found: MemoryJournal) -> dict[RecordKey, RecordValue]:
    newest = {record.key: record.value for record in found}
    return {key: value for key, value in newest.items() if value is not None}


def test_every_record_type_is_covered() -> None:
    assert len(PAIRS + PENDING) == len(RecordKey.__args__) == len(RecordValue.__args__)


@given(any_record)
def test_a_record_survives_its_bytes(record: Record) -> None:
    data = encode(record)
    assert decode(data) == record
    assert encode(decode(data)) == data


@given(any_record, st.data())
def test_any_altered_byte_is_noticed(record: Record, data: st.DataObject) -> None:
    good = encode(record)
    at = data.draw(st.integers(0, len(good) - 1))
    other = data.draw(st.integers(1, 255))
    with pytest.raises(BrokenRecord):
        decode(good[:at] + bytes([good[at] ^ other]) + good[at + 1 :])


@given(any_record, st.data())
def test_any_missing_end_is_noticed(record: Record, data: st.DataObject) -> None:
    good = encode(record)
    with pytest.raises(BrokenRecord):
        decode(good[: data.draw(st.integers(0, len(good) - 1))])


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(BrokenRecord):
        decode(data)


@given(batches, st.booleans())
def test_compaction_keeps_the_facts_and_the_order(written: list[tuple[Record, ...]], keep: bool) -> None:
    journal, compacted = MemoryJournal(written), MemoryJournal(written)
    compacted.compact(keep_tombstones=keep)
    assert facts(compacted) == facts(journal)
    left = list(compacted)
    assert len({record.key for record in left}) == len(left) == len(compacted)
    remaining = iter(list(journal))
    assert all(any(record == candidate for candidate in remaining) for record in left)
    assert keep or all(record.value is not None for record in left)
    assert all(compacted.batches())


@given(batches, st.booleans())
def test_compacting_twice_is_compacting_once(written: list[tuple[Record, ...]], keep: bool) -> None:
    once = MemoryJournal(written)
    once.compact(keep_tombstones=keep)
    twice = MemoryJournal(once.batches())
    twice.compact(keep_tombstones=keep)
    assert list(twice.batches()) == list(once.batches())
