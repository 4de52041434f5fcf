"""Endpoints in responses that kio writes: replaced, they are what kio writes of the replaced response."""

from __future__ import annotations

import dataclasses
import random
import struct
import typing

import pytest
from kio.index import api_key_map, load_request_schema, load_response_schema, schema_name_map

from fencepost.coordinator.codec import endpoints
from fencepost.coordinator.codec.cluster import API_VERSIONS_RESPONSE
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.schema import response_writer
from fencepost.coordinator.protocol.cluster import ApiVersion, ApiVersionsResponse
from tests.kio_objects import kio_bytes, made

NUMBER = struct.pack(">i", 7)
API_VERSIONS = 18
NOT_OF_CLIENTS = {52, 53, 54, 55, 59, 82}
"""Raft's APIs: what they tell are controllers, to controllers and administrators."""
OF_APPLICATIONS = {88, 89}
"""Streams groups: their endpoints are applications'."""


def versions_of(key: int) -> list[int]:
    return sorted(schema_name_map[api_key_map[key]])


CARRYING = [
    pytest.param(key, version, id=f"{api_key_map[key]}-{version}")
    for key, first in endpoints.CARRIERS.items()
    for version in versions_of(key)
    if version >= first
]


def replaced(thing):
    """The same with other endpoints, on kio's objects."""
    if isinstance(thing, tuple):
        return tuple(map(replaced, thing))
    if not dataclasses.is_dataclass(thing):
        return thing
    fields = {field.name: replaced(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    node = fields.get("node_id", fields.get("broker_id", -1))
    if "host" in fields and node >= 0:
        fields["host"], fields["port"] = address(node)
    return dataclasses.replace(thing, **fields)  # type: ignore[type-var]


def address(node):
    """Hosts of many lengths, so that lengths around them get shorter, longer, and a byte longer."""
    return ("127.0.0.1" if node else "h" * 130), 1000 + node % 50_000


def frame(entity):
    flexible = entity.__flexible__ and entity.__api_key__ != API_VERSIONS
    return NUMBER + (b"\0" if flexible else b"") + kio_bytes(entity)


@pytest.mark.parametrize(("key", "version"), CARRYING)
def test_every_node_gets_its_address_and_nothing_else_changes(key, version):
    rng = random.Random(key * 100 + version)
    changed = 0
    for _ in range(25):
        response = made(load_response_schema(key, version), rng)
        before, expected = frame(response), frame(replaced(response))
        assert endpoints.replace_endpoints(key, version, before, address) == expected
        changed += before != expected
    assert changed > 3
    assert endpoints.carries_endpoints(key, version)
    assert endpoints.is_readable(key, version)


@pytest.mark.parametrize(("key", "version"), CARRYING)
def test_each_truncation_and_mutation_is_read_or_refused(key, version):
    rng = random.Random(key * 100 + version)
    for _ in range(3):
        data = frame(made(load_response_schema(key, version), rng))
        frames = [data[:length] for length in range(0, len(data), 1 + len(data) // 30)]
        for _ in range(40):
            mutated = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                mutated[rng.randrange(len(mutated))] = rng.choice([0, 1, 127, 128, 255, rng.randrange(256)])
            frames.append(bytes(mutated))
        for one_frame in frames:
            try:
                endpoints.replace_endpoints(key, version, one_frame, address)
            except MalformedFrame as error:
                assert str(error)  # noqa: PT017


def test_tagged_fields_that_nobody_knows_stay():
    """FindCoordinator 4 as a newer broker could write it: unknown tags in the header, a node, and the end."""

    def written(host: bytes, port: int) -> bytes:
        unknown = b"\x01\x63\x03abc"
        node = b"\x02g" + struct.pack(">i", 3) + bytes([len(host) + 1]) + host + struct.pack(">ih", port, 0)
        return NUMBER + unknown + struct.pack(">i", 0) + b"\x02" + node + b"\x00" + unknown + unknown

    before = written(b"broker-three.internal", 9092)
    assert endpoints.replace_endpoints(10, 4, before, lambda node: ("here", 10_000 + node)) == written(
        b"here", 10_003
    )


def test_a_response_without_a_node_is_the_same_object():
    before = NUMBER + struct.pack(">hih", 15, -1, 0) + struct.pack(">i", -1)
    assert endpoints.replace_endpoints(10, 0, before, address) is before


@pytest.mark.parametrize("version", versions_of(API_VERSIONS))
def test_versions_that_could_not_be_read_are_not_offered(version):
    write = response_writer(API_VERSIONS_RESPONSE, API_VERSIONS, version)
    offered = {3: 99, 1: 12, 68: 99, 78: 99, 0: 13}

    def answer(newest: dict[int, int]) -> bytes:
        versions = tuple(ApiVersion(key, 0, top) for key, top in newest.items())
        return NUMBER + write(ApiVersionsResponse(api_versions=versions))

    expected = {**offered, 3: max(versions_of(3)), 78: max(versions_of(78))}
    assert endpoints.limit_versions(version, answer(offered)) == answer(expected)


def test_the_answer_to_an_unknown_version_of_api_versions_is_read_in_version_0():
    answer = NUMBER + struct.pack(">hi", 35, 2) + struct.pack(">6h", 18, 0, 4, 3, 0, 99)
    assert endpoints.limit_versions(9, answer) == answer[:-2] + struct.pack(">h", max(versions_of(3)))
    with pytest.raises(MalformedFrame, match="ApiVersions version 9"):
        endpoints.limit_versions(9, answer[:-1])


def test_newer_versions_are_not_readable():
    for key in endpoints.CARRIERS:
        newest = max(versions_of(key))
        assert not endpoints.is_readable(key, newest + 1)
        with pytest.raises(MalformedFrame):
            endpoints.replace_endpoints(key, newest + 1, NUMBER, address)


def test_no_carrier_is_forgotten():
    """All of kio's responses that hold a host and a port are carriers, or none of a client's business."""

    def holds(cls) -> bool:
        names = {field.name for field in dataclasses.fields(cls)}
        if {"host", "port"} <= names:
            return True
        hints = typing.get_type_hints(cls).values()
        options = [option for hint in hints for option in (hint, *typing.get_args(hint))]
        inner = [one for option in options for one in (option, *typing.get_args(option))]
        return any(map(holds, filter(dataclasses.is_dataclass, inner)))

    holding = {
        (key, version)
        for key in api_key_map
        for version in versions_of(key)
        if key not in NOT_OF_CLIENTS | OF_APPLICATIONS
        and load_request_schema(key, version)
        and holds(load_response_schema(key, version))
    }
    assert holding == {(param.values[0], param.values[1]) for param in CARRYING}
