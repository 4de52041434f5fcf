"""librdkafka's producer, and its consumer without a group, against our logs."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

pytestmark = pytest.mark.real


def settings(served, **more: object) -> dict[str, object]:
    return {"bootstrap.servers": served.bootstrap_servers, "log_level": 0, **more}


def produce(producer: Producer, topic: str, values: list[bytes]) -> list[object]:
    errors: list[object] = []
    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(60) == 0
    return [error for error in errors if error is not None]


def read(served, count: int, offset: int = 0, **more: object) -> list[bytes]:
    consumer = Consumer(settings(served, **{"group.id": "none", "enable.auto.commit": False, **more}))
    consumer.assign([TopicPartition("single", 0, offset)])
    try:
        values: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(values) < count:
            assert time.monotonic() < deadline, f"only {len(values)} of {count} came"
            messages = consumer.consume(count - len(values), 0.2)
            values += [message.value() or b"" for message in messages if not message.error()]
        return values
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize(
    "more", [{"acks": 1}, {"enable.idempotence": True}, {"acks": 0}], ids=["acks1", "idem", "acks0"]
)
def test_every_compression_with_every_acknowledgement(served, codec, more):
    values = [b"value %d " % number * 20 for number in range(300)]
    producer = Producer(settings(served, **{"compression.type": codec, "linger.ms": 5, **more}))
    assert produce(producer, "single", values) == []
    assert read(served, 300) == values


def test_many_small_batches_of_an_idempotent_producer(served):
    values = [b"%d" % number for number in range(500)]
    producer = Producer(
        settings(served, **{"enable.idempotence": True, "batch.num.messages": 3, "linger.ms": 0})
    )
    assert produce(producer, "single", values) == []
    assert read(served, 500) == values


def test_large_records_are_fetched_whole_although_the_limits_are_small(served):
    values = [bytes([number]) * 900_000 for number in range(5)]
    producer = Producer(settings(served, **{"compression.type": "none"}))
    assert produce(producer, "single", values) == []
    assert read(served, 5, **{"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1_000_000}) == values


def test_a_record_beyond_the_broker_s_limit_is_refused(served):
    producer = Producer(settings(served, **{"message.max.bytes": 3_000_000}))
    (error,) = produce(producer, "single", [b"x" * 2_000_000])
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE  # type: ignore[attr-defined]


def test_an_unknown_topic_is_told(served):
    producer = Producer(settings(served, **{"topic.metadata.propagation.max.ms": 100}))
    (error,) = produce(producer, "nowhere", [b"x"])
    assert error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}  # type: ignore[attr-defined]


def test_an_offset_beyond_the_end_is_reset(served):
    producer = Producer(settings(served))
    assert produce(producer, "single", [b"a", b"b"]) == []
    assert read(served, 2, offset=50, **{"auto.offset.reset": "earliest"}) == [b"a", b"b"]
