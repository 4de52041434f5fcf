"""Members in a loop that ends: it cancels all tasks once, those that read from connections as well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from fencepost import EmbeddedKafka, KIP848Consumer, StreamsApp
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

Work = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
AT_ONCE_S = 4
"""What is over sooner than this has waited for no time-out of a request or of a close."""


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 1}, config={"group.streams.initial.rebalance.delay.ms": 0}) as kafka:
        yield kafka


def ended(work: Work) -> float:
    """How many seconds it takes until a loop is closed whose main task ends while this one is at work."""
    begin = 0.0

    async def main() -> None:
        nonlocal begin
        ready = asyncio.Event()
        task = asyncio.create_task(work(ready))
        async with asyncio.timeout(60):
            await ready.wait()
        await asyncio.sleep(0.2)
        assert not task.done()
        begin = time.monotonic()

    asyncio.run(main())
    return time.monotonic() - begin


def consumer_on(kafka: EmbeddedKafka, **settings: Any) -> KIP848Consumer:
    settings = {"group_id": "g", "auto_offset_reset": "earliest", **settings}
    return KIP848Consumer("orders", bootstrap_servers=kafka.bootstrap_servers, **settings)


def app_on(kafka: EmbeddedKafka, protocol: str) -> StreamsApp:
    async def process(partition: Any, records: Any) -> None:
        """Nothing to do."""

    return StreamsApp(
        process,
        topics=["orders"],
        bootstrap_servers=kafka.bootstrap_servers,
        group_id="g",
        group_protocol=protocol,
    )


def test_a_consumer_that_reads_commits_and_leaves(kafka: EmbeddedKafka) -> None:
    kafka.produce("orders", "a", "b")

    async def work(ready: asyncio.Event) -> None:
        async with consumer_on(kafka) as consumer:
            async for record in consumer:
                if record.value == b"b":
                    ready.set()

    assert ended(work) < AT_ONCE_S
    assert kafka.group("g").members() == []
    assert kafka.group("g").offsets() == {("orders", 0): 2}
    assert kafka.check() == []


@pytest.mark.parametrize("protocol", ["streams", "consumer", "classic"])
def test_an_application_leaves(kafka: EmbeddedKafka, protocol: str) -> None:
    async def work(ready: asyncio.Event) -> None:
        async with app_on(kafka, protocol) as app:
            await kafka.awaited.group("g").wait_stable(members=1)
            ready.set()
            await app.wait_ended()

    assert ended(work) < AT_ONCE_S
    assert kafka.group("g").members() == []
    assert kafka.check() == []


@pytest.mark.parametrize("protocol", ["streams", "consumer"])
def test_an_application_that_is_about_to_join_leaves(kafka: EmbeddedKafka, protocol: str) -> None:
    """Its consumer is cancelled with all tasks, and again when the application closes it."""
    api = "STREAMS_GROUP_HEARTBEAT" if protocol == "streams" else "CONSUMER_GROUP_HEARTBEAT"
    kafka.delay(api, 0.4, times=2)

    async def work(ready: asyncio.Event) -> None:
        async with app_on(kafka, protocol):
            await until(lambda: kafka.group("g").members())
            ready.set()
            await asyncio.sleep(60)

    assert ended(work) < AT_ONCE_S
    assert kafka.group("g").members() == []


def test_a_callback_that_is_cancelled_keeps_nobody_waiting(kafka: EmbeddedKafka) -> None:
    class Listener:
        def __init__(self, ready: asyncio.Event) -> None:
            self._ready = ready

        async def on_partitions_assigned(self, partitions: Any) -> None:
            self._ready.set()
            await asyncio.sleep(60)

        def on_partitions_revoked(self, partitions: Any) -> None:
            """Nothing to do."""

    async def work(ready: asyncio.Event) -> None:
        async with consumer_on(kafka, listener=Listener(ready)) as consumer:
            await consumer.getone()

    assert ended(work) < AT_ONCE_S
    assert kafka.group("g").members() == []


def test_a_commit_under_way_is_made_again_where_answers_are_read(kafka: EmbeddedKafka) -> None:
    """Only readers are cancelled here: who waits for an answer hears of it, and connects anew."""

    async def main() -> float:
        async with consumer_on(kafka) as consumer:
            kafka.produce("orders", "a")
            await consumer.getone()
            kafka.delay("OffsetCommit", 1)
            commit = asyncio.create_task(consumer.commit())
            await asyncio.sleep(0.2)
            begin = time.monotonic()
            for task in asyncio.all_tasks():
                if "AIOKafkaConnection._read" in str(task.get_coro()):
                    task.cancel()
            await commit
            return time.monotonic() - begin

    assert asyncio.run(main()) < AT_ONCE_S
    assert kafka.group("g").offsets() == {("orders", 0): 1}
    assert kafka.group("g").members() == []


def test_a_second_cancel_ends_at_once_who_waits_for_a_broker(kafka: EmbeddedKafka) -> None:
    async def work() -> None:
        async with consumer_on(kafka) as consumer:
            await consumer.getone()

    async def main() -> float:
        task = asyncio.create_task(work())
        await kafka.awaited.group("g").wait_stable(members=1)
        kafka.delay("ConsumerGroupHeartbeat", 60)
        task.cancel()
        await asyncio.sleep(0.5)
        assert not task.done(), "it waits for the answer to its leave"
        begin = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - begin

    assert asyncio.run(main()) < AT_ONCE_S
