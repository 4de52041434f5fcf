"""kio's schemas, loaded at the first use of an API: readers of requests, and shapes to answer with.

This module alone touches kio. A first touch costs 0.1 to 0.5 s, each further API some milliseconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import importlib
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, cast

from fencepost.coordinator.codec.reader import Reader, entity_reader
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions, TopicId, uuid_from_topic_id

if TYPE_CHECKING:
    from types import ModuleType

    from typing_extensions import Buffer

ZERO = datetime.timedelta()


def _hide_hypothesis_from_kio() -> None:
    """Where Hypothesis is installed kio tells it of its types, which nobody here asks for.

    That takes a program more than two seconds when it runs in a folder for the first time, and leaves a
    folder `.hypothesis` there.
    """
    name = "hypothesis.strategies"
    known = sys.modules.get(name)
    sys.modules[name] = cast("ModuleType", None)  # as if it were not installed
    try:
        with contextlib.suppress(ImportError):  # there are servers that need no kio
            importlib.import_module("kio.static._phantom")
    finally:
        if known is None:
            del sys.modules[name]
        else:
            sys.modules[name] = known


_hide_hypothesis_from_kio()


@functools.cache
def request_reader(api_key: int, version: int) -> Reader:
    """The reader of a request's body."""
    from kio.index import load_request_schema

    return entity_reader(load_request_schema(api_key, version))


@functools.cache
def response_reader(api_key: int, version: int) -> Reader:
    """The reader of a response's body."""
    from kio.index import load_response_schema

    return entity_reader(load_response_schema(api_key, version))


@functools.cache
def response_schema(api_key: int, version: int) -> Any:
    """kio's class of a response, or None for an API or a version that it does not know."""
    from kio.index import KioIndexError, load_response_schema

    try:
        return load_response_schema(api_key, version)
    except KioIndexError:
        return None


@functools.cache
def newest_version(api_key: int) -> int:
    """The newest version of an API that kio knows; -1 if it does not know the API."""
    from kio.schema.index import api_key_map, schema_name_map

    return max(schema_name_map[api_key_map[api_key]], default=-1) if api_key in api_key_map else -1


@functools.cache
def is_flexible(api_key: int, version: int) -> bool:
    """Whether this version has compact lengths and tagged fields (KIP-482)."""
    from kio.index import load_request_schema

    return bool(load_request_schema(api_key, version).__flexible__)


def milliseconds(value: int) -> datetime.timedelta:
    """A duration as kio wants it."""
    return datetime.timedelta(milliseconds=value)


def moment(milliseconds_since_epoch: int) -> datetime.datetime:
    """A point in time as kio wants it; -1 stands for none."""
    return _EPOCH + milliseconds(milliseconds_since_epoch)


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

uuid_of = functools.lru_cache(maxsize=65_536)(uuid_from_topic_id)


@functools.cache
def _error_codes() -> dict[ErrorCode, Any]:
    """kio's code for each of ours. A code that is newer than kio's schema becomes UNKNOWN_SERVER_ERROR."""
    from kio.schema.errors import ErrorCode as KioErrorCode

    known = {int(code): code for code in KioErrorCode}
    return {code: known.get(int(code), KioErrorCode.unknown_server_error) for code in ErrorCode}


_ERRORS = {int(code): code for code in ErrorCode}


def error_of(code: int) -> ErrorCode:
    """Our code for a number in an answer; one that nobody here knows becomes UNKNOWN_SERVER_ERROR."""
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


class Shape:
    """The response classes of one (API, version), or with `of_request` its request classes.

    `shape.Name(field=...)` makes a message of kio's class Name and leaves out fields that this version lacks.
    """

    def __init__(self, api_key: int, version: int, *, of_request: bool = False) -> None:
        from kio.index import load_payload_module
        from kio.static.constants import EntityType

        self.version = version
        self.error = _error_codes().__getitem__
        if of_request:
            self._module = load_payload_module(api_key, version, EntityType.request)
        else:
            self._module = load_payload_module(api_key, version, EntityType.response)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        make = _maker(getattr(self._module, name))
        setattr(self, name, make)
        return make

    def topic_partitions(self, partitions: Partitions) -> tuple[Any, ...]:
        """Partitions as the TopicPartitions struct that group protocols share."""
        return tuple(
            self.TopicPartitions(topic_id=uuid_of(topic_id), partitions=numbers)
            for topic_id, numbers in partitions.items()
        )


def _maker(entity: Any) -> Callable[..., Any]:
    names = frozenset(field.name for field in dataclasses.fields(entity))

    def make(**values: Any) -> Any:
        return entity(**{name: value for name, value in values.items() if name in names})

    return make


def topic_uuid(topic_id: TopicId | None) -> Any:
    """A topic id as kio wants it; None for the zero UUID."""
    return None if topic_id is None else uuid_of(topic_id)


@functools.cache
def _writer(entity: Hashable) -> Callable[[_Chunks, Any], None]:
    from kio.serial import entity_writer

    return cast("Callable[[_Chunks, Any], None]", entity_writer(cast("Any", entity)))


class Batches:
    """Record batches that follow each other. They go from the log to the socket without being copied."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: Sequence[bytes]) -> None:
        self.parts = parts
        self.size = sum(map(len, parts))

    def __len__(self) -> int:
        return self.size


class _Chunks:
    """What kio writes into: small pieces become one, record batches stay what they are."""

    __slots__ = ("chunks", "small")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.small = bytearray()

    def write(self, data: Batches | Buffer) -> None:
        if isinstance(data, Batches):
            if data.parts:
                self.chunks.append(bytes(self.small))
                self.chunks.extend(data.parts)
                self.small = bytearray()
        else:
            self.small += data


def write(entity: Any) -> list[bytes]:
    """A kio message in bytes, in as many pieces as avoid copies."""
    chunks = _Chunks()
    _writer(cast("Hashable", type(entity)))(chunks, entity)
    if chunks.small or not chunks.chunks:
        chunks.chunks.append(bytes(chunks.small))
    return chunks.chunks
