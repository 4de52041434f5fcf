"""What an embedded Kafka does when its clock is advanced, as clients see it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server.groups import GroupCoordinators

pytestmark = pytest.mark.real


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}) as kafka:
        yield kafka


@contextmanager
def transaction(kafka: EmbeddedKafka) -> Iterator[Producer]:
    """A producer with one record in an open transaction, which may take a minute."""
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "transactional.id": "t",
        "transaction.timeout.ms": 60_000,
        "log_level": 0,
    }
    producer = Producer(settings)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("orders", "x")
    producer.flush(30)
    yield producer
    del producer


def last_stable_offset(kafka: EmbeddedKafka) -> int:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (found,) = admin.list_offsets(
        {TopicPartition("orders", 0): OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
    ).values()
    return int(found.result(30).offset)


def create(kafka: EmbeddedKafka, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (created,) = admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values()
    created.result(30)


@pytest.mark.parametrize("steps", [(61,), (30, 31), (20, 20, 15, 10), (3_600,)])
def test_a_transaction_times_out(kafka: EmbeddedKafka, steps: tuple[int, ...]) -> None:
    with transaction(kafka) as producer:
        for step in steps[:-1]:
            kafka.clock.advance(step)
            assert last_stable_offset(kafka) == 0
        kafka.clock.advance(steps[-1])
        assert last_stable_offset(kafka) == 2, "the record and the marker"
        with pytest.raises(KafkaException, match="_FENCED"):
            producer.commit_transaction(30)
    assert kafka.check() == []


def test_a_transaction_that_is_in_time_commits(kafka: EmbeddedKafka) -> None:
    with transaction(kafka) as producer:
        kafka.clock.advance(58)
        producer.commit_transaction(30)
    kafka.clock.advance(60)
    assert last_stable_offset(kafka) == 2


def test_records_get_the_time_of_the_advanced_clock(kafka: EmbeddedKafka) -> None:
    (before,) = kafka.produce("orders", "before")
    kafka.clock.advance(3_600)
    (after,) = kafka.produce("orders", "after")
    assert 3_600_000 <= after.timestamp_ms - before.timestamp_ms < 3_660_000
    assert kafka.records("orders") == [before, after]


def test_the_clock_goes_on_however_far_it_was_advanced(kafka: EmbeddedKafka) -> None:
    (before,) = kafka.produce("orders", "early")
    for _ in range(20):
        kafka.clock.advance(4e11)
        kafka.clock.advance(0.001)
    (after,) = kafka.produce("orders", "late")
    assert 0 <= after.timestamp_ms - before.timestamp_ms - 20 * (400_000_000_000_000 + 1) < 60_000
    with pytest.raises(FencepostError, match=r"advance=1e\+300: expected seconds, 0 to 12\d{11}$"):
        kafka.clock.advance(1e300)


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_sessions_of_the_connected_are_no_stops_on_the_way(kafka: EmbeddedKafka, protocol: str) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "group.protocol": protocol}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    while not consumer.assignment():
        consumer.poll(0.1)
    (before,) = kafka.group("g").wait_stable(members=1)
    with mock.patch.object(
        GroupCoordinators, "run_due", autospec=True, side_effect=GroupCoordinators.run_due
    ) as stop:
        kafka.clock.advance(86_400)
    assert stop.call_count < 86_400 / 600 + 10, "every ten minutes offsets are looked at"
    (after,) = kafka.group("g").wait_stable(members=1)
    assert after.member_id == before.member_id
    kafka.clock.advance(40)
    assert kafka.group("g").wait_stable(members=1) == [after]
    consumer.close()
    assert kafka.check() == []


def test_records_that_were_given_their_times_are_found_by_them(kafka: EmbeddedKafka) -> None:
    now_ms = round(time.time() * 1000)
    for hours, value in ((5, "oldest"), (3, "older"), (1, "old")):
        (made,) = kafka.produce("orders", value, timestamp_ms=now_ms - hours * 3_600_000)
        assert made.timestamp_ms == now_ms - hours * 3_600_000
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
    (found,) = consumer.offsets_for_times([TopicPartition("orders", 0, now_ms - 4 * 3_600_000)], 30)
    consumer.close()
    assert found.offset == 1


@pytest.mark.parametrize(
    ("timestamp_ms", "why"),
    [
        (-1, "timestamp_ms=-1: expected a whole number, 0 to"),
        (1.5, "timestamp_ms=1.5: expected a whole number"),
        (2**63, "timestamp_ms=9223372036854775808: expected a whole number"),
        (2**63 - 1, "orders-0: INVALID_TIMESTAMP"),
    ],
)
def test_a_time_that_no_record_can_have_is_refused(kafka: EmbeddedKafka, timestamp_ms: Any, why: str) -> None:
    with pytest.raises(FencepostError, match=why):
        kafka.produce("orders", "x", timestamp_ms=timestamp_ms)
    assert kafka.records("orders") == []


def test_a_record_that_is_refused_creates_no_topic() -> None:
    with EmbeddedKafka(auto_create_topics=True) as kafka:
        for refused in ({"timestamp_ms": -1}, {"key": 5}, {"headers": {"h": 5}}):
            with pytest.raises(FencepostError):
                kafka.produce("new", "v", **refused)  # type: ignore[arg-type]
        with pytest.raises(FencepostError, match="there is no topic"):
            kafka.records("new")


def test_retention_leaves_what_was_produced_since_the_clock_was_advanced(kafka: EmbeddedKafka) -> None:
    create(kafka, "kept", {"retention.ms": "60000"})
    kafka.produce("kept", "old")
    kafka.clock.advance(3_600)
    made = kafka.produce("kept", "new")
    kafka.clock.advance(30)
    assert kafka.records("kept") == made
    kafka.clock.advance(31)
    assert kafka.records("kept") == []


def test_a_topic_that_stamps_its_records_says_when_they_came(kafka: EmbeddedKafka) -> None:
    create(kafka, "stamped", {"message.timestamp.type": "LogAppendTime"})
    log = kafka.endpoint.logs
    appended = log._append

    async def late(topic: Any, partition: int, batch: bytes) -> Any:
        await asyncio.sleep(0.05)
        return await appended(topic, partition, batch)

    with mock.patch.object(log, "_append", late):
        made = kafka.produce("stamped", "a", "b" * 600_000, "c" * 600_000)
    assert kafka.records("stamped") == made
    assert [record.offset for record in made] == [0, 1, 2]


def test_a_topic_is_created_with_settings_of_its_own(kafka: EmbeddedKafka) -> None:
    config = {"retention.ms": 60_000, "preallocate": True, "min.cleanable.dirty.ratio": 0.25}
    kafka.create_topic("short", 2, config=config)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    (told,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "short")]).values()
    own = {name: entry.value for name, entry in told.result(30).items() if not entry.is_default}
    assert own == {"retention.ms": "60000", "preallocate": "true", "min.cleanable.dirty.ratio": "0.25"}
    kafka.produce("short", "a", "b")
    kafka.clock.advance(61)
    assert kafka.records("short") == []


def test_a_topic_that_is_created_to_be_compacted_is(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("compacted", config={"cleanup.policy": "compact"})
    for value in ("old", "newer", "newest"):
        kafka.produce("compacted", value, key="k")
    kafka.clock.advance(1)
    assert [record.value for record in kafka.records("compacted")] == [b"newer", b"newest"]
    with pytest.raises(FencepostError, match="INVALID_RECORD"):
        kafka.produce("compacted", "no key")
