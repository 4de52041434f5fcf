"""Consumers read on when another broker leads their partition, at a higher leader epoch."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import Consumer

from fencepost import EmbeddedKafka

pytestmark = pytest.mark.real
BATCHES, BATCH, BEFORE = 30, 100, 500
COUNT = BATCHES * BATCH
READER = """
import sys, time
from kafka import KafkaConsumer

consumer = KafkaConsumer(
    "orders", bootstrap_servers=sys.argv[1].split(","), auto_offset_reset="earliest", group_id=None,
    max_partition_fetch_bytes=8000, fetch_max_bytes=8000,
)
count, patience = 0, float(sys.argv[3])
last = time.monotonic()
while count < int(sys.argv[2]) and time.monotonic() < last + patience:
    found = sum(map(len, consumer.poll(timeout_ms=200, max_records=100).values()))
    if found:
        last = time.monotonic()
    count += found
    if count == 500:
        print(count, flush=True)
        sys.stdin.readline()
print(count, flush=True)
"""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """A topic in three replicas, with 3,000 records in 30 batches."""
    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topic("orders", 1, replicas=3)
        for _ in range(BATCHES):
            kafka.produce("orders", *[b"x" * 20] * BATCH)
        yield kafka


def read_by_kafka_python(kafka: EmbeddedKafka, patience_s: float, folder: Path | None = None) -> int:
    """Return the number of records that a client reads that has read 500 when the leader stops."""
    environ = os.environ | ({} if folder is None else {"PYTHONPATH": str(folder)})
    command = [sys.executable, "-W", "ignore", "-c", READER]
    arguments = [kafka.bootstrap_servers, str(COUNT), str(patience_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, *arguments], env=environ, stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdout is not None
        assert int(reader.stdout.readline()) == BEFORE
        kafka.stop_broker(1)
        output, _ = reader.communicate("\n")
        return int(output.split()[-1])  # one that stays at 500 says so again and again


def read_by_confluent(kafka: EmbeddedKafka) -> int:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "g", "log_level": 0}
    settings |= {"auto.offset.reset": "earliest", "fetch.message.max.bytes": 8000}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe(["orders"])
        count = 0
        while count < COUNT:
            count += len(consumer.consume(100, 20))
            if count == BEFORE:
                kafka.stop_broker(1)
        return count


def read_by_aiokafka(kafka: EmbeddedKafka) -> int:
    async def read() -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            "orders",
            bootstrap_servers=kafka.bootstrap_servers,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=8000,
        )
        await consumer.start()
        count = 0
        async for _ in consumer:
            count += 1
            if count == BEFORE:
                await asyncio.to_thread(kafka.stop_broker, 1)
            if count == COUNT:
                break
        await consumer.stop()
        return count

    return asyncio.run(read())


@pytest.mark.parametrize(
    "read",
    [
        pytest.param(read_by_aiokafka, id="aiokafka"),
        pytest.param(read_by_confluent, id="confluent-kafka"),
        pytest.param(
            lambda kafka: read_by_kafka_python(kafka, 60), marks=pytest.mark.processes, id="kafka-python"
        ),
    ],
)
def test_a_consumer_reads_all_records(kafka: EmbeddedKafka, read: Callable[[EmbeddedKafka], int]) -> None:
    assert read(kafka) == COUNT


@pytest.mark.processes
@pytest.mark.parametrize("version", ["3.0.0", "3.0.4"])
def test_a_client_that_takes_a_records_epoch_for_the_leaders_stops(
    kafka: EmbeddedKafka, tmp_path: Path, version: str
) -> None:
    # As on Kafka 4.3.1: the leader refuses the epoch each time.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
    installed = subprocess.run(
        [*command, f"kafka-python=={version}"], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"kafka-python {version} cannot be had: {installed.stderr.strip().splitlines()[-1:]}")
    assert BEFORE <= read_by_kafka_python(kafka, 5, tmp_path) < COUNT
