"""kio's schemas, loaded at the first use of an API, and the readers and writers of layouts in them.

This module alone touches kio. A first touch costs 0.1 s, each further API some milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from fencepost.coordinator.codec.fields import wire_fields
from fencepost.coordinator.codec.layout import Layout
from fencepost.coordinator.codec.reader import STRUCT_COST, Allowance, Reader, entity_reader, field_reader
from fencepost.coordinator.codec.writer import Write

if TYPE_CHECKING:
    from types import ModuleType


def _hide_hypothesis_from_kio() -> None:
    """Load kio without Hypothesis, so that kio does not register its types there; nothing here needs that.

    The registration takes more than two seconds when a program first runs in a folder, and leaves a folder
    `.hypothesis` there.
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


ValuesReader: TypeAlias = Callable[[bytes, int], tuple[dict[str, Any], int]]


@functools.cache
def request_schema(api_key: int, version: int) -> Any:
    """kio's class of a request."""
    from kio.index import load_request_schema

    return load_request_schema(api_key, version)


@functools.cache
def request_values_reader(layout: Layout, api_key: int, version: int) -> ValuesReader:
    """Return the reader of a request's body, which yields values by our names."""
    return layout.values_reader(request_schema(api_key, version), version)


@functools.cache
def counting_values_reader(layout: Layout, api_key: int, version: int) -> ValuesReader:
    """Return the same reader, which refuses more than MAX_REQUEST_ELEMENTS with MalformedFrame.

    Requests of up to UNCOUNTED_BYTES do not need it.
    """
    allowance = Allowance("MAX_REQUEST_ELEMENTS", MAX_REQUEST_ELEMENTS)
    read = layout.values_reader(request_schema(api_key, version), version, allowance)

    def read_request(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        allowance.renew()
        return read(data, at)

    return read_request


@functools.cache
def request_writer(layout: Layout, api_key: int, version: int) -> Write:
    """Return the writer of a request's body."""
    return layout.writer(request_schema(api_key, version), version)


@functools.cache
def response_reader(api_key: int, version: int, layout: Layout | None = None) -> Reader:
    """Return the reader of a response's body: as an object, or without a layout as a dict by Kafka's
    names."""
    schema = response_schema(api_key, version)
    return entity_reader(schema) if layout is None else layout.reader(schema, version)


@functools.cache
def response_writer(layout: Layout, api_key: int, version: int) -> Write:
    """Return the writer of a response's body."""
    return layout.writer(response_schema(api_key, version), version)


@functools.cache
def response_schema(api_key: int, version: int) -> Any:
    """Return kio's class of a response, or None for an API or a version that it does not know."""
    from kio.index import KioIndexError, load_response_schema

    try:
        return load_response_schema(api_key, version)
    except KioIndexError:
        return None


@functools.cache
def newest_version(api_key: int) -> int:
    """Return the newest version of an API that kio knows; -1 if it does not know the API."""
    from kio.schema.index import api_key_map, schema_name_map

    return max(schema_name_map[api_key_map[api_key]], default=-1) if api_key in api_key_map else -1


@functools.cache
def kafka_apis() -> Mapping[str, int]:
    """Return the numbers of all of Kafka's APIs by their names, such as `ShareFetch`."""
    from kio.schema.index import api_key_map

    return {name.title().replace("_", ""): key for key, name in api_key_map.items()}


def throttled(api_key: int, version: int, frame: bytes, at: int, throttle_time_ms: int) -> bytes:
    """Return a response that says that its client is throttled for that time or longer (KIP-219); unchanged
    if it has no field for it. Its body begins at `at`."""
    schema = response_schema(api_key, version)
    for field in () if schema is None else wire_fields(schema):
        if field.name == "throttle_time":
            longer_ms = max(throttle_time_ms, int.from_bytes(frame[at : at + 4], "big", signed=True))
            return b"".join((frame[:at], longer_ms.to_bytes(4, "big"), frame[at + 4 :]))
        if field.tag is None:
            _, at = field_reader(field, flexible=schema.__flexible__)(frame, at)
    return frame


@functools.cache
def is_flexible(api_key: int, version: int) -> bool:
    """Return true if this version has compact lengths and tagged fields (KIP-482)."""
    return bool(request_schema(api_key, version).__flexible__)
