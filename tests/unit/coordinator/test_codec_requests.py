"""What requests of the wire become, where versions differ in more than a field."""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Callable
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.consumer_group_heartbeat.v1 import request as heartbeat_v1
from kio.schema.metadata.v12 import request as metadata_v12
from kio.serial import entity_writer

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.reader import entity_reader
from fencepost.coordinator.codec.registry import ApiKey, codec_of, unsupported_api_versions
from fencepost.coordinator.codec.writer import unsigned_varint
from fencepost.coordinator.protocol.cluster import MetadataRequest, TopicReference
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from tests.kio_objects import kio_bytes, milliseconds

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"


def written(entity) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def decoded(key: int, version: int, body: bytes):
    context = RequestContext(version, "client", "/10.0.0.1")
    return codec_of(key, version).decode(body, 0, context)


def heartbeat(**values):
    values = {"topic_partitions": None, "rebalance_timeout": milliseconds(-1), **values}
    return heartbeat_v1.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=4, **values)


def test_a_keepalive_leaves_everything_unchanged():
    assert decoded(68, 1, written(heartbeat())) == ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=4,
        api_version=1,
        client_id="client",
        client_host="/10.0.0.1",
    )


def test_what_a_member_owns_becomes_canonical():
    topic = heartbeat_v1.TopicPartitions(topic_id=uuid_from_topic_id(TOPIC_ID), partitions=(3, 1, 3))
    empty = dataclasses.replace(topic, topic_id=uuid_from_topic_id("A" * 21 + "Q"), partitions=())
    request = decoded(68, 1, written(heartbeat(topic_partitions=(empty, topic), subscribed_topic_names=())))
    assert request.topic_partitions == {TOPIC_ID: (1, 3)}
    assert request.subscribed_topic_names == ()


def test_an_unknown_tagged_field_does_no_harm():
    body = written(heartbeat())[:-1] + b"\x01" + unsigned_varint(77) + unsigned_varint(3) + b"new"
    assert decoded(68, 1, body).member_epoch == 4


def test_an_array_that_claims_more_than_there_is_is_refused_without_memory():
    body = written(heartbeat(topic_partitions=()))
    huge = body[:-2] + unsigned_varint(2**31 - 1) + b"\0"
    with pytest.raises(
        MalformedFrame, match=r"CONSUMER_GROUP_HEARTBEAT version 1 .* array of 2147483646 elements"
    ):
        decoded(68, 1, huge)


def test_null_where_none_is_allowed_is_refused():
    with pytest.raises(MalformedFrame, match="string of length -1"):
        decoded(ApiKey.FIND_COORDINATOR, 0, struct.pack(">h", -1))


@pytest.mark.parametrize(
    ("version", "body", "topics"),
    [
        (0, struct.pack(">i", 0), None),
        (1, struct.pack(">i", 0), ()),
        (1, struct.pack(">i", -1), None),
        (1, struct.pack(">ih", 1, 1) + b"t", (TopicReference(name="t"),)),
    ],
)
def test_all_topics_are_asked_for_in_two_ways(version, body, topics):
    assert decoded(ApiKey.METADATA, version, body) == MetadataRequest(topics=topics)


def test_a_topic_id_goes_before_the_empty_name_that_java_leaves_beside_it():
    topic = metadata_v12.MetadataRequestTopic(topic_id=uuid_from_topic_id(TOPIC_ID), name="")
    request = metadata_v12.MetadataRequest(topics=(topic,), include_topic_authorized_operations=False)
    assert decoded(ApiKey.METADATA, 12, written(request)).topics == (TopicReference(topic_id=TOPIC_ID),)


def test_versions_that_are_not_spoken_have_no_codec():
    assert codec_of(ApiKey.METADATA, 14) is None
    assert codec_of(ApiKey.METADATA, -1) is None
    assert codec_of(7, 0) is None


def test_api_versions_in_an_unknown_version_is_answered_in_version_0():
    (frame,) = unsupported_api_versions(9)
    assert frame == struct.pack(">iihihhh", len(frame) - 4, 9, 35, 1, 18, 0, 4)


@pytest.mark.parametrize(
    ("key", "version", "fields"),
    [
        (22, 2, lambda text: {"transactional_id": text, "transaction_timeout": milliseconds(1)}),
        (10, 4, lambda text: {"key_type": 0, "coordinator_keys": ("g", text)}),
        (9, 6, lambda text: {"group_id": text, "topics": None}),
        (18, 3, lambda text: {"client_software_name": text, "client_software_version": "1"}),
    ],
    ids=["nullable", "in a list", "group id", "version"],
)
def test_strings_have_kafkas_limit(key: int, version: int, fields: Callable[[str], dict[str, Any]]) -> None:
    schema = load_request_schema(key, version)
    read = entity_reader(schema)
    read(kio_bytes(schema(**fields("é" * 16_383 + "x"))), 0)
    with pytest.raises(MalformedFrame, match="string of 32768 bytes, expected at most 32767"):
        read(kio_bytes(schema(**fields("é" * 16_384))), 0)


def test_bytes_are_longer_than_strings_may_be() -> None:
    schema: Any = load_request_schema(36, 2)
    values, _ = entity_reader(schema)(kio_bytes(schema(auth_bytes=bytes(40_000))), 0)
    assert len(values["auth_bytes"]) == 40_000
