"""The endpoint at the level of frames: order, waiting, refusals, limits. Real sockets on a real loop."""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from fencepost.coordinator.codec.registry import REGISTRY
from fencepost.coordinator.codec.schema import milliseconds
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.protocol.ids import uuid_from_topic_id
from fencepost.coordinator.server.broker import Broker
from fencepost.coordinator.server.serve import serve

pytestmark = pytest.mark.real

REQUIRED = {
    3: {"include_topic_authorized_operations": False},
    10: {"key_type": 0},
}
"""Fields of requests that kio knows no default for, and that no test is about."""


class Wire:
    """One connection that speaks kio's messages."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.number = 0
        self.expected: list[tuple[int, int, int]] = []

    @classmethod
    async def to(cls, broker: Broker) -> Wire:
        wire = cls(*await asyncio.open_connection("127.0.0.1", broker.port, limit=1 << 24))
        OPEN.append(wire)
        return wire

    def send(self, key: int, version: int, **fields: Any) -> None:
        schema = load_request_schema(key, version)
        buffer = io.BytesIO()
        entity_writer(schema)(buffer, schema(**REQUIRED.get(key, {}), **fields))
        self.number += 1
        header = struct.pack(">hhih", key, version, self.number, 2) + b"me"
        self.raw(header + (b"\0" if schema.__flexible__ else b"") + buffer.getvalue())
        self.expected.append((key, version, self.number))

    def raw(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">i", len(frame)) + frame)

    async def frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def receive(self) -> Any:
        frame = await asyncio.wait_for(self.frame(), 5)
        key, version, number = self.expected.pop(0)
        schema = load_response_schema(key, version)
        flexible = schema.__flexible__ and key != 18
        assert struct.unpack(">i", frame[:4]) == (number,)
        header = 5 if flexible else 4
        entity, size = entity_reader(schema)(frame, header)
        assert header + size == len(frame)
        return entity

    async def ask(self, key: int, version: int, **fields: Any) -> Any:
        self.send(key, version, **fields)
        return await self.receive()

    async def ended(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


async def until(condition: Callable[[], bool]) -> None:
    """What happens in the broker without an answer has no event to wait for."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


OPEN: list[Wire] = []


@pytest.fixture(autouse=True)
async def everything_closed():
    yield
    while OPEN:
        await OPEN.pop().close()


def nested(key: int, version: int, kind: str, /, **fields: Any) -> Any:
    module = load_request_schema(key, version).__module__
    return getattr(__import__(module, fromlist=[kind]), kind)(**fields)


def fetch_fields(
    broker: Broker, *, max_wait: int, min_bytes: int = 1, offset: int = 0, topic: str = "orders"
) -> dict:
    partition = nested(1, 17, "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topic_id = uuid_from_topic_id(broker.cluster.image.by_name[topic].topic_id)
    return {
        "max_wait": milliseconds(max_wait),
        "min_bytes": min_bytes,
        "topics": (nested(1, 17, "FetchTopic", topic_id=topic_id, partitions=(partition,)),),
        "forgotten_topics_data": (),
    }


def batch(value: bytes) -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    builder.append(0, 1000, None, value, [])
    return bytes(builder.build())


def produce_fields(value: bytes | None, acks: int = 1, topic: str = "orders") -> dict:
    records = None if value is None else batch(value)
    partition = nested(0, 9, "PartitionProduceData", index=0, records=records)
    return {
        "acks": acks,
        "timeout": milliseconds(1000),
        "topic_data": (nested(0, 9, "TopicProduceData", name=topic, partition_data=(partition,)),),
    }


def heartbeat_fields(epoch: int, member_id: str = "m", **more: Any) -> dict:
    first = {
        "rebalance_timeout": milliseconds(1000),
        "subscribed_topic_names": ("orders",),
        "topic_partitions": (),
    }
    later = {"rebalance_timeout": milliseconds(-1), "topic_partitions": None}
    return {
        "group_id": "g",
        "member_id": member_id,
        "member_epoch": epoch,
        **(later if epoch else first),
        **more,
    }


@pytest.fixture
async def broker():
    async with Broker({"orders": 2}) as served:
        yield served


@pytest.fixture
async def wire(broker):
    return await Wire.to(broker)


@pytest.mark.parametrize("version", range(5))
async def test_versions_are_told_in_each_version(wire, version):
    fields = {} if version < 3 else {"client_software_name": "test", "client_software_version": "1"}
    reply = await wire.ask(18, version, **fields)
    told = {api.api_key: (api.min_version, api.max_version) for api in reply.api_keys}
    assert told == {int(api.key): (api.min_version, api.max_version) for api in REGISTRY.values()}
    if version >= 3:
        assert [(one.name, one.max_version_level) for one in reply.finalized_features] == [
            ("group.version", 1),
            ("transaction.version", 2),
        ]


async def test_versions_asked_for_in_an_unknown_version_are_told_in_version_0(wire):
    wire.raw(struct.pack(">hhi", 18, 99, 5) + b"\xff" * 20)
    frame = await wire.frame()
    assert frame[:6] == struct.pack(">ih", 5, 35)
    assert (await wire.ask(18, 0)).error_code == 0


async def test_answers_come_in_the_order_of_their_requests(broker, wire):
    wire.send(18, 0)
    wire.send(1, 17, **fetch_fields(broker, max_wait=10_000))
    wire.send(3, 12, topics=None)
    wire.send(18, 0)
    assert len((await wire.receive()).api_keys) == len(REGISTRY)
    other = await Wire.to(broker)
    assert len((await other.ask(3, 12, topics=None)).topics) == 1, "a waiting fetch holds up nobody else"
    assert (await other.ask(0, 9, **produce_fields(b"value"))).responses[0].partition_responses[
        0
    ].base_offset == 0
    (topic,) = (await wire.receive()).responses
    assert b"value" in topic.partitions[0].records
    assert [topic.name for topic in (await wire.receive()).topics] == ["orders"]
    assert len((await wire.receive()).api_keys) == len(REGISTRY)


async def test_a_fetch_waits_for_enough_bytes_or_until_its_time_is_over(broker, wire):
    size = len(batch(b"value"))
    wire.send(1, 17, **fetch_fields(broker, max_wait=10_000, min_bytes=2 * size))
    other = await Wire.to(broker)
    for _ in range(2):
        await other.ask(0, 9, **produce_fields(b"value"))
    (topic,) = (await wire.receive()).responses
    assert len(topic.partitions[0].records) == 2 * size
    reply = await wire.ask(1, 17, **fetch_fields(broker, max_wait=50, min_bytes=9 * size))
    assert len(reply.responses[0].partitions[0].records) == 2 * size
    assert reply.responses[0].partitions[0].high_watermark == 2


async def test_a_fetch_does_not_wait_on_an_error_or_on_nothing(broker, wire):
    reply = await wire.ask(1, 17, **fetch_fields(broker, max_wait=60_000, offset=5))
    assert reply.responses[0].partitions[0].error_code == 1
    fields = fetch_fields(broker, max_wait=60_000) | {"topics": ()}
    assert (await wire.ask(1, 17, **fields)).responses == ()
    fields = fetch_fields(broker, max_wait=60_000) | {"session_id": 7, "session_epoch": 3}
    assert (await wire.ask(1, 17, **fields)).error_code == 70


async def test_a_fetch_ends_when_its_topic_is_deleted(broker, wire):
    wire.send(1, 17, **fetch_fields(broker, max_wait=60_000))
    await asyncio.sleep(0.02)
    broker.cluster.delete_topic(broker.cluster.image.by_name["orders"])
    assert (await wire.receive()).responses[0].partitions[0].error_code == 100


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "a header has at least 10"),
        (struct.pack(">hhih", 18, 3, 1, -1) + b"\0", "API_VERSIONS version 3 can't be read"),
        (struct.pack(">hhih", 3, 12, 1, -1) + b"\0\xff\xff\xff\xff\x07", "METADATA version 12 can't be read"),
        (struct.pack(">hhih", 7, 2, 1, -1) + b"\0", "API 7 version 2 is not spoken here"),
        (struct.pack(">hhih", 3, 99, 1, -1) + b"\0", "API 3 version 99 is not spoken here"),
        (struct.pack(">hhih", -5, 0, 1, -1) + b"\0", "API -5 version 0 is not spoken here"),
    ],
)
async def test_what_is_no_request_closes_its_connection_only(broker, wire, frame, reason):
    other = await Wire.to(broker)
    await other.ask(18, 0)
    with structlog.testing.capture_logs() as logs:
        wire.send(18, 0)
        wire.raw(frame)
        wire.send(18, 0)
        assert (await wire.receive()).error_code == 0, "what came before is answered"
        assert await wire.ended()
    (line,) = logs
    assert line["event"] == "connection_closed"
    assert reason in line["reason"]
    assert (await other.ask(18, 0)).error_code == 0


async def test_a_frame_beyond_the_limit_closes_the_connection():
    async with Broker(max_frame_bytes=1000) as broker:
        wire = await Wire.to(broker)
        wire.writer.write(struct.pack(">i", 1001))
        assert await wire.ended()
        wire = await Wire.to(broker)
        wire.writer.write(struct.pack(">i", -1))
        assert await wire.ended()


async def test_connections_beyond_the_limit_are_closed():
    async with Broker(max_connections=2) as broker:
        first, second = await Wire.to(broker), await Wire.to(broker)
        await first.ask(18, 0)
        await second.ask(18, 0)
        assert await (await Wire.to(broker)).ended()
        await first.close()
        await until(lambda: len(broker.connections) < 2)
        third = await Wire.to(broker)
        assert (await third.ask(18, 0)).error_code == 0


async def test_a_client_that_does_not_read_is_not_read_from():
    async with Broker({"orders": 5_000}) as broker:
        wire = await Wire.to(broker)
        for _ in range(150):
            wire.send(3, 12, topics=None)
        other = await Wire.to(broker)
        await other.ask(18, 0)
        (greedy,) = (one for one in broker.connections if one._write_blocked)
        assert greedy._transport.get_write_buffer_size() < 2_000_000
        for number in range(1, 151):
            assert (await wire.frame())[:4] == struct.pack(">i", number)


async def test_a_broker_closes_although_clients_wait(broker):
    wire, idle = await Wire.to(broker), await Wire.to(broker)
    wire.send(1, 17, **fetch_fields(broker, max_wait=60_000))
    await idle.ask(18, 0)
    await broker.close()
    assert await wire.ended()
    assert await idle.ended()


@pytest.mark.parametrize("turns", range(5))
async def test_who_comes_while_the_broker_closes_is_sent_away(turns):
    """The connection is accepted some turns of the loop before, which takes more turns to be complete."""
    loop = asyncio.get_running_loop()
    async with Broker() as broker:
        wire = await Wire.to(broker)
        await wire.ask(18, 0)
        late = socket.create_connection(("127.0.0.1", broker.port))
        for _ in range(turns):
            await asyncio.sleep(0)
    with late:
        late.setblocking(False)
        with contextlib.suppress(ConnectionResetError):  # where it was never accepted
            assert await asyncio.wait_for(loop.sock_recv(late, 1), 10) == b""
    assert not broker.connections


async def test_heartbeats(broker, wire):
    joined = await wire.ask(68, 1, **heartbeat_fields(0))
    assert (joined.error_code, joined.member_id) == (0, "m")
    (topic,) = joined.assignment.topic_partitions
    assert topic.partitions == (0, 1)
    for _ in range(3):
        again = await wire.ask(68, 1, **heartbeat_fields(joined.member_epoch))
        assert (again.error_code, again.member_epoch, again.assignment) == (0, joined.member_epoch, None)
    member = broker.coordinator.groups["g"].members["m"]
    assert (member.client_id, member.client_host) == ("me", "/127.0.0.1")
    left = await wire.ask(68, 1, **heartbeat_fields(-1))
    assert (left.error_code, left.member_epoch) == (0, -1)
    assert (await wire.ask(68, 1, **heartbeat_fields(joined.member_epoch))).error_code == 25


async def test_members_of_version_0_are_named_by_the_broker(broker, wire):
    first = await wire.ask(68, 0, **heartbeat_fields(0, ""))
    second = await wire.ask(68, 0, **heartbeat_fields(0, ""))
    assert len(first.member_id) == 22
    assert first.member_id != second.member_id
    assert (await wire.ask(68, 1, **heartbeat_fields(0, ""))).error_code == 42


async def test_one_session_ends_in_time():
    config = GroupCoordinatorConfig(
        group_consumer_min_session_timeout_ms=50,
        group_consumer_session_timeout_ms=50,
        group_consumer_min_heartbeat_interval_ms=10,
        group_consumer_heartbeat_interval_ms=10,
    )
    async with Broker({"orders": 1}, config=config) as broker:
        wire = await Wire.to(broker)
        await wire.ask(68, 1, **heartbeat_fields(0))
        await until(lambda: not broker.coordinator.groups["g"].members)


async def test_topics_of_commits_are_looked_up_first(broker, wire):
    good = uuid_from_topic_id(broker.cluster.image.by_name["orders"].topic_id)
    bad = uuid_from_topic_id("A" * 21 + "Q")

    def topic(topic_id, *partitions):
        return nested(
            8,
            10,
            "OffsetCommitRequestTopic",
            topic_id=topic_id,
            partitions=tuple(
                nested(
                    8,
                    10,
                    "OffsetCommitRequestPartition",
                    partition_index=number,
                    committed_offset=3,
                    committed_metadata=None,
                )
                for number in partitions
            ),
        )

    reply = await wire.ask(8, 10, group_id="g", member_id="", topics=(topic(bad, 0), topic(good, 1, 2)))
    assert [[one.error_code for one in part.partitions] for part in reply.topics] == [[100], [0, 3]]
    asked = nested(
        9,
        10,
        "OffsetFetchRequestGroup",
        group_id="g",
        topics=(
            nested(9, 10, "OffsetFetchRequestTopics", topic_id=good, partition_indexes=(0, 1)),
            nested(9, 10, "OffsetFetchRequestTopics", topic_id=bad, partition_indexes=(0,)),
        ),
    )
    everything = nested(9, 10, "OffsetFetchRequestGroup", group_id="g", topics=None)
    some, every = (await wire.ask(9, 10, groups=(asked, everything))).groups
    assert [[(one.committed_offset, one.error_code) for one in part.partitions] for part in some.topics] == [
        [(-1, 0), (3, 0)],
        [(-1, 100)],
    ]
    assert [(part.topic_id, [one.committed_offset for one in part.partitions]) for part in every.topics] == [
        (good, [3])
    ]


async def test_administration_of_members(broker, wire):
    joined = await wire.ask(68, 1, **heartbeat_fields(0))
    identity = nested(13, 5, "MemberIdentity", member_id="m")
    stranger = nested(13, 5, "MemberIdentity", member_id="stranger")
    reply = await wire.ask(13, 5, group_id="g", members=(stranger, identity))
    assert [(one.member_id, one.error_code) for one in reply.members] == [("stranger", 25), ("m", 0)]
    assert (await wire.ask(68, 1, **heartbeat_fields(joined.member_epoch))).error_code == 25
    assert (await wire.ask(13, 2, group_id="g", member_id="m")).error_code == 25
    (result,) = (await wire.ask(42, 2, groups_names=("g",))).results
    assert (result.group_id, result.error_code) == ("g", 0)


@pytest.mark.parametrize(("version", "code"), [(5, 0), (6, 69)])
async def test_a_consumer_group_is_no_classic_one(wire, version, code):
    await wire.ask(68, 1, **heartbeat_fields(0))
    reply = await wire.ask(15, version, groups=("g",), include_authorized_operations=False)
    (group,) = reply.groups
    assert (group.group_id, group.group_state, group.error_code, group.members) == ("g", "Dead", code, ())


async def test_offsets_are_deleted_unless_their_topic_is_subscribed(wire):
    def position(number):
        return nested(
            8,
            9,
            "OffsetCommitRequestPartition",
            partition_index=number,
            committed_offset=3,
            committed_metadata=None,
        )

    topic = nested(8, 9, "OffsetCommitRequestTopic", name="orders", partitions=(position(0), position(1)))
    await wire.ask(8, 9, group_id="g", member_id="", topics=(topic,))
    asked = nested(
        47,
        0,
        "OffsetDeleteRequestTopic",
        name="orders",
        partitions=tuple(nested(47, 0, "OffsetDeleteRequestPartition", partition_index=n) for n in (0, 7)),
    )

    async def delete() -> list[int]:
        reply = await wire.ask(47, 0, group_id="g", topics=(asked,))
        assert reply.error_code == 0
        return [one.error_code for one in reply.topics[0].partitions]

    assert await delete() == [0, 3]
    assert (await wire.ask(68, 1, **heartbeat_fields(0))).error_code == 0
    assert await delete() == [86, 3]


async def test_where_a_leader_epoch_ended(wire):
    await wire.ask(0, 9, **produce_fields(b"value"))

    async def end_of(epoch: int, current: int = -1) -> tuple[int, int, int]:
        partition = nested(
            23, 4, "OffsetForLeaderPartition", partition=0, leader_epoch=epoch, current_leader_epoch=current
        )
        topic = nested(23, 4, "OffsetForLeaderTopic", topic="orders", partitions=(partition,))
        (one,) = (await wire.ask(23, 4, topics=(topic,))).topics[0].partitions
        return one.error_code, one.leader_epoch, one.end_offset

    assert await end_of(0) == (0, 0, 1)
    assert await end_of(4) == (0, -1, -1)
    assert await end_of(0, current=3) == (75, -1, -1)


async def test_a_refused_batch_without_acknowledgement_closes_the_connection(wire):
    wire.send(0, 9, **produce_fields(b"fine", acks=0))
    assert (await wire_after(wire)).error_code == 0
    wire.send(0, 9, **produce_fields(None, acks=0))
    assert await wire.ended()


async def wire_after(wire: Wire) -> Any:
    """The answer to a request behind one that has none."""
    wire.expected.clear()
    return await wire.ask(18, 0)


@pytest.mark.parametrize(("topic", "acks", "code"), [("orders", 7, 21), ("nowhere", 1, 3), ("orders", 1, 87)])
async def test_what_can_not_be_produced_is_refused(wire, topic, acks, code):
    reply = await wire.ask(0, 9, **produce_fields(None if code == 87 else b"value", acks, topic))
    (partition,) = reply.responses[0].partition_responses
    assert (partition.error_code, partition.base_offset) == (code, -1)


async def test_a_topic_is_created_when_it_is_asked_for_and_allowed():
    name = nested(3, 12, "MetadataRequestTopic", topic_id=None, name="new")
    async with Broker(auto_create_topics=True, default_partitions=4) as broker:
        wire = await Wire.to(broker)
        reply = await wire.ask(3, 12, topics=(name,), allow_auto_topic_creation=False)
        assert reply.topics[0].error_code == 3
        reply = await wire.ask(3, 12, topics=(name,), allow_auto_topic_creation=True)
        assert (reply.topics[0].error_code, len(reply.topics[0].partitions)) == (0, 4)
        reply = await wire.ask(3, 12, topics=(name,), allow_auto_topic_creation=False)
        assert reply.topics[0].error_code == 0


async def test_a_broker_that_listens_everywhere_tells_the_address_that_was_used():
    async with Broker(host="0.0.0.0") as broker:
        wire = await Wire.to(broker)
        (node,) = (await wire.ask(3, 12, topics=())).brokers
        assert (node.host, node.port) == ("127.0.0.1", broker.port)
        (found,) = (await wire.ask(10, 4, coordinator_keys=("g",))).coordinators
        assert (found.host, found.port, found.error_code) == ("127.0.0.1", broker.port, 0)


async def test_an_occupied_port_is_told_with_what_to_do(broker):
    with pytest.raises(
        EnvironmentLacks, match=f"port {broker.port} on 127.0.0.1 is taken: .* another port"
    ) as caught:
        await serve("127.0.0.1", broker.port, {}, GroupCoordinatorConfig(), print)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
async def test_a_foreign_address_is_told(host):
    with pytest.raises(EnvironmentLacks, match=f"{host} is no address of this machine"):
        await Broker(host=host).start()


@pytest.mark.parametrize("topics", [{"no/slash": 1}, {"none": 0}, {"": 1}, {"huge": 10**9}])
def test_topics_that_kafka_would_refuse_are_refused(topics):
    with pytest.raises(FencepostError):
        Broker(topics)


async def test_serve_says_when_it_is_ready_and_ends_when_cancelled():
    ready = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        serve("127.0.0.1", 0, {"orders": 1}, GroupCoordinatorConfig(), ready.set_result)
    )
    broker = await asyncio.wait_for(ready, 5)
    wire = await Wire.to(broker)
    assert (await wire.ask(18, 0)).error_code == 0
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await wire.ended()


async def test_a_producer_may_not_ask_for_a_longer_transaction_than_the_broker_allows():
    config = GroupCoordinatorConfig.from_properties({"transaction.max.timeout.ms": "5000"})
    async with Broker(config=config) as broker:
        wire = await Wire.to(broker)
        for timeout_ms, code in ((5000, "none"), (5001, "invalid_transaction_timeout")):
            reply = await wire.ask(
                *(22, 4), transactional_id="t", transaction_timeout=milliseconds(timeout_ms)
            )
            assert reply.error_code.name == code


@pytest.mark.parametrize(
    ("software", "is_held"),
    [("librdkafka", True), ("confluent-kafka-python", True), ("apache-kafka-java", False)],
)
async def test_librdkafka_does_not_hear_of_brokers_before_it_asks_for_its_coordinator(software, is_held):
    async with Broker({}) as broker:
        wire = await Wire.to(broker)
        await wire.ask(18, 3, client_software_name=software, client_software_version="1")
        clock = asyncio.get_running_loop().time
        alone, followed = [], []
        for _ in range(20):
            began = clock()
            await wire.ask(3, 12, topics=())
            alone.append(clock() - began)
            began = clock()
            wire.send(3, 12, topics=())
            wire.send(10, 4, coordinator_keys=("g",))
            assert (await wire.receive()).brokers
            assert (await wire.receive()).coordinators[0].port == broker.port
            followed.append(clock() - began)
        assert (min(alone) >= 0.002) == is_held
        assert min(followed) < 0.002
