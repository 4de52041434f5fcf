"""Record batches, magic 2 (KIP-98): their headers, and their places in a log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.transactions import NO_PRODUCER_ID

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
_CRC_FROM = 21
_MAGIC = 2
"""The format of today's batches."""
_BATCH_OVERHEAD = 12
"""Bytes of a batch before the part that its length counts."""
_LENGTH_TO_RECORDS = HEADER_BYTES - _BATCH_OVERHEAD
_PLACE = struct.Struct(">qii")
COMPRESSION = 0x07
"""The bits of the attributes that hold the compression."""
LOG_APPEND_TIME = 0x08
"""The bit of the attributes that says that the log set the time (KIP-32)."""
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_ATTRIBUTES_AT = 22
"""The lower of the two bytes of the attributes; all bits with a meaning are in it."""
_ZSTD = 4
"""The last compression there is (KIP-110)."""
_FIRST_VERSION_WITH_ZSTD = 7
NO_SEQUENCE = -1
COORDINATOR_EPOCH = 0
"""In markers: here a coordinator is lost to no other."""
_MARKER = struct.Struct(">BbbbbhhbhiB")
"""The one record of a marker: length, attributes, deltas, its key and its value with lengths, no headers."""
_MARKER_TYPE = struct.Struct(">h")
_MARKER_TYPE_AT = HEADER_BYTES + 7


class BatchHeader(NamedTuple):
    """The fields before a batch's records, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def is_control(self) -> bool:
        """True if it ends a transaction."""
        return bool(self.attributes & _CONTROL)

    @property
    def is_transactional(self) -> bool:
        """True if it counts only once its transaction is committed."""
        return bool(self.attributes & _TRANSACTIONAL)


@cache
def _crc32c() -> Callable[[bytes | memoryview], int]:
    """Return the native checksum function that kio brings, so that this module loads without kio."""
    from crc32c import crc32c

    return crc32c


def load_checksum() -> None:
    """Import the checksum code, so that no client waits for the import later."""
    _crc32c()


def sent_batch(records: bytes | memoryview | None, api_version: int) -> BatchHeader:
    """Return the header of the one batch that a Produce request may have for a partition.

    :raises ProtocolError: CORRUPT_MESSAGE or INVALID_RECORD for anything else; UNSUPPORTED_COMPRESSION_TYPE
        for zstd before version 7.
    """
    header = _header_of(records)
    if api_version < _FIRST_VERSION_WITH_ZSTD and header.attributes & COMPRESSION == _ZSTD:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd in Produce version {api_version}, expected version {_FIRST_VERSION_WITH_ZSTD} or later",
        )
    return header


def is_transactional(records: bytes | memoryview | None) -> bool:
    """Return true if a producer's records are part of a transaction."""
    if records is None or len(records) < HEADER_BYTES:
        return False
    header = BatchHeader._make(_HEADER.unpack_from(records))
    return header.magic == _MAGIC and header.is_transactional


def belongs_to_transaction(batch: bytes) -> bool:
    """True for a stored batch of a transaction, and for the marker that ends one."""
    return bool(batch[_ATTRIBUTES_AT] & (_TRANSACTIONAL | _CONTROL))


def checked_batch(records: bytes | memoryview | None, max_bytes: int) -> BatchHeader:
    """Return the header of the one batch that a producer sent.

    :raises ProtocolError: CORRUPT_MESSAGE, INVALID_RECORD or MESSAGE_TOO_LARGE, as Kafka's LogValidator.
    """
    header = _header_of(records)
    assert records is not None
    if header.base_offset != 0:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD, f"a batch with the base offset {header.base_offset}, expected 0"
        )
    if len(records) > max_bytes:
        raise ProtocolError(
            ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(records)} bytes, message.max.bytes is {max_bytes}"
        )
    if _crc32c()(memoryview(records)[_CRC_FROM:]) != header.crc:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "the batch fails its checksum")
    _check_content(header)
    return header


def _header_of(records: bytes | memoryview | None) -> BatchHeader:
    if records is None or len(records) < HEADER_BYTES:
        size = 0 if records is None else len(records)
        code = ErrorCode.CORRUPT_MESSAGE if size else ErrorCode.INVALID_RECORD
        raise ProtocolError(code, f"{size} bytes are not a record batch; a batch has at least {HEADER_BYTES}")
    header = BatchHeader._make(_HEADER.unpack_from(records))
    if header.magic != _MAGIC:
        raise ProtocolError(ErrorCode.INVALID_RECORD, f"record format {header.magic}, expected 2")
    if header.length < _LENGTH_TO_RECORDS or header.length + _BATCH_OVERHEAD > len(records):
        raise ProtocolError(
            ErrorCode.CORRUPT_MESSAGE, f"a batch of {header.length} bytes in {len(records)} bytes of records"
        )
    if header.length + _BATCH_OVERHEAD < len(records):
        raise ProtocolError(ErrorCode.INVALID_RECORD, "exactly one record batch is expected for a partition")
    return header


def _check_content(header: BatchHeader) -> None:
    if header.is_control:
        raise ProtocolError(ErrorCode.INVALID_RECORD, "clients may not write control records")
    if header.attributes & COMPRESSION > _ZSTD:
        raise ProtocolError(
            ErrorCode.UNKNOWN_SERVER_ERROR,  # as from Kafka
            f"compression {header.attributes & COMPRESSION}, known are 0 to {_ZSTD}",
        )
    if header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        raise ProtocolError(ErrorCode.INVALID_RECORD, "a transactional batch without a producer id")
    if header.records <= 0 or header.records != header.last_offset_delta + 1:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD,
            f"{header.records} records with a last offset delta of {header.last_offset_delta}",
        )
    if header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
        raise ProtocolError(
            ErrorCode.INVALID_RECORD, f"sequence {header.base_sequence} of a producer, expected 0 or more"
        )


def placed(records: bytes | memoryview, base_offset: int, leader_epoch: int) -> bytes:
    """Return the batch at its place in a log: offset and leader epoch lie outside of its checksum."""
    (_, length, _) = _PLACE.unpack_from(records)
    return b"".join((_PLACE.pack(base_offset, length, leader_epoch), memoryview(records)[_PLACE.size :]))


def rewritten(batch: bytes, *, attributes: int, last_offset_delta: int, max_timestamp: int) -> bytes:
    """Return the batch with other fields in its header, and the checksum that belongs to them."""
    header = BatchHeader._make(_HEADER.unpack_from(batch))._replace(
        attributes=attributes, last_offset_delta=last_offset_delta, max_timestamp=max_timestamp
    )
    changed = bytearray(batch)
    _HEADER.pack_into(changed, 0, *header)
    struct.pack_into(">I", changed, _CRC_FROM - 4, _crc32c()(bytes(changed[_CRC_FROM:])))
    return bytes(changed)


def new_batch(header: BatchHeader, records: bytes) -> bytes:
    """Return a batch of records behind this header, with the length and the checksum that belong to them."""
    whole = header._replace(length=_LENGTH_TO_RECORDS + len(records))
    batch = bytearray(_HEADER.pack(*whole) + records)
    struct.pack_into(">I", batch, _CRC_FROM - 4, _crc32c()(bytes(batch[_CRC_FROM:])))
    return bytes(batch)


def refilled(batch: bytes, records: bytes, *, attributes: int, count: int, max_timestamp: int) -> bytes:
    """Return a stored batch at its place with other records; the other fields of its header stay."""
    changed = bytearray(memoryview(batch)[:HEADER_BYTES]) + records
    header = BatchHeader._make(_HEADER.unpack_from(batch))._replace(
        length=len(changed) - _BATCH_OVERHEAD,
        attributes=attributes,
        records=count,
        max_timestamp=max_timestamp,
    )
    _HEADER.pack_into(changed, 0, *header)
    struct.pack_into(">I", changed, _CRC_FROM - 4, _crc32c()(bytes(changed[_CRC_FROM:])))
    return bytes(changed)


def last_offset(batch: bytes) -> int:
    """Return the offset of a stored batch's last record, or of the last one that it had."""
    header = BatchHeader._make(_HEADER.unpack_from(batch))
    return header.base_offset + header.last_offset_delta


def whole_batches(records: bytes) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Return the header and the bytes of each batch in fetched records; a batch cut off at the end is left
    out.

    :raises ProtocolError: CORRUPT_MESSAGE if a batch is shorter than its header, or of another format.
    """
    at = 0
    while len(records) - at >= HEADER_BYTES:
        header = BatchHeader._make(_HEADER.unpack_from(records, at))
        if header.magic != _MAGIC or header.length < _LENGTH_TO_RECORDS:
            raise ProtocolError(
                ErrorCode.CORRUPT_MESSAGE, f"a batch of format {header.magic} and {header.length} bytes"
            )
        end = at + _BATCH_OVERHEAD + header.length
        if end > len(records):
            return
        yield header, memoryview(records)[at:end]
        at = end


def stored_batch(batch: bytes) -> BatchHeader:
    """Return the header of a batch that was in a log before; it may be a marker.

    :raises ProtocolError: CORRUPT_MESSAGE if it was damaged since.
    """
    header = BatchHeader._make(_HEADER.unpack_from(batch)) if len(batch) >= HEADER_BYTES else None
    if header is None or _crc32c()(memoryview(batch)[_CRC_FROM:]) != header.crc:
        raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "the batch fails its checksum")
    return header


def end_marker(*, producer_id: int, producer_epoch: int, commit: bool, timestamp_ms: int) -> bytes:
    """Return the control batch that ends a transaction (KIP-98, Control Messages); its place is still to be
    set."""
    record = _MARKER.pack(
        # Lengths are zigzag varints: twice the number of bytes.
        *(2 * (_MARKER.size - 1), 0, 0, 0, 2 * 4, 0, int(commit), 2 * 6, 0, COORDINATOR_EPOCH, 0)
    )
    header = _HEADER.pack(
        *(0, _LENGTH_TO_RECORDS + len(record), 0, 2, 0, _TRANSACTIONAL | _CONTROL, 0),
        *(timestamp_ms, timestamp_ms, producer_id, producer_epoch, NO_SEQUENCE, 1),
    )
    batch = bytearray(header + record)
    struct.pack_into(">I", batch, _CRC_FROM - 4, _crc32c()(bytes(batch[_CRC_FROM:])))
    return bytes(batch)


def is_commit(marker: bytes | memoryview) -> bool:
    """Return true if a marker commits its transaction."""
    (kind,) = _MARKER_TYPE.unpack_from(marker, _MARKER_TYPE_AT)
    return bool(kind == 1)
