from __future__ import annotations

import random
import struct

import pytest

from fencepost.coordinator.codec.framing import FrameBuffer, MalformedFrame, read_header, response_header
from fencepost.coordinator.codec.reader import read_unsigned_varint, skip_tagged_fields
from fencepost.coordinator.codec.writer import compact_string, unsigned_varint


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def drain(buffer: FrameBuffer) -> list[bytes]:
    frames = []
    while (one := buffer.next_frame()) is not None:
        frames.append(one)
    return frames


@pytest.mark.parametrize("cut", ["bytes", "random", "whole"])
def test_frames_come_out_however_the_stream_is_cut(cut):
    rng = random.Random(7)
    bodies = [rng.randbytes(rng.choice([0, 1, 3, 4, 100, 5000])) for _ in range(60)]
    stream = b"".join(map(frame, bodies))
    buffer, got, at = FrameBuffer(), [], 0
    while at < len(stream):
        size = {"bytes": 1, "random": rng.randrange(1, 300), "whole": len(stream)}[cut]
        buffer.feed(stream[at : at + size])
        at += size
        got += drain(buffer)
    assert got == bodies
    assert buffer.buffered == 0


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "the client speaks TLS, and this port does not"),
        (b"GET / HTTP/1.1\r\n", r"the client speaks HTTP \(GET \.\.\.\)"),
        (b"POST /", r"the client speaks HTTP \(POST \.\.\.\)"),
        (b"AMQP\0\0\x09\x01", "the client speaks AMQP, and this port speaks Kafka"),
        (b"\x7f\xff\xff\xff", "expected 0 to 104857600$"),
    ],
)
def test_who_speaks_something_else_is_told_apart(start, hint):
    buffer = FrameBuffer()
    buffer.feed(start)
    with pytest.raises(MalformedFrame, match=hint):
        buffer.next_frame()


def test_an_incomplete_frame_stays_buffered():
    buffer = FrameBuffer()
    buffer.feed(frame(b"whole") + frame(b"cut off")[:-1])
    assert drain(buffer) == [b"whole"]
    assert buffer.buffered == 10


@pytest.mark.parametrize("size", [-1, -(2**31), 101, 2**31 - 1])
def test_a_length_out_of_bounds_is_refused_before_its_bytes_come(size):
    buffer = FrameBuffer(max_bytes=100)
    buffer.feed(struct.pack(">i", size))
    with pytest.raises(MalformedFrame, match=f"frame of {size} bytes, expected 0 to 100"):
        buffer.next_frame()


def test_the_largest_frame_passes():
    buffer = FrameBuffer(max_bytes=100)
    buffer.feed(frame(b"x" * 100))
    assert drain(buffer) == [b"x" * 100]


def test_header():
    header = read_header(struct.pack(">hhih", 3, 12, -5, 2) + b"mebody")
    assert header == (3, 12, -5, "me", 12)
    assert read_header(struct.pack(">hhih", 3, 0, 1, -1)).client_id == ""


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 9, struct.pack(">hhih", 3, 0, 1, 5) + b"four", struct.pack(">hhih", 3, 0, 1, 1) + b"\xff"],
)
def test_a_broken_header_is_refused(data):
    with pytest.raises(MalformedFrame):
        read_header(data)


def test_response_headers():
    assert response_header(7, 2, flexible=False) == b"\0\0\0\x06\0\0\0\x07"
    assert response_header(-1, 2, flexible=True) == b"\0\0\0\x07\xff\xff\xff\xff\0"


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16383, 16384, 2**21, 2**28, 2**31 - 1])
def test_varints_round_trip(value):
    assert read_unsigned_varint(b"." + unsigned_varint(value), 1) == (value, 1 + len(unsigned_varint(value)))


def test_a_varint_has_five_bytes_at_most():
    with pytest.raises(MalformedFrame, match="five bytes"):
        read_unsigned_varint(b"\xff" * 6, 0)


def test_compact_strings():
    assert compact_string(None) == b"\0"
    assert compact_string("") == b"\x01"
    assert compact_string("é") == b"\x03\xc3\xa9"


def test_unknown_tagged_fields_are_skipped():
    section = unsigned_varint(2) + unsigned_varint(0) + unsigned_varint(1) + b"a" + unsigned_varint(900)
    section += unsigned_varint(2) + b"bc"
    assert skip_tagged_fields(section + b"rest", 0) == len(section)
    with pytest.raises(MalformedFrame, match="beyond the frame"):
        skip_tagged_fields(unsigned_varint(1) + unsigned_varint(0) + unsigned_varint(9) + b"short", 0)
