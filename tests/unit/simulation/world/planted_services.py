"""Ten services as they are deployed. Each has a bug, unless it is run as the right one.

Five of the bugs are in what a crash loses: globals, caches, and work that was only begun.
"""

# ruff: noqa: PLW0603  # as services are written

from __future__ import annotations

import asyncio
import contextlib
import queue
import signal
import socket
import threading
import time
import uuid
from typing import Any

import aiosqlite
import httpx
from aiokafka import AIOKafkaProducer

from tests.unit.simulation.world.programs_of_users import consumer

KEYS: dict[str, str] = {}
BATCH: list[Any] = []
TOTALS: dict[str, int] = {}
PENDING: list[Any] = []
NUMBER = 0


@contextlib.asynccontextmanager
async def clients(**settings: Any) -> Any:
    """Yield a consumer of orders and a producer of invoices."""
    producer = AIOKafkaProducer(bootstrap_servers="kafka:9092", enable_idempotence=True, **settings)
    async with consumer("orders") as reading, producer:
        yield reading, producer


async def post(client: httpx.AsyncClient, order: Any, key: str) -> int:
    """Book an order in the ledger, and return the customer's total; try again until it responds."""
    while True:
        with contextlib.suppress(httpx.HTTPError):
            body = {"order": order.key.decode(), "customer": order.value.decode(), "key": key}
            return int((await client.post("http://ledger/orders", json=body)).json()["total"])
        await asyncio.sleep(0.5)


async def invoice(producer: AIOKafkaProducer, order: Any, text: str = "") -> None:
    await producer.send_and_wait("invoices", text.encode(), key=order.key)


async def makes_keys(right: bool) -> None:
    """The bug: a key of the ledger that a crash forgets, so the ledger books the order again."""
    async with clients() as (consumer, producer), httpx.AsyncClient(timeout=5) as client:
        async for order in consumer:
            number = order.key.decode()
            await post(client, order, number if right else KEYS.setdefault(number, uuid.uuid4().hex))
            await asyncio.sleep(0.2)
            await invoice(producer, order)
            await consumer.commit()


async def collects(right: bool) -> None:
    """The bug: offsets of a batch are committed before the batch is written."""
    async with clients() as (consumer, producer):
        while True:
            for orders in (await consumer.getmany(timeout_ms=1000)).values():
                BATCH.extend(orders)
            if not right:
                await consumer.commit()
            if len(BATCH) >= 5 or consumer.assignment():
                await asyncio.sleep(0.5)
                for order in BATCH:
                    await invoice(producer, order)
                BATCH.clear()
                await consumer.commit()


async def counts(right: bool) -> None:
    """The bug: numbers of invoices begin anew after a crash."""
    global NUMBER
    async with clients() as (consumer, producer):
        async for order in consumer:
            NUMBER += 1
            number = f"{order.partition}-{order.offset}" if right else f"{socket.gethostname()}-{NUMBER}"
            await invoice(producer, order, number)
            await consumer.commit()


async def adds_up(right: bool) -> None:
    """The bug: a cache of totals that other instances change."""
    async with clients() as (consumer, producer), httpx.AsyncClient(timeout=5) as client:
        async for order in consumer:
            customer = order.value.decode()
            total = await post(client, order, "")
            TOTALS[customer] = total if right or customer not in TOTALS else TOTALS[customer] + 1
            await invoice(producer, order, str(TOTALS[customer]))
            await consumer.commit()


async def sends_and_forgets(right: bool) -> None:
    """The bug: an offset is committed while the invoice is only on its way."""
    async with clients(linger_ms=500) as (consumer, producer):
        async for order in consumer:
            PENDING.append(await producer.send("invoices", b"", key=order.key))
            if right:
                await asyncio.gather(*PENDING)
                PENDING.clear()
            await consumer.commit()


async def works_in_a_thread(right: bool) -> None:
    """The bug: an offset is committed when a thread has the order, and not when it has done it."""
    loop = asyncio.get_running_loop()
    work: queue.Queue[Any] = queue.Queue()
    async with clients() as (consumer, producer):

        def writes() -> None:
            while True:
                order = work.get()
                time.sleep(0.5)
                while True:
                    with contextlib.suppress(Exception):
                        asyncio.run_coroutine_threadsafe(invoice(producer, order), loop).result()
                        break
                work.task_done()

        threading.Thread(target=writes, daemon=True).start()
        async for order in consumer:
            work.put(order)
            if right:
                await asyncio.to_thread(work.join)
            await consumer.commit()


async def tries_again(right: bool) -> None:
    """The bug: another key for each attempt, so a lost response books an order twice."""
    async with clients() as (consumer, producer), httpx.AsyncClient(timeout=5) as client:
        async for order in consumer:
            number = order.key.decode()
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    key = number if right else f"{number}/{asyncio.get_running_loop().time()}"
                    body = {"order": number, "customer": order.value.decode(), "key": key}
                    await client.post("http://ledger/orders", json=body)
                    break
                await asyncio.sleep(0.5)
            await invoice(producer, order)
            await consumer.commit()


async def stops_at_once(right: bool) -> None:
    """The bug: SIGTERM ends the work on a batch, whose offsets are committed all the same."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with clients() as (consumer, producer):
        while not stopped.is_set():
            for orders in (await consumer.getmany(timeout_ms=2000)).values():
                for order in orders:
                    if right or not stopped.is_set():
                        await invoice(producer, order)
                        await asyncio.sleep(0.4)
            await consumer.commit()


async def remembers_in_sqlite(right: bool) -> None:
    """The bug: the order is stored before its invoice is sent, and skipped when it comes again."""
    async with aiosqlite.connect("orders.db") as database, clients() as (consumer, producer):
        await database.execute("CREATE TABLE IF NOT EXISTS orders (number TEXT PRIMARY KEY, sent INTEGER)")
        async for order in consumer:
            number = order.key.decode()
            row = await database.execute("INSERT OR IGNORE INTO orders VALUES (?, 0)", (number,))
            await database.commit()
            await asyncio.sleep(0.3)
            query = await database.execute("SELECT sent FROM orders WHERE number = ?", (number,))
            found: Any = await query.fetchone()
            if not found[0] if right else row.rowcount:
                await invoice(producer, order)
                await database.execute("UPDATE orders SET sent = 1 WHERE number = ?", (number,))
                await database.commit()
            await consumer.commit()


class Numbers:
    """Counts; the bug is that it reads in one lock and writes in another."""

    def __init__(self, right: bool) -> None:
        self._begin = uuid.uuid4().hex[:8]
        self._lock = threading.Lock()
        self._whole = threading.Lock() if right else contextlib.nullcontext()
        self._last = 0

    def next(self) -> str:
        with self._whole:
            with self._lock:
                before = self._last
            with self._lock:
                self._last = before + 1
        return f"{self._begin}-{before + 1}"


async def counts_in_threads(right: bool) -> None:
    """The bug: two threads draw the same number."""
    numbers = Numbers(right)
    async with clients() as (consumer, producer):
        while True:
            batch = [each for some in (await consumer.getmany(timeout_ms=2000)).values() for each in some]
            drawn = await asyncio.gather(*(asyncio.to_thread(numbers.next) for _ in batch))
            for order, number in zip(batch, drawn, strict=True):
                await invoice(producer, order, number)
            await consumer.commit()
