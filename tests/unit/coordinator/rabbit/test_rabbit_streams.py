"""Streams and super streams, publishers, and plain consumers, frame by frame."""

from __future__ import annotations

import tracemalloc

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import CommandVersion, Entry
from fencepost.coordinator.rabbit_codec.codes import Key, OffsetType, ResponseCode
from fencepost.coordinator.rabbit_codec.entries import batch, message, publish
from fencepost.coordinator.rabbit_codec.fields import FIRST, NEXT, OffsetSpecification
from fencepost.coordinator.rabbit_server.stream import Stream

OK = ResponseCode.OK
LAST = OffsetSpecification(OffsetType.LAST)


def at(offset: int) -> OffsetSpecification:
    return OffsetSpecification(OffsetType.OFFSET, offset)


def since(time_ms: int) -> OffsetSpecification:
    return OffsetSpecification(OffsetType.TIMESTAMP, time_ms)


def entries(*ids: int) -> list[Entry]:
    return [Entry(number, message(b"%d" % number)) for number in ids]


# -- streams --------------------------------------------------------------------------------------------


def test_a_stream_is_created_once_and_deleted_once(rig):
    client = rig.client()
    assert client.code(frames.Create, "s") is OK
    assert client.code(frames.Create, "s") is ResponseCode.STREAM_ALREADY_EXISTS
    assert client.code(frames.Create, "s", {"max-age": "1D"}) is ResponseCode.PRECONDITION_FAILED
    assert client.code(frames.Delete, "s") is OK
    assert client.code(frames.Delete, "s") is ResponseCode.STREAM_DOES_NOT_EXIST


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("", {}),
        ("\n", {}),
        ("amq.s", {}),
        ("x" * 256, {}),
        ("s", {"max-length-bytes": "many"}),
        ("s", {"max-length-bytes": "-1"}),
        ("s", {"initial-cluster-size": "0"}),
        ("s", {"stream-filter-size-bytes": "256"}),
        ("s", {"queue-leader-locator": "anywhere"}),
        ("s", {"max-age": "1 day"}),
        ("s", {"stream-max-segment-size-bytes": "3000000001"}),
    ],
)
def test_what_rabbitmq_would_refuse_is_refused(rig, name, arguments):
    client = rig.client()
    assert client.code(frames.Create, name, arguments) is ResponseCode.PRECONDITION_FAILED


def test_unknown_arguments_are_passed_over(rig):
    client, there = rig.client(), ResponseCode.STREAM_ALREADY_EXISTS
    assert client.code(frames.Create, "s", {"whatever": "1", "max-age": "7D"}) is OK
    assert client.code(frames.Create, "s", {"whatever": "2", "max-age": "7D"}) is there
    assert client.code(frames.Create, "s", {"whatever": "1"}) is ResponseCode.PRECONDITION_FAILED


def test_a_super_stream_has_partitions_in_their_order_and_routes(rig):
    client = rig.client()
    names, keys = ("x-eu", "x-us", "x-asia"), ("eu", "us", "asia")
    assert client.code(frames.CreateSuperStream, "x", names, keys) is OK
    assert client.ask(frames.Partitions, "x").streams == names
    assert client.ask(frames.Route, "us", "x").streams == ("x-us",)
    assert client.ask(frames.Route, "moon", "x").streams == ()
    assert client.code(frames.Route, "us", "y") is ResponseCode.STREAM_DOES_NOT_EXIST
    assert client.code(frames.Partitions, "y") is ResponseCode.STREAM_DOES_NOT_EXIST
    assert client.code(frames.DeleteSuperStream, "x") is OK
    assert client.code(frames.Delete, "x-eu") is ResponseCode.STREAM_DOES_NOT_EXIST
    assert client.code(frames.DeleteSuperStream, "x") is ResponseCode.STREAM_DOES_NOT_EXIST


def test_a_partition_has_an_argument_of_its_own(rig):
    client = rig.client()
    assert client.code(frames.CreateSuperStream, "x", ("x-0",), ("0",)) is OK
    assert client.code(frames.Create, "x-0") is ResponseCode.PRECONDITION_FAILED
    balanced = {"queue-leader-locator": "balanced"}
    assert client.code(frames.Create, "x-0", balanced) is ResponseCode.STREAM_ALREADY_EXISTS
    others = {"queue-leader-locator": "client-local"}
    assert client.code(frames.CreateSuperStream, "y", ("y-0",), ("0",), others) is OK
    assert client.code(frames.Create, "y-0", others) is ResponseCode.STREAM_ALREADY_EXISTS


def test_a_partition_keeps_its_index_when_another_is_deleted(rig):
    rig.super_stream("x", 3)
    catalogue = rig.cluster.virtual_hosts["/"]
    assert rig.client().code(frames.Delete, "x-1") is OK
    assert catalogue.partitions("x") == ["x-0", "x-2"]
    assert [catalogue.partition_index("x", f"x-{n}") for n in range(3)] == [0, -1, 2]
    assert catalogue.partition_index("y", "x-0") == -1


@pytest.mark.parametrize(
    ("name", "partitions", "keys", "code"),
    [
        ("x", ("a", "b"), ("0",), ResponseCode.PRECONDITION_FAILED),
        ("x", ("a", "a"), ("0", "1"), ResponseCode.PRECONDITION_FAILED),
        ("x", ("a", ""), ("0", "1"), ResponseCode.PRECONDITION_FAILED),
        ("", ("a",), ("0",), ResponseCode.PRECONDITION_FAILED),
        ("x", ("a", "taken"), ("0", "1"), ResponseCode.STREAM_ALREADY_EXISTS),
        ("there", ("a",), ("0",), ResponseCode.STREAM_ALREADY_EXISTS),
    ],
)
def test_a_super_stream_that_can_not_be_leaves_nothing_behind(rig, name, partitions, keys, code):
    rig.streams("taken")
    rig.super_stream("there", 1)
    before = set(rig.cluster.virtual_hosts["/"].streams)
    assert rig.client().code(frames.CreateSuperStream, name, partitions, keys) is code
    assert set(rig.cluster.virtual_hosts["/"].streams) == before


def test_metadata_tells_where_streams_are(rig):
    rig.streams("s")
    answer = rig.client().ask(frames.Metadata, ("s", "none"))
    assert answer.brokers == ((0, "127.0.0.1", 5552),)
    assert answer.streams == (("s", 1, 0, ()), ("none", 2, 65535, ()))
    assert rig.client().ask(frames.Metadata, ("none", "s", "none", "s")).streams == answer.streams[::-1]


def test_what_is_stored_has_an_offset_to_resolve_to(rig):
    rig.streams("s")
    client = rig.client()
    for what in ("store", "publish", "store", "store"):
        if what == "store":
            client.send(frames.StoreOffset("x", "s", 3))
        else:
            client.publish("s", b"1", b"2")
    asked = (FIRST, LAST, NEXT, at(0), at(1), at(2), at(3), at(4), at(5), at(6))
    found = [client.ask(frames.ResolveOffsetSpec, "s", each).offset for each in asked]
    assert found == [0, 1, 5, 0, 1, 1, 3, 4, 5, 5]


def test_metadata_tells_of_nodes_only_where_a_stream_is(rig):
    answer = rig.client().ask(frames.Metadata, ("none",))
    assert answer.brokers == ()
    assert answer.streams == (("none", 2, 65535, ()),)


def test_stats_tell_of_chunks(rig):
    rig.streams("s")
    client = rig.client()
    assert set(client.ask(frames.StreamStats, "s").stats.values()) == {-1}
    client.publish("s", b"a", b"b")
    client.publish("s", b"c")
    assert client.ask(frames.StreamStats, "s").stats == {
        "first_chunk_id": 0,
        "last_chunk_id": 2,
        "committed_chunk_id": 2,
        "committed_offset": 2,
    }


def test_who_uses_a_stream_hears_when_it_is_deleted(rig):
    rig.streams("s", "t")
    publisher, reader, other, admin = (rig.client() for _ in range(4))
    publisher.publish("s", b"a")
    reader.subscribe("s")
    reader.subscribe("t", 1)
    other.subscribe("t")
    reader.chunks()
    assert admin.code(frames.Delete, "s") is OK
    gone = frames.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, "s")
    assert (publisher.got, reader.got, other.got, admin.got) == ([gone], [gone], [], [])
    publisher.got.clear()
    publisher.send(publish(0, entries(1)))
    assert publisher.take(frames.PublishError).errors == {1: ResponseCode.PUBLISHER_DOES_NOT_EXIST}
    reader.got.clear()
    other.publish("t", b"still")
    assert reader.messages() == [b"still"]


def test_who_asked_a_stream_s_leader_hears_too_when_it_is_deleted(rig):
    """Until the last word was of another kind: to unsubscribe, or to delete a publisher."""
    rig.streams("s")
    stored, queried, told, ended, admin = (rig.client() for _ in range(5))
    stored.send(frames.StoreOffset("app", "s", 7))
    assert queried.code(frames.QueryOffset, "other", "s") is ResponseCode.NO_OFFSET
    told.ask(frames.QueryPublisherSequence, "r", "s")
    told.ask(frames.StreamStats, "s")
    ended.send(frames.StoreOffset("app", "s", 8))
    ended.subscribe("s")
    assert ended.code(frames.Unsubscribe, 0) is OK
    assert admin.code(frames.DeclarePublisher, 0, "", "s") is OK
    assert admin.code(frames.DeletePublisher, 0) is OK
    assert admin.code(frames.Delete, "s") is OK
    gone = [frames.MetadataUpdate(ResponseCode.STREAM_NOT_AVAILABLE, "s")]
    assert [each.got for each in (stored, queried, told, ended, admin)] == [gone, gone, [], [], []]
    rig.streams("s")
    assert admin.code(frames.Delete, "s") is OK
    assert stored.got == gone


# -- publishers -----------------------------------------------------------------------------------------


def test_a_publisher_is_declared_once(rig):
    rig.streams("s")
    client = rig.client()
    assert client.code(frames.DeclarePublisher, 0, "", "none") is ResponseCode.STREAM_DOES_NOT_EXIST
    assert client.code(frames.DeclarePublisher, 0, "ref", "s") is OK
    assert client.code(frames.DeclarePublisher, 0, "", "s") is ResponseCode.PRECONDITION_FAILED
    assert client.code(frames.DeclarePublisher, 0, "", "none") is ResponseCode.PRECONDITION_FAILED
    assert client.code(frames.DeclarePublisher, 1, "ref", "s") is ResponseCode.PRECONDITION_FAILED
    assert client.code(frames.DeclarePublisher, 2, "x" * 256, "s") is ResponseCode.PRECONDITION_FAILED
    assert client.code(frames.DeclarePublisher, 3, "", "s") is OK
    assert client.code(frames.DeletePublisher, 0) is OK
    assert client.code(frames.DeletePublisher, 0) is ResponseCode.PUBLISHER_DOES_NOT_EXIST
    assert client.code(frames.DeclarePublisher, 1, "ref", "s") is OK


def test_duplicates_are_confirmed_and_not_kept(rig):
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "ref", "s")
    client.send(publish(0, entries(1, 2, 3)))
    client.send(publish(0, entries(2, 3, 4)))
    assert [frame.publishing_ids for frame in client.got] == [(1, 2, 3), (2, 3, 4)]
    client.got.clear()
    assert client.ask(frames.QueryPublisherSequence, "ref", "s").sequence == 4
    assert client.ask(frames.QueryPublisherSequence, "other", "s").sequence == 0
    assert client.code(frames.QueryPublisherSequence, "ref", "t") is ResponseCode.STREAM_DOES_NOT_EXIST
    client.subscribe("s")
    assert client.messages() == [b"1", b"2", b"3", b"4"]


def test_a_frame_of_nothing_but_duplicates_is_confirmed_and_makes_no_chunk(rig):
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "ref", "s")
    client.send(publish(0, entries(1)))
    client.send(publish(0, entries(1)))
    assert len(client.got) == 2
    assert len(rig.cluster.virtual_hosts["/"].stream("s").chunks) == 1


def test_without_a_reference_nothing_is_a_duplicate(rig):
    rig.streams("s")
    client = rig.client()
    client.publish("s", b"a")
    client.publish("s", b"a")
    client.subscribe("s")
    assert client.messages() == [b"a", b"a"]


def test_batches_count_as_many_messages_under_one_publishing_id(rig):
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "", "s")
    client.send(publish(0, [Entry(7, batch([b"a", b"b", b"c"]), 3)]))
    assert client.take(frames.PublishConfirm).publishing_ids == (7,)
    client.publish("s", b"d")
    client.subscribe("s")
    chunks = client.chunks()
    assert [(chunk.first_offset, chunk.entries, chunk.records) for chunk in chunks] == [(0, 1, 3), (3, 1, 1)]


@pytest.mark.parametrize(
    "broken", [b"\xd0\0\1\0\0\0\4\0\0\0\1x", b"\x80\0\0\0\0\0\4\0\0\0\1x", b"\x90\0\1\0\0\0\4\0\0\0\0"]
)
def test_a_batch_that_nobody_could_read_is_refused_with_all_behind_it(rig, broken):
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "", "s")
    client.send(publish(0, [*entries(1), Entry(2, broken), *entries(3)]))
    refused = ResponseCode.PRECONDITION_FAILED
    assert client.take(frames.PublishError).errors == {2: refused, 3: refused}
    assert client.take(frames.PublishConfirm).publishing_ids == (1,)
    client.send(publish(0, [Entry(2, broken)]))
    assert client.take(frames.PublishError).errors == {2: refused}
    assert client.got == []


def test_more_messages_than_a_chunk_holds_become_several(rig):
    rig.streams("s")
    client = rig.client()
    client.publish("s", *[b""] * 70_000)
    client.subscribe("s")
    assert [chunk.records for chunk in client.chunks()] == [65_535, 4_465]


def test_a_chunk_costs_the_same_however_many_there_are():
    stream = Stream("s", {})

    def bytes_used() -> int:
        tracemalloc.start()
        stream.append(entries(1), "", 0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    for _ in range(10_000):
        stream.append(entries(1), "", 0)
    assert min(bytes_used() for _ in range(3)) < 8 * 10_000  # now and then the list of chunks grows


# -- consumers ------------------------------------------------------------------------------------------


@pytest.fixture
def filled(rig):
    """A stream of three chunks of two messages each, a second apart."""
    rig.streams("s")
    client = rig.client()
    for first in (0, 2, 4):
        client.publish("s", b"%d" % first, b"%d" % (first + 1))
        rig.now_ms += 1000
    return rig


@pytest.mark.parametrize(
    ("where", "firsts"),
    [
        (FIRST, [0, 2, 4]),
        (LAST, [4]),
        (NEXT, []),
        (at(0), [0, 2, 4]),
        (at(3), [2, 4]),
        (at(5), [4]),
        (at(6), []),
        (at(2**63), []),
        (since(0), [0, 2, 4]),
        (since(1_001_000), [2, 4]),
        (since(1_001_001), [4]),
        (since(2**60), []),
    ],
)
def test_a_subscription_starts_with_the_chunk_that_is_asked_for(filled, where, firsts):
    client = filled.client()
    assert client.subscribe("s", offset=where) is OK
    assert [chunk.first_offset for chunk in client.chunks()] == firsts
    client.publish("s", b"new")
    assert client.messages() == [b"new"]
    assert client.ask(frames.ResolveOffsetSpec, "s", where).offset >= 0


def test_a_specification_is_resolved_to_the_begin_of_its_chunk(filled):
    client = filled.client()
    asked = (FIRST, LAST, NEXT, at(3), at(4), at(6), at(9))
    found = [client.ask(frames.ResolveOffsetSpec, "s", each).offset for each in asked]
    assert found == [0, 4, 6, 2, 4, 6, 6]


def test_an_empty_stream_starts_anywhere(rig):
    rig.streams("s")
    for where in (FIRST, LAST, NEXT, at(5), since(0)):
        client = rig.client()
        assert client.subscribe("s", offset=where) is OK
        assert client.chunks() == []


def test_a_credit_is_a_chunk(filled):
    client = filled.client()
    client.subscribe("s", credit=1)
    assert client.messages() == [b"0", b"1"]
    client.send(frames.Credit(0, 2))
    assert client.messages() == [b"2", b"3", b"4", b"5"]
    client.publish("s", b"6")
    assert client.messages() == []
    client.send(frames.Credit(0, 1))
    assert client.messages() == [b"6"]


def test_sending_starts_with_more_than_half_of_the_first_credit_and_goes_on_to_the_last(filled):
    """RabbitMQ's send_limit: who gives back too few credits is sent nothing."""
    client = filled.client()
    client.subscribe("s", credit=2)
    assert client.messages() == [b"0", b"1", b"2", b"3"]
    client.send(frames.Credit(0, 1))
    assert client.messages() == []
    client.send(frames.Credit(0, 1))
    assert client.messages() == [b"4", b"5"]
    client.publish("s", b"6")
    assert client.messages() == []
    client.send(frames.Credit(0, 1))
    assert client.messages() == [b"6"]


def test_sending_that_a_full_socket_held_up_goes_on_with_what_credit_is_left(filled, monkeypatch):
    client = filled.client()
    write = client.write

    def fill(data: bytes) -> None:
        write(data)
        client.is_writable = not isinstance(client.got[-1], frames.Deliver)

    monkeypatch.setattr(client, "write", fill)
    client.subscribe("s", credit=2)
    assert client.messages() == [b"0", b"1"]
    client.is_writable = True
    client.session.pump()
    assert client.messages() == [b"2", b"3"]
    client.is_writable = True
    client.session.pump()
    assert client.messages() == []


def test_credit_for_nobody_is_answered(filled):
    client = filled.client()
    client.send(frames.Credit(9, 1))
    assert client.take(frames.CreditResponse) == frames.CreditResponse(
        ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST, 9
    )


def test_a_client_that_does_not_read_is_sent_no_chunks(filled):
    client = filled.client()
    client.is_writable = False
    client.subscribe("s")
    assert client.chunks() == []
    client.is_writable = True
    client.session.pump()
    assert len(client.chunks()) == 3


def test_subscriptions_have_numbers_of_their_own(filled):
    client = filled.client()
    assert client.subscribe("s", 0) is OK
    assert client.subscribe("s", 0) is ResponseCode.SUBSCRIPTION_ID_ALREADY_EXISTS
    assert client.subscribe("none", 1) is ResponseCode.STREAM_DOES_NOT_EXIST
    assert client.code(frames.Unsubscribe, 0) is OK
    assert client.code(frames.Unsubscribe, 0) is ResponseCode.SUBSCRIPTION_ID_DOES_NOT_EXIST
    client.chunks()
    client.publish("s", b"x")
    assert client.chunks() == []


def test_a_lost_connection_is_sent_nothing(filled):
    client, other = filled.client(), filled.client()
    client.subscribe("s")
    client.chunks()
    client.lose()
    other.publish("s", b"x")
    assert client.got == []
    assert not filled.cluster.virtual_hosts["/"].stream("s").readers


def test_version_2_of_deliver_tells_the_newest_chunk(filled):
    client = filled.client()
    client.ask(frames.ExchangeCommandVersions, (CommandVersion(Key.DELIVER, 1, 2),))
    client.subscribe("s", credit=1)
    assert client.take(frames.DeliverCommitted).committed_chunk_id == 4


def test_offsets_are_stored_by_name(rig):
    rig.streams("s")
    client = rig.client()
    assert client.code(frames.QueryOffset, "app", "s") is ResponseCode.NO_OFFSET
    client.send(frames.StoreOffset("app", "s", 7))
    client.send(frames.StoreOffset("x" * 256, "s", 7))
    client.send(frames.StoreOffset("app", "none", 7))
    assert client.ask(frames.QueryOffset, "app", "s").offset == 7
    assert client.code(frames.QueryOffset, "app", "none") is ResponseCode.STREAM_DOES_NOT_EXIST
    assert rig.cluster.virtual_hosts["/"].stream("s").offsets == {"app": 7}


def test_what_is_stored_takes_an_offset_in_the_log(rig):
    rig.streams("s")
    client = rig.client()
    client.send(frames.StoreOffset("app", "s", 0))
    assert client.ask(frames.StreamStats, "s").stats == {
        "first_chunk_id": 0,
        "last_chunk_id": 0,
        "committed_chunk_id": 0,
        "committed_offset": 0,
    }
    client.publish("s", b"a", b"b")
    for _ in range(2):
        client.send(frames.StoreOffset("app", "s", 1))
    stats = client.ask(frames.StreamStats, "s").stats
    assert (stats["first_chunk_id"], stats["last_chunk_id"], stats["committed_offset"]) == (0, 4, 4)
    client.publish("s", b"c")
    client.send(frames.StoreOffset("app", "s", 5))
    firsts = {
        FIRST: [1, 5],
        LAST: [5],
        NEXT: [],
        at(0): [1, 5],
        at(2): [1, 5],
        at(3): [5],
        at(6): [],
        at(9): [],
    }
    for number, (where, expected) in enumerate(firsts.items()):
        client.subscribe("s", number, where)
        assert [chunk.first_offset for chunk in client.chunks()] == expected, where
    client.publish("s", b"d")
    assert [chunk.first_offset for chunk in client.chunks()] == [7] * len(firsts)


def test_filters_take_the_chunks_that_hold_a_value(rig):
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "", "s")
    for number, colour in enumerate(("red", "blue", None)):
        client.send(publish(0, [Entry(number, message(b"%d" % number), 1, colour)]))
    client.got.clear()
    for subscription_id, (properties, expected) in enumerate(
        [
            ({"filter.0": "red"}, [b"0"]),
            ({"filter.0": "red", "filter.1": "blue"}, [b"0", b"1"]),
            ({"filter.0": "red", "match-unfiltered": "true"}, [b"0", b"2"]),
            ({"match-unfiltered": "true"}, [b"0", b"1", b"2"]),
        ]
    ):
        client.subscribe("s", subscription_id, **properties)
        assert client.messages() == expected


def test_an_empty_filter_value_is_none(rig):
    """As in osiris_bloom: both are the bit that stands for messages without a value."""
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 0, "", "s")
    for number, colour in enumerate(("red", "", None)):
        client.send(publish(0, [Entry(number, message(b"%d" % number), 1, colour)]))
    client.got.clear()
    client.subscribe("s", 0, **{"filter.0": "red", "match-unfiltered": "true"})
    assert client.messages() == [b"0", b"1", b"2"]
    client.subscribe("s", 1, **{"filter.0": ""})
    assert client.messages() == [b"1", b"2"]


# -- retention ------------------------------------------------------------------------------------------


def test_a_full_stream_forgets_its_oldest_chunks_and_readers_go_on(rig):
    client = rig.client()
    client.code(frames.Create, "s", {"max-length-bytes": "1000"})
    client.subscribe("s", credit=1)
    for _ in range(20):
        client.publish("s", bytes(100))
    stream = rig.cluster.virtual_hosts["/"].stream("s")
    assert sum(len(chunk.data) for chunk in stream.chunks) <= 1000
    first = stream.chunks[0].first_offset
    assert first == 20 - len(stream.chunks)
    assert [chunk.first_offset for chunk in client.chunks()] == [0]
    client.send(frames.Credit(0, 1))
    assert [chunk.first_offset for chunk in client.chunks()] == [first]
    client.subscribe("s", 1, offset=at(3))
    assert client.chunks()[0].first_offset == first


def test_old_chunks_go_but_never_the_newest(rig):
    client = rig.client()
    client.code(frames.Create, "s", {"max-age": "10s"})
    client.publish("s", b"old")
    rig.now_ms += 10_001
    client.publish("s", b"new")
    rig.now_ms += 60_000
    client.subscribe("s")
    assert client.messages() == [b"new"]
