"""Compressed records, opened: as strictly as clients do it, and no more of them than a batch may hold."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError

MOST_BYTES: Final = 1 << 26
"""What any batch may become, however short it is."""
MOST_TIMES: Final = 64
"""How many times as long as it was a longer one may become."""

_GZIP = 16 + zlib.MAX_WBITS
"""What zlib calls gzip."""
_FIRST_BYTES, _FIRST_TIMES, _GROWTH = 1 << 16, 8, 16
"""How much room is made at first for what was compressed, and how many times as much after that."""
_SNAPPY_STREAM: Final = b"\x82SNAPPY\0" + 2 * (1).to_bytes(4)
"""What Java's snappy puts before its blocks: its name, and twice the number of its format."""


class TooLong(Exception):
    """What was compressed is longer than allowed."""


def decompressed(compression: int, data: bytes) -> bytes:
    """The records of a batch; `compression` is that of its attributes, 1 to 4.

    :raises ProtocolError: UNKNOWN_SERVER_ERROR, as from Kafka, if they can't be decompressed; or if they
        become longer than allowed: a megabyte can hold gigabytes.
    """
    name, decompress = _CODECS[compression - 1]
    most = max(MOST_BYTES, MOST_TIMES * len(data))
    try:
        return decompress(data, most)
    except TooLong:
        reason = f"the records become longer than {most} bytes when they are decompressed with {name}"
        raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, reason) from None
    except Exception as error:
        # Codecs raise what they like on bytes that they did not write.
        reason = f"the records are not compressed with {name}: {error}"
        raise ProtocolError(ErrorCode.UNKNOWN_SERVER_ERROR, reason) from error


def gunzipped(data: bytes, most: int) -> bytes:
    """By zlib, which is as strict as clients are; Python's own reader of gzip passes over unknown flags.

    :raises TooLong: if it becomes more than so many bytes.
    :raises ValueError: if the data is cut short, or goes on behind the end.
    :raises zlib.error: if it is no gzip.
    """
    stream = zlib.decompressobj(wbits=_GZIP)
    found = stream.decompress(data, most + 1)
    if len(found) > most:
        raise TooLong(f"more than {most} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError("the stream and the batch end at different places")
    return found


def _unsnapped(data: bytes, most: int) -> bytes:
    """Each block says how long it becomes."""
    import cramjam

    if not data.startswith(_SNAPPY_STREAM):
        return _unsnapped_block(cramjam, data, most)
    found = bytearray()
    at = len(_SNAPPY_STREAM)
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4])
        found += _unsnapped_block(cramjam, data[at + 4 : end], most - len(found))
        at = end
    if at != len(data):
        raise ValueError("a block goes beyond the end")
    return bytes(found)


def _unsnapped_block(cramjam: Any, block: bytes, most: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > most:
        raise TooLong
    return bytes(cramjam.snappy.decompress_raw(block))


def _into_room(name: str) -> Callable[[bytes, int], bytes]:
    """For formats that do not say how long they become: into some room, else into more of it."""

    def decompress(data: bytes, most: int) -> bytes:
        import cramjam

        codec = getattr(cramjam, name)
        size = max(_FIRST_BYTES, _FIRST_TIMES * len(data))
        while True:
            room = bytearray(min(size, most))
            try:
                return bytes(memoryview(room)[: codec.decompress_into(data, room)])
            except cramjam.DecompressionError as error:
                if "whole buffer" not in str(error):
                    raise
                if size >= most:
                    raise TooLong from None
                size *= _GROWTH

    return decompress


_CODECS: Final[tuple[tuple[str, Callable[[bytes, int], bytes]], ...]] = (
    ("gzip", gunzipped),
    ("snappy", _unsnapped),
    ("lz4", _into_room("lz4")),
    ("zstd", _into_room("zstd")),
)
"""By the number in a batch's attributes, less one."""
