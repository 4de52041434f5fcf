import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError


async def ship_orders(ship: Callable[[Any], object], servers: str = "kafka:9092") -> None:
    """Read orders in one task, and ship them in another."""
    orders: asyncio.Queue[Any] = asyncio.Queue(maxsize=20)

    async def work() -> None:
        while True:
            order = await orders.get()
            await asyncio.sleep(0.2)
            ship(order)
            orders.task_done()

    worker = asyncio.create_task(work())
    consumer = AIOKafkaConsumer(
        "orders",
        bootstrap_servers=servers,
        group_id="shipping",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        while True:
            for batch in (await consumer.getmany(timeout_ms=500, max_records=20)).values():
                for order in batch:
                    await orders.put(order)
            await orders.join()
            await consumer.commit()
    finally:
        await orders.join()
        with contextlib.suppress(KafkaError):
            await consumer.commit()
        await consumer.stop()
        worker.cancel()
