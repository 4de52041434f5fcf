"""Publishers, frame by frame: what is kept and confirmed, and what is refused."""

from __future__ import annotations

import tracemalloc

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.base import ChunkEntry
from fencepost.coordinator.rabbit_codec.codes import ResponseCode
from fencepost.coordinator.rabbit_codec.entries import batch, publish
from fencepost.coordinator.rabbit_server.stream import Stream
from tests.unit.coordinator.rabbit.rabbit_frames import LAST, entries

OK = ResponseCode.OK


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
    client.send(publish(0, [ChunkEntry(7, batch([b"a", b"b", b"c"]), 3)]))
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
    client.send(publish(0, [*entries(1), ChunkEntry(2, broken), *entries(3)]))
    refused = ResponseCode.PRECONDITION_FAILED
    assert client.take(frames.PublishError).errors == {2: refused, 3: refused}
    assert client.take(frames.PublishConfirm).publishing_ids == (1,)
    client.send(publish(0, [ChunkEntry(2, broken)]))
    assert client.take(frames.PublishError).errors == {2: refused}
    assert client.got == []


@pytest.mark.parametrize(
    ("published", "sizes"),
    [
        ([32], [32]),
        ([33], [32, 1]),
        ([100], [32, 64, 4]),
        ([1000], [32, 64, 128, 256, 512, 8]),
        ([1000, 1000], [32, 64, 128, 256, 512, 8, 512, 488]),
        ([10_000], [32, 64, 128, 256, 512, 1024, 2048, 4096, 1840]),
        ([30_000], [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 8192, 5456]),
        ([33, 1, 1, 64], [32, 1, 1, 1, 32, 32]),
    ],
)
def test_a_frame_becomes_chunks_of_rabbitmqs_sizes(rig, published, sizes):
    # As RabbitMQ 4.3 made them.
    rig.streams("s")
    client = rig.client()
    for count in published:
        client.publish("s", *[b""] * count)
    client.subscribe("s", credit=20)
    assert [chunk.records for chunk in client.chunks()] == sizes


def test_last_is_the_start_of_the_last_chunk(rig):
    rig.streams("s")
    client = rig.client()
    client.publish("s", *[b""] * 100)
    assert client.ask(frames.ResolveOffsetSpec, "s", LAST).offset == 96


def test_duplicates_count_for_the_sizes_of_chunks(rig):
    rig.streams("s")
    client = rig.client()
    client.code(frames.DeclarePublisher, 7, "p", "s")
    client.send(publish(7, entries(*range(40))))
    client.send(publish(7, entries(*range(50))))
    client.subscribe("s")
    assert [chunk.records for chunk in client.chunks()] == [32, 8, 10]


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
