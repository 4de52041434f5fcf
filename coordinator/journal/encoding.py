"""A record as bytes: four bytes of CRC-32, a version byte, then msgpack.

The checksum covers the version and the body. Keys and values carry Kafka's record type as their tag, so
the bytes name what they hold.
"""

from __future__ import annotations

import zlib
from typing import Any, Final, TypeAlias, get_args

import msgspec

from fencepost.coordinator.protocol import cluster_records
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.records import Record, RecordKey, RecordValue
from fencepost.coordinator.protocol.sac_records import SacRecord, SacRecordKey, SacRecordValue
from fencepost.coordinator.protocol.transaction_records import (
    TransactionKey,
    TransactionRecord,
    TransactionValue,
)

JournalRecord: TypeAlias = Record | cluster_records.ClusterRecord | TransactionRecord | SacRecord
"""A record of any kind: of a group, of the cluster, of a transactional id, of single active consumers."""

JournalKey: TypeAlias = RecordKey | cluster_records.ClusterRecordKey | TransactionKey | SacRecordKey
JournalValue: TypeAlias = RecordValue | cluster_records.ClusterRecordValue | TransactionValue | SacRecordValue


class _Pair(msgspec.Struct, array_like=True, gc=False):
    key: JournalKey
    value: JournalValue | None


VERSION: Final = 1
_VERSION_BYTE: Final = bytes([VERSION])
_HEADER: Final = 5

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Pair)
_TAGS: dict[type, Any] = {
    struct: struct.__struct_config__.tag for struct in (*get_args(JournalKey), *get_args(JournalValue))
}
_RECORDS: dict[type, Any] = {
    **dict.fromkeys(get_args(RecordKey), Record),
    **dict.fromkeys(get_args(cluster_records.ClusterRecordKey), cluster_records.ClusterRecord),
    TransactionKey: TransactionRecord,
    **dict.fromkeys(get_args(SacRecordKey), SacRecord),
}


class BrokenJournal(FencepostError):
    """A journal whose file was damaged, or never was one: the text names the file and the place."""


HINT: Final = "; --journal-repair makes a backup and keeps the records before the damage"
"""Advice at the end of a message about damage that can be repaired."""


class BrokenRecord(FencepostError):
    """Bytes that are no record: cut short, altered, or written by another version."""


def encode(record: JournalRecord) -> bytes:
    """Return the record's bytes; equal records that were built in the same order give equal bytes."""
    body = _VERSION_BYTE + _encoder.encode(record)
    return zlib.crc32(body).to_bytes(4, "big") + body


def decode(data: bytes) -> Record:
    """Return the group's record behind the bytes.

    :raises BrokenRecord: as `decode_any`, and if it is a record of something else.
    """
    record = decode_any(data)
    if not isinstance(record, Record):
        raise BrokenRecord(f"a key of type {_TAGS[type(record.key)]} is not a group's")
    return record


def decode_any(data: bytes) -> JournalRecord:
    """Return the record behind the bytes.

    :raises BrokenRecord: if they are too short, fail their checksum, or do not hold a record that this
        version knows; the text says which.
    """
    if len(data) <= _HEADER:
        raise BrokenRecord(f"a record has more than {_HEADER} bytes, these are {len(data)}: {data.hex()!r}")
    body = data[4:]
    stated, found = int.from_bytes(data[:4], "big"), zlib.crc32(body)
    if stated != found:
        raise BrokenRecord(f"checksum {found:08x} of a record of {len(data)} bytes should be {stated:08x}")
    if body[0] != VERSION:
        raise BrokenRecord(f"record version {body[0]} is unknown, version {VERSION} was expected")
    try:
        pair = _decoder.decode(body[1:])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenRecord(f"the record's body is malformed: {error}") from error
    key, value = pair.key, pair.value
    # A key of one type with a value of another has a valid checksum only if it was written like that.
    if value is not None and _TAGS[type(key)] != _TAGS[type(value)]:
        raise BrokenRecord(f"a key of type {_TAGS[type(key)]} has a value of type {_TAGS[type(value)]}")
    record: JournalRecord = _RECORDS[type(key)](key, value)
    return record
