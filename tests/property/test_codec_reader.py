"""Requests that kio writes, read by our readers: every API, every version, against kio's own objects."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import random
import typing
import uuid

import pytest
from kio.index import api_key_map, load_request_schema, schema_name_map

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.reader import entity_reader
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, codec_of
from fencepost.coordinator.protocol.ids import topic_id_from_uuid
from tests.kio_objects import kio_bytes, made

SPOKEN = [
    pytest.param(int(api.key), range(api.min_version, api.max_version + 1), id=ApiKey(api.key).name)
    for api in REGISTRY.values()
]
CONTEXT = RequestContext(0, "client", "/127.0.0.1")


def _plain(value):
    """A kio value as our readers give it."""
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, uuid.UUID):
        return topic_id_from_uuid(value)
    return int(value) if isinstance(value, enum.IntEnum) else value


def _without_absent_tags(read, expected, cls):
    """A tagged field at its default may be missing on the wire, and then is in what we read."""
    for field in dataclasses.fields(cls):
        if "tag" in field.metadata and field.name not in read:
            assert expected.pop(field.name) == _plain(field.default)
    for field in dataclasses.fields(cls):
        hint = typing.get_type_hints(cls)[field.name]
        inner = [a for a in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(a)]
        if inner and field.name in read and read[field.name] is not None:
            ours, theirs = read[field.name], expected[field.name]
            for one, other in zip(
                *((x if isinstance(x, list) else [x]) for x in (ours, theirs)), strict=True
            ):
                _without_absent_tags(one, other, inner[0])


@pytest.mark.parametrize(("key", "versions"), SPOKEN)
def test_what_kio_writes_is_read(key, versions):
    for version in versions:
        _check_reading(key, version)


def _check_reading(key, version):
    schema = load_request_schema(key, version)
    rng = random.Random(key * 100 + version)
    for _ in range(15):
        entity = made(schema, rng)
        data = kio_bytes(entity)
        read, end = entity_reader(schema)(b"head" + data, 4)
        expected = _plain(entity)
        _without_absent_tags(read, expected, schema)
        assert read == expected, schema
        assert end == len(data) + 4, schema


@pytest.mark.parametrize(("key", "versions"), SPOKEN)
def test_each_truncation_and_mutation_is_read_or_refused(key, versions):
    for version in versions:
        _check_damage(key, version)


def _check_damage(key, version):
    schema, codec = load_request_schema(key, version), codec_of(key, version)
    rng = random.Random(key * 100 + version)
    context = CONTEXT._replace(api_version=version)
    for _ in range(3):
        data = kio_bytes(made(schema, rng))[:400]
        frames = [data[:length] for length in range(0, len(data), 1 + len(data) // 40)]
        for _ in range(40):
            mutated = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                if mutated:
                    mutated[rng.randrange(len(mutated))] = rng.choice(
                        [0, 1, 127, 128, 255, rng.randrange(256)]
                    )
            frames.append(bytes(mutated))
        for frame in frames:
            try:
                codec.decode(frame, 0, context)
            except MalformedFrame as error:
                assert str(version) in str(error)  # noqa: PT017


def test_versions_are_all_that_kio_has_and_kafka_offers():
    for api in REGISTRY.values():
        versions = sorted(schema_name_map[api_key_map[int(api.key)]])
        if api.key is ApiKey.INIT_PRODUCER_ID:
            assert versions.pop() == 6  # KIP-939, which no broker of 4.3 offers yet
        assert (api.min_version, api.max_version) == (versions[0], versions[-1]), ApiKey(api.key).name
