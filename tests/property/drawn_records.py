"""Records of `__consumer_offsets`, drawn: each type, with values that Kafka's bytes can hold."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol import streams as t
from fencepost.coordinator.protocol import streams_records as sr
from fencepost.coordinator.protocol.ids import partitions_of, topic_id_from_uuid
from fencepost.coordinator.protocol.records import Record, RecordKey, RecordValue

Pairs = list[tuple[st.SearchStrategy[RecordKey], st.SearchStrategy[RecordValue]]]


def records_of(pairs: Pairs) -> st.SearchStrategy[Record]:
    """Records with these keys and values, and tombstones."""
    return st.one_of([st.builds(Record, key, st.none() | value) for key, value in pairs])


int16 = st.integers(0, 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
short = st.text(max_size=6)
maybe = st.none() | short
raw = st.binary(max_size=6)
topic = st.builds(topic_id_from_uuid, st.uuids().filter(lambda found: found != uuid.UUID(int=0)))
held = st.lists(st.tuples(topic, st.integers(0, 2**31 - 1)), max_size=6).map(partitions_of)


@st.composite
def current(draw: st.DrawFn) -> r.ConsumerGroupCurrentMemberAssignmentValue:
    """Assigned and pending are of different topics; each partition of a topic has an epoch, or none has."""
    both = draw(held)
    pending = {topic_id: numbers for topic_id, numbers in both.items() if draw(st.booleans())}
    with_epochs = [topic_id for topic_id in both if draw(st.booleans())]
    return r.ConsumerGroupCurrentMemberAssignmentValue(
        draw(int32),
        draw(int32),
        draw(st.sampled_from([0, 1, 2, 127])),
        {topic_id: numbers for topic_id, numbers in both.items() if topic_id not in pending},
        pending,
        {topic_id: {number: draw(int32) for number in both[topic_id]} for topic_id in with_epochs},
    )


plain_offsets = st.builds(r.OffsetCommitValue, int64, int32, short, int64, st.just(-1), st.none() | topic)
expiring = st.builds(r.OffsetCommitValue, int64, st.just(-1), short, int64, int64)
members = st.builds(r.GroupMetadataMember, short, maybe, short, short, int32, int32, raw, raw)
classic = st.builds(r.ClassicMemberMetadata, int32, st.lists(st.tuples(short, raw), max_size=3).map(tuple))
names = st.lists(short, max_size=4, unique=True).map(lambda found: tuple(sorted(found)))
PAIRS: Pairs = [
    (st.builds(r.OffsetCommitKey, short, short, int32), plain_offsets | expiring),
    (
        st.builds(r.GroupMetadataKey, short),
        st.builds(
            r.GroupMetadataValue,
            *[short, int32, maybe, maybe, int64, st.lists(members, max_size=3).map(tuple)],
        ),
    ),
    (
        st.builds(r.ConsumerGroupMetadataKey, short),
        st.builds(r.ConsumerGroupMetadataValue, int32, int64),
    ),
    (
        st.builds(r.ConsumerGroupMemberMetadataKey, short, short),
        st.builds(
            r.ConsumerGroupMemberMetadataValue,
            *[maybe, maybe, short, short, names, maybe, int32, maybe, st.none() | classic],
        ),
    ),
    (
        st.builds(r.ConsumerGroupTargetAssignmentMetadataKey, short),
        st.builds(r.ConsumerGroupTargetAssignmentMetadataValue, int32, int64),
    ),
    (
        st.builds(r.ConsumerGroupTargetAssignmentMemberKey, short, short),
        st.builds(r.ConsumerGroupTargetAssignmentMemberValue, held),
    ),
    (st.builds(r.ConsumerGroupCurrentMemberAssignmentKey, short, short), current()),
    (
        st.builds(r.ConsumerGroupRegularExpressionKey, short, short),
        st.builds(
            r.ConsumerGroupRegularExpressionValue, st.lists(short, max_size=3).map(tuple), int64, int64
        ),
    ),
]
tasks = st.dictionaries(
    short, st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=4, unique=True), max_size=3
).map(lambda found: {one: tuple(sorted(numbers)) for one, numbers in sorted(found.items())})
all_tasks = st.builds(t.Tasks, tasks, tasks, tasks)


@st.composite
def current_tasks(draw: st.DrawFn) -> sr.StreamsGroupCurrentMemberAssignmentValue:
    """As for consumers; only active tasks have epochs."""
    active = draw(tasks)
    pending = {one: numbers for one, numbers in active.items() if draw(st.booleans())}
    with_epochs = [one for one in active if draw(st.booleans())]
    return sr.StreamsGroupCurrentMemberAssignmentValue(
        draw(int32),
        draw(int32),
        draw(st.sampled_from([1, 2, 3, 127])),
        t.Tasks({one: n for one, n in active.items() if one not in pending}, draw(tasks), draw(tasks)),
        t.Tasks(pending, draw(tasks), draw(tasks)),
        {one: {number: draw(int32) for number in active[one]} for one in with_epochs},
    )


def some(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(strategy, max_size=2).map(tuple)


tags = st.dictionaries(short, short, max_size=2).map(lambda found: dict(sorted(found.items())))
endpoints = st.builds(t.Endpoint, short, st.integers(0, 2**16 - 1))
internal = st.builds(t.TopicInfo, short, int32, int16, some(st.tuples(short, short)))
together = st.builds(t.CopartitionGroup, some(int16), some(int16), some(int16))
subtopologies = st.builds(
    t.Subtopology,
    short,
    some(short),
    some(short),
    some(internal),
    some(short),
    some(internal),
    some(together),
)
PAIRS += [
    (
        st.builds(sr.StreamsGroupMetadataKey, short),
        st.builds(sr.StreamsGroupMetadataValue, int32, int64, int32, tags),
    ),
    (
        st.builds(sr.StreamsGroupMemberMetadataKey, short, short),
        st.builds(
            sr.StreamsGroupMemberMetadataValue,
            *[maybe, maybe, short, short, int32, int32, short, st.none() | endpoints, tags],
        ),
    ),
    (
        st.builds(sr.StreamsGroupTargetAssignmentMetadataKey, short),
        st.builds(sr.StreamsGroupTargetAssignmentMetadataValue, int32, int64),
    ),
    (
        st.builds(sr.StreamsGroupTargetAssignmentMemberKey, short, short),
        st.builds(sr.StreamsGroupTargetAssignmentMemberValue, all_tasks),
    ),
    (st.builds(sr.StreamsGroupCurrentMemberAssignmentKey, short, short), current_tasks()),
    (
        st.builds(sr.StreamsGroupTopologyKey, short),
        st.builds(sr.StreamsGroupTopologyValue, int32, some(subtopologies)),
    ),
]
