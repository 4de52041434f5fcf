"""kio's schemas, loaded at the first use of an API: readers of messages, and shapes to write them with.

This module alone touches kio. A first touch costs 0.1 s, each further API some milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any, cast

from fencepost.coordinator.codec.reader import STRUCT_COST, Allowance, Reader, entity_reader
from fencepost.coordinator.codec.writer import StructWriter, struct_writer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions

if TYPE_CHECKING:
    from types import ModuleType


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


MAX_REQUEST_ELEMENTS = 120_000
"""The most that the list elements of one request may count, as `reader` counts them.

There is room for the numbers of all partitions of the largest topic, or for almost 20,000 structs.
"""
UNCOUNTED_BYTES = MAX_REQUEST_ELEMENTS // STRUCT_COST
"""Requests up to this size are within the limit: an element has at least one byte."""


@functools.cache
def request_reader(api_key: int, version: int) -> Reader:
    """The reader of a request's body."""
    from kio.index import load_request_schema

    return entity_reader(load_request_schema(api_key, version))


@functools.cache
def counting_request_reader(api_key: int, version: int) -> Reader:
    """The same reader, which refuses more than MAX_REQUEST_ELEMENTS with MalformedFrame.

    Requests of up to UNCOUNTED_BYTES do not need it.
    """
    from kio.index import load_request_schema

    allowance = Allowance("MAX_REQUEST_ELEMENTS", MAX_REQUEST_ELEMENTS)
    read = entity_reader(load_request_schema(api_key, version), allowance)

    def read_request(data: bytes, at: int) -> tuple[Any, int]:
        allowance.renew()
        return read(data, at)

    return read_request


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


_ERRORS = {int(code): code for code in ErrorCode}


def error_of(code: int) -> ErrorCode:
    """Our code for a number in an answer; one that nobody here knows becomes UNKNOWN_SERVER_ERROR."""
    return _ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


class Shape:
    """The structs of the response of one (API, version), or with `of_request` of its request.

    `shape.Name(field=...)` gives the bytes of the struct Name. Fields that this version lacks are left out.
    """

    def __init__(self, api_key: int, version: int, *, of_request: bool = False) -> None:
        from kio.index import load_payload_module
        from kio.static.constants import EntityType

        self.version = version
        if of_request:
            self._module = load_payload_module(api_key, version, EntityType.request)
        else:
            self._module = load_payload_module(api_key, version, EntityType.response)

    def __getattr__(self, name: str) -> StructWriter:
        write = struct_writer(getattr(self._module, name))
        setattr(self, name, write)
        return write

    def topic_partitions(self, partitions: Partitions) -> tuple[bytes, ...]:
        """Partitions as the TopicPartitions struct that group protocols share."""
        return tuple(
            self.TopicPartitions(topic_id=topic_id, partitions=numbers)
            for topic_id, numbers in partitions.items()
        )
