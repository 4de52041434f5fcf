"""Clients and frameworks that others wrote keep their promises under the default mix of faults.

The programs are written as their documentation has them, with what it says about errors: an error that the
client does not hide ends the program, and its deployment starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, KafkaMessage

import fencepost
from fencepost import KIP848Consumer, SimulatedWorld
from tests.unit.simulation.world.programs_of_users import BOOTSTRAP, Done, consumer, reads

ORDERS = [f"order {number}" for number in range(60)]
SETTINGS: dict[str, Any] = {"seeds": 3, "duration": 30, "processes": 1}


# -- FastStream -----------------------------------------------------------------------------------------


async def bills_orders(done: Done) -> None:
    broker = KafkaBroker("kafka:9092", enable_idempotence=True)
    invoices = broker.publisher("invoices")

    @broker.subscriber("orders", group_id="billing", auto_offset_reset="earliest", ack_policy=AckPolicy.ACK)
    async def bill(order: str, message: KafkaMessage) -> None:
        await invoices.publish(f"invoice for {order}")
        done(message)

    await FastStream(broker).run()


@pytest.mark.processes
@fencepost.simulated(topics={"orders": 4, "invoices": 2}, **SETTINGS)
async def test_faststream_bills_each_order(world: SimulatedWorld) -> None:
    for number in range(2):
        world.process(f"billing-{number}", bills_orders, world.done)
    await world.produce("orders", ORDERS, over=25)
    await world.settled()
    assert world.processed == ORDERS
    invoices = {record.value for record in await world.records("invoices")}
    assert invoices == {f"invoice for {order}".encode() for order in ORDERS}


# -- KIP848Consumer -------------------------------------------------------------------------------------


async def reads_orders(done: Done, *, commits_itself: bool) -> None:
    made: Any = KIP848Consumer
    async with consumer("orders", made=made, enable_auto_commit=not commits_itself) as reading:
        async for record in reading:
            done(record)
            if commits_itself:
                with contextlib.suppress(KafkaError):  # then it is read once more
                    await reading.commit()


async def reads_all(world: SimulatedWorld, *, commits_itself: bool) -> None:
    for number in range(3):
        world.process(f"worker-{number}", reads_orders, world.done, commits_itself=commits_itself)
    await world.produce("orders", ORDERS, over=25)
    await world.settled()
    assert world.processed == ORDERS


@pytest.mark.processes
@fencepost.simulated(topics={"orders": 4}, **SETTINGS)
async def test_kip848_consumer_reads_each_order(world: SimulatedWorld) -> None:
    await reads_all(world, commits_itself=True)


@pytest.mark.processes
@fencepost.simulated(topics={"orders": 4}, **SETTINGS)
async def test_kip848_consumer_reads_each_order_with_automatic_commits(world: SimulatedWorld) -> None:
    await reads_all(world, commits_itself=False)


def test_kip848_consumer_commits_while_it_waits_for_records() -> None:
    """An automatic commit is due five seconds after the last record, and no more records come."""

    async def test(world: SimulatedWorld) -> None:
        world.process("worker", reads_orders, world.done, commits_itself=False)
        group = world.group("billing")
        await group.wait_stable(members=1)
        await world.produce("orders", ORDERS[:4])
        await asyncio.sleep(4)
        before = sum(group.offsets().values())
        await asyncio.sleep(3)
        assert (before, sum(group.offsets().values())) == (0, 4)
        world.programs["worker"].kill()

    result = fencepost.run_simulated(test, topics={"orders": 4}, faults=())
    assert result.violations == []


# -- transactions ---------------------------------------------------------------------------------------


async def prices_orders() -> None:
    """Read, process and write in transactions, with the one transactional id of the only worker."""
    reading = consumer(group_id="pricing", isolation_level="read_committed")
    producer = AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id="pricing")
    async with producer, reading:  # the producer ends the transaction of the process before
        reading.subscribe(["orders"])
        while True:
            batch = await reading.getmany(timeout_ms=500)
            if not batch:
                continue
            async with producer.transaction():
                for records in batch.values():
                    for record in records:
                        await producer.send("prices", b"price of " + record.value)
                offsets = {partition: records[-1].offset + 1 for partition, records in batch.items()}
                await producer.send_offsets_to_transaction(offsets, "pricing")


# 20: a consumer waits for a lost response before it joins. 24: the producer fails, and cancels the program.
@pytest.mark.processes
@fencepost.simulated(topics={"orders": 4, "prices": 2}, always=[20, 24], **SETTINGS)
async def test_transactions_price_each_order_once(world: SimulatedWorld) -> None:
    world.process("pricing", prices_orders)
    world.process("books", reads, world.done, "prices", group_id="books", isolation_level="read_committed")
    await world.produce("orders", ORDERS, over=25)
    await world.settled()
    done = {
        (place.partition, offset) for place, offsets in world.record_judge.done.items() for offset in offsets
    }
    booked = [each.value for each in await world.records("prices") if (each.partition, each.offset) in done]
    assert sorted(each or b"" for each in booked) == sorted(f"price of {order}".encode() for order in ORDERS)


# -- an HTTP service that consumes ----------------------------------------------------------------------


class Ledger:
    """The database of a service: it knows each order once."""

    def __init__(self) -> None:
        self.orders: dict[tuple[int, int], str] = {}

    async def enter(self, record: Any) -> None:
        """Enter an order, unless it is known."""
        await asyncio.sleep(0.01)
        self.orders.setdefault((record.partition, record.offset), record.value.decode())


async def serves_ledger(done: Done, ledger: Ledger) -> None:
    """Enter orders, and answer how many there are."""

    async def count(_: web.Request) -> web.Response:
        return web.json_response({"count": len(ledger.orders)})

    app = web.Application()
    app.router.add_get("/count", count)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 8080).start()
    try:
        async with consumer("orders", group_id="ledger") as reading:
            async for record in reading:
                await ledger.enter(record)
                done(record)
                await reading.commit()
    finally:
        await runner.cleanup()


async def asks(counts: dict[str, int]) -> None:
    """Ask each server once a second. One that does not answer in time is asked again."""
    timeout = aiohttp.ClientTimeout(total=2)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        while True:
            for server in ("ledger-0", "ledger-1"):
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.get(f"http://{server}:8080/count") as response:
                        counts[server] = (await response.json())["count"]
            await asyncio.sleep(1)


@pytest.mark.processes
@fencepost.simulated(topics={"orders": 4}, **SETTINGS)
async def test_http_services_answer_with_all_orders(world: SimulatedWorld) -> None:
    ledger, counts = Ledger(), dict[str, int]()
    for number in range(2):
        world.process(f"ledger-{number}", serves_ledger, world.done, ledger)
    world.process("dashboard", asks, counts)
    world.eventually(lambda: counts == {"ledger-0": len(ORDERS), "ledger-1": len(ORDERS)}, "servers-answer")
    await world.produce("orders", ORDERS, over=25)
    await world.settled()
    assert sorted(ledger.orders.values()) == sorted(ORDERS)
