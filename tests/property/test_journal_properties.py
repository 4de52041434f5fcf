from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.journal.encoding import BrokenRecord, decode, encode
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records, streams, streams_records
from fencepost.coordinator.protocol.records import Record, RecordKey, RecordValue

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
short = st.text(max_size=6)
maybe = st.none() | short
numbers = st.lists(st.integers(0, 99), min_size=1, max_size=5, unique=True).map(lambda ns: tuple(sorted(ns)))
partitions = st.dictionaries(short, numbers, max_size=3)
epochs = st.dictionaries(short, st.dictionaries(st.integers(0, 99), int32, max_size=3), max_size=3)
names = st.lists(short, max_size=3).map(tuple)
texts = st.dictionaries(short, short, max_size=2)
pair_lists = st.lists(st.tuples(short, short), max_size=2).map(tuple)
tasks = st.builds(streams.Tasks, partitions, partitions, partitions)

pairs: list[tuple[st.SearchStrategy[RecordKey], st.SearchStrategy[RecordValue]]] = [
    (
        st.builds(records.OffsetCommitKey, short, short, st.integers(0, 99)),
        st.builds(records.OffsetCommitValue, int64, int32, short, int64, int64, maybe),
    ),
    (
        st.builds(records.GroupMetadataKey, short),
        st.builds(
            records.GroupMetadataValue,
            *[short, int32, maybe, maybe, int64],
            st.lists(
                st.builds(
                    records.GroupMetadataMember,
                    *[short, maybe, short, short, int32, int32, st.binary(max_size=6), st.binary(max_size=6)],
                ),
                max_size=3,
            ).map(tuple),
        ),
    ),
    (
        st.builds(records.ConsumerGroupMetadataKey, short),
        st.builds(records.ConsumerGroupMetadataValue, int32, int64),
    ),
    (
        st.builds(records.ConsumerGroupMemberMetadataKey, short, short),
        st.builds(
            records.ConsumerGroupMemberMetadataValue,
            *[maybe, maybe, short, short, st.lists(short, max_size=3).map(tuple), maybe, int32, maybe],
            st.none()
            | st.builds(
                records.ClassicMemberMetadata,
                int32,
                st.lists(st.tuples(short, st.binary(max_size=6)), max_size=2).map(tuple),
            ),
        ),
    ),
    (
        st.builds(records.ConsumerGroupTargetAssignmentMetadataKey, short),
        st.builds(records.ConsumerGroupTargetAssignmentMetadataValue, int32, int64),
    ),
    (
        st.builds(records.ConsumerGroupTargetAssignmentMemberKey, short, short),
        st.builds(records.ConsumerGroupTargetAssignmentMemberValue, partitions),
    ),
    (
        st.builds(records.ConsumerGroupCurrentMemberAssignmentKey, short, short),
        st.builds(
            records.ConsumerGroupCurrentMemberAssignmentValue,
            *[int32, int32, st.sampled_from([0, 1, 2, 127]), partitions, partitions, epochs],
        ),
    ),
    (
        st.builds(records.ConsumerGroupRegularExpressionKey, short, short),
        st.builds(
            records.ConsumerGroupRegularExpressionValue, st.lists(short, max_size=3).map(tuple), int32, int64
        ),
    ),
    (
        st.builds(records.PendingOffsetCommitKey, short, short, st.integers(0, 99), int64),
        st.builds(records.PendingOffsetCommitValue, int64, int32, short, int64, maybe),
    ),
    (
        st.builds(streams_records.StreamsGroupMetadataKey, short),
        st.builds(streams_records.StreamsGroupMetadataValue, int32, int64, int32, texts),
    ),
    (
        st.builds(streams_records.StreamsGroupMemberMetadataKey, short, short),
        st.builds(
            streams_records.StreamsGroupMemberMetadataValue,
            *[maybe, maybe, short, short, int32, int32, short],
            st.none() | st.builds(streams.Endpoint, short, st.integers(0, 2**16 - 1)),
            texts,
        ),
    ),
    (
        st.builds(streams_records.StreamsGroupTargetAssignmentMetadataKey, short),
        st.builds(streams_records.StreamsGroupTargetAssignmentMetadataValue, int32, int64),
    ),
    (
        st.builds(streams_records.StreamsGroupTargetAssignmentMemberKey, short, short),
        st.builds(streams_records.StreamsGroupTargetAssignmentMemberValue, tasks),
    ),
    (
        st.builds(streams_records.StreamsGroupCurrentMemberAssignmentKey, short, short),
        st.builds(
            streams_records.StreamsGroupCurrentMemberAssignmentValue,
            *[int32, int32, st.sampled_from([1, 2, 3, 127]), tasks, tasks, epochs],
        ),
    ),
    (
        st.builds(streams_records.StreamsGroupTopologyKey, short),
        st.builds(
            streams_records.StreamsGroupTopologyValue,
            int32,
            st.lists(
                st.builds(
                    streams.Subtopology,
                    short,
                    names,
                    state_changelog_topics=st.lists(
                        st.builds(streams.TopicInfo, short, int32, configs=pair_lists), max_size=2
                    ).map(tuple),
                    copartition_groups=st.lists(st.builds(streams.CopartitionGroup, numbers), max_size=2).map(
                        tuple
                    ),
                ),
                max_size=2,
            ).map(tuple),
        ),
    ),
]
any_record = st.one_of([st.builds(Record, key, st.none() | value) for key, value in pairs])
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
    assert len(pairs) == len(RecordKey.__args__) == len(RecordValue.__args__)


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
