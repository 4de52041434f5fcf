"""Each message in both directions: what one side writes the other side reads, and writes again."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema

from fencepost.coordinator.codec.client import CLIENT_APIS, read_response, request_frame
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, read_header
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, codec_of
from tests.kio_objects import kio_bytes, made

SPOKEN = {int(key): range(api.min_version, api.max_version + 1) for key, api in REGISTRY.items()}
"""The versions of each API."""
IN_FORMS_OF_THEIR_OWN = {44}
"""APIs whose client has other messages than the server."""
CHECKED_ONLY = {ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.FETCH}
"""APIs of whose requests not all is kept: rights do not exist, and brokers do not fetch."""


def draws(key: int) -> Iterator[tuple[int, random.Random]]:
    """Each version of an API ten times, with what draws its messages."""
    for version in SPOKEN[key]:
        rng = random.Random(key * 100 + version)
        for _ in range(10):
            yield version, rng


def decoded(key: int, version: int, frame: bytes) -> Any:
    codec, header = codec_of(key, version), read_header(frame)
    assert codec is not None
    return codec.decode(frame, codec.body_of(frame, header), RequestContext(version, "me", "/here"))


@pytest.mark.parametrize("key", [key for key in SPOKEN if key not in IN_FORMS_OF_THEIR_OWN | CHECKED_ONLY])
def test_a_request_that_was_read_is_written_and_read_again(key: int) -> None:
    for version, rng in draws(key):
        codec = codec_of(key, version)
        assert codec is not None
        body = kio_bytes(made(load_request_schema(key, version), rng))
        header = struct.pack(">hhih", key, version, 1, 2) + b"me" + (b"\0" if codec.flexible else b"")
        first = decoded(key, version, header + body)
        if key == ApiKey.FIND_COORDINATOR and not first.keys:
            continue  # a client asks for one key at least
        assert decoded(key, version, request_frame(key, version, 1, "me", first)[4:]) == first


@pytest.mark.parametrize("key", SPOKEN)
def test_a_response_is_read_whatever_a_broker_says(key: int) -> None:
    reply = CLIENT_APIS[key].response.make
    for version, rng in draws(key):
        codec = codec_of(key, version)
        assert codec is not None
        body = kio_bytes(made(load_response_schema(key, version), rng))
        frame = struct.pack(">i", 7) + (b"\0" if codec.flexible_answer else b"") + body
        try:
            number, found = read_response(key, version, frame)
        except MalformedFrame:  # a number of an enumeration that is none
            continue
        assert number == 7
        if key != ApiKey.API_VERSIONS:
            assert isinstance(found, reply)
