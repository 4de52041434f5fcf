from __future__ import annotations

import builtins
import types
import typing
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.journal.encoding import BrokenRecord, decode, encode
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records
from fencepost.coordinator.protocol.records import Record, RecordKey, RecordValue

PLAIN = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=6),
    bytes: st.binary(max_size=6),
    type(None): st.none(),
}


def any_of(kind: Any) -> st.SearchStrategy[Any]:
    """Return all values of a type; unlike Kafka's records, ours can hold each of them."""
    arguments = get_args(kind)
    match get_origin(kind):
        case None if kind in PLAIN:
            return PLAIN[kind]
        case None:
            return st.builds(kind, *map(any_of, get_type_hints(kind).values()))
        case typing.Union | types.UnionType:
            return st.one_of(*map(any_of, arguments))
        case builtins.tuple if arguments[1:] != (...,):
            return st.tuples(*map(any_of, arguments))
        case builtins.tuple:
            return st.lists(any_of(arguments[0]), max_size=3).map(tuple)
        case _:
            return st.dictionaries(*map(any_of, arguments), max_size=3)


any_record = st.one_of(
    [
        st.builds(Record, any_of(key), st.none() | any_of(value))
        for key, value in zip(get_args(RecordKey), get_args(RecordValue), strict=True)
    ]
)
few_keys = st.builds(
    Record,
    st.builds(records.ConsumerGroupMetadataKey, st.sampled_from("abc")),
    st.none() | st.builds(records.ConsumerGroupMetadataValue, st.integers(0, 9)),
)
batches = st.lists(st.lists(few_keys, max_size=4).map(tuple), max_size=6)


def facts(found: MemoryJournal) -> dict[RecordKey, RecordValue]:
    newest = {record.key: record.value for record in found}
    return {key: value for key, value in newest.items() if value is not None}


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
