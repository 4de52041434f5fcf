"""Each message in both directions: what one side writes the other side reads, and writes again.

Brokers' responses are read and written once more by kafka-python: the bytes must be the same.
"""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema

from fencepost.coordinator.codec.client import CLIENT_APIS, read_response, request_frame
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, read_header
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, api_name, codec_of
from fencepost.coordinator.protocol import cluster
from fencepost.coordinator.protocol.errors import ErrorCode
from tests.kio_objects import kio_bytes, made

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer, sasl

KAFKA_PYTHON = (admin, consumer, metadata, producer, sasl)
SPOKEN = {int(key): range(api.min_version, api.max_version + 1) for key, api in REGISTRY.items()}
"""The versions of each API."""
CHECKED_ONLY = {ApiKey.DESCRIBE_ACLS, ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.FETCH}
"""APIs of whose requests not all is kept: rights do not exist, and brokers do not fetch."""
LOSSY = {ApiKey.OFFSET_FETCH, ApiKey.DESCRIBE_GROUPS}
"""APIs whose responses have less with an error than a broker might send."""
REGROUPED = {ApiKey.DESCRIBE_ACLS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.API_VERSIONS}
"""APIs whose responses have the same in another order, and those of which clients see more than is sent."""
NOT_READ = {
    *("JoinGroupRequest.new_member_suffix", "JoinGroupRequest.token", "SyncGroupRequest.token"),
    *("InitProducerIdRequest.next_producer_id", "EndTxnRequest.next_producer_id"),
    *("AddOffsetsToTxnRequest.verify_only", "AddOffsetsToTxnRequest.client_version"),
    *("AddPartitionsToTxnRequest.client_version", "AddPartitionsReply.error_code"),
    *("ListOffsetsRequest.from_any_replica", "AlterConfigsRequest.incremental"),
    *("CreatedTopic.configs", "ConfigEntry.source", "ConfigEntry.config_type", "ConfigEntry.synonyms"),
    *("ConsumerGroupHeartbeatRequest.generated_member_id", "DeleteGroupsResponse.error_message"),
    *("DescribedMember.member_type", "DescribeGroupsResponse.authorized_operations"),
    *("ConsumerGroupDescribeResponse.authorized_operations",),
    *("StreamsGroupDescribeResponse.authorized_operations",),
}
"""Fields that one of the messages with them has from elsewhere, or from few numbers only."""
BY_NAME_ONLY = {
    *(ApiKey.LIST_OFFSETS, ApiKey.DELETE_RECORDS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.TXN_OFFSET_COMMIT),
    *(ApiKey.DESCRIBE_LOG_DIRS, ApiKey.OFFSET_DELETE, ApiKey.DESCRIBE_PRODUCERS),
}
"""APIs whose topics have no ids."""
NO_SECOND_OPINION = {
    *(ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE),
    *(ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_DESCRIBE),
}
"""kafka-python does not speak KIP-848, nor KIP-1071."""
CONTEXT = ("client_id", "client_host")
Seen = dict[str, set[str]]
"""The values of fields, by the class of a message or of a part of it, and the field."""


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


def see(value: Any, seen: Seen) -> None:
    """Note the values of all fields of a message and of its parts."""
    names = getattr(value, "__struct_fields__", getattr(value, "_fields", ()))
    for name in names:
        part = getattr(value, name)
        seen.setdefault(f"{type(value).__name__}.{name}", set()).add(repr(part))
        see(part, seen)
    if not names and isinstance(value, Mapping | tuple):
        for part in (*value, *(value.values() if isinstance(value, Mapping) else ())):
            see(part, seen)


def has_error(message: Any) -> bool:
    """Return true if a message, or a part of it, has another code than NONE."""
    seen: Seen = {}
    see(message, seen)
    codes = {code for field, values in seen.items() if field.endswith(".error_code") for code in values}
    return not codes <= {repr(ErrorCode.NONE)}


def theirs_of(key: int) -> Any:
    """Kafka-python's class of a response."""
    name = f"{api_name(key)}Response"
    return next(getattr(each, name) for each in KAFKA_PYTHON if hasattr(each, name))


def check_all_read(key: int, seen: Seen) -> None:
    """Each field has the wire's values, and not its default for all of them."""
    left_out = (*CONTEXT, *(("topic_id",) if key in BY_NAME_ONLY else ()))
    left_out += {ApiKey.ALTER_CONFIGS: (".operation",), ApiKey.FIND_COORDINATOR: ("Node.rack",)}.get(
        ApiKey(key), ()
    )
    always = {field for field, values in seen.items() if len(values) < 2}
    assert {each for each in always if not each.endswith(left_out)} <= NOT_READ


@pytest.mark.parametrize("key", SPOKEN)
def test_a_request_that_was_read_is_written_and_read_again(key: int) -> None:
    seen: Seen = {}
    for version, rng in draws(key):
        codec = codec_of(key, version)
        assert codec is not None
        body = kio_bytes(made(load_request_schema(key, version), rng))
        header = struct.pack(">hhih", key, version, 1, 2) + b"me" + (b"\0" if codec.flexible else b"")
        try:
            first = decoded(key, version, header + body)
        except MalformedFrame:  # an ACL of a kind that there is not
            assert key in CHECKED_ONLY
            continue
        see(first, seen)
        if key in CHECKED_ONLY or (key == ApiKey.FIND_COORDINATOR and not first.keys):
            continue  # a client asks for one key at least
        assert decoded(key, version, request_frame(key, version, 1, "me", first)[4:]) == first
    check_all_read(key, seen)


@pytest.mark.parametrize("key", SPOKEN)
def test_a_response_is_read_whatever_a_broker_says_and_written_again(key: int) -> None:
    reply = CLIENT_APIS[key].response.make
    seen: Seen = {}
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
        see(found, seen)
        if key == ApiKey.API_VERSIONS:
            found = cluster.ApiVersionsResponse(api_versions=found.api_versions.values())
        else:
            assert isinstance(found, reply)
        written = b"".join(codec.encode(7, found))
        if key not in REGROUPED and not (key in LOSSY and has_error(found)):
            assert read_response(key, version, written[4:]) == (7, found)
        if key not in NO_SECOND_OPINION:
            read = theirs_of(key)[version].decode(written, framed=True, header=True)
            assert read.header.correlation_id == 7
            assert read.encode(framed=True, header=True) == written
    check_all_read(key, seen)
