"""Encoding messages: writers compiled from kio's schemas, one for each struct of an (API, version).

A writer takes the fields of a struct by name and gives its bytes; fields that this version lacks are left
out. Structs within it are bytes already, by their own writers. Durations and moments are milliseconds, UUIDs
topic ids, or None for the zero UUID.

Records are a sequence of batches, which are sent from the log to the socket without a copy: a struct that
contains records is written in pieces.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.codec.fields import REQUIRED, WireField, null_struct, wire_fields
from fencepost.coordinator.protocol.ids import TopicId, uuid_from_topic_id

Write: TypeAlias = Callable[[Any], Any]
"""From a value to its bytes, or to their pieces."""

LARGE_BYTES = 16_384
"""Smaller pieces are joined with their neighbours: to copy them is cheaper than to send them alone."""

_SHORT = tuple(bytes((number,)) for number in range(0x80))
_MILLISECOND = datetime.timedelta(milliseconds=1)


def unsigned_varint(value: int) -> bytes:
    """Return an unsigned variable-length integer."""
    if 0 <= value < 0x80:
        return _SHORT[value]
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _compact_size(size: int) -> bytes:
    return unsigned_varint(size + 1)


_int16, _int32 = struct.Struct(">h").pack, struct.Struct(">i").pack


def _compact_text(text: str) -> bytes:
    raw = text.encode()
    size = len(raw) + 1  # most are short, and a call costs as much as all else
    return (_SHORT[size] if size < 0x80 else unsigned_varint(size)) + raw


def _text(text: str) -> bytes:
    raw = text.encode()
    return _int16(len(raw)) + raw


def _or_null(write: Write, null: bytes) -> Write:
    return lambda value: null if value is None else write(value)


compact_string: Callable[[str | None], bytes] = _or_null(_compact_text, b"\x00")
"""A compact nullable string."""


@functools.lru_cache(maxsize=65_536)
def uuid_bytes(topic_id: TopicId | None) -> bytes:
    """Return the sixteen bytes of a topic id; zeroes for None."""
    return bytes(16) if topic_id is None else uuid_from_topic_id(topic_id).bytes


_FIXED: dict[str, Write] = {
    "int8": struct.Struct(">b").pack,
    "int16": _int16,
    "int32": _int32,
    "int64": struct.Struct(">q").pack,
    "uint16": struct.Struct(">H").pack,
    "uint32": struct.Struct(">I").pack,
    "float64": struct.Struct(">d").pack,
    "bool": struct.Struct(">?").pack,
    "error_code": _int16,
    "timedelta_i32": _int32,
    "timedelta_i64": struct.Struct(">q").pack,
    "datetime_i64": struct.Struct(">q").pack,
    "uuid": uuid_bytes,
}
_SIZED: dict[tuple[str, bool], tuple[Write, bytes]] = {
    ("string", True): (_compact_text, b"\x00"),
    ("string", False): (_text, b"\xff\xff"),
    ("bytes", True): (lambda data: _compact_size(len(data)) + data, b"\x00"),
    ("bytes", False): (lambda data: _int32(len(data)) + data, b"\xff\xff\xff\xff"),
}
"""The writer and the bytes of null, by type and flexibility."""
_ZEROES = {"string": "", "bytes": b"", "uuid": None}
"""Of types that are no numbers."""


def _records(flexible: bool) -> Write:
    write_size = _compact_size if flexible else _int32
    null = write_size(-1)

    def write(batches: Sequence[bytes] | None) -> list[bytes]:
        return [null] if batches is None else [write_size(sum(map(len, batches))), *batches]

    return write


def _array(element: Write, *, flexible: bool, nullable: bool, pieces: bool) -> Write:
    write_size = _compact_size if flexible else _int32

    def write(values: Sequence[Any]) -> bytes:
        return write_size(len(values)) + b"".join(map(element, values))

    def write_pieces(values: Sequence[Any]) -> list[bytes]:
        return [write_size(len(values)), *itertools.chain.from_iterable(map(element, values))]

    chosen: Write = write_pieces if pieces else write
    return _or_null(chosen, write_size(-1)) if nullable else chosen


def _as_it_is(written: Any) -> Any:
    return written


def field_writer(field: WireField, *, flexible: bool, element: Write | None = None) -> Write:
    """Return a writer of one field of a schema's class. `element` writes a struct, bytes by default."""
    if field.kafka_type is None:
        write_struct = element or _as_it_is
        if field.is_array:
            in_pieces = is_in_pieces(field.struct)
            return _array(write_struct, flexible=flexible, nullable=field.is_nullable, pieces=in_pieces)
        if field.is_nullable:
            return _or_null(lambda value: b"\x01" + write_struct(value), null_struct(field))
        return write_struct
    if field.kafka_type in _FIXED:
        write = _FIXED[field.kafka_type]
    elif field.kafka_type == "records":
        write = _records(flexible)
    else:
        write, null = _SIZED[field.kafka_type, flexible]
        if field.is_nullable and not field.is_array:
            write = _or_null(write, null)
    if field.is_array:
        return _array(write, flexible=flexible, nullable=field.is_nullable, pieces=False)
    return write


@functools.cache
def is_in_pieces(entity: Any) -> bool:
    """Return true if a schema's class contains records, at any depth."""
    return any(
        field.kafka_type == "records" or (field.struct is not None and is_in_pieces(field.struct))
        for field in wire_fields(entity)
    )


def unset(_: Any) -> None:
    """Stand for the value of a field that no object has: it gets its default, and no tag."""


def _default(field: WireField) -> Any:
    """Return the default as writers take it; a tagged field with it is left out."""
    if field.default is REQUIRED:
        if field.is_nullable:
            return None if field.tag is None else REQUIRED
        return () if field.is_array else _ZEROES.get(field.kafka_type or "", 0)
    if isinstance(field.default, datetime.timedelta):
        return field.default // _MILLISECOND
    if field.kafka_type == "datetime_i64" and field.default is None:
        return -1
    return field.default


def default_bytes(field: WireField, *, flexible: bool) -> bytes:
    """Return the bytes of a field that has its default; empty for a tagged one, which is left out then."""
    if field.tag is not None:
        return b""
    data: bytes = field_writer(field, flexible=flexible)(_default(field))
    return data


class LayoutField(NamedTuple):
    """One field of a struct: the getter of its value, and the writer that makes bytes of the value."""

    field: WireField
    get: Callable[[Any], Any]
    write: Write


def fields_writer(entity: Any, fields: Iterable[LayoutField]) -> Write:
    """Return a writer of a schema's class: from an object to bytes, or to pieces if it holds records.

    It raises struct.error, AttributeError, TypeError or ValueError for a value that does not fit.
    """
    fields = tuple(fields)
    untagged = [(each.get, each.write) for each in fields if each.field.tag is None]
    tagged = [
        (unsigned_varint(each.field.tag), each.get, each.write, _default(each.field), each.field.is_nullable)
        for each in sorted(fields, key=lambda each: each.field.tag or 0)
        if each.field.tag is not None and each.get is not unset
    ]
    end = [b"\x00"] if entity.__flexible__ else []

    def tags(value: Any) -> list[bytes]:
        parts = [b""]
        for tag, get, write_field, default, is_nullable in tagged:
            found = get(value)
            if found != default and (found is not None or is_nullable):
                data = write_field(found)
                parts += (tag, unsigned_varint(len(data)), data)
        parts[0] = unsigned_varint(len(parts) // 3)
        return parts

    def write(value: Any) -> bytes:
        parts = [write_field(get(value)) for get, write_field in untagged]
        parts += tags(value) if tagged else end
        return b"".join(parts)

    def write_pieces(value: Any) -> list[bytes]:
        pieces: list[bytes] = []
        for get, write_field in untagged:
            data = write_field(get(value))
            pieces += data if isinstance(data, list) else (data,)
        pieces += tags(value) if tagged else end
        return pieces

    return write_pieces if is_in_pieces(entity) else write


def joined(pieces: Sequence[bytes]) -> list[bytes]:
    """Pieces with the small ones among them joined; at least one."""
    chunks: list[bytes] = []
    for is_large, group in itertools.groupby(pieces, lambda piece: len(piece) >= LARGE_BYTES):
        if is_large:
            chunks += group
        else:
            chunks.append(b"".join(group))
    return chunks or [b""]
