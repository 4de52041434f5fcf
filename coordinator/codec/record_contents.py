"""The records inside stored batches, read in slices: to compact a log, and to find times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fencepost.coordinator.codec import batches
from fencepost.coordinator.codec.compression import opening
from fencepost.coordinator.codec.recompression import compressing
from fencepost.coordinator.codec.record_checks import INT, LONG, SLICE_RECORDS, in_64_bits, varint
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.slices import Sliced, at_once


class StoredRecord(NamedTuple):
    """A record without its value; the timestamp is in milliseconds, -1 without one."""

    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool
    start: int
    end: int
    """The record's place in the opened batch."""
    value_at: int
    """The place of the value's length, behind the key."""


class WholeRecord(NamedTuple):
    """A stored record with its value and its headers; the timestamp is in milliseconds, -1 without one."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class OpenedBatch(NamedTuple):
    """A stored batch whose records are decompressed."""

    batch: bytes
    header: batches.BatchHeader
    data: bytes
    start: int
    """The place of the first record in the data."""

    def records(self) -> Iterator[list[StoredRecord]]:
        """Read the records, at most `SLICE_RECORDS` at a time.

        :raises ProtocolError: CORRUPT_MESSAGE if they can't be read.
        """
        found: list[StoredRecord] = []
        at = self.start
        try:
            for _ in range(self.header.records):
                record = self._record(at)
                at = record.end
                found.append(record)
                if len(found) == SLICE_RECORDS:
                    yield found
                    found = []
        except (IndexError, ProtocolError) as error:
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"records can't be read: {error}") from error
        if found:
            yield found

    def _record(self, at: int) -> StoredRecord:
        data, header = self.data, self.header
        start = at
        length, at = varint(data, at, INT)
        end = at + (length >> 1)
        time, at = varint(data, at + 1, LONG)
        delta, at = varint(data, at, INT)
        size, at = varint(data, at, INT)
        key = None
        if size & 1 == 0:
            key = data[at : at + (size >> 1)]
            at += size >> 1
        value_at = at
        is_tombstone = bool(data[at] & 1)
        if length & 1 or not at < end <= len(data):
            raise IndexError("a record does not fit into the batch")
        timestamp = header.max_timestamp
        if not header.attributes & batches.LOG_APPEND_TIME:
            timestamp = in_64_bits(header.base_timestamp + (time >> 1 ^ -(time & 1)))
        offset = header.base_offset + (delta >> 1)
        return StoredRecord(offset, timestamp, key, is_tombstone, start, end, value_at)

    def whole(self, record: StoredRecord) -> WholeRecord:
        """Return one of the records with its value and its headers.

        :raises IndexError: if these do not end where the record ends.
        :raises UnicodeDecodeError: if the name of a header is not UTF-8.
        """
        value, at = _sized(self.data, record.value_at)
        count, at = varint(self.data, at, INT)
        headers = []
        for _ in range(count >> 1):
            name, at = _sized(self.data, at)
            content, at = _sized(self.data, at)
            headers.append(((name or b"").decode(), content))
        if at != record.end:
            raise IndexError("a record's value and headers do not end where the record does")
        return WholeRecord(record.offset, record.timestamp, record.key, value, tuple(headers))


def _sized(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Read bytes after their length, None for the length -1; return them and the place after them."""
    size, at = varint(data, at, INT)
    if size & 1:
        return None, at
    end = at + (size >> 1)
    return data[at:end], end


def opened(batch: bytes) -> Sliced[OpenedBatch]:
    """Decompress the records of a stored batch.

    :raises ProtocolError: CORRUPT_MESSAGE if they can't be decompressed, or exceed the limit.
    """
    header = batches.stored_batch(batch)
    compression = header.attributes & batches.COMPRESSION
    if not compression:
        return OpenedBatch(batch, header, batch, batches.HEADER_BYTES)
    try:
        data = yield from opening(compression, batch[batches.HEADER_BYTES :])
    except (ProtocolError, IndexError) as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"records can't be read: {error}") from error
    return OpenedBatch(batch, header, data, 0)


def keeping(opened: OpenedBatch, is_kept: Callable[[StoredRecord], bool]) -> Sliced[bytes | None]:
    """Return a batch with only some of its records: None if no record is left, the same batch if all are.

    The records keep their offsets, and the batch its first and its last one, as Kafka's cleaner does.
    :raises ProtocolError: CORRUPT_MESSAGE if the records can't be read.
    """
    kept = bytearray()
    count, latest = 0, -1
    for records in opened.records():
        for record in records:
            if is_kept(record):
                kept += memoryview(opened.data)[record.start : record.end]
                count += 1
                latest = max(latest, record.timestamp)
        if len(records) == SLICE_RECORDS:
            yield
    if count == opened.header.records:
        return opened.batch
    if not count:
        return None
    content, attributes = bytes(kept), opened.header.attributes
    if compression := attributes & batches.COMPRESSION:
        content = yield from compressing(compression, content)
    return batches.refilled(opened.batch, content, attributes=attributes, count=count, max_timestamp=latest)


def first_record(batch: bytes, is_wanted: Callable[[StoredRecord], bool]) -> Sliced[StoredRecord | None]:
    """Return the first record of a stored batch that is wanted, without reading those after it.

    :raises ProtocolError: CORRUPT_MESSAGE if the records before it can't be read.
    """
    for records in (yield from opened(batch)).records():
        for record in records:
            if is_wanted(record):
                return record
        if len(records) == SLICE_RECORDS:
            yield
    return None


def timed(
    batch: bytes | memoryview, header: batches.BatchHeader, max_timestamp: int, *, stamps: bool
) -> bytes:
    """Return the batch with its latest time; with `stamps` that is the time of all its records (KIP-32)."""
    kept = header.attributes & ~batches.LOG_APPEND_TIME
    return batches.rewritten(
        bytes(batch),
        attributes=kept | batches.LOG_APPEND_TIME if stamps else kept,
        last_offset_delta=header.last_offset_delta,
        max_timestamp=max_timestamp,
    )


def records_in(batch: bytes) -> list[WholeRecord]:
    """Return the records of a stored batch.

    :raises ProtocolError: CORRUPT_MESSAGE if they can't be read, or exceed the limit when decompressed.
    """
    found = at_once(opened(batch))
    try:
        return [found.whole(record) for records in found.records() for record in records]
    except (IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, f"records can't be read: {error}") from error
