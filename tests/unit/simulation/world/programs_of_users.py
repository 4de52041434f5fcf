"""Programs as users write them, for tests of simulated worlds: one right, and others wrong in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

Done = Callable[[Any], None]

BOOTSTRAP = "kafka:9092"


async def commit_after(done: Done) -> None:
    """Process, then commit: at least once."""
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=BOOTSTRAP,
        group_id="orders-service",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        while True:
            batch = await consumer.getmany(timeout_ms=1000)
            for records in batch.values():
                for record in records:
                    done(record)
            if batch:
                await consumer.commit()
    finally:
        await consumer.stop()


async def commit_before(done: Done) -> None:
    """The bug: commit, then process."""
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=BOOTSTRAP,
        group_id="orders-service",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        while True:
            batch = await consumer.getmany(timeout_ms=1000)
            if batch:
                await consumer.commit()
            for records in batch.values():
                for record in records:
                    await asyncio.sleep(0.3)
                    done(record)
    finally:
        await consumer.stop()


async def produce_orders(count: int, seconds: float) -> None:
    """Send numbered orders, evenly over a time."""
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=True)
    await producer.start()
    try:
        for number in range(count):
            await producer.send_and_wait("orders", f"order {number}".encode())
            await asyncio.sleep(seconds / count)
    finally:
        await producer.stop()
