"""Types of fields: reading each type from a frame, and writing it to one.

Integers are big endian. A string is an int16 length, -1 for none, and UTF-8; bytes are an int32 length and
the bytes; an array is an int32 count and its items. Every length is checked against the bytes that are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.rabbit_codec.codes import OffsetType

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""From a frame and a position to the value, and the position behind it."""
Write: TypeAlias = Callable[[Any, list[bytes]], None]
"""Appends the value's bytes."""


class Field(NamedTuple):
    """A type of fields."""

    read: Read
    write: Write


class WireOffsetSpecification(NamedTuple):
    """The position to start reading. `value` is an offset, or a time in ms since the epoch; else it is 0."""

    type: OffsetType
    value: int = 0


FIRST: Final = WireOffsetSpecification(OffsetType.FIRST)
NEXT: Final = WireOffsetSpecification(OffsetType.NEXT)
NONE: Final = WireOffsetSpecification(OffsetType.NONE)


def _integer(code: str) -> Field:
    layout = struct.Struct(code)
    unpack, pack, size = layout.unpack_from, layout.pack, layout.size

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    def write(value: Any, out: list[bytes]) -> None:
        out.append(pack(value))

    return Field(read, write)


U8: Final = _integer(">B")
U16: Final = _integer(">H")
I16: Final = _integer(">h")
U32: Final = _integer(">I")
I32: Final = _integer(">i")
U64: Final = _integer(">Q")
I64: Final = _integer(">q")


def _taken(data: bytes, at: int, length: int) -> bytes:
    end = at + length
    if end > len(data):
        raise MalformedFrame(f"{length} bytes at {at} in a frame of {len(data)}")
    return data[at:end]


def _read_string(data: bytes, at: int) -> tuple[str | None, int]:
    length, at = I16.read(data, at)
    if length == -1:
        return None, at
    if length < 0:
        raise MalformedFrame(f"a string of {length} bytes")
    try:
        return _taken(data, at, length).decode(), at + length
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"a string that is not UTF-8: {error}") from None


def _write_string(value: str | None, out: list[bytes]) -> None:
    if value is None:
        out.append(b"\xff\xff")
        return
    encoded = value.encode()
    I16.write(len(encoded), out)
    out.append(encoded)


OPTIONAL_STRING: Final = Field(_read_string, _write_string)
STRING: Final = Field(lambda data, at: _no_null(*_read_string(data, at)), _write_string)


def _no_null(value: str | None, at: int) -> tuple[str, int]:
    return value or "", at


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = I32.read(data, at)
    if length == -1:
        return b"", at
    if length < 0:
        raise MalformedFrame(f"{length} bytes")
    return _taken(data, at, length), at + length


def _write_bytes(value: bytes, out: list[bytes]) -> None:
    I32.write(len(value), out)
    out.append(value)


BYTES: Final = Field(_read_bytes, _write_bytes)
REST: Final = Field(lambda data, at: (data[at:], len(data)), lambda value, out: out.append(value))
"""All that is left of the frame."""


def array(item: Field) -> Field:
    """Return the type of a field that is an array, read as a tuple."""

    def read(data: bytes, at: int) -> tuple[tuple[Any, ...], int]:
        count, at = I32.read(data, at)
        if not 0 <= count <= len(data) - at:
            raise MalformedFrame(f"{count} items in {len(data) - at} bytes")
        items = []
        for _ in range(count):
            value, at = item.read(data, at)
            items.append(value)
        return tuple(items), at

    def write(values: Sequence[Any], out: list[bytes]) -> None:
        I32.write(len(values), out)
        for value in values:
            item.write(value, out)

    return Field(read, write)


def record(make: Callable[..., tuple[Any, ...]], *parts: Field) -> Field:
    """Return the type of a field that is a named tuple, written as its fields."""

    def read(data: bytes, at: int) -> tuple[object, int]:
        values = []
        for part in parts:
            value, at = part.read(data, at)
            values.append(value)
        return make(*values), at

    def write(record: tuple[object, ...], out: list[bytes]) -> None:
        for part, value in zip(parts, record, strict=True):
            part.write(value, out)

    return Field(read, write)


def pairs(key: Field, value: Field) -> Field:
    """Return the field type of a mapping, an array of keys with their values; of a repeated key the last
    value counts."""
    items = array(record(lambda *pair: pair, key, value))

    def read(data: bytes, at: int) -> tuple[dict[Any, Any], int]:
        found, at = items.read(data, at)
        return dict(found), at

    return Field(read, lambda mapping, out: items.write(tuple(mapping.items()), out))


def _trailing(field: Field, empty: object) -> Field:
    """Return the type of a field at the end of a frame that is left out if it is empty."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return (empty, at) if at == len(data) else field.read(data, at)

    def write(value: Any, out: list[bytes]) -> None:
        if value:
            field.write(value, out)

    return Field(read, write)


PROPERTIES: Final = pairs(STRING, STRING)
TRAILING_PROPERTIES: Final = _trailing(PROPERTIES, MappingProxyType({}))
TRAILING_BYTES: Final = _trailing(BYTES, b"")

_VALUES: Final = {OffsetType.OFFSET: U64, OffsetType.TIMESTAMP: I64}


def _read_specification(
    data: bytes, at: int, lowest: OffsetType = OffsetType.FIRST
) -> tuple[WireOffsetSpecification, int]:
    number, at = U16.read(data, at)
    if not lowest <= number <= OffsetType.TIMESTAMP:
        raise MalformedFrame(f"an offset of type {number}, expected {lowest} to {OffsetType.TIMESTAMP}")
    kind = OffsetType(number)
    if kind not in _VALUES:
        return WireOffsetSpecification(kind), at
    value, at = _VALUES[kind].read(data, at)
    return WireOffsetSpecification(kind, value), at


def _write_specification(value: WireOffsetSpecification, out: list[bytes]) -> None:
    U16.write(value.type, out)
    if value.type in _VALUES:
        _VALUES[value.type].write(value.value, out)


OFFSET_SPECIFICATION: Final = Field(_read_specification, _write_specification)


def _read_last_specification(data: bytes, at: int) -> tuple[WireOffsetSpecification, int]:
    value, _ = _read_specification(data, at, OffsetType.NONE)
    return value, len(data)


LAST_OFFSET_SPECIFICATION: Final = Field(_read_last_specification, _write_specification)
"""An offset specification in a response, at the end of a frame; it may name no place.

Some clients write a value after types without one; it is ignored.
"""
