"""The common parts of all frames: the encoding of their fields, and the values that fields hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.rabbit_codec import fields
from fencepost.coordinator.rabbit_codec.codes import Key, ResponseCode
from fencepost.coordinator.rabbit_codec.fields import Field, WireOffsetSpecification

U8: TypeAlias = Annotated[int, fields.U8]
U16: TypeAlias = Annotated[int, fields.U16]
U32: TypeAlias = Annotated[int, fields.U32]
U64: TypeAlias = Annotated[int, fields.U64]
Text: TypeAlias = Annotated[str, fields.STRING]
Texts: TypeAlias = Annotated[Sequence[str], fields.array(fields.STRING)]
Properties: TypeAlias = Annotated[Mapping[str, str], fields.PROPERTIES]
TrailingProperties: TypeAlias = Annotated[Mapping[str, str], fields.TRAILING_PROPERTIES]
Rest: TypeAlias = Annotated[bytes, fields.REST]
Specification: TypeAlias = Annotated[WireOffsetSpecification, fields.OFFSET_SPECIFICATION]


class Frame(msgspec.Struct, frozen=True):
    """Anything that is sent."""

    key: ClassVar[Key]
    version: ClassVar[int] = 1
    is_response: ClassVar[bool] = False


class Request(Frame, frozen=True):
    """A frame that is answered with the same correlation id."""

    correlation_id: U32


class Response(Frame, frozen=True):
    """An answer that says how the request went, and no more."""

    is_response: ClassVar[bool] = True
    correlation_id: U32
    code: U16 = ResponseCode.OK


class ChunkEntry(NamedTuple):
    """One message, or a batch of them, as a publisher gives it: what a chunk will hold, and what tells it."""

    publishing_id: int
    data: bytes
    """With the header that it has in a chunk."""
    records: int = 1
    filter_value: str | None = None


class BrokerAddress(NamedTuple):
    """A node, as Metadata tells of it."""

    reference: int
    host: str
    port: int


class StreamPlace(NamedTuple):
    """The place of a stream; 65535 stands for no leader."""

    stream: str
    code: int
    leader: int
    replicas: Sequence[int] = ()


class CommandVersion(NamedTuple):
    """The versions of one frame that somebody speaks."""

    key: int
    min_version: int
    max_version: int


def record(make: type, *parts: Field) -> Field:
    """A named tuple as the sequence of its fields."""

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
