"""aiokafka and kafka-python without a group: a second and a third opinion on metadata, produce and fetch."""

from __future__ import annotations

import asyncio
import warnings

import aiokafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AsyncNewTopic

from fencepost.coordinator.server.brokers import Broker

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.admin import KafkaAdminClient, NewTopic

pytestmark = pytest.mark.real

VALUES = [b"value %d" % number for number in range(200)]


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_aiokafka_in_the_broker_s_own_loop(codec):
    async with Broker({"orders": 3}) as broker:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, compression_type=codec, enable_idempotence=True
        ) as producer:
            for number, value in enumerate(VALUES):
                await producer.send("orders", value, partition=number % 3)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest"
        )
        await consumer.start()
        try:
            partitions = [aiokafka.TopicPartition("orders", number) for number in range(3)]
            consumer.assign(partitions)
            got = [await consumer.getone() for _ in VALUES]
            assert sorted(message.value for message in got) == sorted(VALUES)
            assert await consumer.end_offsets(partitions) == dict(zip(partitions, (67, 67, 66), strict=True))
            assert await consumer.beginning_offsets(partitions) == dict.fromkeys(partitions, 0)
            times = await consumer.offsets_for_times(dict.fromkeys(partitions, 0))
            assert [times[one].offset for one in partitions] == [0, 0, 0]
        finally:
            await consumer.stop()


async def test_a_waiting_aiokafka_consumer_is_woken_by_a_record():
    async with Broker({"orders": 1}) as broker:
        servers = broker.bootstrap_servers
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers, auto_offset_reset="earliest", fetch_max_wait_ms=20_000
        )
        await consumer.start()
        try:
            consumer.assign([aiokafka.TopicPartition("orders", 0)])
            waiting = asyncio.ensure_future(consumer.getone())
            async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers) as producer:
                await producer.send_and_wait("orders", b"now")
            assert (await asyncio.wait_for(waiting, 15)).value == b"now"
        finally:
            await consumer.stop()


async def test_aiokafka_administers_topics():
    async with Broker() as broker:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
        await admin.start()
        try:
            await admin.create_topics([AsyncNewTopic("new", 2, 1)])
            assert await admin.list_topics() == ["new"]
            await admin.delete_topics(["new"])
            assert await admin.list_topics() == []
        finally:
            await admin.close()


def test_kafka_python_produces_and_consumes(served):
    servers = served.bootstrap_servers
    producer = kafka.KafkaProducer(bootstrap_servers=servers, linger_ms=5)
    sent = [producer.send("single", value) for value in VALUES]
    assert [one.get(60).offset for one in sent] == list(range(200))
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", consumer_timeout_ms=60_000, group_id=None
    )
    partition = kafka.TopicPartition("single", 0)
    consumer.assign([partition])
    assert [next(consumer).value for _ in VALUES] == VALUES
    assert consumer.end_offsets([partition]) == {partition: 200}
    consumer.close()


def test_kafka_python_administers_topics(served):
    admin = KafkaAdminClient(bootstrap_servers=served.bootstrap_servers)
    admin.create_topics([NewTopic("new", 2, 1)])
    assert sorted(admin.list_topics()) == ["new", "orders", "single"]
    admin.delete_topics(["new"])
    assert sorted(admin.list_topics()) == ["orders", "single"]
    admin.close()


def test_kafka_python_sees_a_group_without_members_until_it_is_deleted(served):
    admin = KafkaAdminClient(bootstrap_servers=served.bootstrap_servers)
    partition = kafka.TopicPartition("single", 0)
    admin.alter_group_offsets("simple", {partition: kafka.structs.OffsetAndMetadata(7, "", -1)})
    for _ in range(2):
        assert admin.delete_group_offsets("simple", [partition]) == {partition: kafka.errors.NoError}
        assert admin.list_group_offsets("simple")["simple"] == {}
        (listed,) = admin.list_groups()
        assert (listed["group_id"], listed["group_state"], listed["group_type"], listed["protocol_type"]) == (
            "simple",
            "Empty",
            "classic",
            "",
        )
    assert admin.delete_groups(["simple"]) == {"simple": "OK"}
    assert admin.list_groups() == []
    with pytest.raises(kafka.errors.GroupIdNotFoundError):
        admin.delete_group_offsets("simple", [partition])
    admin.close()
