"""Frames to bytes and back, and the same bytes as rstream's codec."""

from __future__ import annotations

import struct
import sys
import zlib

import cramjam
import pytest
import rstream.encoding
import rstream.schema
from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.codec.framing import FrameTooLarge, MalformedFrame
from fencepost.coordinator.rabbit_codec import base, frames
from fencepost.coordinator.rabbit_codec.chunks import read_chunk, write_chunk
from fencepost.coordinator.rabbit_codec.codec import UnknownFrame, decode, encode, frame_buffer
from fencepost.coordinator.rabbit_codec.codes import OffsetType
from fencepost.coordinator.rabbit_codec.compression import COMPRESSIONS, InvalidBatch
from fencepost.coordinator.rabbit_codec.entries import batch, entries_of, message, messages_of, publish
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification

PROPERTIES = {"a": "1", "b": ""}
SPECIFICATION = WireOffsetSpecification(OffsetType.OFFSET, 2**63)

SAMPLES = [
    frames.DeclarePublisher(1, 2, "reference", "stream"),
    frames.DeclarePublisherResponse(2**32 - 1, 17),
    frames.PublishConfirm(3, (1, 2**64 - 1)),
    frames.PublishError(3, {1: 18, 2: 17}),
    frames.QueryPublisherSequence(1, "reference", "stream"),
    frames.QueryPublisherSequenceResponse(1, 1, 9),
    frames.DeletePublisher(1, 2),
    frames.Subscribe(1, 2, "stream", SPECIFICATION, 10, PROPERTIES),
    frames.Subscribe(1, 2, "stream", WireOffsetSpecification(OffsetType.TIMESTAMP, -5), 10),
    frames.Subscribe(1, 2, "stream", WireOffsetSpecification(OffsetType.LAST), 10),
    frames.Deliver(1, b"chunk"),
    frames.DeliverCommitted(1, 7, b"chunk"),
    frames.Credit(1, -2),
    frames.CreditResponse(17, 1),
    frames.StoreOffset("reference", "stream", 2**64 - 1),
    frames.QueryOffset(1, "reference", "stream"),
    frames.QueryOffsetResponse(1, 19, 0),
    frames.Unsubscribe(1, 2),
    frames.Create(1, "stream", PROPERTIES),
    frames.Delete(1, "stream"),
    frames.Metadata(1, ("a", "b")),
    frames.MetadataResponse(
        1,
        (base.BrokerAddress(0, "127.0.0.1", 5552),),
        (base.StreamPlace("a", 1, 0, (1, 2)), base.StreamPlace("b", 2, 65535)),
    ),
    frames.MetadataUpdate(6, "stream"),
    frames.PeerProperties(1, PROPERTIES),
    frames.PeerPropertiesResponse(1, 1, PROPERTIES),
    frames.SaslHandshake(1),
    frames.SaslHandshakeResponse(1, 1, ("PLAIN", "AMQPLAIN")),
    frames.SaslAuthenticate(1, "PLAIN", b"\0guest\0guest"),
    frames.SaslAuthenticateResponse(1, 10, b"challenge"),
    frames.SaslAuthenticateResponse(1, 1),
    frames.Tune(1_048_576, 60),
    frames.TuneResponse(0, 0),
    frames.Open(1, "/"),
    frames.OpenResponse(1, 1, PROPERTIES),
    frames.OpenResponse(1, 12),
    frames.Close(1, 1, "OK"),
    frames.CloseResponse(1, 1),
    frames.Heartbeat(),
    frames.Route(1, "key", "super"),
    frames.RouteResponse(1, 1, ("a",)),
    frames.Partitions(1, "super"),
    frames.PartitionsResponse(1, 2),
    frames.ConsumerUpdate(1, 2, 1),
    frames.ConsumerUpdateResponse(1, 1, SPECIFICATION),
    frames.ConsumerUpdateResponse(1),
    frames.ExchangeCommandVersions(1, (base.CommandVersion(2, 1, 2),)),
    frames.ExchangeCommandVersionsResponse(1, 1, (base.CommandVersion(2, 1, 2),)),
    frames.StreamStats(1, "stream"),
    frames.StreamStatsResponse(1, 1, {"first_chunk_id": -1}),
    frames.CreateSuperStream(1, "super", ("a", "b"), ("0", "1"), PROPERTIES),
    frames.DeleteSuperStream(1, "super"),
    frames.ResolveOffsetSpec(1, "stream", SPECIFICATION),
    frames.ResolveOffsetSpecResponse(1, 1, 4, 9),
    publish(1, [base.ChunkEntry(1, message(b"one")), base.ChunkEntry(2, message(b""))]),
    publish(1, [base.ChunkEntry(1, message(b"one"), 1, "red"), base.ChunkEntry(2, message(b""))]),
]
OPEN_ENDED = (frames.Deliver, frames.DeliverCommitted, frames.Publish, frames.ConsumerUpdateResponse)


def kind(frame: base.Frame) -> str:
    return type(frame).__name__


@pytest.mark.parametrize("frame", SAMPLES, ids=kind)
def test_a_frame_comes_back_as_it_was(frame: base.Frame) -> None:
    data = encode(frame)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert decode(data[4:]) == frame


@pytest.mark.parametrize("frame", SAMPLES, ids=kind)
def test_a_frame_that_is_cut_short_is_malformed(frame: base.Frame) -> None:
    data = encode(frame)[4:]
    may_end = {len(encode(each)) - 4 for each in SAMPLES if type(each) is type(frame)}
    for length in range(len(data)):
        try:
            decode(data[:length])
        except MalformedFrame:
            continue
        assert isinstance(frame, OPEN_ENDED) or length in may_end or hasattr(frame, "properties")


@pytest.mark.parametrize("frame", [each for each in SAMPLES if not isinstance(each, OPEN_ENDED)], ids=kind)
def test_a_frame_that_is_too_long_is_malformed(frame: base.Frame) -> None:
    with pytest.raises(MalformedFrame):
        decode(encode(frame)[4:] + b"\0")


NAMES = {  # rstream's, where it has another one
    "ConsumerUpdate": "ConsumerUpdateResponse",
    "ConsumerUpdateResponse": "ConsumerUpdateServerResponse",
    "ExchangeCommandVersions": "ExchangeCommandVersionRequest",
}


@pytest.mark.parametrize(
    "frame",
    [
        frames.DeclarePublisherResponse(1, 17),
        frames.PublishConfirm(3, (1, 2)),
        frames.PublishError(3, {1: 18, 2: 17}),
        frames.QueryPublisherSequenceResponse(1, 1, 9),
        frames.SubscribeResponse(1, 3),
        frames.QueryOffsetResponse(1, 19, 0),
        frames.MetadataResponse(
            1, (base.BrokerAddress(0, "here", 5552),), (base.StreamPlace("a", 1, 0, (1, 2)),)
        ),
        frames.MetadataUpdate(6, "stream"),
        frames.PeerPropertiesResponse(1, 1, PROPERTIES),
        frames.SaslHandshakeResponse(1, 1, ("PLAIN",)),
        frames.SaslAuthenticateResponse(1, 8),
        frames.Tune(1_048_576, 60),
        frames.OpenResponse(1, 1, PROPERTIES),
        frames.Close(1, 13, "unknown frame"),
        frames.RouteResponse(1, 1, ("a",)),
        frames.PartitionsResponse(1, 1, ("a", "b")),
        frames.ConsumerUpdate(1, 2, 1),
        frames.ExchangeCommandVersionsResponse(1, 1, (base.CommandVersion(2, 1, 2),)),
        frames.CreditResponse(17, 1),
        frames.Heartbeat(),
    ],
    ids=kind,
)
def test_rstream_reads_what_the_server_writes_and_writes_the_same(frame: base.Frame) -> None:
    data = encode(frame)
    read = rstream.encoding.decode_frame(data[4:])
    if not frame.is_response:
        assert rstream.encoding.encode_frame(read) == data


def test_what_rstream_writes_is_read() -> None:
    schema = rstream.schema
    written = [
        (schema.DeclarePublisher(1, 2, "r", "s"), frames.DeclarePublisher(1, 2, "r", "s")),
        (schema.Credit(1, 5), frames.Credit(1, 5)),
        (schema.StoreOffset("r", "s", 5), frames.StoreOffset("r", "s", 5)),
        (schema.SaslAuthenticate(1, "PLAIN", b"x"), frames.SaslAuthenticate(1, "PLAIN", b"x")),
        (
            schema.Subscribe(1, 2, "s", schema.OffsetSpecOffset(4, 9), 10, [schema.Property("name", "app")]),
            frames.Subscribe(1, 2, "s", WireOffsetSpecification(OffsetType.OFFSET, 9), 10, {"name": "app"}),
        ),
        (
            schema.CreateSuperStream(1, "x", ["x-0"], ["0"], []),
            frames.CreateSuperStream(1, "x", ("x-0",), ("0",), {}),
        ),
    ]
    for theirs, ours in written:
        assert decode(rstream.encoding.encode_frame(theirs)[4:]) == ours


def test_a_consumer_update_may_be_answered_with_a_value_that_means_nothing() -> None:
    theirs = rstream.schema.ConsumerUpdateServerResponse(5, 1, rstream.schema.OffsetSpecification(3, 0))
    data = bytearray(rstream.encoding.encode_frame(theirs))
    assert decode(bytes(data[4:])) == frames.ConsumerUpdateResponse(
        5, 1, WireOffsetSpecification(OffsetType.NEXT)
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "a header has 4"),
        ("001100", "a header has 4"),
        ("00630001", "0x0063 version 1 is not spoken"),
        ("00110002", "0x0011 version 2 is not spoken"),
        ("001100010000000180000000", "items in"),
        ("0011000100000001000000020000", "ends early"),
        ("00150001000000010002ff", "2 bytes at"),
        ("00150001000000010001ff", "not UTF-8"),
        ("0015000100000001fffe", "a string of -2 bytes"),
        ("0013000100000001000141fffffffe", "-2 bytes"),
        ("001f00010000000100017300ff", "an offset of type 255"),
        ("001f0001000000010001730000", "an offset of type 0, expected 1 to 5"),
        ("0007000100000001000001730000000a", "an offset of type 0, expected 1 to 5"),
    ],
)
def test_what_is_wrong_is_said(data: str, why: str) -> None:
    with pytest.raises(MalformedFrame, match=why):
        decode(bytes.fromhex(data))


def test_an_unknown_frame_is_told_from_a_broken_one() -> None:
    with pytest.raises(UnknownFrame):
        decode(bytes.fromhex("00630001"))


@given(st.binary(max_size=60), st.sampled_from(SAMPLES))
def test_any_bytes_are_a_frame_or_malformed(tail: bytes, sample: base.Frame) -> None:
    for data in (tail, encode(sample)[4:8] + tail, encode(sample)[4:12] + tail):
        try:
            frame = decode(data)
            if isinstance(frame, frames.Publish):
                entries_of(frame)
            elif isinstance(frame, frames.Deliver):
                messages_of(read_chunk(frame.chunk).data)
        except (MalformedFrame, InvalidBatch):
            pass


def test_the_limit_of_frames_changes_when_a_connection_opens() -> None:
    buffer = frame_buffer()
    buffer.feed((8193).to_bytes(4, "big"))
    with pytest.raises(FrameTooLarge, match="expected 0 to 8192"):
        buffer.next_frame()
    buffer = frame_buffer()
    buffer.max_bytes = 1 << 20
    buffer.feed((8193).to_bytes(4, "big") + bytes(8193))
    assert buffer.next_frame() == bytes(8193)


def test_a_client_that_speaks_something_else_is_told_so() -> None:
    buffer = frame_buffer()
    buffer.feed(b"GET / HTTP/1.1\r\n")
    with pytest.raises(FrameTooLarge, match=r"speaks HTTP .* this port speaks RabbitMQ streams"):
        buffer.next_frame()


# -- entries and chunks ---------------------------------------------------------------------------------


def test_entries_come_back_as_they_were() -> None:
    entries = [
        base.ChunkEntry(1, message(b"one")),
        base.ChunkEntry(5, batch([b"two", b"three"]), 2),
        base.ChunkEntry(6, message(b"")),
    ]
    assert entries_of(publish(0, entries)) == entries
    filtered = [base.ChunkEntry(1, message(b"one"), 1, "red"), base.ChunkEntry(2, message(b"two"))]
    assert entries_of(publish(0, filtered)) == filtered


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "end early"),
        ("ffffffff", "-1 messages"),
        ("00000001", "end early"),
        ("00000001 0000000000000001 00000002 41", "2 bytes at 12"),
        ("00000001 0000000000000001 00000001 41 00", "1 messages of 17 bytes in 18"),
        ("00000001 0000000000000001 80 0001 00000004 00000004", "4 bytes at 12"),
    ],
)
def test_broken_entries_are_malformed(data: str, why: str) -> None:
    with pytest.raises(MalformedFrame, match=why):
        entries_of(frames.Publish(0, bytes.fromhex(data)))


def test_rstream_reads_a_chunk() -> None:
    entries = [message(b"one"), batch([b"two", b"three"]), message(b"four")]
    chunk = write_chunk(7, 1_700_000_000_000, 1, entries, 4)
    deliver = rstream.encoding.decode_frame(encode(frames.Deliver(9, chunk))[4:])
    assert isinstance(deliver, rstream.schema.Deliver)
    assert (deliver.subscription_id, deliver.chunk_first_offset) == (9, 7)
    assert (deliver.num_entries, deliver.num_records) == (3, 4)
    assert deliver.timestamp == 1_700_000_000_000
    assert deliver.chunk_crc == zlib.crc32(b"".join(entries))
    assert deliver.get_messages() == [b"one", b"two", b"three", b"four"]


def test_a_chunk_comes_back_as_it_was() -> None:
    chunk = read_chunk(write_chunk(7, 5, 2, [message(b"one")], 1))
    assert (chunk.first_offset, chunk.timestamp_ms, chunk.epoch) == (7, 5, 2)
    assert (chunk.entries, chunk.records) == (1, 1)
    assert messages_of(chunk.data) == [b"one"]


def test_a_chunk_whose_header_tells_of_more_than_is_sent_is_read() -> None:
    """RabbitMQ leaves out what a header counts as Bloom filter and trailer (osiris_log:send_file)."""
    data = bytearray(write_chunk(7, 5, 2, [message(b"one")], 1))
    data[43], data[44] = 30, 16
    assert messages_of(read_chunk(bytes(data)).data) == [b"one"]
    assert messages_of(read_chunk(bytes(data) + bytes(30)).data) == [b"one"]


@pytest.mark.parametrize("place", [0, 1, 32, 36, 50])
def test_a_chunk_that_was_changed_is_malformed(place: int) -> None:
    data = bytearray(write_chunk(7, 5, 2, [message(b"one")], 1))
    data[place] ^= 0xFF
    with pytest.raises(MalformedFrame):
        read_chunk(bytes(data))


def compressed(number: int, data: bytes, *, length: int, records: int) -> bytes:
    return struct.pack(">BHII", 0x80 | number << 4, records, length, len(data)) + data


@pytest.mark.parametrize("number", range(1, 5))
def test_compressed_batches_are_read(number: int) -> None:
    body = message(b"two") + message(b"three")
    data = bytes(getattr(cramjam, COMPRESSIONS[number]).compress(body))
    whole = message(b"one") + compressed(number, data, length=len(body), records=2)
    assert messages_of(whole) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("number", range(1, 5))
def test_a_compressed_batch_that_cannot_be_read_is_told(number: int) -> None:
    name, body = COMPRESSIONS[number], message(b"two") + message(b"three")
    data = bytes(getattr(cramjam, name).compress(body))
    for changed, why in (
        (compressed(number, b"rubbish", length=20, records=2), f"marked as {name} that is not"),
        (compressed(number, data, length=len(body) + 1, records=2), f"expected {len(body) + 1}$"),
        (compressed(number, data, length=len(body) - 1, records=2), name),
        (compressed(number, data, length=len(body), records=3), "2 messages, expected 3"),
        (compressed(number, data, length=1 << 31, records=2), "at most 67108864"),
    ):
        with pytest.raises(InvalidBatch, match=why):
            messages_of(changed)


def test_a_compression_that_nobody_knows_is_told() -> None:
    with pytest.raises(InvalidBatch, match="compression 7, expected one of none, gzip, snappy, lz4, zstd"):
        messages_of(compressed(7, b"x", length=9, records=1))


def test_what_is_to_be_installed_for_a_compression_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(InvalidBatch, match=r"a batch in zstd, which needs fencepost\[embedded\] to be read"):
        messages_of(compressed(4, b"x", length=9, records=1))


def test_a_batch_in_a_batch_or_a_short_one_is_told() -> None:
    inner = batch([b"x"])
    outer = bytearray(batch([b""]))[:11] + inner
    outer[7:11] = len(inner).to_bytes(4, "big")
    with pytest.raises(InvalidBatch, match="a batch within a batch"):
        messages_of(bytes(outer))
    with pytest.raises(InvalidBatch, match="a batch of messages that end early"):
        messages_of(compressed(0, b"\0\0", length=2, records=1))
