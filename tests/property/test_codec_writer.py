"""The bytes of our writers for every API that is served, in every version, against kio's own."""

from __future__ import annotations

import dataclasses
import datetime
import random
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema, schema_name_map
from kio.schema.index import api_key_map

from fencepost.coordinator.codec.fields import wire_fields
from fencepost.coordinator.codec.registry import REGISTRY
from fencepost.coordinator.codec.writer import (
    LARGE_BYTES,
    is_in_pieces,
    joined,
    struct_writer,
    unsigned_varint,
    written,
)
from fencepost.coordinator.protocol.ids import topic_id_from_uuid
from tests.kio_objects import kio_bytes, made

SERVED = [pytest.param(int(api.key), id=api.key.name) for api in REGISTRY.values()]


def schemas_of(key: int) -> Iterator[tuple[Any, random.Random]]:
    """Requests and responses of all versions, each with random numbers of its own."""
    for version in schema_name_map[api_key_map[key]]:
        for load in (load_request_schema, load_response_schema):
            yield load(key, version), random.Random(key * 100 + version)


def by_ours(entity: Any, *, without_defaults: bool = False) -> Any:
    """The bytes of a kio object or their pieces, from its values as our answers have them."""
    values = {}
    for field in wire_fields(type(entity)):
        value = getattr(entity, field.name)
        if without_defaults and value == field.default:
            continue
        if field.struct is not None and value is not None:
            value = tuple(map(by_ours, value)) if field.is_array else by_ours(value)
        elif field.kafka_type == "records" and value is not None:
            value = (value[:100], value[100:])
        elif field.kafka_type == "datetime_i64" and value is None:
            value = -1
        elif field.is_array and value is not None:
            value = tuple(map(_plain, value))
        else:
            value = _plain(value)
        values[field.name] = value
    return struct_writer(type(entity))(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    return topic_id_from_uuid(value) if isinstance(value, uuid.UUID) else written(value)


def whole(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else b"".join(joined(answer))


@pytest.mark.parametrize("key", SERVED)
def test_it_is_what_kio_writes(key: int) -> None:
    for schema, rng in schemas_of(key):
        for _ in range(5):
            entity = made(schema, rng)
            answer = by_ours(entity)
            assert isinstance(answer, list) is is_in_pieces(schema), schema
            assert whole(answer) == kio_bytes(entity), schema


@pytest.mark.parametrize("key", SERVED)
def test_fields_at_their_default_may_be_left_out(key: int) -> None:
    for schema, rng in schemas_of(key):
        full = made(schema, rng)
        required = [field for field in dataclasses.fields(schema) if field.default is dataclasses.MISSING]
        entity = schema(**{field.name: getattr(full, field.name) for field in required})
        assert whole(by_ours(entity, without_defaults=True)) == kio_bytes(entity), schema


def test_fields_of_other_versions_are_ignored() -> None:
    write = struct_writer(load_response_schema(12, 0))
    assert write(throttle_time=7, error_code=27) == b"\x00\x1b"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"throttle_time": 0},
        {"throttle_time": None, "error_code": 0},
        {"throttle_time": 0, "error_code": 2**15},
    ],
)
def test_what_is_missing_or_does_not_fit_is_not_written(given: dict[str, Any]) -> None:
    with pytest.raises((KeyError, struct.error)):
        struct_writer(load_response_schema(12, 4))(**given)


def test_null_is_not_written_where_there_is_none() -> None:
    write = struct_writer(load_request_schema(12, 4))
    with pytest.raises(AttributeError):
        write(group_id=None, generation_id=1, member_id="m", group_instance_id=None)


def test_a_negative_length_is_not_written() -> None:
    with pytest.raises(ValueError, match="byte must be in range"):
        unsigned_varint(-1)


def test_small_pieces_are_joined_and_large_ones_are_not_copied() -> None:
    large = bytes(LARGE_BYTES)
    chunks = joined([b"a", b"b", large, large, b"c", bytes(LARGE_BYTES - 1)])
    assert list(map(len, chunks)) == [2, LARGE_BYTES, LARGE_BYTES, LARGE_BYTES]
    assert chunks[1] is chunks[2] is large
    assert joined([]) == [b""]
