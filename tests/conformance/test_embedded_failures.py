"""Errors on demand, in the eyes of real clients: they take each for what a broker means by it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions

from fencepost import EmbeddedKafka, KIP848Consumer

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

QUIET = {"log_level": 0, "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as running:
        yield running


@pytest.fixture
def admin(kafka: EmbeddedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, **QUIET})


ORDERS = ConfigResource(ConfigResource.Type.TOPIC, "orders")
RETENTION = ConfigResource(
    ConfigResource.Type.TOPIC,
    "orders",
    incremental_configs=[ConfigEntry("retention.ms", "7000", incremental_operation=AlterConfigOpType.SET)],
)


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(60)


@pytest.mark.parametrize(
    ("api", "error", "ask"),
    [
        (
            "DeleteRecords",
            "TOPIC_AUTHORIZATION_FAILED",
            lambda admin: admin.delete_records([TopicPartition("orders", 0, 1)]),
        ),
        (
            "IncrementalAlterConfigs",
            "POLICY_VIOLATION",
            lambda admin: admin.incremental_alter_configs([RETENTION]),
        ),
        ("DescribeConfigs", "CLUSTER_AUTHORIZATION_FAILED", lambda admin: admin.describe_configs([ORDERS])),
        (
            "CreatePartitions",
            "THROTTLING_QUOTA_EXCEEDED",
            lambda admin: admin.create_partitions([NewPartitions("orders", 2)]),
        ),
    ],
)
def test_an_administrator_is_told_of_each_resource(
    kafka: EmbeddedKafka, admin: AdminClient, api: str, error: str, ask: Callable[[AdminClient], Any]
) -> None:
    kafka.produce("orders", "a", "b")
    kafka.fail_next(api, error)
    with pytest.raises(KafkaException) as failed:
        only(ask(admin))
    assert failed.value.args[0].code() == getattr(KafkaError, error)
    assert len(kafka.records("orders")) == 2, "nothing was done"
    only(ask(admin))


def test_offsets_in_a_transaction_are_refused(kafka: EmbeddedKafka) -> None:
    servers = {"bootstrap.servers": kafka.bootstrap_servers, **QUIET}
    producer = Producer({**servers, "transactional.id": "billing"})
    producer.init_transactions(60)
    with closing(Consumer({**servers, "group.id": "g"})) as consumer:

        def commit(offset: int) -> None:
            producer.begin_transaction()
            group = consumer.consumer_group_metadata()
            producer.send_offsets_to_transaction([TopicPartition("orders", 0, offset)], group, 60)
            producer.commit_transaction(60)

        kafka.fail_next("TxnOffsetCommit", "UNKNOWN_MEMBER_ID")
        with pytest.raises(KafkaException) as failed:
            commit(1)
        assert failed.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
        assert failed.value.args[0].txn_requires_abort()
        producer.abort_transaction(60)
        assert kafka.group("g").offsets() == {}
        commit(2)
    assert kafka.group("g").offsets() == {("orders", 0): 2}


def test_librdkafka_loses_its_place(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", "a")
    settings = {"group.id": "g", "auto.offset.reset": "error", "enable.auto.commit": False}
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, **QUIET, **settings})) as consumer:
        consumer.assign([TopicPartition("orders", 0, 0)])
        assert consumer.poll(60).value() == b"a"
        kafka.fail_next("Fetch", "OFFSET_OUT_OF_RANGE")
        told = consumer.poll(60)
        assert told.error().code() == KafkaError._AUTO_OFFSET_RESET


async def test_aiokafka_loses_its_place(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", "a")
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="none", fetch_max_wait_ms=50
    )
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition("orders", 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert (await asyncio.wait_for(consumer.getone(), 60)).value == b"a"
        kafka.fail_next("Fetch", "OFFSET_OUT_OF_RANGE")
        with pytest.raises(aiokafka.errors.OffsetOutOfRangeError):
            await asyncio.wait_for(consumer.getone(), 60)
    finally:
        await consumer.stop()


@pytest.mark.parametrize(
    "disturb",
    [
        lambda kafka: kafka.fail_next("OffsetCommit", "NOT_COORDINATOR"),
        lambda kafka: kafka.lose_next_response("OffsetCommit"),
    ],
)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_librdkafka_commits_once_it_has_asked_for_the_coordinator_again(
    kafka: EmbeddedKafka, protocol: str, disturb: Callable[[EmbeddedKafka], None]
) -> None:
    kafka.produce("orders", "x")
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "g",
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        **QUIET,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe(["orders"])
        while consumer.poll(0.05) is None:
            pass
        disturb(kafka)
        began = time.monotonic()
        consumer.commit(asynchronous=False)
        assert time.monotonic() - began < 5, "fetches wait for half a second: it asked behind two or three"
    assert kafka.group("g").offsets() == {("orders", 0): 1}


async def test_a_position_that_nobody_tells_is_not_waited_for_for_ever(kafka: EmbeddedKafka) -> None:
    kafka.fail_next("ListOffsets", "LEADER_NOT_AVAILABLE", times=1_000)
    async with KIP848Consumer(
        "orders",
        bootstrap_servers=kafka.bootstrap_servers,
        group_id="g",
        auto_offset_reset="earliest",
        retry_backoff_ms=20,
        request_timeout_ms=1_000,
    ) as consumer:
        (partition,) = consumer.assignment()
        asking = asyncio.ensure_future(consumer.position(partition))
        with pytest.raises(aiokafka.errors.KafkaTimeoutError, match=r"no position of .*orders"):
            await asyncio.wait_for(asking, 30)
