"""Decoding messages: readers compiled from kio's schemas, one for each (API, version).

kio's own decoder is native and quick, but it trusts lengths: an array that claims more elements than memory
holds aborts the process, and a tagged field that it does not know raises. A server reads the input of
strangers, so these readers limit every length to the bytes that are left, and skip unknown tagged fields.

A message becomes a dict of plain values by field name, without the fields that its version lacks. Durations
are ints in milliseconds under kio's name of the field; UUIDs are topic ids, and None for the zero UUID.
"""

from __future__ import annotations

import functools
import itertools
import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.codec.fields import WireField, null_struct, wire_fields
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.protocol.ids import TopicId, topic_id_from_uuid

Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""From a buffer and an offset to the value and the offset behind it."""

_ZERO_UUID = bytes(16)

MAX_STRING_BYTES = 2**15 - 1
"""The longest string of a message, in bytes of UTF-8, as in Kafka. Bytes and records have no such limit."""
MAX_TAGGED_FIELDS = 1_000
"""The most tagged fields in one section."""


STRUCT_COST, LIST_COST, STRING_COST, NUMBER_COST = 6, 3, 3, 1
"""The cost of a list, and of each element. A tagged field costs as much as a number."""


class Allowance:
    """The cost that is left for reading a message: list elements on all levels, and tagged fields."""

    __slots__ = ("_left", "_limit", "_name")

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        """The name of the limit in the documentation."""
        self._limit = limit
        self._left = limit

    def renew(self) -> None:
        """Begin another message."""
        self._left = self._limit

    def take(self, cost: int) -> None:
        """Count something.

        :raises MalformedFrame: if it is more than the message may have.
        """
        self._left -= cost
        if self._left < 0:
            raise MalformedFrame(
                f"too many list elements: more than {self._limit} ({self._name}), where a struct counts "
                f"{STRUCT_COST}, a list {LIST_COST}, a string {STRING_COST}, and a number {NUMBER_COST}"
            )


_codes: dict[Reader, str] = {}
"""The layouts of readers of numbers."""


def _fixed(code: str) -> Reader:
    layout = struct.Struct(code)
    unpack, size = layout.unpack_from, layout.size

    def read(data: bytes, at: int) -> tuple[Any, int]:
        return unpack(data, at)[0], at + size

    _codes[read] = code[1:]
    return read


def is_number_reader(reader: Reader) -> bool:
    """Return true if the reader returns a number unchanged."""
    return reader in _codes


_RUN = 4
"""From this many numbers on, it is faster to read them in one call."""


class _Step(NamedTuple):
    """A part of a struct: a field with a reader, or numbers that follow each other and are read at once."""

    names: Any
    read: Callable[[bytes, int], Any]
    size: int
    """Of the numbers; 0 for a field."""


def _steps(plain: list[tuple[str | None, Reader]]) -> list[_Step]:
    steps: list[_Step] = []
    for together, group in itertools.groupby(plain, lambda field: field[1] in _codes):
        if not together:
            steps += (_Step(name, reader, 0) for name, reader in group)
            continue
        run = list(group)
        if len(run) < _RUN and all(name is not None for name, _ in run):
            steps += (_Step(name, reader, 0) for name, reader in run)
            continue
        codes = (
            _codes[reader] if name is not None else f"{struct.calcsize('>' + _codes[reader])}x"
            for name, reader in run
        )
        numbers = struct.Struct(">" + "".join(codes))
        names = tuple(name for name, _ in run if name is not None)
        steps.append(_Step(names, numbers.unpack_from, numbers.size))
    return steps


_int16, _int32 = _fixed(">h"), _fixed(">i")


def read_unsigned_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned variable-length integer of at most 32 bits, and the offset behind it.

    :raises MalformedFrame: if it is longer.
    :raises IndexError: if the data ends before.
    """
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise MalformedFrame("varint of more than five bytes")


@functools.lru_cache(maxsize=65_536)
def _topic_id(raw: bytes) -> TopicId | None:
    return None if raw == _ZERO_UUID else topic_id_from_uuid(uuid.UUID(bytes=raw))


def _read_uuid(data: bytes, at: int) -> tuple[TopicId | None, int]:
    return _topic_id(_slice(data, at, 16)), at + 16


def _slice(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise _cut_short(data, at, size)
    return data[at : at + size]


def _cut_short(data: bytes, at: int, size: int) -> MalformedFrame:
    return MalformedFrame(f"{size} bytes are announced, {len(data) - at} are left")


def _compact_length(data: bytes, at: int) -> tuple[int, int]:
    length, at = read_unsigned_varint(data, at)
    return length - 1, at


def _length_reader(kafka_type: str, flexible: bool) -> Callable[[bytes, int], tuple[int, int]]:
    if flexible:
        return _compact_length
    return _int16 if kafka_type == "string" else _int32


def _sized(kafka_type: str, flexible: bool, nullable: bool) -> Reader:
    read_length = _length_reader(kafka_type, flexible)
    text = kafka_type == "string"

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if flexible and data[at] < 0x80:  # most are short, and a call costs as much as all else
            length, at = data[at] - 1, at + 1
        else:
            length, at = read_length(data, at)
            if text and length > MAX_STRING_BYTES:
                raise MalformedFrame(f"string of {length} bytes, expected at most {MAX_STRING_BYTES}")
        if length < 0:
            if length == -1 and nullable:
                return None, at
            raise MalformedFrame(f"{kafka_type} of length {length}")
        end = at + length
        if end > len(data):
            raise _cut_short(data, at, length)
        raw = data[at:end]
        return (raw.decode() if text else raw), end

    return read


def _records(flexible: bool) -> Reader:
    """Records are not copied out of their frame: the log makes its own copy."""
    read_length = _length_reader("records", flexible)

    def read(data: bytes, at: int) -> tuple[Any, int]:
        length, at = read_length(data, at)
        if length < 0:
            return None, at
        if at + length > len(data):
            raise _cut_short(data, at, length)
        return memoryview(data)[at : at + length], at + length

    return read


def _array(
    element: Reader,
    cost: int,
    *,
    flexible: bool,
    nullable: bool,
    allowance: Allowance | None,
    collect: Callable[[list[Any]], Any] | None,
) -> Reader:
    read_length = _compact_length if flexible else _int32

    def read(data: bytes, at: int) -> tuple[Any, int]:
        length, at = read_length(data, at)
        if length < 0:
            if length == -1 and nullable:
                return None, at
            raise MalformedFrame(f"array of length {length}")
        if length > len(data) - at:
            raise MalformedFrame(f"array of {length} elements in {len(data) - at} bytes")
        if allowance is not None:
            allowance.take(LIST_COST + length * cost)
        values = []
        for _ in range(length):
            value, at = element(data, at)
            values.append(value)
        return (values if collect is None else collect(values)), at

    return read


def _nullable_entity(entity: Reader, null: bytes) -> Reader:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        if _slice(data, at, 1) == null:
            return None, at + 1
        return entity(data, at + 1)

    return read


_FIXED: dict[str, Reader] = {
    "int8": _fixed(">b"),
    "int16": _int16,
    "int32": _int32,
    "int64": _fixed(">q"),
    "uint16": _fixed(">H"),
    "uint32": _fixed(">I"),
    "float64": _fixed(">d"),
    "bool": _fixed(">?"),
    "error_code": _int16,
    "timedelta_i32": _int32,
    "timedelta_i64": _fixed(">q"),
    "datetime_i64": _fixed(">q"),
    "uuid": _read_uuid,
}


def field_reader(
    field: WireField,
    *,
    flexible: bool,
    allowance: Allowance | None = None,
    element: Reader | None = None,
    collect: Callable[[list[Any]], Any] | None = None,
) -> Reader:
    """Return a reader of one field of a schema's class.

    `element` reads a struct, a dict by default; `collect` makes something else of the list of an array.
    """
    if field.kafka_type is None:
        element = element or entity_reader(field.struct, allowance)
        if field.is_nullable and not field.is_array:
            return _nullable_entity(element, null_struct(field))
    elif field.kafka_type in _FIXED:
        element = _FIXED[field.kafka_type]
    elif field.kafka_type == "records":
        element = _records(flexible)
    else:
        element = _sized(field.kafka_type, flexible, field.is_nullable and not field.is_array)
    if not field.is_array:
        return element
    cost = NUMBER_COST if field.kafka_type in _FIXED else STRING_COST
    if field.kafka_type is None:
        cost = STRUCT_COST
    return _array(
        element,
        cost,
        flexible=flexible,
        nullable=field.is_nullable,
        allowance=allowance,
        collect=collect,
    )


def _tagged_count(data: bytes, at: int, allowance: Allowance | None) -> tuple[int, int]:
    count, at = read_unsigned_varint(data, at)
    if count > MAX_TAGGED_FIELDS:
        raise MalformedFrame(f"{count} tagged fields, expected at most {MAX_TAGGED_FIELDS}")
    if allowance is not None:
        allowance.take(count * NUMBER_COST)
    return count, at


def skip_tagged_fields(data: bytes, at: int, allowance: Allowance | None = None) -> int:
    """Return the offset after a section of tagged fields (KIP-482), whatever they are.

    :raises MalformedFrame: if a field is longer than what is left, or there are too many.
    """
    if not data[at]:  # nearly always there are no tagged fields
        return at + 1
    count, at = _tagged_count(data, at, allowance)
    for _ in range(count):
        _, at = read_unsigned_varint(data, at)
        size, at = read_unsigned_varint(data, at)
        at += size
        if at > len(data):
            raise MalformedFrame(f"tagged field of {size} bytes extends beyond the frame")
    return at


def entity_reader(entity: Any, allowance: Allowance | None = None) -> Reader:
    """Return a reader of one schema's class, which yields a dict by field name.

    With an `allowance` it counts. The allowance has to be renewed before each message.
    """
    flexible: bool = entity.__flexible__
    plain: list[tuple[str | None, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    for field in wire_fields(entity):
        reader = field_reader(field, flexible=flexible, allowance=allowance)
        if field.tag is None:
            plain.append((field.name, reader))
        else:
            tagged[field.tag] = (field.name, reader)
    return fields_reader(plain, tagged, flexible=flexible, allowance=allowance)


def fields_reader(
    plain: list[tuple[str | None, Reader]],
    tagged: dict[int, tuple[str, Reader]],
    *,
    flexible: bool,
    allowance: Allowance | None,
) -> Callable[[bytes, int], tuple[dict[str, Any], int]]:
    """Return a reader of the fields of a struct in their order, and of those with a tag behind them, by name.

    A number without a name is skipped.
    """
    steps = _steps(plain)
    if not tagged and not any(step.size for step in steps):
        single = [step[:2] for step in steps]

        def read_simple(data: bytes, at: int) -> tuple[dict[str, Any], int]:
            values: dict[str, Any] = {}
            for name, reader in single:
                values[name], at = reader(data, at)
            return values, skip_tagged_fields(data, at, allowance) if flexible else at

        return read_simple

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        for names, reader, size in steps:
            if size:
                values.update(zip(names, reader(data, at), strict=True))
                at += size
            else:
                values[names], at = reader(data, at)
        if flexible:
            if tagged:
                at = _read_tagged(data, at, tagged, values, allowance)
            else:
                at = skip_tagged_fields(data, at, allowance)
        return values, at

    return read


def row_reader(readers: list[Reader], *, flexible: bool, allowance: Allowance | None) -> Reader:
    """Return a reader of the fields of a struct without known tags, as a tuple."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        values = []
        for reader in readers:
            value, at = reader(data, at)
            values.append(value)
        return tuple(values), skip_tagged_fields(data, at, allowance) if flexible else at

    return read


def _read_tagged(
    data: bytes,
    at: int,
    tagged: dict[int, tuple[str, Reader]],
    values: dict[str, Any],
    allowance: Allowance | None,
) -> int:
    count, at = _tagged_count(data, at, allowance)
    for _ in range(count):
        tag, at = read_unsigned_varint(data, at)
        size, at = read_unsigned_varint(data, at)
        end = at + size
        if end > len(data):
            raise MalformedFrame(f"tagged field of {size} bytes extends beyond the frame")
        if tag in tagged:
            name, reader = tagged[tag]
            values[name], behind = reader(data, at)
            if behind != end:
                raise MalformedFrame(f"tagged field {name} has {behind - at} bytes, {size} are announced")
        at = end
    return at
