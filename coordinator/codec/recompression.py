"""Records compressed again, in slices: what is left of a batch when a log was compacted."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from fencepost.coordinator.protocol.slices import Sliced

_PIECE_BYTES: Final = 1 << 20
"""The size that is compressed in one slice."""


def compressing(compression: int, data: bytes) -> Sliced[bytes]:
    """Compress the records of a batch; `compression` is that of its attributes, 1 to 4."""
    from aiokafka import codec

    match compression:
        case 1:
            gzip = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
            return (yield from _in_pieces(gzip.compress, gzip.flush, data))
        case 3:
            import cramjam

            # Kafka wants blocks that do not depend on each other (KIP-57).
            lz4 = cramjam.lz4.Compressor(level=9, content_checksum=False, block_linked=False)

            def feed(piece: bytes) -> bytes:
                lz4.compress(piece)
                return b""

            return (yield from _in_pieces(feed, lambda: bytes(lz4.finish()), data))
        case 2:
            return bytes(codec.snappy_encode(data))
        case _:
            return bytes(codec.zstd_encode(data))


def _in_pieces(feed: Callable[[bytes], bytes], finish: Callable[[], bytes], data: bytes) -> Sliced[bytes]:
    out = []
    for at in range(0, len(data), _PIECE_BYTES):
        if at:
            yield
        out.append(feed(data[at : at + _PIECE_BYTES]))
    return b"".join((*out, finish()))
