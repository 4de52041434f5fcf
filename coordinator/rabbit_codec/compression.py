"""Compressed batches, opened: exactly as long as they say, so that a small one can't fill the memory.

The formats are those of RabbitMQ's clients: gzip, Snappy's frames, LZ4's frames and zstd.
"""

from __future__ import annotations

from typing import Final

from fencepost.coordinator.codec.compression import gunzipped

MAX_UNCOMPRESSED_BYTES: Final = 1 << 26
"""Of a batch."""
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers in a batch's first byte."""


class InvalidBatch(Exception):
    """A batch that no consumer could read."""


def decompressed(compression: int, data: bytes, length: int) -> bytes:
    """Return the `length` bytes that were compressed; `compression` is the number of one of `COMPRESSIONS`.

    :raises InvalidBatch: if the data does not decompress to that, or the compression can't be read here.
    """
    if compression >= len(COMPRESSIONS):
        raise InvalidBatch(f"a batch in compression {compression}, expected one of {', '.join(COMPRESSIONS)}")
    if length > MAX_UNCOMPRESSED_BYTES:
        raise InvalidBatch(f"a batch of {length} bytes, at most {MAX_UNCOMPRESSED_BYTES}")
    name = COMPRESSIONS[compression]
    try:
        found = gunzipped(data, length) if name == "gzip" else _opened(name, data, length)
    except ModuleNotFoundError:
        raise InvalidBatch(f"a batch in {name}, which needs fencepost[embedded] to be read") from None
    except Exception as error:
        # Codecs raise any exception on bytes that they did not write.
        raise InvalidBatch(f"a batch marked as {name} that is not: {error}") from error
    if len(found) != length:
        raise InvalidBatch(f"a batch in {name} of {len(found)} bytes, expected {length}")
    return found


def _opened(name: str, data: bytes, length: int) -> bytes:
    import cramjam

    room = bytearray(length)
    return bytes(memoryview(room)[: getattr(cramjam, name).decompress_into(data, room)])
