from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.codec.group_records import MalformedRecord, decode_record, encode_record
from fencepost.coordinator.protocol.records import Record, RecordKey
from tests.property.drawn_records import PAIRS, records_of

any_record = records_of(PAIRS)


def test_every_record_type_is_covered() -> None:
    """A tag is Kafka's record type; a journal of ours has some beyond those."""
    numbers = [kind.__struct_config__.tag for kind in RecordKey.__args__]
    assert len(PAIRS) == len([number for number in numbers if number < 100])


@given(any_record)
def test_a_record_survives_kafkas_bytes(record: Record) -> None:
    assert decode_record(*encode_record(record)) == record


@given(any_record, st.data())
def test_bytes_that_are_cut_short_are_malformed(record: Record, data: st.DataObject) -> None:
    key, value = encode_record(record)
    short_key = key[: data.draw(st.integers(0, len(key) - 1))]
    try:
        decode_record(short_key, value)
    except MalformedRecord:
        pass
    else:
        raise AssertionError(f"{short_key!r} was read")
    if value is not None:
        short_value = value[: data.draw(st.integers(0, len(value) - 1))]
        try:
            decode_record(key, short_value)
        except MalformedRecord:
            return
        raise AssertionError(f"{short_value!r} was read")


@given(st.binary(max_size=4), st.sampled_from([*range(25), 999]), st.none() | st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_refused(rest: bytes, kind: int, value: bytes | None) -> None:
    try:
        decode_record(kind.to_bytes(2, "big") + rest, value)
    except MalformedRecord:
        return
    decode_record(kind.to_bytes(2, "big") + rest, None)
