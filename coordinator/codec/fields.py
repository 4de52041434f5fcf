"""The fields of a schema's class, as readers and writers are made from them.

A class is one of kio's, or of the same form: its annotations mark nullable fields and arrays. The metadata of
a field has its type on the wire, and its tag (KIP-482).
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, NamedTuple

REQUIRED = dataclasses.MISSING


class WireField(NamedTuple):
    """One field of a schema's class."""

    name: str
    kafka_type: str | None
    """The type, by kio's name; None for a struct."""
    struct: Any
    """The class of a struct, of which this is one or an array."""
    is_array: bool
    is_nullable: bool
    """True if null has bytes of its own. A tagged field that is null by default is left out."""
    tag: int | None
    default: Any
    """The default, as in kio; REQUIRED without one."""


class RecordForm:
    """A struct of a record in one version; readers and writers take it as they take kio's classes."""

    def __init__(self, fields: tuple[WireField, ...], *, is_flexible: bool) -> None:
        self.fields = fields
        self.__flexible__ = is_flexible


def null_struct(field: WireField) -> bytes:
    """Return the byte that encodes a null struct. A struct that is not null follows a mark, the byte 1."""
    return b"\xff" if field.tag is None else b"\x00"


@functools.cache
def wire_fields(entity: Any) -> tuple[WireField, ...]:
    """Return the fields of a schema's class in their order."""
    if isinstance(entity, RecordForm):
        return entity.fields
    hints = typing.get_type_hints(entity)
    return tuple(_wire_field(field, hints[field.name]) for field in dataclasses.fields(entity))


def _wire_field(field: dataclasses.Field[Any], hint: Any) -> WireField:
    options = typing.get_args(hint) if typing.get_origin(hint) in {typing.Union, types.UnionType} else (hint,)
    (plain,) = (option for option in options if option is not type(None))
    is_array = typing.get_origin(plain) is tuple
    kafka_type = field.metadata.get("kafka_type")
    tag = field.metadata.get("tag")
    return WireField(
        name=field.name,
        kafka_type=kafka_type,
        struct=None if kafka_type else (typing.get_args(plain)[0] if is_array else plain),
        is_array=is_array,
        is_nullable=type(None) in options and (tag is None or field.default is REQUIRED),
        tag=tag,
        default=field.default,
    )
