"""Entries that publishers send and chunks hold: messages, and batches of messages (osiris, Data Entry
format).

A message is its length, below 2**31, and its bytes. A batch is a byte with the top bit set and the
compression in the next three bits, the number of messages (u16), their length before compression (u32), and
the length of the rest (u32). Batches are stored unchanged: their content concerns only the clients.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.rabbit_codec.base import ChunkEntry
from fencepost.coordinator.rabbit_codec.compression import (
    COMPRESSIONS,
    MAX_UNCOMPRESSED_BYTES,
    InvalidBatch,
    decompressed,
)
from fencepost.coordinator.rabbit_codec.fields import I32, OPTIONAL_STRING, U64
from fencepost.coordinator.rabbit_codec.frames import FilteredPublish, Publish

_SIMPLE: Final = struct.Struct(">I")
_BATCH: Final = struct.Struct(">BHII")
_TOP_BIT: Final = 1 << 31


def message(value: bytes) -> bytes:
    """Return a message as an entry's data."""
    return _SIMPLE.pack(len(value)) + value


def publish(publisher_id: int, entries: Iterable[ChunkEntry]) -> Publish:
    """Return the frame that publishes these; with filter values if one of them has one."""
    listed = list(entries)
    filtered = any(entry.filter_value is not None for entry in listed)
    out: list[bytes] = []
    I32.write(len(listed), out)
    for entry in listed:
        U64.write(entry.publishing_id, out)
        if filtered:
            OPTIONAL_STRING.write(entry.filter_value, out)
        out.append(entry.data)
    frame_type = FilteredPublish if filtered else Publish
    return frame_type(publisher_id, b"".join(out))


def entries_of(frame: Publish) -> list[ChunkEntry]:
    """Return the entries of a frame that publishes.

    :raises MalformedFrame: if they differ from what the frame says.
    """
    data, filtered = frame.entries, isinstance(frame, FilteredPublish)
    filter_value = None
    entries = []
    try:
        count, at = I32.read(data, 0)
        if not 0 <= count <= len(data):
            raise MalformedFrame(f"{count} messages in {len(data)} bytes")
        for _ in range(count):
            publishing_id, at = U64.read(data, at)
            if filtered:
                filter_value, at = OPTIONAL_STRING.read(data, at)
            start, end, records = _extent(data, at)
            at = end
            entries.append(ChunkEntry(publishing_id, data[start:end], records, filter_value))
    except struct.error:
        raise MalformedFrame(f"messages that end early, after {len(data)} bytes") from None
    if at != len(data):
        raise MalformedFrame(f"{count} messages of {at} bytes in {len(data)}")
    return entries


def _extent(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the start and the end of an entry, and its number of records."""
    (size,) = _SIMPLE.unpack_from(data, at)
    if size < _TOP_BIT:
        end, records = at + _SIMPLE.size + size, 1
    else:
        _, records, _, size = _BATCH.unpack_from(data, at)
        end = at + _BATCH.size + size
    if end > len(data):
        raise MalformedFrame(f"a message of {size} bytes at {at}, of {len(data)}")
    return at, end, records


def is_acceptable(entry: ChunkEntry) -> bool:
    """Return true for a message, and for a batch that RabbitMQ takes."""
    if entry.data[0] < 0x80:
        return True
    kind, records, uncompressed, size = _BATCH.unpack_from(entry.data)
    compression = kind >> 4 & 7
    has_room = 0 < records * _SIMPLE.size <= uncompressed <= MAX_UNCOMPRESSED_BYTES
    return has_room and compression < len(COMPRESSIONS) and (size > 0 or not compression)


def messages_of(data: bytes) -> list[bytes]:
    """Return the messages of a chunk's data.

    :raises MalformedFrame: if it is not such data.
    :raises InvalidBatch: if a publisher's batch can't be read.
    """
    found: list[bytes] = []
    for start, end, records in _walk(data):
        if data[start] < 0x80:
            found.append(data[start + _SIMPLE.size : end])
        else:
            found += _unpacked(data[start:end], records)
    return found


def _unpacked(data: bytes, records: int) -> list[bytes]:
    """Return the messages of a batch."""
    kind, _, length, _ = _BATCH.unpack_from(data)
    compression, body = kind >> 4 & 7, data[_BATCH.size :]
    if compression:
        body = decompressed(compression, body, length)
    found = []
    try:
        for start, end, _ in _walk(body):
            if body[start] >= 0x80:
                raise InvalidBatch("a batch within a batch")
            found.append(body[start + _SIMPLE.size : end])
    except MalformedFrame as error:
        raise InvalidBatch(f"a batch of {error}") from None
    if len(found) != records:
        raise InvalidBatch(f"a batch of {len(found)} messages, expected {records}")
    return found


def _walk(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the start and the end of each entry, and its number of records."""
    at = 0
    try:
        while at < len(data):
            start, at, records = _extent(data, at)
            yield start, at, records
    except struct.error:
        raise MalformedFrame(f"messages that end early, after {len(data)} bytes") from None


def batch(values: Sequence[bytes]) -> bytes:
    """Messages as the data of one entry, a batch without compression."""
    body = b"".join(map(message, values))
    return _BATCH.pack(0x80, len(values), len(body), len(body)) + body
