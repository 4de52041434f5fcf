"""KIP848Consumer at its end: stopped while it starts, asked once it is stopped."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import ConsumerStoppedError, IllegalStateError

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


class Listener:
    """Does something when partitions come."""

    def __init__(self, when_assigned):
        self._when_assigned = when_assigned

    async def on_partitions_assigned(self, partitions):
        await self._when_assigned()

    async def on_partitions_revoked(self, partitions):
        pass


async def test_a_stop_ends_a_start_that_waits_for_its_assignment(ours):
    reached, held = asyncio.Event(), asyncio.Event()

    async def wait():
        reached.set()
        await held.wait()

    consumer = ours.consumer(ours.topic(1), listener=Listener(wait))
    starting = asyncio.ensure_future(consumer.start())
    await reached.wait()
    stopping = asyncio.ensure_future(consumer.stop())
    with pytest.raises(ConsumerStoppedError):
        await asyncio.wait_for(starting, 10)
    held.set()
    await stopping
    assert await ours.described() == {}


async def test_a_stop_ends_a_start_that_connects(ours):
    consumer = ours.consumer(ours.topic(1))
    starting = asyncio.ensure_future(consumer.start())
    await asyncio.sleep(0)
    with pytest.raises(IllegalStateError, match="starts once"):
        await consumer.start()
    await consumer.stop()
    with pytest.raises(ConsumerStoppedError):
        await asyncio.wait_for(starting, 10)
    assert await ours.described() == {}


async def test_who_unsubscribes_while_it_starts_has_started(ours):
    async def unsubscribe():
        consumer.unsubscribe()

    topic = ours.topic(1)
    consumer = ours.consumer(topic, listener=Listener(unsubscribe))
    async with asyncio.timeout(10):
        await consumer.start()
    assert await consumer.getmany(timeout_ms=100) == {}
    assert consumer.assignment() == set()
    await consumer.stop()
