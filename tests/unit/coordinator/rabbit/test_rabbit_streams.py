"""Streams and super streams, frame by frame: made, told of, deleted, and how much they keep."""

from __future__ import annotations

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_codec.entries import publish
from tests.unit.coordinator.rabbit.rabbit_frames import at, entries

OK = ResponseCode.OK


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


def test_a_partition_is_added_behind_the_others(rig):
    rig.super_stream("x", 3)
    client, catalogue = rig.client(), rig.cluster.virtual_hosts["/"]
    assert client.code(frames.Delete, "x-1") is OK
    assert catalogue.add_partition("x", "3", {}) == "x-3"
    assert client.ask(frames.Partitions, "x").streams == ("x-0", "x-2", "x-3")
    assert client.ask(frames.Route, "3", "x").streams == ("x-3",)
    assert [catalogue.partition_index("x", f"x-{n}") for n in range(4)] == [0, -1, 2, 3]
    assert client.code(frames.Delete, "x-3") is OK
    assert catalogue.next_index("x") == 3
    assert client.code(frames.DeleteSuperStream, "x") is OK
    assert catalogue.streams == {}


def test_a_super_stream_that_has_lost_all_partitions_begins_anew(rig):
    rig.super_stream("x", 1)
    assert rig.client().code(frames.Delete, "x-0") is OK
    catalogue = rig.cluster.virtual_hosts["/"]
    assert catalogue.add_partition("x", "0", {}) == "x-0"
    assert catalogue.partition_index("x", "x-0") == 0


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
