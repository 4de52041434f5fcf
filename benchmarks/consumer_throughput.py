"""How many records a second KIP848Consumer reads, beside AIOKafkaConsumer on the same topic in the same run.

    python benchmarks/consumer_throughput.py [--records N] [--rounds N] [--broker jvm|HOST:PORT]

The broker is Kafka's in a JVM of its own, unless one is named: AIOKafkaConsumer needs the classic protocol.
Rounds alternate between the two consumers; ratios are of medians, of wall time and of the reader's own CPU
time, which is less noisy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from fencepost import KIP848Consumer
from fencepost.simulation.lab.clusters.cluster import RealCluster

PARTITIONS = 4
Read = Callable[[Any, int], Awaitable[None]]


@contextlib.asynccontextmanager
async def broker(kind: str) -> AsyncIterator[str]:
    if kind == "jvm":
        async with RealCluster() as cluster:
            yield cluster.bootstrap_servers
    else:
        yield kind


async def fill(servers: str, records: int, size: int) -> str:
    topic = f"throughput-{uuid.uuid4().hex[:8]}"
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
    await admin.close()
    value = b"x" * size
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=servers, linger_ms=5) as producer:
        for number in range(records):
            await producer.send(topic, value, partition=number % PARTITIONS)
    return topic


async def one_by_one(consumer: Any, records: int) -> None:
    left = records
    async for _ in consumer:
        left -= 1
        if not left:
            return


async def with_pauses(consumer: Any, records: int) -> None:
    """As a program that awaits something for each record: each is a poll of its own."""
    left = records
    async for _ in consumer:
        await asyncio.sleep(0)
        left -= 1
        if not left:
            return


async def in_batches(consumer: Any, records: int) -> None:
    left = records
    while left > 0:
        batch = await consumer.getmany(timeout_ms=1_000, max_records=500)
        left -= sum(map(len, batch.values()))


async def measured(
    make: Callable[..., Any], read: Read, servers: str, topic: str, records: int
) -> tuple[float, float]:
    """Seconds on the clock and of CPU, from the first assignment to the last record."""
    consumer = make(topic, bootstrap_servers=servers, group_id=uuid.uuid4().hex, auto_offset_reset="earliest")
    await consumer.start()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        await read(consumer, records)
        return time.perf_counter() - wall, time.process_time() - cpu
    finally:
        await consumer.stop()


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--broker", default="jvm")
    options = parser.parse_args()
    makers = {"AIOKafkaConsumer": aiokafka.AIOKafkaConsumer, "KIP848Consumer": KIP848Consumer}
    async with broker(options.broker) as servers:
        topic = await fill(servers, options.records, options.bytes)
        print(
            f"{options.records:,} records of {options.bytes} bytes, {PARTITIONS} partitions, {options.broker}"
        )
        reads = {"async for": one_by_one, "and await": with_pauses, "getmany": in_batches}
        for name, read in reads.items():
            times: dict[str, list[tuple[float, float]]] = {each: [] for each in makers}
            for _ in range(options.rounds):
                for each, make in makers.items():
                    times[each].append(await measured(make, read, servers, topic, options.records))
            medians = {
                each: [statistics.median(column) for column in zip(*rows, strict=True)]
                for each, rows in times.items()
            }
            for each, (wall, cpu) in medians.items():
                print(
                    f"  {name:10} {each:17} {options.records / wall:10,.0f} records/s"
                    f" {cpu / options.records * 1e6:6.2f} µs CPU a record"
                )
            theirs, ours = medians.values()
            by_time, by_cpu = theirs[0] / ours[0], theirs[1] / ours[1]
            print(f"  {name:10} {by_time:.2f} times AIOKafkaConsumer's throughput, {by_cpu:.2f} times by CPU")


if __name__ == "__main__":
    asyncio.run(main())
