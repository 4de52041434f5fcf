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
from fencepost.coordinator.protocol import administration, classic, cluster, consumer, sasl
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata

ID = "AAECAwQFBgcICQoLDA0ODw"
CONTEXT = ("me", "/10.0.0.1")
NODE = cluster.Node(node_id=1, host="h", port=9092, rack="r")


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


HEARTBEATS = [
    consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=3),
    consumer.ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="m",
        member_epoch=0,
        instance_id="i",
        rack_id="r",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=("x", "y"),
        server_assignor="range",
        topic_partitions={ID: (0, 2)},
    ),
    consumer.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=(), topic_partitions={}
    ),
]


@pytest.mark.parametrize("version", versions(ApiKey.CONSUMER_GROUP_HEARTBEAT))
@pytest.mark.parametrize("request_", HEARTBEATS)
def test_heartbeats_arrive(request_: consumer.ConsumerGroupHeartbeatRequest, version: int) -> None:
    read = server_reads(ApiKey.CONSUMER_GROUP_HEARTBEAT, version, request_)
    assert (read.api_version, read.client_id, read.client_host) == (version, *CONTEXT)
    for field in ("group_id", "member_id", "member_epoch", "instance_id", "rack_id", "rebalance_timeout_ms"):
        assert getattr(read, field) == getattr(request_, field)
    for field in ("subscribed_topic_names", "server_assignor", "topic_partitions"):
        assert getattr(read, field) == getattr(request_, field)


@pytest.mark.parametrize("regex", [None, "", "x.*"])
def test_expressions_arrive(regex: str | None) -> None:
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=0, subscribed_topic_regex=regex
    )
    assert server_reads(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request).subscribed_topic_regex == regex


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


@pytest.mark.parametrize(
    ("api_key", "low", "message"),
    [
        (ApiKey.METADATA, 1, cluster.MetadataRequest(topics=(cluster.TopicReference(name="x"),))),
        (ApiKey.METADATA, 1, cluster.MetadataRequest()),
        (ApiKey.FIND_COORDINATOR, 0, cluster.FindCoordinatorRequest(keys=("g",))),
        (ApiKey.API_VERSIONS, 3, cluster.ApiVersionsRequest(client_software_name="a")),
        (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, consumer.ConsumerGroupDescribeRequest(group_ids=("g", ""))),
        (ApiKey.DESCRIBE_GROUPS, 0, classic.DescribeGroupsRequest(group_ids=("g",))),
        (ApiKey.LIST_GROUPS, 5, consumer.ListGroupsRequest(states_filter=("s",), types_filter=("t",))),
        (
            ApiKey.DELETE_GROUPS,
            0,
            groups.DeleteGroupsCall(groups=(consumer.DeleteGroupsRequest(group_id="g"),)),
        ),
        (
            ApiKey.LEAVE_GROUP,
            3,
            groups.LeaveGroupCall(
                group_id="g",
                members=(consumer.LeaveGroupRequest(group_id="g", member_id="m", instance_id="i"),),
            ),
        ),
        (
            ApiKey.OFFSET_DELETE,
            0,
            offsets.OffsetDeleteCall(group_id="g", topics=(OfTopic(name="x", partitions=(0, 1)),)),
        ),
        (
            ApiKey.CREATE_TOPICS,
            2,
            administration.CreateTopicsRequest(
                topics=(
                    administration.NewTopic(name="x", assignments=((0, (1,)),), configs={"a": "b"}),
                    administration.NewTopic(name="y", partitions=3, replication_factor=1),
                ),
                validate_only=True,
            ),
        ),
        (
            ApiKey.DELETE_TOPICS,
            1,
            administration.DeleteTopicsRequest(topics=(cluster.TopicReference(name="x"),)),
        ),
        (
            ApiKey.CREATE_PARTITIONS,
            0,
            administration.CreatePartitionsRequest(
                topics=(
                    administration.GrownTopic(name="x", count=4),
                    administration.GrownTopic(name="y", count=2, assignments=((1,),)),
                )
            ),
        ),
        (
            ApiKey.DESCRIBE_CONFIGS,
            1,
            administration.DescribeConfigsRequest(
                resources=(
                    administration.ConfigResource(resource_type=4, name="1", keys=("a",)),
                    administration.ConfigResource(resource_type=2, name="x"),
                )
            ),
        ),
    ],
)
def test_requests_arrive(api_key: ApiKey, low: int, message: Any) -> None:
    for version in versions(api_key, low):
        assert server_reads(api_key, version, message) == message


def test_below_version_3_one_member_leaves() -> None:
    one = consumer.LeaveGroupRequest(group_id="g", member_id="m")
    call = groups.LeaveGroupCall(group_id="g", members=(one,), single=True)
    assert server_reads(ApiKey.LEAVE_GROUP, 2, call) == call


def test_a_topic_id_of_zeroes_is_none() -> None:
    request = consumer.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="m", member_epoch=1, topic_partitions={"A" * 22: (0,)}
    )
    read = server_reads(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, request)
    assert read.topic_partitions == {"A" * 22: (0,)}


MEMBER = consumer.DescribedMember(
    member_id="m",
    instance_id=None,
    rack_id="r",
    member_epoch=4,
    client_id="c",
    client_host="/h",
    subscribed_topic_names=("x",),
    subscribed_topic_regex="",
    assignment=(consumer.DescribedPartitions(topic_id=ID, topic_name="x", partitions=(0, 1)),),
    target_assignment=(),
    member_type=consumer.MemberType.CONSUMER,
)
TOPICS = (of_topic(9, offsets.PartitionError(1, ErrorCode.STALE_MEMBER_EPOCH)),)
FOUND = offsets.FetchedOffset(partition=1, offset=OffsetAndMetadata(offset=8, leader_epoch=2, metadata="n"))


@pytest.mark.parametrize(
    ("api_key", "version", "reply"),
    [
        (68, 1, consumer.ConsumerGroupHeartbeatResponse(member_id="m", assignment={ID: (0, 1)})),
        (68, 0, consumer.ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=2, assignment={})),
        (68, 1, consumer.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH)),
        (
            69,
            1,
            consumer.ConsumerGroupDescribeResponse(
                groups=(
                    consumer.DescribedGroup(
                        group_id="g",
                        group_state="Stable",
                        group_epoch=3,
                        assignment_epoch=2,
                        assignor_name="range",
                        members=(MEMBER,),
                    ),
                )
            ),
        ),
        (8, 9, offsets.OffsetCommitReply(topics=TOPICS)),
        (
            9,
            9,
            offsets.OffsetFetchReply(
                groups=(offsets.FetchedGroup(group_id="g", topics=(of_topic(9, FOUND),)),)
            ),
        ),
        (
            9,
            7,
            offsets.OffsetFetchReply(
                groups=(offsets.FetchedGroup(group_id="", topics=(of_topic(7, FOUND),)),)
            ),
        ),
        (47, 0, offsets.OffsetDeleteReply(topics=TOPICS)),
        (
            13,
            5,
            groups.LeaveGroupReply(members=(consumer.LeaveGroupResponse(member_id="m", instance_id="i"),)),
        ),
        (13, 2, groups.LeaveGroupReply(error_code=ErrorCode.UNKNOWN_MEMBER_ID)),
        (
            16,
            5,
            consumer.ListGroupsResponse(
                groups=(
                    consumer.ListedGroup(
                        group_id="g", protocol_type="consumer", group_state="Empty", group_type="consumer"
                    ),
                )
            ),
        ),
        (42, 2, groups.DeleteGroupsReply(groups=(consumer.DeleteGroupsResponse(group_id="g"),))),
        (
            10,
            6,
            cluster.FindCoordinatorResponse(
                coordinators=(
                    cluster.FoundCoordinator(key="g", node=cluster.Node(node_id=1, host="h", port=9)),
                    cluster.FoundCoordinator(key="h", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
                )
            ),
        ),
        (
            3,
            12,
            cluster.MetadataResponse(
                cluster_id="c",
                controller_id=1,
                brokers=(NODE,),
                topics=(
                    cluster.TopicMetadata(
                        name="x",
                        topic_id=ID,
                        partitions=(cluster.PartitionMetadata(partition=0, leader_id=1, leader_epoch=3),),
                    ),
                ),
            ),
        ),
        (
            19,
            7,
            administration.CreateTopicsResponse(
                topics=(
                    administration.CreatedTopic(name="x", topic_id=ID, partitions=3, replication_factor=1),
                )
            ),
        ),
        (
            20,
            6,
            administration.DeleteTopicsResponse(topics=(administration.DeletedTopic(name="x", topic_id=ID),)),
        ),
        (
            37,
            3,
            administration.CreatePartitionsResponse(
                topics=(
                    administration.CreatedPartitions(
                        name="x", error_code=ErrorCode.INVALID_PARTITIONS, error_message="no"
                    ),
                )
            ),
        ),
    ],
)
def test_answers_arrive(api_key: int, version: int, reply: Any) -> None:
    assert client_reads(api_key, version, reply) == reply


def test_settings_arrive() -> None:
    entry = administration.ConfigEntry(name="a", value="1", read_only=False)
    described = administration.DescribedConfigs(resource_type=4, name="1", entries=(entry,))
    reply = administration.DescribeConfigsResponse(resources=(described,))
    (read,) = client_reads(ApiKey.DESCRIBE_CONFIGS, 4, reply).resources
    assert [(one.name, one.value, one.read_only) for one in read.entries] == [("a", "1", False)]


def test_features_and_versions_arrive() -> None:
    reply = cluster.ApiVersionsResponse(api_versions=(cluster.ApiVersion(68, 0, 1),))
    read = client_reads(ApiKey.API_VERSIONS, 4, reply)
    assert read.api_versions == {68: cluster.ApiVersion(68, 0, 1)}
    assert read.features == {"group.version": 1, "streams.version": 1, "transaction.version": 2}


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
def test_joins_and_their_answers_arrive(version: int) -> None:
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
    instance_id = "i" if version >= 5 else None
    reply = classic.JoinGroupResponse(
        generation=3,
        protocol_type="consumer" if version >= 7 else None,
        protocol_name="range",
        leader="m",
        skip_assignment=version >= 9,
        member_id="m",
        members=(classic.JoinGroupMember(member_id="m", instance_id=instance_id, metadata=b"r"),),
    )
    assert client_reads(ApiKey.JOIN_GROUP, version, reply) == reply
    refused = classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m")
    assert client_reads(ApiKey.JOIN_GROUP, version, refused).protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
def test_syncs_and_their_answers_arrive(version: int) -> None:
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
    reply = classic.SyncGroupResponse(
        protocol_type="consumer" if version >= 5 else None,
        protocol_name="range" if version >= 5 else None,
        assignment=b"a",
    )
    assert client_reads(ApiKey.SYNC_GROUP, version, reply) == reply


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
@pytest.mark.parametrize("fields", [{}, {"protocol_type": "consumer"}, {"protocol_name": ""}])
def test_a_sync_without_the_protocol_lacks_it_where_it_is_due(version: int, fields: dict[str, str]) -> None:
    request = classic.SyncGroupRequest(group_id="g", generation=3, member_id="m", **fields)
    assert server_reads(ApiKey.SYNC_GROUP, version, request).lacks_protocol == (version >= 5)


def test_an_empty_name_of_a_protocol_is_a_name() -> None:
    names = {"protocol_type": "", "protocol_name": ""}
    request = classic.SyncGroupRequest(group_id="g", generation=3, member_id="m", **names)
    assert server_reads(ApiKey.SYNC_GROUP, 5, request) == request


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
def test_classic_heartbeats_and_their_answers_arrive(version: int) -> None:
    instance_id = "i" if version >= 3 else None
    request = classic.HeartbeatRequest(group_id="g", generation=3, member_id="m", instance_id=instance_id)
    assert server_reads(ApiKey.HEARTBEAT, version, request) == request
    reply = classic.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    assert client_reads(ApiKey.HEARTBEAT, version, reply) == reply


def test_a_classic_description_tells_the_state() -> None:
    reply = classic.DescribeGroupsResponse(groups=(missing("g", "Group g not found."),))
    (read,) = client_reads(ApiKey.DESCRIBE_GROUPS, 6, reply).groups
    assert (read.group_id, read.error_code, read.group_state) == ("g", ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


@pytest.mark.parametrize("version", versions(ApiKey.SASL_HANDSHAKE))
def test_mechanisms_arrive(version: int) -> None:
    read = server_reads(ApiKey.SASL_HANDSHAKE, version, sasl.SaslHandshakeRequest(mechanism="PLAIN"))
    assert (read.mechanism, read.tokens_are_bare) == ("PLAIN", version == 0)
    reply = sasl.SaslHandshakeResponse(
        error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=("PLAIN", "SCRAM-SHA-256")
    )
    assert client_reads(ApiKey.SASL_HANDSHAKE, version, reply) == reply


@pytest.mark.parametrize("version", versions(ApiKey.SASL_AUTHENTICATE))
def test_tokens_arrive(version: int) -> None:
    request = sasl.SaslAuthenticateRequest(token=b"\0alice\0secret")
    assert server_reads(ApiKey.SASL_AUTHENTICATE, version, request) == request
    reply = sasl.SaslAuthenticateResponse(
        error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
        error_message="no",
        token=b"t",
        session_lifetime_ms=9 if version >= 1 else 0,
    )
    assert client_reads(ApiKey.SASL_AUTHENTICATE, version, reply) == reply


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_altered(version: int) -> None:
    changes = (
        administration.ConfigChange("a", "1"),
        administration.ConfigChange("b", None, administration.ConfigOperation.DELETE),
    )
    group = administration.ChangedResource(resource_type=32, name="g", changes=changes)
    request = administration.AlterConfigsRequest(resources=(group,))
    assert server_reads(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, request) == request
    altered = administration.AlteredConfigs(
        resource_type=32, name="g", error_code=ErrorCode.INVALID_CONFIG, error_message="no"
    )
    reply = administration.AlterConfigsResponse(resources=(altered,))
    assert client_reads(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, reply) == reply


def test_an_unknown_code_is_an_unknown_error() -> None:
    assert error_of(9_999) is ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("frame", [b"", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x00\x00\x00\x00\x00\xff\xff"])
def test_a_short_answer_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedFrame, match="version 1 can't be read"):
        read_response(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, frame)


def test_each_client_api_has_a_counterpart_or_is_named() -> None:
    assert sorted(CLIENT_APIS.keys() - REGISTRY.keys()) == [43, 45]
