"""`__consumer_offsets` as other clients read it, and the same records as Kafka writes."""

from __future__ import annotations

import asyncio
import re
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.group_records import decode_record
from fencepost.coordinator.protocol.records import OffsetCommitKey, OffsetCommitValue, Record
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail
from tests.conformance.brokers import SECONDS, World

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as running:
        yield running


def consumer_of(servers: str, group_id: str, **settings: Any) -> Consumer:
    common = {"bootstrap.servers": servers, "group.id": group_id, "log_level": 0}
    return Consumer({**common, "enable.auto.commit": False, "auto.offset.reset": "earliest", **settings})


def polled(consumer: Consumer, holds: Callable[[], bool]) -> list[Any]:
    """Poll until the condition holds; the messages that came."""
    found = []
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None
            found.append(message)
    return found


def take_part(servers: str, group_id: str, topic: str, **settings: Any) -> None:
    """Join a group, commit twice, and leave."""
    consumer = consumer_of(servers, group_id, **settings)
    consumer.subscribe([topic])
    polled(consumer, lambda: len(consumer.assignment()) == 2)
    for offset, metadata in ((1, ""), (2, "why")):
        position = TopicPartition(topic, 0, offset, metadata)
        consumer.commit(offsets=[position], asynchronous=False)
    consumer.close()


def committed(record: Any, group_id: str) -> int | None:
    """The position in a record of the group; None for other records."""
    if not isinstance(record, Record) or record.key.group_id != group_id:
        return None
    return record.value.offset if isinstance(record.value, OffsetCommitValue) else None


async def in_the_log(world: World) -> list[tuple[str, str]]:
    """The types of keys and values of the world's group, in the order of its partition."""
    found = []
    async with GroupLogTail(world.group, world.servers) as tail:
        end = await tail.end()
        while tail.position < end:
            for batch in await tail.read():
                for each in batch.records:
                    assert isinstance(each.record, Record)
                    found.append((type(each.record.key).__name__, type(each.record.value).__name__))
    return found


@pytest.mark.processes
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_group_leaves_the_same_records_as_with_kafka(ours, real, protocol):
    logs = []
    for world in (ours, real):
        topic = world.topic(2)
        await asyncio.to_thread(take_part, world.servers, world.group, topic, **{"group.protocol": protocol})
        logs.append(await in_the_log(world))
    assert logs[0] == logs[1]
    assert logs[0].count(("OffsetCommitKey", "OffsetCommitValue")) == 2


def test_it_is_there_once_a_coordinator_was_looked_for(world):
    if world.is_real:
        world.topic(1)  # the broker is shared, and others have looked before
    admin = AdminClient({"bootstrap.servers": world.servers, "log_level": 0})
    assert world.is_real or OFFSETS_TOPIC not in admin.list_topics(timeout=SECONDS).topics
    consumer = consumer_of(world.servers, world.group)
    consumer.committed([TopicPartition(world.topic(1), 0)], SECONDS)
    consumer.close()
    assert OFFSETS_TOPIC in admin.list_topics(timeout=SECONDS).topics
    told = admin.describe_topics(TopicCollection([OFFSETS_TOPIC]))[OFFSETS_TOPIC].result(SECONDS)
    assert told.is_internal
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, OFFSETS_TOPIC)]).values()
    settings = {name: each.value for name, each in described.result(SECONDS).items() if not each.is_default}
    settings.pop("min.insync.replicas", None)
    assert settings == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "104857600",
    }


def test_it_is_there_for_one_who_creates_what_it_names():
    with EmbeddedKafka(auto_create_topics=True) as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        assert OFFSETS_TOPIC not in producer.list_topics(timeout=SECONDS).topics
        assert len(producer.list_topics(OFFSETS_TOPIC, SECONDS).topics[OFFSETS_TOPIC].partitions) == 50


def test_clients_can_not_write_to_it(world):
    consumer = consumer_of(world.servers, world.group)
    consumer.committed([TopicPartition(world.topic(1), 0)], SECONDS)
    consumer.close()
    told = []
    producer = Producer({"bootstrap.servers": world.servers, "log_level": 0})
    producer.produce(OFFSETS_TOPIC, b"value", b"key", 0, lambda error, message: told.append(error.code()))
    assert producer.flush(SECONDS) == 0
    admin = AdminClient({"bootstrap.servers": world.servers, "log_level": 0})
    with pytest.raises(KafkaException) as refused:
        next(iter(admin.delete_records([TopicPartition(OFFSETS_TOPIC, 0, 1)]).values())).result(SECONDS)
    told.append(refused.value.args[0].code())
    assert told == [KafkaError.TOPIC_EXCEPTION] * 2


def test_it_can_not_be_deleted_or_grown_here(embedded):
    take_part(embedded.bootstrap_servers, "before", "orders")
    admin = AdminClient({"bootstrap.servers": embedded.bootstrap_servers, "log_level": 0})
    for future in (
        admin.delete_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC],
        admin.create_partitions([NewPartitions(OFFSETS_TOPIC, 60)])[OFFSETS_TOPIC],
    ):
        with pytest.raises(KafkaException) as refused:
            future.result(SECONDS)
        assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION


async def test_aiokafka_reads_what_was_committed_before_and_since(embedded):
    servers = embedded.bootstrap_servers
    await asyncio.to_thread(take_part, servers, "of-aiokafka", "orders")
    async with aiokafka.AIOKafkaConsumer(
        OFFSETS_TOPIC,
        bootstrap_servers=servers,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    ) as consumer:

        async def positions(count: int) -> list[int]:
            found: list[int] = []
            async with asyncio.timeout(SECONDS):
                while len(found) < count:
                    message = await consumer.getone()
                    position = committed(decode_record(message.key, message.value), "of-aiokafka")
                    found += [] if position is None else [position]
            return found

        assert await positions(2) == [1, 2]
        await asyncio.to_thread(take_part, servers, "of-aiokafka", "orders")
        assert await positions(2) == [1, 2]


async def test_confluent_kafka_reads_it_in_a_group(embedded):
    servers = embedded.bootstrap_servers
    await asyncio.to_thread(take_part, servers, "of-confluent", "orders")
    for protocol in ("classic", "consumer"):
        consumer = consumer_of(servers, f"monitor-{protocol}", **{"group.protocol": protocol})
        consumer.subscribe([OFFSETS_TOPIC])
        found: list[int] = []
        while found != [1, 2]:
            for message in polled(consumer, lambda: True) or [consumer.poll(SECONDS)]:
                position = committed(decode_record(message.key(), message.value()), "of-confluent")
                found += [] if position is None else [position]
        assert len(consumer.assignment()) == 50
        assert consumer.commit(asynchronous=False)
        consumer.close()


def test_kafka_python_reads_it_without_a_group(embedded):
    take_part(embedded.bootstrap_servers, "of-kafka-python", "orders")
    consumer = kafka.KafkaConsumer(
        OFFSETS_TOPIC, bootstrap_servers=embedded.bootstrap_servers, auto_offset_reset="earliest"
    )
    found: list[int] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < 2:
        assert time.monotonic() < deadline
        for messages in consumer.poll(100).values():
            for message in messages:
                position = committed(decode_record(message.key, message.value), "of-kafka-python")
                found += [] if position is None else [position]
    assert found == [1, 2]
    consumer.close()


async def test_the_test_itself_reads_it(embedded):
    await asyncio.to_thread(take_part, embedded.bootstrap_servers, "of-the-test", "orders")
    records = [decode_record(each.key, each.value) for each in embedded.records(OFFSETS_TOPIC)]
    keys = [each.key for each in records if committed(each, "of-the-test") == 2]
    assert keys == [OffsetCommitKey("of-the-test", "orders", 0)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_patterns_match_it_where_kafka_s_do(world, protocol):
    """Clients that match patterns themselves may leave internal topics out; Kafka's brokers do not."""
    world.topic(1)
    consumer = consumer_of(world.servers, world.group, **{"group.protocol": protocol})
    consumer.committed([TopicPartition("any", 0)], SECONDS)
    consumer.subscribe([f"^{re.escape(OFFSETS_TOPIC)}"])
    polled(consumer, lambda: bool(consumer.assignment()))
    assert {each.topic for each in consumer.assignment()} == {OFFSETS_TOPIC}
    consumer.close()
