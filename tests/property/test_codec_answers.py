"""Our answers, read and written again by kafka-python: the bytes must be the same, in every version."""

from __future__ import annotations

import io
import warnings

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.coordinator.classic.describe import missing
from fencepost.coordinator.codec import groups, offsets
from fencepost.coordinator.codec.consumer import pack_heartbeat
from fencepost.coordinator.codec.registry import REGISTRY, SPOKEN, ApiKey, codec_of
from fencepost.coordinator.codec.transactions import AddPartitionsReply, TxnOffsetCommitReply
from fencepost.coordinator.protocol import (
    acls,
    administration,
    classic,
    cluster,
    inspection,
    logs,
    quotas,
    sasl,
    transactions,
)
from fencepost.coordinator.protocol import consumer as ours
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition, uuid_from_topic_id
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer
    from kafka.protocol import sasl as peer_sasl

TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
NODE = cluster.Node(node_id=1, host="127.0.0.1", port=9092, rack="zone-a")
OFFSET = OffsetAndMetadata(offset=42, leader_epoch=3, metadata="note")


def of_topic(*partitions):
    return OfTopic(name="orders", topic_id=TOPIC_ID, partitions=partitions)


def metadata_reply():
    partitions = tuple(cluster.PartitionMetadata(partition=n, leader_id=1) for n in range(3))
    known = cluster.TopicMetadata(name="orders", topic_id=TOPIC_ID, partitions=partitions)
    missing = cluster.TopicMetadata(name="no", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return cluster.MetadataResponse(
        cluster_id="cluster", controller_id=1, brokers=(NODE,), topics=(known, missing)
    )


def found_coordinators():
    return cluster.FindCoordinatorResponse(coordinators=(cluster.FoundCoordinator(key="g", node=NODE),))


def fetched_offsets():
    topic = of_topic(offsets.FetchedOffset(partition=0, offset=OFFSET), offsets.FetchedOffset(partition=1))
    return offsets.OffsetFetchReply(groups=(offsets.FetchedGroup(group_id="g", topics=(topic,)),))


def joined():
    members = tuple(classic.JoinGroupMember(member_id=name, instance_id="i", metadata=b"s") for name in "ab")
    return classic.JoinGroupResponse(
        generation=3,
        protocol_type="consumer",
        protocol_name="range",
        leader="a",
        skip_assignment=True,
        member_id="a",
        members=members,
    )


def described_groups():
    member = classic.DescribedClassicMember(
        member_id="m", instance_id="i", client_id="c", client_host="/h", metadata=b"s", assignment=b"a"
    )
    known = classic.DescribedClassicGroup(
        group_id="g",
        group_state="Stable",
        protocol_type="consumer",
        protocol_data="range",
        members=(member,),
    )
    return classic.DescribeGroupsResponse(groups=(known, missing("h", "Group h not found.")))


def described_configs():
    entry = administration.ConfigEntry(
        name="n",
        value="v",
        config_type=administration.ConfigType.INT,
        synonyms=(("n", "w", administration.ConfigSource.DEFAULT),),
    )
    return administration.DescribeConfigsResponse(
        resources=(administration.DescribedConfigs(resource_type=2, name="orders", entries=(entry,)),)
    )


def altered_configs():
    return administration.AlterConfigsResponse(
        resources=(
            administration.AlteredConfigs(resource_type=2, name="orders"),
            administration.AlteredConfigs(
                resource_type=32, name="g", error_code=ErrorCode.INVALID_CONFIG, error_message="wrong"
            ),
        )
    )


def errors_of_offsets():
    return of_topic(
        offsets.PartitionError(0, ErrorCode.NONE), offsets.PartitionError(1, ErrorCode.STALE_MEMBER_EPOCH)
    )


ACLS = (
    acls.AclBinding(resource_type=2, resource_name="orders", principal="User:a", operation=3),
    acls.AclBinding(resource_type=2, resource_name="orders", principal="User:b", operation=4, host="::1"),
    acls.AclBinding(resource_type=3, resource_name="g", pattern_type=4, principal="User:a", operation=3),
)
REPLIES = {
    ApiKey.API_VERSIONS: (metadata.ApiVersionsResponse, cluster.ApiVersionsResponse(api_versions=SPOKEN)),
    ApiKey.METADATA: (metadata.MetadataResponse, metadata_reply()),
    ApiKey.FIND_COORDINATOR: (metadata.FindCoordinatorResponse, found_coordinators()),
    ApiKey.DESCRIBE_CLUSTER: (
        admin.DescribeClusterResponse,
        cluster.DescribeClusterResponse(cluster_id="cluster", controller_id=1, brokers=(NODE,)),
    ),
    ApiKey.PRODUCE: (
        producer.ProduceResponse,
        logs.ProduceResponse(
            topics=(of_topic(logs.AppendedPartition(partition=0, base_offset=7, log_start_offset=0)),)
        ),
    ),
    ApiKey.FETCH: (
        consumer.FetchResponse,
        logs.FetchResponse(
            topics=(
                of_topic(
                    logs.FetchedPartition(
                        partition=0,
                        high_watermark=9,
                        last_stable_offset=7,
                        log_start_offset=0,
                        batches=(b"x" * 300, b"y" * 20_000),
                        aborted=(logs.AbortedTransaction(producer_id=4000, first_offset=3),),
                    ),
                    logs.FetchedPartition(partition=1, error_code=ErrorCode.OFFSET_OUT_OF_RANGE),
                ),
            )
        ),
    ),
    ApiKey.LIST_OFFSETS: (
        consumer.ListOffsetsResponse,
        logs.ListOffsetsResponse(
            topics=(of_topic(logs.ListedOffset(partition=0, timestamp_ms=5, offset=6, leader_epoch=0)),)
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        consumer.OffsetForLeaderEpochResponse,
        logs.OffsetForLeaderEpochResponse(
            topics=(of_topic(logs.EpochEndOffset(partition=0, leader_epoch=0, end_offset=9)),)
        ),
    ),
    ApiKey.INIT_PRODUCER_ID: (
        producer.InitProducerIdResponse,
        transactions.InitProducerIdResponse(producer_id=4000, producer_epoch=0),
    ),
    ApiKey.DELETE_RECORDS: (
        admin.DeleteRecordsResponse,
        logs.DeleteRecordsResponse(topics=(of_topic(logs.DeletedRecords(partition=0, low_watermark=5)),)),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: (
        producer.AddPartitionsToTxnResponse,
        AddPartitionsReply(
            transactions=(
                (
                    "t",
                    transactions.AddPartitionsToTxnResponse(
                        errors={
                            TopicPartition("orders", 0): ErrorCode.NONE,
                            TopicPartition("no", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        }
                    ),
                ),
            )
        ),
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (
        admin.DescribeClientQuotasResponse,
        quotas.DescribeClientQuotasResponse(
            entries=(
                quotas.DescribedQuota(entity=(("user", "a"), ("client-id", None)), values=(("x", 0.5),)),
            )
        ),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        admin.AlterClientQuotasResponse,
        quotas.AlterClientQuotasResponse(
            entries=(
                quotas.AlteredQuota(entity=(("user", None),)),
                quotas.AlteredQuota(entity=(), error_code=ErrorCode.INVALID_REQUEST, error_message="no"),
            )
        ),
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (
        admin.DescribeUserScramCredentialsResponse,
        sasl.DescribeUserScramCredentialsResponse(
            results=(
                sasl.DescribedUser(user="a", credential_infos=((1, 4096), (2, 8192))),
                sasl.DescribedUser(user="b", error_code=ErrorCode.RESOURCE_NOT_FOUND, error_message="no"),
            )
        ),
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        admin.AlterUserScramCredentialsResponse,
        sasl.AlterUserScramCredentialsResponse(
            results=(
                sasl.AlteredUser(user="a"),
                sasl.AlteredUser(user="b", error_code=ErrorCode.DUPLICATE_RESOURCE, error_message="no"),
            )
        ),
    ),
    ApiKey.DESCRIBE_ACLS: (admin.DescribeAclsResponse, acls.DescribeAclsResponse(acls=ACLS)),
    ApiKey.CREATE_ACLS: (
        admin.CreateAclsResponse,
        acls.CreateAclsResponse(
            results=(
                acls.CreatedAcl(),
                acls.CreatedAcl(error_code=ErrorCode.SECURITY_DISABLED, error_message="no"),
            )
        ),
    ),
    ApiKey.DELETE_ACLS: (
        admin.DeleteAclsResponse,
        acls.DeleteAclsResponse(
            filter_results=(
                acls.DeletedAcls(acls=ACLS),
                acls.DeletedAcls(error_code=ErrorCode.SECURITY_DISABLED, error_message="no"),
            )
        ),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: (
        admin.DescribeLogDirsResponse,
        inspection.DescribeLogDirsResponse(
            log_dirs=(
                inspection.LogDir(
                    path="/logs",
                    topics=(of_topic(inspection.LogSize(partition=1, size=69)),),
                    total_bytes=1 << 40,
                    usable_bytes=7,
                ),
                inspection.LogDir(path="/gone", error_code=ErrorCode.KAFKA_STORAGE_ERROR),
            )
        ),
    ),
    ApiKey.DESCRIBE_PRODUCERS: (
        admin.DescribeProducersResponse,
        inspection.DescribeProducersResponse(
            topics=(
                OfTopic(
                    name="orders",
                    partitions=(
                        inspection.PartitionProducers(
                            partition=1,
                            producers=(
                                inspection.ActiveProducer(producer_id=4000, last_sequence=7),
                                inspection.ActiveProducer(producer_id=4001, transaction_start=12),
                            ),
                        ),
                        inspection.PartitionProducers(
                            partition=9, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message="no"
                        ),
                    ),
                ),
            )
        ),
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: (
        admin.DescribeTransactionsResponse,
        inspection.DescribeTransactionsResponse(
            transactions=(
                inspection.DescribedTransaction(
                    transactional_id="t",
                    state="Ongoing",
                    timeout_ms=60_000,
                    start_ms=1_700_000_000_123,
                    producer_id=4000,
                    partitions=(TopicPartition("orders", 0), TopicPartition("orders", 2)),
                ),
                inspection.DescribedTransaction(transactional_id="u", state="Empty", start_ms=-1),
            )
        ),
    ),
    ApiKey.LIST_TRANSACTIONS: (
        admin.ListTransactionsResponse,
        inspection.ListTransactionsResponse(
            unknown_states=("Nope",),
            transactions=(
                inspection.ListedTransaction(transactional_id="t", producer_id=4000, state="Empty"),
            ),
        ),
    ),
    ApiKey.LIST_CONFIG_RESOURCES: (
        admin.ListConfigResourcesResponse,
        inspection.ListConfigResourcesResponse(
            resources=(inspection.ListedResource(resource_type=2, name="orders"),)
        ),
    ),
    ApiKey.SASL_HANDSHAKE: (
        peer_sasl.SaslHandshakeResponse,
        sasl.SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=("PLAIN", "SCRAM-SHA-256")
        ),
    ),
    ApiKey.SASL_AUTHENTICATE: (
        peer_sasl.SaslAuthenticateResponse,
        sasl.SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message="no", token=b"t"
        ),
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: (
        producer.AddOffsetsToTxnResponse,
        transactions.AddOffsetsToTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
    ),
    ApiKey.END_TXN: (
        producer.EndTxnResponse,
        transactions.EndTxnResponse(producer_id=4000, producer_epoch=3),
    ),
    ApiKey.TXN_OFFSET_COMMIT: (
        producer.TxnOffsetCommitResponse,
        TxnOffsetCommitReply(topics=(errors_of_offsets(),)),
    ),
    ApiKey.OFFSET_COMMIT: (
        consumer.OffsetCommitResponse,
        offsets.OffsetCommitReply(topics=(errors_of_offsets(),)),
    ),
    ApiKey.OFFSET_FETCH: (consumer.OffsetFetchResponse, fetched_offsets()),
    ApiKey.OFFSET_DELETE: (
        consumer.OffsetDeleteResponse,
        offsets.OffsetDeleteReply(topics=(errors_of_offsets(),)),
    ),
    ApiKey.LEAVE_GROUP: (
        consumer.LeaveGroupResponse,
        groups.LeaveGroupReply(members=(ours.LeaveGroupResponse(member_id="m", instance_id="i"),)),
    ),
    ApiKey.JOIN_GROUP: (consumer.JoinGroupResponse, joined()),
    ApiKey.SYNC_GROUP: (
        consumer.SyncGroupResponse,
        classic.SyncGroupResponse(protocol_type="consumer", protocol_name="range", assignment=b"a" * 200),
    ),
    ApiKey.HEARTBEAT: (
        consumer.HeartbeatResponse,
        classic.HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    ApiKey.DESCRIBE_GROUPS: (admin.DescribeGroupsResponse, described_groups()),
    ApiKey.LIST_GROUPS: (
        admin.ListGroupsResponse,
        ours.ListGroupsResponse(
            groups=(
                ours.ListedGroup(
                    group_id="g", protocol_type="consumer", group_state="Stable", group_type="consumer"
                ),
            )
        ),
    ),
    ApiKey.DELETE_GROUPS: (
        admin.DeleteGroupsResponse,
        groups.DeleteGroupsReply(
            groups=(ours.DeleteGroupsResponse(group_id="g", error_code=ErrorCode.NON_EMPTY_GROUP),)
        ),
    ),
    ApiKey.CREATE_TOPICS: (
        admin.CreateTopicsResponse,
        administration.CreateTopicsResponse(
            topics=(
                administration.CreatedTopic(
                    name="orders",
                    topic_id=TOPIC_ID,
                    partitions=3,
                    replication_factor=1,
                    configs=(administration.ConfigEntry(name="n", value="v"),),
                ),
            )
        ),
    ),
    ApiKey.DELETE_TOPICS: (
        admin.DeleteTopicsResponse,
        administration.DeleteTopicsResponse(
            topics=(administration.DeletedTopic(name="orders", topic_id=TOPIC_ID),)
        ),
    ),
    ApiKey.CREATE_PARTITIONS: (
        admin.CreatePartitionsResponse,
        administration.CreatePartitionsResponse(topics=(administration.CreatedPartitions(name="orders"),)),
    ),
    ApiKey.DESCRIBE_CONFIGS: (admin.DescribeConfigsResponse, described_configs()),
    ApiKey.ALTER_CONFIGS: (admin.AlterConfigsResponse, altered_configs()),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (admin.IncrementalAlterConfigsResponse, altered_configs()),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        admin.DescribeTopicPartitionsResponse,
        cluster.DescribeTopicPartitionsResponse(
            topics=metadata_reply().topics, next_cursor=cluster.PartitionCursor("orders", 3)
        ),
    ),
}
NO_SECOND_OPINION = {
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_DESCRIBE,
}
"""kafka-python does not speak KIP-848, nor KIP-1071."""


@pytest.mark.parametrize("key", REPLIES, ids=lambda key: key.name)
def test_kafka_python_reads_and_writes_the_same_bytes(key):
    theirs, reply = REPLIES[key]
    for version in range(REGISTRY[key].min_version, REGISTRY[key].max_version + 1):
        frame = b"".join(codec_of(key, version).encode(77, reply))
        read = theirs[version].decode(frame, framed=True, header=True)
        assert read.header.correlation_id == 77, version
        assert read.encode(framed=True, header=True) == frame, version


def test_every_api_has_a_second_opinion_or_is_known_to_have_none():
    assert {api.key for api in REGISTRY.values()} == REPLIES.keys() | NO_SECOND_OPINION


def test_what_kafka_python_understands():
    read = metadata.MetadataResponse[12].decode(b"".join(codec_of(3, 12).encode(0, metadata_reply()))[9:])
    assert [(t.name, t.error_code, len(t.partitions)) for t in read.topics] == [
        ("orders", 0, 3),
        ("no", 3, 0),
    ]
    assert read.topics[0].topic_id == uuid_from_topic_id(TOPIC_ID)
    read = consumer.OffsetFetchResponse[9].decode(b"".join(codec_of(9, 9).encode(0, fetched_offsets()))[9:])
    (one, none) = read.groups[0].topics[0].partitions
    assert (one.committed_offset, one.committed_leader_epoch, one.metadata) == (42, 3, "note")
    assert (none.committed_offset, none.error_code) == (-1, 0)


@pytest.mark.parametrize("version", range(1, 8))
def test_an_error_of_the_group_is_told_where_the_version_has_a_place_for_it(version):
    topic = of_topic(offsets.FetchedOffset(partition=0))
    group = offsets.FetchedGroup(
        group_id="g", error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, topics=(topic,)
    )
    codec = codec_of(ApiKey.OFFSET_FETCH, version)
    frame = b"".join(codec.encode(0, offsets.OffsetFetchReply(groups=(group,))))
    read = consumer.OffsetFetchResponse[version].decode(frame[9 if codec.flexible_answer else 8 :])
    if version == 1:
        assert read.topics[0].partitions[0].error_code == 14
    else:
        assert (read.error_code, list(read.topics)) == (14, [])


HEARTBEATS = [
    ours.ConsumerGroupHeartbeatResponse(member_id="m", member_epoch=3, heartbeat_interval_ms=5000),
    ours.ConsumerGroupHeartbeatResponse(error_code=ErrorCode.FENCED_MEMBER_EPOCH, error_message="é" * 100),
    ours.ConsumerGroupHeartbeatResponse(member_id="m" * 200, member_epoch=-2, assignment={}),
    ours.ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=9, assignment={TOPIC_ID: tuple(range(300)), "A" * 21 + "Q": (7,)}
    ),
]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("reply", HEARTBEATS)
def test_the_heartbeat_packed_by_hand_is_what_kio_writes(reply, version):
    body = pack_heartbeat(reply)
    schema = load_response_schema(68, version)
    entity, end = entity_reader(schema)(body, 0)
    assert end == len(body)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, entity)
    assert buffer.getvalue() == body
    assert int(entity.error_code) == reply.error_code
    assert (entity.error_message, entity.member_id) == (reply.error_message, reply.member_id)
    if reply.assignment is None:
        assert entity.assignment is None
    else:
        assert {one.topic_id: one.partitions for one in entity.assignment.topic_partitions} == {
            uuid_from_topic_id(topic_id): numbers for topic_id, numbers in reply.assignment.items()
        }


COORDINATORS = [
    cluster.FoundCoordinator(key="g", node=NODE),
    cluster.FoundCoordinator(key="é" * 100, node=cluster.Node(node_id=0, host="h" * 200, port=1)),
    cluster.FoundCoordinator(
        key="g", error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, error_message="none is up"
    ),
]


@pytest.mark.parametrize(
    ("version", "found"),
    [(version, (one,)) for version in range(7) for one in COORDINATORS]
    + [(version, found) for version in range(4, 7) for found in (COORDINATORS, ())],
)
def test_the_coordinator_packed_by_hand_is_what_kio_writes(version, found):
    codec = codec_of(ApiKey.FIND_COORDINATOR, version)
    (frame,) = codec.encode(7, cluster.FindCoordinatorResponse(coordinators=tuple(found)))
    body = frame[9 if codec.flexible_answer else 8 :]
    schema = load_response_schema(10, version)
    answer, end = entity_reader(schema)(body, 0)
    assert end == len(body)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, answer)
    assert buffer.getvalue() == body
    for one, told in zip(found, answer.coordinators if version >= 4 else (answer,), strict=True):
        node = one.node or cluster.Node(node_id=-1, host="", port=-1)
        assert (told.node_id, told.host, told.port) == (node.node_id, node.host, node.port)
        assert int(told.error_code) == one.error_code
        if version >= 4:
            assert told.key == one.key
        if version >= 1:
            no_error = "NONE" if version < 4 else ""
            assert told.error_message == (one.error_message or no_error)
