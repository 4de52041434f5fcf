"""The common parts of all frames: the encoding of their fields, and the values that fields hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.rabbit_codec import fields
from fencepost.coordinator.rabbit_codec.codes import Key, ResponseCode
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification

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
    """That of the class's name, such as `SUBSCRIBE` for Subscribe and SubscribeResponse."""
    version: ClassVar[int] = 1
    is_response: ClassVar[bool]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        name = re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__.removesuffix("Response")).upper()
        if name in Key.__members__:
            cls.key = Key[name]
        cls.is_response = cls.__name__.endswith("Response")


class Request(Frame, frozen=True):
    """A frame whose response has the same correlation id."""

    correlation_id: U32


class Response(Frame, frozen=True):
    """A response that has only the result code of the request."""

    correlation_id: U32
    code: U16 = ResponseCode.OK


class ChunkEntry(NamedTuple):
    """One message, or a batch of them, from a publisher: its content in a chunk, and its identification."""

    publishing_id: int
    data: bytes
    """With the header that it has in a chunk."""
    records: int = 1
    filter_value: str | None = None


class BrokerAddress(NamedTuple):
    """A node, as in Metadata."""

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
    """The versions of one frame that one side speaks."""

    key: int
    min_version: int
    max_version: int
