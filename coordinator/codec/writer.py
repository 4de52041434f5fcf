"""Encoding messages: writers compiled from kio's schemas, one for each struct of an (API, version).

A writer takes the fields of a struct by name and gives its bytes; fields that this version lacks are left
out. Structs within it are bytes already, by their own writers. Durations and moments are milliseconds, UUIDs
topic ids, or None for the zero UUID.

Records are a sequence of batches, which go from the log to the socket without being copied: a struct with
records somewhere in it is written in pieces.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from fencepost.coordinator.codec.fields import REQUIRED, WireField, null_struct, wire_fields
from fencepost.coordinator.protocol.ids import TopicId, uuid_from_topic_id

Write: TypeAlias = Callable[[Any], Any]
"""From a value to its bytes, or to their pieces."""
StructWriter: TypeAlias = Callable[..., Any]

LARGE_BYTES = 16_384
"""Smaller pieces are joined with their neighbours: to copy them is cheaper than to send them alone."""

_SHORT = tuple(bytes((number,)) for number in range(0x80))
_MILLISECOND = datetime.timedelta(milliseconds=1)


def unsigned_varint(value: int) -> bytes:
    """An unsigned variable-length integer."""
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


def _compact_data(data: bytes) -> bytes:
    return _compact_size(len(data)) + data


def _data(data: bytes) -> bytes:
    return _int32(len(data)) + data


def _or_null(write: Write, null: bytes) -> Write:
    return lambda value: null if value is None else write(value)


compact_string: Callable[[str | None], bytes] = _or_null(_compact_text, b"\x00")
"""A compact nullable string."""


@functools.lru_cache(maxsize=65_536)
def uuid_bytes(topic_id: TopicId | None) -> bytes:
    """The sixteen bytes of a topic id; zeroes for None."""
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
    ("bytes", True): (_compact_data, b"\x00"),
    ("bytes", False): (_data, b"\xff\xff\xff\xff"),
}
"""By type and flexibility: what writes it, and null."""
_ZEROES = {"string": "", "bytes": b"", "uuid": None}
"""Of types that are no numbers."""


def _records(flexible: bool) -> Write:
    write_size = _compact_size if flexible else _int32
    null = write_size(-1)

    def write(batches: Sequence[bytes] | None) -> list[bytes]:
        return [null] if batches is None else [write_size(sum(map(len, batches))), *batches]

    return write


def _array(element: Write | None, *, flexible: bool, nullable: bool, pieces: bool) -> Write:
    """Without `element` they are written already."""
    write_size = _compact_size if flexible else _int32

    def write(values: Sequence[Any]) -> bytes:
        written: Iterable[bytes] = values if element is None else map(element, values)
        return write_size(len(values)) + b"".join(written)

    def write_pieces(values: Sequence[list[bytes]]) -> list[bytes]:
        return [write_size(len(values)), *itertools.chain.from_iterable(values)]

    chosen: Write = write_pieces if pieces else write
    return _or_null(chosen, write_size(-1)) if nullable else chosen


def _as_it_is(written: Any) -> Any:
    return written


def _after_mark(written: bytes) -> bytes:
    return b"\x01" + written


def _field_writer(field: WireField, *, flexible: bool) -> Write:
    if field.kafka_type is None:
        if field.is_array:
            in_pieces = is_in_pieces(field.struct)
            return _array(None, flexible=flexible, nullable=field.is_nullable, pieces=in_pieces)
        return _or_null(_after_mark, null_struct(field)) if field.is_nullable else _as_it_is
    if field.kafka_type in _FIXED:
        element = _FIXED[field.kafka_type]
    elif field.kafka_type == "records":
        element = _records(flexible)
    else:
        element, null = _SIZED[field.kafka_type, flexible]
        if field.is_nullable and not field.is_array:
            element = _or_null(element, null)
    if field.is_array:
        return _array(element, flexible=flexible, nullable=field.is_nullable, pieces=False)
    return element


def is_in_pieces(entity: Any) -> bool:
    """Whether a schema's class has records somewhere in it."""
    return any(
        field.kafka_type == "records" or (field.struct is not None and is_in_pieces(field.struct))
        for field in wire_fields(entity)
    )


def _default(field: WireField) -> Any:
    if field.default is REQUIRED:
        return () if field.is_array else _ZEROES.get(field.kafka_type or "", 0)
    if field.kafka_type == "datetime_i64" and field.default is None:
        return -1
    return written(field.default)


@functools.cache
def struct_writer(entity: Any) -> StructWriter:
    """The writer of a schema's class: from its fields by name to bytes, or to pieces if it holds records.

    It raises KeyError for a field that is not given and has no default, and struct.error, AttributeError,
    TypeError or ValueError for a value that does not fit.
    """
    flexible: bool = entity.__flexible__
    fields = wire_fields(entity)
    writers = {field.name: _field_writer(field, flexible=flexible) for field in fields}
    untagged = [(field.name, writers[field.name]) for field in fields if field.tag is None]
    tagged = [
        (unsigned_varint(field.tag), field.name, writers[field.name], _default(field))
        for field in sorted(fields, key=lambda field: field.tag or 0)
        if field.tag is not None
    ]
    defaults = {
        field.name: _default(field)
        for field in fields
        if field.tag is not None or field.default is not REQUIRED
    }
    end = [b"\x00"] if flexible else []

    def tags(values: dict[str, Any]) -> list[bytes]:
        parts = [b""]
        for tag, name, write, default in tagged:
            if values[name] != default:
                data = write(values[name])
                parts += (tag, unsigned_varint(len(data)), data)
        parts[0] = unsigned_varint(len(parts) // 3)
        return parts

    def write(**given: Any) -> bytes:
        values = defaults | given
        parts = [write_field(values[name]) for name, write_field in untagged]
        parts += tags(values) if tagged else end
        return b"".join(parts)

    def write_pieces(**given: Any) -> list[bytes]:
        values = defaults | given
        pieces: list[bytes] = []
        for name, write_field in untagged:
            data = write_field(values[name])
            pieces += data if isinstance(data, list) else (data,)
        pieces += tags(values) if tagged else end
        return pieces

    return write_pieces if is_in_pieces(entity) else write


def written(value: Any) -> Any:
    """An object of a schema's class, with all that is in it, as bytes; other values as writers take them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return struct_writer(type(value))(**{name: written(getattr(value, name)) for name in names})
    if isinstance(value, tuple):
        return tuple(map(written, value))
    if isinstance(value, datetime.timedelta):
        return value // _MILLISECOND
    return value


def joined(pieces: Sequence[bytes]) -> list[bytes]:
    """Pieces with the small ones among them joined; at least one."""
    chunks: list[bytes] = []
    for is_large, group in itertools.groupby(pieces, lambda piece: len(piece) >= LARGE_BYTES):
        if is_large:
            chunks += group
        else:
            chunks.append(b"".join(group))
    return chunks or [b""]
