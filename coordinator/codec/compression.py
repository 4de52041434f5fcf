"""Compressed records, opened as strictly as clients open them, and never beyond a fixed size.

A few hundred bytes can stand for gigabytes. So each codec first gets room for a common ratio. Records that
need more are opened anew with more room: work of the size `MEDIUM`, then `LARGE`. Until its turn comes, such
work holds nothing. Records that exceed `MAX_UNCOMPRESSED_BYTES` are refused before they take more memory than
that.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.slices import LARGE, MEDIUM, Sliced, at_once

MAX_UNCOMPRESSED_BYTES: Final = 1 << 26
"""The size limit of the records of one compressed batch (64 MiB)."""

_GZIP = 16 + zlib.MAX_WBITS
"""The number by which zlib knows gzip."""
_QUICK_BYTES, _QUICK_TIMES, _GROWTH = 1 << 18, 8, 16
"""The room that the first slice has: this many bytes, or this many times the input. Later ones get more."""
_SLICE_BYTES: Final = 1 << 22
"""The size that one slice of a stream may have."""
_SLICE_BLOCKS: Final = 4_096
"""Snappy blocks that one slice opens; a block may be empty."""
SNAPPY_STREAM: Final = b"\x82SNAPPY\0" + 2 * (1).to_bytes(4)
"""The header that Java's snappy puts before its blocks: its name, and twice the number of its format."""


class TooLong(Exception):
    """The data exceeds the limit when it is decompressed."""


class BytesBehind(ValueError):
    """Data continues behind the end of the compressed stream."""


def decompressed(compression: int, data: bytes) -> bytes:
    """Return the records of a batch, see `opening`."""
    return at_once(opening(compression, data))


def opening(compression: int, data: bytes) -> Sliced[bytes]:
    """Decompress the records of a batch; `compression` is that of its attributes, 1 to 4.

    Records that are not compressed much are there after the first slice.
    :raises ProtocolError: MESSAGE_TOO_LARGE if they exceed `MAX_UNCOMPRESSED_BYTES`, so that a producer may
        split the batch; UNKNOWN_SERVER_ERROR, as from Kafka, if they can't be decompressed; INVALID_RECORD
        if there are bytes behind the compressed stream.
    """
    name, decompress = _CODECS[compression - 1]
    try:
        return (yield from decompress(data, MAX_UNCOMPRESSED_BYTES))
    except TooLong:
        reason = (
            f"the records exceed {MAX_UNCOMPRESSED_BYTES} bytes when they are decompressed with {name}: "
            "send smaller batches"
        )
        raise ProtocolError(ErrorCode.MESSAGE_TOO_LARGE, reason) from None
    except BytesBehind as error:
        reason = f"the records are not one {name} stream: {error}"
        raise ProtocolError(ErrorCode.INVALID_RECORD, reason) from error
    except Exception as error:
        # Codecs raise any exception on bytes that they did not write.
        reason = f"the records are not compressed with {name}: {error}"
        raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, reason) from error


def gunzipped(data: bytes, most: int) -> bytes:
    """Return what a gzip stream holds, see `_gunzipping`."""
    return at_once(_gunzipping(data, most))


def _gunzipping(data: bytes, most: int) -> Sliced[bytes]:
    """Decompress with zlib, which is as strict as clients are; Python's own gzip ignores unknown flags.

    :raises TooLong: if it becomes more than `most` bytes.
    :raises ValueError: if the data is cut short.
    :raises BytesBehind: if it continues behind the end. Clients differ in whether they read further members:
        librdkafka loses their records, or ends its process.
    :raises zlib.error: if it is not gzip.
    """
    for room in _rooms(data):
        stream = zlib.decompressobj(wbits=_GZIP)
        found = stream.decompress(data, min(most + 1, room))
        if stream.eof or not stream.unconsumed_tail or len(found) > most or room > _SLICE_BYTES:
            break
        found = b""
        yield _size_of(room * _GROWTH)
    if not stream.eof and stream.unconsumed_tail and len(found) <= most:
        pieces, size = [found], len(found)
        while not stream.eof and stream.unconsumed_tail and size <= most:
            yield
            pieces.append(stream.decompress(stream.unconsumed_tail, min(most + 1 - size, _SLICE_BYTES)))
            size += len(pieces[-1])
        found = b"".join(pieces)
    if len(found) > most:
        raise TooLong
    if not stream.eof:
        raise ValueError("the stream does not end in the batch")
    if stream.unused_data:
        raise BytesBehind(f"{len(stream.unused_data)} bytes follow the first member")
    return found


def _unsnapping(data: bytes, most: int) -> Sliced[bytes]:
    """Decompress snappy, raw or in Java's blocks. Each block states the size that it becomes."""
    import cramjam

    if not data.startswith(SNAPPY_STREAM):
        if (size := _unsnapped_bytes(cramjam, data, most)) > _QUICK_BYTES:
            yield _size_of(size)
        return bytes(cramjam.snappy.decompress_raw(data))
    if (size := _unsnapped_stream_bytes(cramjam, data, most)) > _QUICK_BYTES:
        yield _size_of(size)
    found = bytearray()
    at = len(SNAPPY_STREAM)
    blocks = pause_at = 0
    while at < len(data):
        if blocks == _SLICE_BLOCKS or len(found) > pause_at + _SLICE_BYTES:
            yield
            blocks, pause_at = 0, len(found)
        blocks += 1
        end = at + 4 + int.from_bytes(data[at : at + 4])
        block = data[at + 4 : end]
        _unsnapped_bytes(cramjam, block, most - len(found))
        found += cramjam.snappy.decompress_raw(block)
        at = end
    if at != len(data):
        raise ValueError("a block extends beyond the end")
    return bytes(found)


def _unsnapped_bytes(cramjam: Any, block: bytes, most: int) -> int:
    size = int(cramjam.snappy.decompress_raw_len(block))
    if size > most:
        raise TooLong
    return size


def _unsnapped_stream_bytes(cramjam: Any, data: bytes, most: int) -> int:
    """Return the size of Java's blocks together; `most` for more blocks than one slice opens."""
    at, size = len(SNAPPY_STREAM), 0
    for _ in range(_SLICE_BLOCKS):
        if at >= len(data):
            return size
        end = at + 4 + int.from_bytes(data[at : at + 4])
        size += _unsnapped_bytes(cramjam, data[at + 4 : end], most - size)
        at = end
    return most


_Decompress: TypeAlias = Callable[[bytes, int], Sliced[bytes]]


def _into_room(name: str) -> _Decompress:
    """Return a decompressor for a format that does not state its size: it retries with a larger buffer."""

    def decompress(data: bytes, most: int) -> Sliced[bytes]:
        import cramjam

        codec = getattr(cramjam, name)
        for size in _rooms(data):
            room = bytearray(min(size, most))
            try:
                return bytes(memoryview(room)[: codec.decompress_into(data, room)])
            except cramjam.DecompressionError as error:
                if "whole buffer" not in str(error):
                    raise
                if size >= most:
                    raise TooLong from None
            del room
            yield _size_of(size * _GROWTH)
        raise AssertionError("there is always more room")

    return decompress


def _rooms(data: bytes) -> Iterator[int]:
    """Return the room for each attempt, in bytes."""
    size = max(_QUICK_BYTES, _QUICK_TIMES * len(data))
    return (size * _GROWTH**attempt for attempt in itertools.count())


def _size_of(room: int) -> int:
    return MEDIUM if room <= _SLICE_BYTES else LARGE


def _unlz4(data: bytes, most: int) -> Sliced[bytes]:
    """Decompress one LZ4 frame that Java's client and librdkafka can read, see `_check_lz4_frame`."""
    yield from _check_lz4_frame(data)
    return (yield from _INTO_LZ4(data, most))


def _check_lz4_frame(data: bytes) -> Sliced[None]:
    """Refuse what Kafka's `Lz4BlockInputStream` refuses, and bytes behind the frame: librdkafka stops there.

    :raises ValueError: if the data does not begin with a frame, its blocks depend on each other, or it is cut
        short.
    :raises BytesBehind: if bytes follow the frame, such as another frame.
    """
    if data[:4] != _LZ4_MAGIC or len(data) < _LZ4_LEAST:
        raise ValueError("no LZ4 frame at the start")
    flags = data[4]
    if flags & _LZ4_RESERVED:
        raise ValueError("dictionaries and reserved flags are not supported")
    if not flags & _LZ4_INDEPENDENT:
        raise ValueError("the blocks depend on each other")
    at = _LZ4_LEAST + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    behind_block = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    blocks = 0
    while (size := int.from_bytes(data[at : at + 4], "little")) != 0:
        at += 4 + (size & _LZ4_SIZE) + behind_block
        blocks += 1
        if blocks % _SLICE_BLOCKS == 0:
            yield
    end = at + 4 + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)
    if end > len(data):
        raise ValueError("the frame does not end in the batch")
    if end < len(data):
        raise BytesBehind(f"{len(data) - end} bytes follow the first frame")


_INTO_LZ4: Final = _into_room("lz4")
_LZ4_MAGIC: Final = (0x184D2204).to_bytes(4, "little")
_LZ4_LEAST: Final = 7
"""The length of a frame's header without a content size."""
_LZ4_INDEPENDENT: Final = 0x20
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_RESERVED: Final = 0x03
_LZ4_SIZE: Final = 0x7FFFFFFF
"""The bits of a block's size; the other one says that the block is not compressed."""

_CODECS: Final[tuple[tuple[str, _Decompress], ...]] = (
    ("gzip", _gunzipping),
    ("snappy", _unsnapping),
    ("lz4", _unlz4),
    ("zstd", _into_room("zstd")),
)
"""By the number in a batch's attributes, less one."""
