"""Our responses, as kafka-python and kio read those that they have a form of their own for."""

from __future__ import annotations

import io
import warnings

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.coordinator.codec import offsets
from fencepost.coordinator.codec.consumer import pack_heartbeat
from fencepost.coordinator.codec.registry import REGISTRY, ApiKey, codec_of
from fencepost.coordinator.protocol import administration, cluster
from fencepost.coordinator.protocol import consumer as ours
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata

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


def fetched_offsets():
    topic = of_topic(offsets.FetchedOffset(partition=0, offset=OFFSET), offsets.FetchedOffset(partition=1))
    return offsets.OffsetFetchReply(groups=(offsets.FetchedGroup(group_id="g", topics=(topic,)),))


ENTRY = administration.ConfigEntry(
    name="n",
    value="v",
    config_type=administration.ConfigType.INT,
    synonyms=(("n", "w", administration.ConfigSource.DEFAULT),),
)
UNREAD = [
    (
        admin.DescribeConfigsResponse,
        ApiKey.DESCRIBE_CONFIGS,
        administration.DescribeConfigsResponse(
            resources=(administration.DescribedConfigs(resource_type=2, name="orders", entries=(ENTRY,)),)
        ),
    ),
    (
        admin.CreateTopicsResponse,
        ApiKey.CREATE_TOPICS,
        administration.CreateTopicsResponse(
            topics=(administration.CreatedTopic(name="orders", configs=(ENTRY,)),)
        ),
    ),
]


@pytest.mark.parametrize(("theirs", "key", "reply"), UNREAD)
def test_kafka_python_reads_what_our_client_passes_over(theirs, key, reply):
    for version in range(REGISTRY[key].min_version, REGISTRY[key].max_version + 1):
        frame = b"".join(codec_of(key, version).encode(77, reply))
        assert (
            theirs[version].decode(frame, framed=True, header=True).encode(framed=True, header=True) == frame
        )


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
