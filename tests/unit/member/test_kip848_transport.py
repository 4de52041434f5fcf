"""Group messages to real bytes and back, and what becomes of failures."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import errors

from fencepost.coordinator.codec import offsets as codec
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import read_header
from fencepost.coordinator.codec.registry import codec_of
from fencepost.coordinator.protocol import cluster, consumer, offsets
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.logs import OffsetSpec, OfTopic
from fencepost.member.base.transport import Disconnected, RequestTimedOut, TransportError
from fencepost.member.kafka.connections import COORDINATION
from fencepost.member.kafka.transport import KafkaTransport

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
NODE = cluster.Node(node_id=4, host="there", port=9092)


class Broker:
    """Stands for the client's connections: answers from the server's half of the codec."""

    def __init__(self, newest=99):
        self.newest = newest
        self.asked = []
        self.answers = {
            10: cluster.FindCoordinatorResponse(coordinators=(cluster.FoundCoordinator(key="g", node=NODE),))
        }
        self.known = True
        self.renewed = 0

    async def ask(self, node_id, call, timeout_ms, *, group=0):
        prepared = call.prepare({key: (0, self.newest) for key in (3, 8, 9, 10, 68)})
        frame = prepared.build_request_header(7, "client").encode() + prepared.encode()
        header = read_header(frame)
        server = codec_of(header.api_key, header.api_version)
        context = RequestContext(header.api_version, header.client_id, "/127.0.0.1")
        request = server.decode(frame, server.body_of(frame, header), context)
        self.asked.append((node_id, group, header.api_version, request))
        answer = self.answers[header.api_key]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, bytes):
            return answer
        return b"".join(server.encode(7, answer))[4:]

    def any_node(self):
        return 1

    async def knows(self, node_id, host, port, timeout_ms):
        assert (node_id, host, port) == (4, "there", 9092)
        return self.known

    def leader_of(self, partition):
        return {0: 1, 1: 2}.get(partition[1])

    def renew_metadata(self):
        self.renewed += 1


class Logs:
    """Stands for the fetcher."""

    def __init__(self):
        self.asked = []
        self.found = {OffsetSpec.EARLIEST: 5, OffsetSpec.LATEST: 8}

    async def log_offsets(self, node_id, partitions, timestamp_ms):
        if node_id == 2:
            raise errors.NodeNotReadyError
        self.asked.append(timestamp_ms)
        return {partition: self.found[timestamp_ms] for partition in partitions}


@pytest.fixture
def broker():
    return Broker()


@pytest.fixture
def logs():
    return Logs()


@pytest.fixture
async def transport(broker, logs):
    made = KafkaTransport(broker, logs, 1_000)
    await made.find_coordinator("g")
    broker.asked.clear()
    yield made
    made.close()


HEARTBEAT = consumer.ConsumerGroupHeartbeatRequest(
    group_id="g",
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1_000,
    subscribed_topic_names=("orders",),
    topic_partitions={TOPIC_ID: (0, 2)},
)


async def test_a_heartbeat_goes_to_the_coordinator_and_its_answer_comes_back(transport, broker):
    answer = consumer.ConsumerGroupHeartbeatResponse(
        member_id="m", member_epoch=3, heartbeat_interval_ms=5_000, assignment={TOPIC_ID: (0, 1)}
    )
    broker.answers[68] = answer
    assert await transport.send(HEARTBEAT, 1_000) == answer
    ((node_id, group, version, request),) = broker.asked
    assert (node_id, group, version) == (4, COORDINATION, 1)
    assert request.subscribed_topic_names == ("orders",)
    assert request.topic_partitions == {TOPIC_ID: (0, 2)}


@pytest.mark.parametrize(("newest", "version"), [(9, 9), (10, 10)])
async def test_a_commit_by_id_where_the_broker_can(newest, version):
    broker = Broker()
    transport = KafkaTransport(broker, Logs(), 1_000)
    await transport.find_coordinator("g")
    broker.newest = newest
    broker.answers[8] = codec.OffsetCommitReply(  # type: ignore[assignment]
        topics=(
            OfTopic(
                name=None if version == 10 else "orders",
                topic_id=TOPIC_ID,
                partitions=(
                    codec.PartitionError(0, ErrorCode.NONE),
                    codec.PartitionError(1, ErrorCode.STALE_MEMBER_EPOCH),
                ),
            ),
        )
    )
    response = await transport.send(
        offsets.OffsetCommitRequest(
            group_id="g",
            member_id="m",
            member_epoch=3,
            offsets={
                A: offsets.OffsetAndMetadata(offset=5),
                B: offsets.OffsetAndMetadata(offset=6, metadata="x"),
            },
            topic_ids={"orders": TOPIC_ID},
            api_version=10,
        ),
        1_000,
    )
    assert response.errors == {A: ErrorCode.NONE, B: ErrorCode.STALE_MEMBER_EPOCH}
    *_, (_, _, used, call) = broker.asked
    assert used == version
    (topic,) = call.topics
    assert (topic.name, topic.topic_id) == ((None, TOPIC_ID) if version == 10 else ("orders", None))
    assert [each.offset.metadata for each in topic.partitions] == ["", "x"]


async def test_committed_offsets(transport, broker):
    def fetched(code):
        return codec.OffsetFetchReply(
            groups=(
                codec.FetchedGroup(
                    group_id="g",
                    topics=(
                        OfTopic(
                            name="orders",
                            partitions=(
                                codec.FetchedOffset(partition=0, offset=offsets.OffsetAndMetadata(offset=5)),
                                codec.FetchedOffset(partition=1, error_code=code),
                            ),
                        ),
                    ),
                ),
            )
        )

    request = offsets.OffsetFetchRequest(group_id="g", member_id="m", member_epoch=3, partitions=(A, B))
    broker.answers[9] = fetched(ErrorCode.NONE)
    response = await transport.send(request, 1_000)
    assert {partition: each.offset for partition, each in response.offsets.items()} == {A: 5, B: -1}
    broker.answers[9] = fetched(ErrorCode.UNSTABLE_OFFSET_COMMIT)
    response = await transport.send(request, 1_000)
    assert (response.error_code, response.offsets) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, {})


async def test_topic_names(transport, broker):
    broker.answers[3] = cluster.MetadataResponse(
        cluster_id="c",
        controller_id=1,
        brokers=(NODE,),
        topics=(
            cluster.TopicMetadata(name="orders", topic_id=TOPIC_ID),
            cluster.TopicMetadata(
                name=None, topic_id="AAAAAAAAAAAAAAAAAAAAAg", error_code=ErrorCode.UNKNOWN_TOPIC_ID
            ),
        ),
    )
    names = await transport.topic_names((TOPIC_ID, "AAAAAAAAAAAAAAAAAAAAAg"))
    assert names == {TOPIC_ID: "orders"}


async def test_log_offsets_without_those_that_nobody_leads(transport, broker):
    nobody_s = TopicPartition("orders", 9)
    assert await transport.log_offsets((A, nobody_s), earliest=True) == {A: 5}
    assert broker.renewed == 1
    assert await transport.log_offsets((A,), earliest=False) == {A: 8}
    with pytest.raises(Disconnected):
        await transport.log_offsets((A, B), earliest=False)


@pytest.mark.parametrize(("found", "offset"), [(6, 6), (0, 0), (-1, 8)])
async def test_offsets_by_duration_are_asked_for_after_the_end(transport, logs, monkeypatch, found, offset):
    monkeypatch.setattr("time.time_ns", lambda: 1_000_000_999_999)
    logs.found[999_900] = found
    nobody_s = TopicPartition("orders", 9)
    assert await transport.offsets_by_duration((A, nobody_s), 100) == {A: offset}
    assert logs.asked == [OffsetSpec.LATEST, 999_900]


async def test_a_duration_that_ends_before_1970_asks_for_all_times(transport, logs):
    logs.found[0] = 2
    assert await transport.offsets_by_duration((A,), 10**15) == {A: 2}


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (errors.NodeNotReadyError(), Disconnected),
        (errors.KafkaConnectionError("cut"), Disconnected),
        (OSError(), Disconnected),
        (errors.RequestTimedOutError(), RequestTimedOut),
        (TimeoutError(), RequestTimedOut),
        (b"\0\0\0\7", TransportError),
        (b"\0\0\0\7\0\0\0\0\0\0\0\xff\xff\xff\xff\x7f", TransportError),
    ],
)
async def test_no_answer(transport, broker, failure, kind):
    broker.answers[68] = failure
    with pytest.raises(TransportError) as caught:
        await transport.send(HEARTBEAT, 1_000)
    assert type(caught.value) is kind


async def test_what_can_not_be_encoded_is_refused(transport, broker):
    requests = (
        consumer.ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, rack_id="\ud800"),
        consumer.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=2**31
        ),
        offsets.OffsetCommitRequest(
            group_id="g", member_id="m", member_epoch=1, offsets={A: offsets.OffsetAndMetadata(offset=2**63)}
        ),
    )
    for request in requests:
        with pytest.raises(ProtocolError, match="can't be encoded") as raised:
            await transport.send(request, 1_000)
        assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert broker.asked == []


async def test_a_broker_that_is_too_old(transport, broker):
    broker.newest = 0
    with pytest.raises(ProtocolError, match=r"Kafka 4\.0 or later") as caught:
        await transport.send(HEARTBEAT, 1_000)
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION


async def test_coordinators_that_are_not_to_be_had(broker):
    transport = KafkaTransport(broker, Logs(), 1_000)
    with pytest.raises(Disconnected, match="no coordinator"):
        await transport.send(HEARTBEAT, 1_000)
    broker.known = False
    with pytest.raises(Disconnected, match="there:9092"):
        await transport.find_coordinator("g")
    broker.answers[10] = cluster.FindCoordinatorResponse(
        coordinators=(
            cluster.FoundCoordinator(
                key="g", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED, error_message="not you"
            ),
        )
    )
    with pytest.raises(ProtocolError, match="not you"):
        await transport.find_coordinator("g")


async def test_closing_fails_what_is_outstanding(broker):
    transport = KafkaTransport(broker, Logs(), 1_000)
    future = transport.find_coordinator("g")
    transport.close()
    with pytest.raises(asyncio.CancelledError):
        await future
    with pytest.raises(Disconnected, match="closed"):
        await transport.find_coordinator("g")
