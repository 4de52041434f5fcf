"""Chunks as osiris keeps them and as Deliver carries them (osiris_log, Chunk format)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from fencepost.coordinator.codec.framing import MalformedFrame

_HEADER: Final = struct.Struct(">BBHIqQQIIIB3x")
_MAGIC: Final = 0x50
"""Magic number 5 and version 0, four bits each."""
_USER: Final = 0


class Chunk(NamedTuple):
    """A chunk: its header and its content."""

    first_offset: int
    timestamp_ms: int
    epoch: int
    entries: int
    records: int
    data: bytes


def write_chunk(
    first_offset: int, timestamp_ms: int, epoch: int, entries: Sequence[bytes], records: int
) -> bytes:
    """Return the bytes of a chunk of entries. Neither tracking data nor bloom filters are sent to clients."""
    data = b"".join(entries)
    header = _HEADER.pack(
        _MAGIC,
        _USER,
        len(entries),
        records,
        timestamp_ms,
        epoch,
        first_offset,
        zlib.crc32(data),
        len(data),
        0,
        0,
    )
    return header + data


def read_chunk(data: bytes) -> Chunk:
    """Return a chunk from its bytes.

    :raises MalformedFrame: if its sizes or its checksum are wrong, or it holds no messages of users.
    """
    if len(data) < _HEADER.size:
        raise MalformedFrame(f"chunk of {len(data)} bytes, a header has {_HEADER.size}")
    # RabbitMQ's header counts a Bloom filter, and mostly a trailer, that it does not send to clients.
    magic, kind, entries, records, timestamp_ms, epoch, first, crc, length, trailer, _ = _HEADER.unpack_from(
        data
    )
    end = _HEADER.size + length
    body = data[_HEADER.size : end]
    if magic >> 4 != _MAGIC >> 4 or kind != _USER:
        raise MalformedFrame(f"chunk {magic:#04x} of type {kind}, expected {_MAGIC:#04x} of type {_USER}")
    if len(data) not in (end, end + trailer):
        raise MalformedFrame(f"chunk of {len(data)} bytes with {length} of data")
    if zlib.crc32(body) != crc:
        raise MalformedFrame("a chunk's checksum is wrong")
    return Chunk(first, timestamp_ms, epoch, entries, records, body)
