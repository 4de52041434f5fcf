"""Programs as users write them, for tests of simulated worlds: one right, and others wrong in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from fencepost import WorldResult, run_simulated

Done = Callable[[Any], None]

BOOTSTRAP = "kafka:9092"
TOPICS = {"orders": 2, "invoices": 1, "told": 1}


def play(test: Any, seed: int = 1, **settings: Any) -> WorldResult:
    """Run a test without faults, unless it says which."""
    return run_simulated(test, seed, **{"topics": TOPICS, "faults": (), **settings})


def passes(test: Any, **settings: Any) -> WorldResult:
    """Run a test in which no invariant is broken, and no program crashes."""
    result = play(test, **settings)
    assert (result.violations, result.crashes) == ([], []), result.trouble
    return result


def consumer(*topics: str, group_id: str = "billing", made: Any = AIOKafkaConsumer, **settings: Any) -> Any:
    """Return a consumer that begins at the first record, and commits only when it is told to."""
    usual = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "bootstrap_servers": BOOTSTRAP}
    return made(*topics, group_id=group_id, **{**usual, **settings})


async def reads(done: Done, topic: str = "orders", **settings: Any) -> None:
    """Do one record after the other, and commit each one then."""
    async with consumer(topic, **settings) as reading:
        async for record in reading:
            done(record)
            await reading.commit()


async def commit_after(done: Done) -> None:
    """Process, then commit: at least once."""
    await _works(done, commits_first=False)


async def commit_before(done: Done) -> None:
    """The bug: commit, then process."""
    await _works(done, commits_first=True)


async def _works(done: Done, *, commits_first: bool) -> None:
    async with consumer("orders", group_id="orders-service") as reading:
        while True:
            batch = await reading.getmany(timeout_ms=1000)
            if batch and commits_first:
                await reading.commit()
            for records in batch.values():
                for record in records:
                    if commits_first:
                        await asyncio.sleep(0.3)
                    done(record)
            if batch and not commits_first:
                await reading.commit()


async def produce_orders(count: int, seconds: float) -> None:
    """Send numbered orders, evenly over a time."""
    async with AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", enable_idempotence=True) as producer:
        for number in range(count):
            await producer.send_and_wait("orders", f"order {number}".encode())
            await asyncio.sleep(seconds / count)
