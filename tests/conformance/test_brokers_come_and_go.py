"""Clients go on while brokers are added and removed, until none of the first ones is left."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import aiokafka
import confluent_kafka
import pytest

from fencepost import EmbeddedKafka

with warnings.catch_warnings():
    # It reads its schemas through an API that Python 3.11 deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

pytestmark = pytest.mark.real
PARTITIONS, RECORDS = 3, 30


def changes(kafka: EmbeddedKafka) -> Iterator[set[bytes]]:
    """Yield values to produce and read: at first, and after each change of the brokers."""
    sent = iter(range(1_000))

    def values() -> set[bytes]:
        return {b"%d" % next(sent) for _ in range(RECORDS)}

    yield values()
    assert kafka.add_broker() == 2
    kafka.reassign_partition("orders", 0, brokers=[2, 1])
    kafka.reassign_partition("orders", 1, brokers=[2])
    yield values()
    kafka.remove_broker(1)
    yield values()
    assert kafka.add_broker() == 3
    kafka.reassign_partition("orders", 0, brokers=[3])
    kafka.move_coordinator("g", to=3)
    yield values()
    kafka.remove_broker(2)
    yield values()


def with_confluent(kafka: EmbeddedKafka) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    producer = confluent_kafka.Producer({**settings, "enable.idempotence": True})
    consumer = confluent_kafka.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    with ExitStack() as opened:
        opened.callback(consumer.close)
        consumer.subscribe(["orders"])
        for left in changes(kafka):
            for number, value in enumerate(sorted(left)):
                producer.produce("orders", value, partition=number % PARTITIONS)
            assert producer.flush(60) == 0
            while left:
                message = consumer.poll(60)
                assert message is not None, f"not read within a minute: {left}"
                if message.error() is None:
                    left.discard(message.value())
            consumer.commit(asynchronous=False)


def with_kafka_python(kafka: EmbeddedKafka) -> None:
    servers = kafka.bootstrap_servers
    with ExitStack() as opened:
        producer = KafkaProducer(bootstrap_servers=servers, retries=100)
        opened.callback(producer.close)
        consumer = KafkaConsumer(
            "orders", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
        )
        opened.callback(consumer.close)
        for left in changes(kafka):
            sent = [
                producer.send("orders", value, partition=number % PARTITIONS)
                for number, value in enumerate(sorted(left))
            ]
            for each in sent:
                each.get(60)
            while left:
                found = consumer.poll(60_000)
                assert found, f"not read within a minute: {left}"
                left -= {record.value for records in found.values() for record in records}
            consumer.commit()


def with_aiokafka(kafka: EmbeddedKafka) -> None:
    async def run() -> None:
        servers = kafka.bootstrap_servers
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True)
        consumer = aiokafka.AIOKafkaConsumer(
            "orders", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
        )
        await consumer.start()
        async with producer, asyncio.timeout(100):
            steps = changes(kafka)
            while (left := await asyncio.to_thread(next, steps, None)) is not None:
                sent = [
                    await producer.send("orders", value, partition=number % PARTITIONS)
                    for number, value in enumerate(sorted(left))
                ]
                await asyncio.gather(*sent)
                while left:
                    left.discard((await consumer.getone()).value)
                await consumer.commit()
        with suppress(asyncio.CancelledError):  # it awaits what it has cancelled, if a broker is gone
            await consumer.stop()

    asyncio.run(run())


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # clients leave connections to lost brokers open
@pytest.mark.parametrize("run", [with_aiokafka, with_confluent, with_kafka_python])
def test_nothing_is_lost(run: Callable[[EmbeddedKafka], None], caplog: pytest.LogCaptureFixture) -> None:
    for name in ("aiokafka", "kafka"):
        caplog.set_level(logging.CRITICAL + 1, logger=name)  # kept errors would keep sockets open
    with EmbeddedKafka(topics={"orders": PARTITIONS}) as kafka:
        run(kafka)
        gc.collect()
        assert sorted(each.value or b"" for each in kafka.records("orders")) == sorted(
            b"%d" % number for number in range(5 * RECORDS)
        )
        assert kafka.bootstrap_servers.count(":") == 1
        assert kafka.check() == []
