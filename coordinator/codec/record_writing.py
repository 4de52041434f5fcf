"""Uncompressed record batches (magic 2), written as a producer without a producer id writes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fencepost.coordinator.codec.batches import BatchHeader, new_batch
from fencepost.coordinator.protocol.transactions import NO_PRODUCER_ID


class BatchWriter:
    """Collects records until a batch is full. The first record is added whatever its size."""

    def __init__(self, max_bytes: int) -> None:
        self._room = max_bytes
        self._records: list[bytes] = []
        self._times: list[int] = []

    def add(
        self,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes | None]],
    ) -> bool:
        """Add a record; return False if the batch has no room for it."""
        first_ms = self._times[0] if self._times else timestamp_ms
        body = b"".join(
            (
                b"\0",
                _varint(timestamp_ms - first_ms),
                _varint(len(self._records)),
                _sized(key),
                _sized(value),
                _headers(list(headers)),
            )
        )
        record = _varint(len(body)) + body
        if self._records and len(record) > self._room:
            return False
        self._room -= len(record)
        self._records.append(record)
        self._times.append(timestamp_ms)
        return True

    def __len__(self) -> int:
        return len(self._records)

    def batch(self) -> bytes:
        """Return the batch, with the base offset 0."""
        header = BatchHeader(
            base_offset=0,
            length=0,
            leader_epoch=0,
            magic=2,
            crc=0,
            attributes=0,
            last_offset_delta=len(self._records) - 1,
            base_timestamp=self._times[0],
            max_timestamp=max(self._times),
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=-1,
            records=len(self._records),
        )
        return new_batch(header, b"".join(self._records))


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    encoded = (_sized(name.encode()) + _sized(value) for name, value in headers)
    return _varint(len(headers)) + b"".join(encoded)


def _sized(data: bytes | None) -> bytes:
    """Return bytes after their length; None has the length -1."""
    return _varint(-1) if data is None else _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a signed number of 64 bits, in zigzag and seven bits a byte."""
    left = number << 1 ^ number >> 63
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
