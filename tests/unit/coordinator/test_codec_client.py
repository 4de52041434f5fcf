"""The client's half of the codec, judged by the server's half: what one writes the other reads back."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.classic.describe import missing
from fencepost.coordinator.codec import groups, offsets
from fencepost.coordinator.codec.client import CLIENT_APIS, read_response, request_frame
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, read_header
from fencepost.coordinator.codec.layout import error_of
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, codec_of
from fencepost.coordinator.protocol import classic, cluster, consumer, sasl, streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata

ID = "AAECAwQFBgcICQoLDA0ODw"
CONTEXT = ("me", "/10.0.0.1")


def server_reads(api_key: int, version: int, message: Any) -> Any:
    frame = request_frame(api_key, version, 7, CONTEXT[0], message)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    header = read_header(frame[4:])
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (
        api_key,
        version,
        7,
        "me",
    )
    codec = codec_of(api_key, version)
    assert codec is not None
    return codec.decode(frame[4:], codec.body_of(frame[4:], header), RequestContext(version, *CONTEXT))


def client_reads(api_key: int, version: int, reply: Any) -> Any:
    codec = codec_of(api_key, version)
    assert codec is not None
    correlation_id, message = read_response(api_key, version, b"".join(codec.encode(9, reply))[4:])
    assert correlation_id == 9
    return message


def versions(api_key: int, low: int = 0, high: int = 99) -> list[int]:
    api = REGISTRY[api_key]
    return list(range(max(low, api.min_version), min(high, api.max_version) + 1))


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
def test_a_message_knows_its_version_and_its_client(version: int) -> None:
    request = consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=3)
    read = server_reads(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request)
    assert (read.api_version, read.client_id, read.client_host) == (version, *CONTEXT)


def of_topic(version: int, *partitions: Any) -> OfTopic[Any]:
    by_id = version >= 10
    return OfTopic(name=None if by_id else "x", topic_id=ID if by_id else None, partitions=partitions)


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_COMMIT))
def test_commits_arrive(version: int) -> None:
    position = OffsetAndMetadata(offset=5, leader_epoch=4 if version >= 6 else -1, metadata="n")
    call = offsets.OffsetCommitCall(
        group_id="g",
        member_id="m",
        member_epoch=3,
        instance_id="i" if version >= 7 else None,
        retention_time_ms=9 if version <= 4 else -1,
        api_version=version,
        topics=(of_topic(version, offsets.CommittedPartition(1, position)),),
    )
    assert server_reads(ApiKey.OFFSET_COMMIT, version, call) == call


EACH_FETCH = [(version, False) for version in versions(ApiKey.OFFSET_FETCH)]
ALL_AT_ONCE = [(version, True) for version in versions(ApiKey.OFFSET_FETCH, low=2)]


@pytest.mark.parametrize(("version", "everything"), [*EACH_FETCH, *ALL_AT_ONCE])
def test_fetches_arrive(version: int, everything: bool) -> None:
    call = offsets.OffsetFetchCall(
        groups=(
            offsets.OffsetFetchGroup(
                group_id="g",
                member_id="m" if version >= 9 else None,
                member_epoch=3 if version >= 9 else -1,
                topics=None if everything else (of_topic(version, 0, 1),),
            ),
        ),
        require_stable=version >= 7,
        api_version=version,
    )
    assert server_reads(ApiKey.OFFSET_FETCH, version, call) == call


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
def test_each_group_to_delete_is_a_request(version: int) -> None:
    call = groups.DeleteGroupsCall(groups=(consumer.DeleteGroupsRequest(group_id="g"),))
    assert server_reads(ApiKey.DELETE_GROUPS, version, call) == call


def test_a_topic_id_of_zeroes_is_none() -> None:
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=1, topic_partitions={"A" * 22: (0,)}
    )
    read = server_reads(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
    assert read.topic_partitions == {"A" * 22: (0,)}


def test_features_and_versions_arrive() -> None:
    reply = cluster.ApiVersionsResponse(api_versions=(cluster.ApiVersion(68, 0, 1),))
    read = client_reads(ApiKey.API_VERSIONS, 4, reply)
    assert read.api_versions == {68: cluster.ApiVersion(68, 0, 1)}
    assert read.features == {"group.version": 1, "streams.version": 1, "transaction.version": 2}


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_joins_arrive(version: int) -> None:
    request = classic.JoinGroupRequest(
        group_id="g",
        member_id="m",
        instance_id="i" if version >= 5 else None,
        protocol_type="consumer",
        protocols=(classic.JoinGroupProtocol("range", b"r"), classic.JoinGroupProtocol("sticky", b"")),
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000 if version >= 1 else 10_000,
        api_version=version,
        client_id="me",
        client_host="/10.0.0.1",
    )
    assert server_reads(ApiKey.JOIN_GROUP, version, request) == request
    refused = classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
    assert client_reads(ApiKey.JOIN_GROUP, version, refused).protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_syncs_arrive(version: int) -> None:
    request = classic.SyncGroupRequest(
        group_id="g",
        generation=3,
        member_id="m",
        instance_id="i" if version >= 3 else None,
        protocol_type="consumer" if version >= 5 else None,
        protocol_name="range" if version >= 5 else None,
        assignments={"m": b"a", "n": b""},
    )
    assert server_reads(ApiKey.SYNC_GROUP, version, request) == request


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
@pytest.mark.parametrize("fields", [{}, {"protocol_type": "consumer"}, {"protocol_name": ""}])
def test_a_sync_without_the_protocol_lacks_it_where_it_is_due(version: int, fields: dict[str, str]) -> None:
    request = classic.SyncGroupRequest(group_id="g", generation=3, member_id="m", **fields)
    assert server_reads(ApiKey.SYNC_GROUP, version, request).lacks_protocol == (version >= 5)


def test_an_empty_name_of_a_protocol_is_a_name() -> None:
    names = {"protocol_type": "", "protocol_name": ""}
    request = classic.SyncGroupRequest(group_id="g", generation=3, member_id="m", **names)
    assert server_reads(ApiKey.SYNC_GROUP, 5, request) == request


def test_a_classic_description_tells_the_state() -> None:
    reply = classic.DescribeGroupsResponse(groups=(missing("g", "Group g not found."),))
    (read,) = client_reads(ApiKey.DESCRIBE_GROUPS, 6, reply).groups
    assert (read.group_id, read.error_code, read.group_state) == ("g", ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


@pytest.mark.parametrize("version", versions(ApiKey.SASL_HANDSHAKE))
def test_tokens_are_bare_after_the_first_handshake(version: int) -> None:
    read = server_reads(ApiKey.SASL_HANDSHAKE, version, sasl.SaslHandshakeRequest(mechanism="PLAIN"))
    assert (read.mechanism, read.tokens_are_bare) == ("PLAIN", version == 0)


def test_an_unknown_code_is_an_unknown_error() -> None:
    assert error_of(9_999) is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x00\x00\x00\x00\x00\xff\xff"])
def test_a_short_answer_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedFrame, match="version 1 can't be read"):
        read_response(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, frame)


def test_a_status_of_a_newer_broker_is_left_out() -> None:
    codec = codec_of(ApiKey.STREAMS_GROUP_HEARTBEAT, 0)
    assert codec is not None
    status = streams.Status(streams.StatusCode.ASSIGNMENT_DELAYED, "later")
    frame = b"".join(codec.encode(9, streams.StreamsGroupHeartbeatResponse(status=(status,))))[4:]
    newer = frame.replace(b"\x05\x06later", b"\x09\x06later")
    assert newer != frame
    assert read_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, newer)[1].status == ()
    with pytest.raises(MalformedFrame):
        read_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, frame[:-1])


def test_each_client_api_has_a_counterpart_or_is_named() -> None:
    assert sorted(CLIENT_APIS.keys() - REGISTRY.keys()) == [43, 45]
