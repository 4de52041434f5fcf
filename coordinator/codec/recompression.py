"""Compresses records again, in slices: the rest of a batch after its log was compacted."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from fencepost.coordinator.codec.compression import SNAPPY_STREAM
from fencepost.coordinator.protocol.slices import Sliced

_PIECE_BYTES: Final = 1 << 20
"""The size that is compressed in one slice."""
_SNAPPY_BLOCK_BYTES: Final = 1 << 15
"""The block size of Java's snappy."""
_ZSTD_LEVEL: Final = 3
"""The default level of Kafka's brokers (KIP-390)."""


def compressing(compression: int, data: bytes) -> Sliced[bytes]:
    """Compress the records of a batch; `compression` is that of its attributes, 1 to 4."""
    import cramjam

    match compression:
        case 1:
            gzip = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
            return (yield from _in_pieces(gzip.compress, gzip.flush, data))
        case 3:
            # Kafka wants blocks that do not depend on each other (KIP-57).
            lz4 = cramjam.lz4.Compressor(level=9, content_checksum=False, block_linked=False)

            def feed(piece: bytes) -> bytes:
                lz4.compress(piece)
                return b""

            return (yield from _in_pieces(feed, lambda: bytes(lz4.finish()), data))
        case 2:
            return (yield from _snappy_blocks(lambda block: bytes(cramjam.snappy.compress_raw(block)), data))
        case _:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def _snappy_blocks(compress: Callable[[bytes], bytes], data: bytes) -> Sliced[bytes]:
    """Compress data as Java's snappy does: a header, then blocks with their lengths."""
    out = [SNAPPY_STREAM]
    for at in range(0, len(data), _SNAPPY_BLOCK_BYTES):
        if at and at % _PIECE_BYTES == 0:
            yield
        block = compress(data[at : at + _SNAPPY_BLOCK_BYTES])
        out += len(block).to_bytes(4), block
    return b"".join(out)


def _in_pieces(feed: Callable[[bytes], bytes], finish: Callable[[], bytes], data: bytes) -> Sliced[bytes]:
    out = []
    for at in range(0, len(data), _PIECE_BYTES):
        if at:
            yield
        out.append(feed(data[at : at + _PIECE_BYTES]))
    return b"".join((*out, finish()))
