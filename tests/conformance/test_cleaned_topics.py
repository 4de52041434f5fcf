"""Real clients at topics that are deleted from and compacted: what is set is what consumers see."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost import EmbeddedKafka

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

LIMIT_S = 60.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as running:
        yield running


def create(kafka: EmbeddedKafka, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    settings = {name.replace("_", "."): value for name, value in configs.items()}
    for future in admin.create_topics([NewTopic("t", 1, 1, config=settings)]).values():
        future.result(LIMIT_S)


def produce(kafka: EmbeddedKafka, *records: tuple[str, str | None]) -> None:
    """Each record in a batch of its own."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "compression.type": "gzip"})
    for key, value in records:
        producer.produce("t", value, key)
        assert producer.flush(LIMIT_S) == 0


def read(kafka: EmbeddedKafka, last: int) -> list[Message]:
    """All records up to the one at that offset."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[Message] = []
    deadline = time.monotonic() + LIMIT_S
    while not found or found[-1].offset() < last:  # type: ignore[operator]
        assert time.monotonic() < deadline
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
    consumer.close()
    return found


def test_a_compacted_topic_keeps_the_newest_of_each_key(kafka: EmbeddedKafka) -> None:
    create(kafka, cleanup_policy="compact", delete_retention_ms="60000")
    produce(kafka, ("a", "1"), ("b", "1"), ("a", "2"), ("b", None), ("a", "3"), ("c", "1"))
    kafka.clock.advance(1)
    seen = [(each.offset(), each.key(), each.value()) for each in read(kafka, 5)]
    assert seen == [(3, b"b", None), (4, b"a", b"3"), (5, b"c", b"1")]
    kafka.clock.advance(120)
    assert [each.offset() for each in read(kafka, 5)] == [4, 5]


def test_records_that_are_too_old_are_gone(kafka: EmbeddedKafka) -> None:
    create(kafka, retention_ms="60000")
    produce(kafka, ("a", "1"), ("b", "1"))
    kafka.clock.advance(1)
    assert len(read(kafka, 1)) == 2
    kafka.clock.advance(120)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("t", 0), LIMIT_S) == (2, 2)
    consumer.close()


def test_the_broker_sets_the_time(kafka: EmbeddedKafka) -> None:
    create(kafka, message_timestamp_type="LogAppendTime")
    kafka.clock.advance(3600)
    produce(kafka, ("a", "1"))
    (message,) = read(kafka, 0)
    kind, stamp_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert stamp_ms > time.time() * 1000 + 3_000_000
