"""Declarations of messages and records: the layout of a class of ours in a struct of Kafka's.

One `Layout` serves both directions. With kio's schema of one API version, it is compiled into a reader from
bytes to objects, and a writer back. The schema decides what is not declared:

- A field of ours has Kafka's name unless `names` says otherwise.
- A field that the version lacks is not written, and read as the default of our class, or as `absent` says.
- A field of Kafka's that we lack is skipped, and written as its default: zero, empty, or null if possible.
- Error codes become `ErrorCode`, and arrays tuples.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.codec.fields import WireField, wire_fields
from fencepost.coordinator.codec.reader import (
    Allowance,
    Reader,
    field_reader,
    fields_reader,
    is_number_reader,
    row_reader,
)
from fencepost.coordinator.codec.writer import (
    LayoutField,
    Write,
    default_bytes,
    field_writer,
    fields_writer,
    unset,
)
from fencepost.coordinator.protocol.errors import ErrorCode

_ERRORS = {int(code): code for code in ErrorCode}


def error_of(code: int) -> ErrorCode:
    """Our code for a number in a response; an unknown one becomes UNKNOWN_SERVER_ERROR."""
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


Convert: TypeAlias = Callable[[Any], Any]


class Via(NamedTuple):
    """A field that differs on the wire: a conversion for each direction, which null does not reach."""

    read: Convert | None = None
    write: Convert | None = None
    of: Layout | None = None
    """The layout of the struct, or of each struct in the array, on the wire's side of the conversions."""
    null: Any = None
    """The value that stands for null."""
    is_never_null: bool = False
    """True if null is written as an empty value in versions that know no null."""
    codes: Mapping[ErrorCode, tuple[int, ErrorCode]] = {}
    """Error codes with the first version that knows each, and what older versions get in its place."""


ITEMS: Convert = operator.methodcaller("items")
"""Writes a mapping as pairs."""
EMPTY_FOR_NULL = Via(null="")
"""A text that can be null on the wire, and is empty then."""
NULL_IF_POSSIBLE = Via(is_never_null=True)
"""A text that can be null in later versions only."""


class Layout:
    """The mapping between objects of one class and the Kafka structs that carry them."""

    def __init__(
        self,
        make: Callable[..., Any],
        names: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, Layout | Via] | None = None,
        absent: Mapping[str, Any] | None = None,
        write: Mapping[str, Any] | None = None,
        read: Callable[[dict[str, Any], Any], Any] | None = None,
        within: str = "",
    ) -> None:
        """Declare a layout.

        :param make: our class.
        :param names: Kafka's name of a field by ours, which may lead into an object: `offset.metadata`.
        :param fields: fields that are not plain values, by our name of the field, or by Kafka's if we have
            none.
        :param absent: values of our fields in versions without them, if not the default of the class.
        :param write: by Kafka's name of a field its value, or a function of the object and the version.
        :param read: makes the object from values by name, and from the version or the request's context.
        :param within: the attribute that holds the object, if a larger one is given to write.
        """
        self.make = make
        self._names = {kafka: ours for ours, kafka in (names or {}).items()}
        self._fields = fields or {}
        self._absent = absent or {}
        self._write = write or {}
        self._read = read
        self._within = f"{within}." if within else ""
        self._row: tuple[str, ...] = ()
        """All fields of Kafka's in their order, if objects are plain tuples of them."""
        self.ours = frozenset(getattr(make, "__struct_fields__", getattr(make, "_fields", ())))

    def values_reader(
        self, entity: Any, version: int, allowance: Allowance | None = None
    ) -> Callable[[bytes, int], tuple[dict[str, Any], int]]:
        """Return a reader of the values by our names, with those that are absent."""
        plain: list[tuple[str | None, Reader]] = []
        tagged: dict[int, tuple[str, Reader]] = {}
        skipped: list[str] = []
        certain: set[str] = set()
        for field in wire_fields(entity):
            name = self._names.get(field.name, field.name)
            reader = self._field_reader(field, name, entity, version, allowance)
            is_skipped = name not in self.ours and self._read is None
            is_number = is_skipped and field.tag is None and is_number_reader(reader)
            if is_skipped and not is_number:
                skipped.append(name)
            if field.tag is None:
                certain.add(name)
                plain.append((None if is_number else name, reader))
            else:
                tagged[field.tag] = (name, reader)
        absent = {name: value for name, value in self._absent.items() if name not in certain}
        read = fields_reader(plain, tagged, flexible=entity.__flexible__, allowance=allowance)
        if not absent and not skipped:
            return read

        def read_values(data: bytes, at: int) -> tuple[dict[str, Any], int]:
            values, at = read(data, at)
            for name in skipped:
                values.pop(name, None)
            return (absent | values if absent else values), at

        return read_values

    def reader(self, entity: Any, version: int, allowance: Allowance | None = None) -> Reader:
        """Return a reader of whole objects."""
        read_values = self.values_reader(entity, version, allowance)
        make, read = self.make, self._read
        if self._row == tuple(field.name for field in wire_fields(entity)):
            fields = wire_fields(entity)
            readers = [self._field_reader(field, field.name, entity, version, allowance) for field in fields]
            return row_reader(readers, flexible=entity.__flexible__, allowance=allowance)

        if read is not None:

            def read_by_function(data: bytes, at: int) -> tuple[Any, int]:
                values, at = read_values(data, at)
                return read(values, version), at

            return read_by_function

        def read_object(data: bytes, at: int) -> tuple[Any, int]:
            values, at = read_values(data, at)
            return make(**values), at

        return read_object

    def made(self, values: dict[str, Any], context: Any) -> Any:
        """Return the object made of these values and of a request's context."""
        return self.make(**values) if self._read is None else self._read(values, context)

    def _field_reader(
        self, field: WireField, name: str, entity: Any, version: int, allowance: Allowance | None
    ) -> Reader:
        kind = self._fields.get(name)
        via = kind if isinstance(kind, Via) else None
        layout = via.of if via is not None else kind
        element = (
            layout.reader(field.struct, version, allowance)
            if isinstance(layout, Layout) and field.struct is not None
            else None
        )
        read = field_reader(
            field, flexible=entity.__flexible__, allowance=allowance, element=element, collect=tuple
        )
        if field.kafka_type == "error_code":
            return _converted(read, error_of, None)
        if via is None or (via.read is None and via.null is None):
            return read
        return _converted(read, via.read, via.null)

    def writer(self, entity: Any, version: int) -> Write:
        """Return a writer of objects: to bytes, or to pieces if there are records in them."""
        return fields_writer(
            entity, [self._field_writer(field, entity, version) for field in wire_fields(entity)]
        )

    def _field_writer(self, field: WireField, entity: Any, version: int) -> LayoutField:
        name = self._names.get(field.name, field.name)
        get: Convert
        if field.name in self._write:
            given = self._write[field.name]
            get = _getter(given, version)
        elif name.partition(".")[0] in self.ours:
            get = operator.attrgetter(self._within + name)
        else:
            data = default_bytes(field, flexible=entity.__flexible__)
            return LayoutField(field, unset, lambda _: data)
        kind = self._fields.get(name)
        via = kind if isinstance(kind, Via) else None
        layout = via.of if via is not None else kind
        element = (
            layout.writer(field.struct, version)
            if isinstance(layout, Layout) and field.struct is not None
            else None
        )
        write = field_writer(field, flexible=entity.__flexible__, element=element)
        if via is not None:
            write = _through(write, via, field, version)
        return LayoutField(field, get, write)


def _converted(read: Reader, convert: Convert | None, null: Any) -> Reader:
    def read_converted(data: bytes, at: int) -> tuple[Any, int]:
        value, at = read(data, at)
        if value is None:
            return null, at
        return (value if convert is None else convert(value)), at

    return read_converted


def _through(write: Write, via: Via, field: WireField, version: int) -> Write:
    convert = via.write
    older = {code: instead for code, (first, instead) in via.codes.items() if version < first}
    if older:
        return lambda code: write(older.get(code, code))
    if via.is_never_null and not field.is_nullable:
        return lambda value: write(value or "")
    if convert is not None:
        return lambda value: write(None if value is None else convert(value))
    return write


def _getter(given: Any, version: int) -> Convert:
    if isinstance(given, operator.itemgetter | operator.attrgetter):
        return given
    return (lambda value: given(value, version)) if callable(given) else lambda _: given


def row(*names: str, fields: Mapping[str, Layout | Via] | None = None) -> Layout:
    """Map a struct to the tuple of these Kafka fields."""
    pick = operator.itemgetter(*names)
    layout = Layout(
        tuple,
        fields=fields,
        write={name: operator.itemgetter(place) for place, name in enumerate(names)},
        read=lambda values, _: pick(values),
    )
    layout._row = names
    return layout


def only(name: str, kind: Layout | Via | None = None) -> Layout:
    """Map a struct to its one field."""
    return Layout(
        tuple,
        fields={} if kind is None else {name: kind},
        write={name: lambda value, _: value},
        read=lambda values, _: values[name],
    )


def mapping(key: str, value: str) -> Via:
    """Map an array of structs to a dict."""
    return Via(of=row(key, value), read=dict, write=ITEMS)
