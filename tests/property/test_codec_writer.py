"""What our writers write of each message that is spoken, in every version, against kio's own bytes."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import operator
import random
import struct
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema

from fencepost.coordinator.codec import writer
from fencepost.coordinator.codec.client import CLIENT_APIS
from fencepost.coordinator.codec.fields import wire_fields
from fencepost.coordinator.codec.registry import api_name
from fencepost.coordinator.protocol.ids import topic_id_from_uuid
from tests.kio_objects import kio_bytes, made

SPOKEN = [pytest.param(key, id=api_name(key)) for key in CLIENT_APIS]


def schemas_of(key: int) -> Iterator[tuple[Any, random.Random]]:
    """Requests and responses of all versions, each with random numbers of its own."""
    api = CLIENT_APIS[key]
    for version in range(api.min_version, api.max_version + 1):
        for load in (load_request_schema, load_response_schema):
            yield load(key, version), random.Random(key * 100 + version)


def constant(value: Any, _: Any) -> Any:
    return value


def write_struct(entity: Any, values: dict[str, Any]) -> Any:
    """The bytes of a struct or their pieces, from its values by name; structs in it are bytes already."""
    flexible = entity.__flexible__
    fields = []
    for field in wire_fields(entity):
        if field.name in values:
            write = writer.field_writer(field, flexible=flexible)
            fields.append(writer.LayoutField(field, operator.itemgetter(field.name), write))
        else:
            default = writer.default_bytes(field, flexible=flexible)
            fields.append(writer.LayoutField(field, writer.unset, functools.partial(constant, default)))
    return writer.fields_writer(entity, fields)(values)


def by_ours(entity: Any, *, without_defaults: bool = False) -> Any:
    """The bytes of a kio object or their pieces, from its values as our messages have them."""
    values = {}
    for field in wire_fields(type(entity)):
        value = getattr(entity, field.name)
        if value == field.default and (without_defaults or field.tag is not None):
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
    return write_struct(type(entity), values)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    return topic_id_from_uuid(value) if isinstance(value, uuid.UUID) else value


def whole(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else b"".join(writer.joined(answer))


@pytest.mark.parametrize("key", SPOKEN)
def test_it_is_what_kio_writes(key: int) -> None:
    for schema, rng in schemas_of(key):
        for _ in range(5):
            entity = made(schema, rng)
            answer = by_ours(entity)
            assert isinstance(answer, list) is writer.is_in_pieces(schema), schema
            assert whole(answer) == kio_bytes(entity), schema


@pytest.mark.parametrize("key", SPOKEN)
def test_fields_at_their_default_may_be_left_out(key: int) -> None:
    for schema, rng in schemas_of(key):
        full = made(schema, rng)
        required = [field for field in dataclasses.fields(schema) if field.default is dataclasses.MISSING]
        entity = schema(**{field.name: getattr(full, field.name) for field in required})
        assert whole(by_ours(entity, without_defaults=True)) == kio_bytes(entity), schema


@pytest.mark.parametrize(("throttle_time", "error_code"), [(None, 0), (0, 2**15)])
def test_a_value_that_does_not_fit_is_not_written(throttle_time: Any, error_code: int) -> None:
    with pytest.raises(struct.error):
        write_struct(load_response_schema(12, 4), {"throttle_time": throttle_time, "error_code": error_code})


def test_null_is_not_written_where_there_is_none() -> None:
    with pytest.raises(AttributeError):
        write_struct(load_request_schema(12, 4), {"group_id": None})


def test_a_negative_length_is_not_written() -> None:
    with pytest.raises(ValueError, match="byte must be in range"):
        writer.unsigned_varint(-1)


def test_small_pieces_are_joined_and_large_ones_are_not_copied() -> None:
    large = bytes(writer.LARGE_BYTES)
    chunks = writer.joined([b"a", b"b", large, large, b"c", bytes(writer.LARGE_BYTES - 1)])
    assert list(map(len, chunks)) == [2, writer.LARGE_BYTES, writer.LARGE_BYTES, writer.LARGE_BYTES]
    assert chunks[1] is chunks[2] is large
    assert writer.joined([]) == [b""]
