"""Transactions of librdkafka, aiokafka and kafka-python: against our broker, and against Kafka's."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
import warnings

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

WAIT_S = 60


def name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


def producer_of(world, transactional_id: str, **more: object) -> Producer:
    settings = {
        "bootstrap.servers": world.servers,
        "transactional.id": transactional_id,
        "log_level": 0,
        **more,
    }
    made = Producer(settings)
    made.init_transactions(WAIT_S)
    return made


def consume(world, topic: str, isolation: str) -> list[bytes]:
    """All values up to the end that this isolation level lets one see, of all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": world.servers,
            "group.id": name("reader"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    count = len(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
    values, ends, deadline = [], set(), time.monotonic() + WAIT_S
    while len(ends) < count:
        assert time.monotonic() < deadline, f"only {len(values)} came"
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            ends.add(message.partition())
        else:
            values.append(message.value())
    consumer.close()
    return sorted(values)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_aborted_records_are_hidden_from_those_who_ask_for_committed_ones(world, codec):
    topic = world.topic(2)
    producer = producer_of(world, name("t"), **{"compression.type": codec})
    for number, commit in enumerate((True, False, True, False)):
        producer.begin_transaction()
        for value in range(40):
            producer.produce(topic, b"%d-%d" % (number, value), partition=value % 2)
        producer.flush(WAIT_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(WAIT_S)
    committed = sorted(b"%d-%d" % (number, value) for number in (0, 2) for value in range(40))
    everything = sorted(b"%d-%d" % (number, value) for number in range(4) for value in range(40))
    assert consume(world, topic, "read_committed") == committed
    assert consume(world, topic, "read_uncommitted") == everything


def test_open_transactions_hold_readers_of_committed_records_back(world):
    topic = world.topic(1)
    producer = producer_of(world, name("t"))
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(WAIT_S)
    plain = Producer({"bootstrap.servers": world.servers, "log_level": 0})
    plain.produce(topic, b"plain")
    plain.flush(WAIT_S)
    assert consume(world, topic, "read_committed") == []
    assert consume(world, topic, "read_uncommitted") == [b"open", b"plain"]
    producer.commit_transaction(WAIT_S)
    assert consume(world, topic, "read_committed") == [b"open", b"plain"]


def test_another_producer_of_the_same_id_fences_the_first(world):
    topic, transactional_id = world.topic(1), name("t")
    first = producer_of(world, transactional_id)
    first.begin_transaction()
    first.produce(topic, b"first")
    first.flush(WAIT_S)
    second = producer_of(world, transactional_id)
    second.begin_transaction()
    second.produce(topic, b"second")
    second.commit_transaction(WAIT_S)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(WAIT_S)
    assert caught.value.args[0].code() == KafkaError._FENCED
    assert consume(world, topic, "read_committed") == [b"second"]


def test_a_transaction_that_takes_too_long_is_aborted(ours):
    topic = ours.topic(1)
    producer = producer_of(ours, name("t"), **{"transaction.timeout.ms": 1_000})
    producer.begin_transaction()
    producer.produce(topic, b"slow")
    producer.flush(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while len(found := consume(ours, topic, "read_committed")) or not _is_over(ours, topic):
        assert found == []
        assert time.monotonic() < deadline
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(WAIT_S)
    assert caught.value.args[0].code() in {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


def _is_over(ours, topic: str) -> bool:
    def look(broker) -> bool:
        found = broker.cluster.log(broker.cluster.image.by_name[topic], 0)
        return found.last_stable_offset == found.high_watermark == 2

    return ours.broker.look(look)


async def test_aiokafka_moves_records_and_offsets_together(world):
    """Read, process, write: offsets of the input are committed with the output, or neither is."""
    source, sink = world.topic(1, "source"), world.topic(1, "sink")
    await world.produce(source, range(30))
    for rounds in itertools.count():
        async with (
            aiokafka.AIOKafkaConsumer(
                source,
                bootstrap_servers=world.servers,
                group_id=world.group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                isolation_level="read_committed",
            ) as consumer,
            aiokafka.AIOKafkaProducer(
                bootstrap_servers=world.servers, transactional_id=f"mover-{world.group}"
            ) as producer,
        ):
            record = await asyncio.wait_for(consumer.getone(), WAIT_S)
            batch = [
                record,
                *(await consumer.getmany(timeout_ms=0, max_records=9)).get(
                    aiokafka.TopicPartition(source, 0), []
                ),
            ]
            await producer.begin_transaction()
            for one in batch:
                await producer.send(sink, one.value)
            position = {aiokafka.TopicPartition(source, 0): batch[-1].offset + 1}
            await producer.send_offsets_to_transaction(position, world.group)
            if rounds % 2:
                await producer.commit_transaction()
            else:
                await producer.abort_transaction()
            if rounds % 2 and batch[-1].offset == 29:
                break
    moved = await asyncio.to_thread(consume, world, sink, "read_committed")
    assert moved == sorted(str(number).encode() for number in range(30))


def test_librdkafka_commits_offsets_of_a_member_in_a_transaction(world):
    source, sink = world.topic(1, "source"), world.topic(1, "sink")
    asyncio.run(world.produce(source, range(10)))
    consumer = Consumer(
        {
            "bootstrap.servers": world.servers,
            "group.id": world.group,
            "group.protocol": "consumer",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe([source])
    producer = producer_of(world, name("t"))
    messages, deadline = [], time.monotonic() + WAIT_S
    while len(messages) < 10:
        assert time.monotonic() < deadline
        messages += consumer.consume(10, 0.5)
    producer.begin_transaction()
    for message in messages:
        producer.produce(sink, message.value())
    producer.send_offsets_to_transaction(
        consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
    )
    producer.commit_transaction(WAIT_S)
    (after,) = consumer.committed([TopicPartition(source, 0)], WAIT_S)
    assert after.offset == 10
    consumer.close()
    assert len(consume(world, sink, "read_committed")) == 10


def test_kafka_python_transactions(world):
    topic = world.topic(2)
    producer = kafka.KafkaProducer(bootstrap_servers=world.servers, transactional_id=name("t"))
    producer.init_transactions()
    for commit in (True, False, True):
        producer.begin_transaction()
        for number in range(10):
            producer.send(topic, b"%d" % commit, partition=number % 2)
        producer.flush()
        (producer.commit_transaction if commit else producer.abort_transaction)()
    producer.close()
    assert consume(world, topic, "read_committed") == [b"1"] * 20
