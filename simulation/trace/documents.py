"""Rows of a trace as JSON documents, one per row: the form of a trace in a Kafka topic.

A document names the columns of `schema.COLUMNS`, and in `v` the version of this form. Columns that hold their
blank value (an empty text or list, -1 for epochs) are left out. Readers skip keys that they do not know, so a
column can be added without a new version. A change of a key's meaning needs a new version.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.trace.schema import COLUMNS, INT, LONG, PARTITIONS, TEXT, Row

VERSION: Final = 1

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Held(NamedTuple):
    """A partition, as an array of its topic's name and its number."""

    topic: str
    partition: Int32


_TYPES: Final = {TEXT: str, LONG: Int64, INT: Int32, PARTITIONS: tuple[Held, ...]}


def _fields() -> Iterator[tuple[str, Any] | tuple[str, Any, Any]]:
    """The keys of a document: the version, then the columns, required ones first."""
    yield "v", int
    for name, column in sorted(COLUMNS.items(), key=lambda item: not item[1].required):
        type_ = _TYPES[column.type]
        yield (name, type_) if column.required else (name, type_, column.type.blank)


Document: Final[Any] = msgspec.defstruct(
    "Document", list(_fields()), frozen=True, kw_only=True, omit_defaults=True, gc=False
)
"""One row, with the run that it belongs to."""


class _Versioned(msgspec.Struct, frozen=True):
    v: int


class TracedRow(NamedTuple):
    """A row, and the run that it belongs to."""

    run_id: str
    row: Row


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Document)
_values = attrgetter(*Row._fields)
_PARTITIONS: Final = Row._fields.index("partitions")
_version_decoder = msgspec.json.Decoder(_Versioned)


def encode(run_id: str, row: Row) -> bytes:
    """Return the document of a row."""
    return _encoder.encode(Document(v=VERSION, run_id=run_id, **row._asdict()))


def decode(document: bytes | None) -> TracedRow | str:
    """Return the row of a document; or, in a few words, why this is no document of a row."""
    try:
        found = _decoder.decode(document or b"")
        version = found.v
    except msgspec.DecodeError:
        try:
            version = _version_decoder.decode(document or b"").v
        except msgspec.DecodeError:
            return NO_DOCUMENT
        if version == VERSION:
            return NO_DOCUMENT
    if version != VERSION:
        return f"schema version {version}, known is {VERSION}"
    values = [*_values(found)]
    if values[_PARTITIONS]:
        values[_PARTITIONS] = tuple([TopicPartition(*each) for each in values[_PARTITIONS]])
    return TracedRow(found.run_id, Row._make(values))


NO_DOCUMENT: Final = "no document of a trace"
