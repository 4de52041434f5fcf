"""A member of a classic group over real connections: with both brokers, and beside aiokafka's consumer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack
from typing import Any

import aiokafka
import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.kafka.classic import ClassicConsumer
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SECONDS = 60


class Reader:
    """A consumer of either make and what it has read."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.values: list[str] = []
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for record in self.consumer:
            self.values.append(record.value.decode())

    def owned(self) -> set[int]:
        return {partition.partition for partition in self.consumer.assignment()}

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.consumer.stop()


@pytest.fixture
async def readers(world) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def start(topic: str, *, theirs: bool = False, **settings: Any) -> Reader:
            settings = {
                "bootstrap_servers": world.servers,
                "group_id": world.group,
                "auto_offset_reset": "earliest",
                "auto_commit_interval_ms": 100,
                "heartbeat_interval_ms": 100,
                "session_timeout_ms": 20_000,
                **settings,
            }
            if theirs:
                strategy = (RangePartitionAssignor,)
                made: Any = aiokafka.AIOKafkaConsumer(
                    topic, partition_assignment_strategy=strategy, **settings
                )
            else:
                made = ClassicConsumer(topic, assignors=(RangeAssignor(),), **settings)
            await made.start()
            reader = Reader(made)
            stack.push_async_callback(reader.stop)
            return reader

        yield start


def shared(readers: Iterable[Reader], partitions: int, fewest: int) -> Callable[[], bool]:
    """Whether the readers own all partitions, none of them twice, and each of them some."""

    def check() -> bool:
        owned = [reader.owned() for reader in readers]
        whole = sorted(number for each in owned for number in each) == list(range(partitions))
        return whole and min(map(len, owned)) >= fewest

    return check


@pytest.mark.parametrize("we_lead", [True, False])
async def test_it_shares_a_group_with_aiokafka(world, readers, we_lead):
    topic = world.topic(6)
    await world.produce(topic, range(60))
    first = await readers(topic, theirs=not we_lead)
    await until(lambda: len(first.values) == 60)
    second = await readers(topic, theirs=we_lead)
    await until(shared((first, second), 6, 3))
    await world.produce(topic, range(60, 120))
    await until(lambda: {*first.values, *second.values} >= {str(number) for number in range(120)})
    assert second.values, "each reads what it owns"
    await second.stop()
    await until(shared((first,), 6, 6))


async def test_a_static_member_keeps_its_place(world, readers):
    topic = world.topic(4)
    first = await readers(topic, group_instance_id="one")
    second = await readers(topic, group_instance_id="two")
    await until(shared((first, second), 4, 2))
    generation = first.consumer._session.driver.member_epoch
    theirs = second.owned()
    await second.stop()
    again = await readers(topic, group_instance_id="two")
    await until(lambda: again.owned() == theirs)
    assert first.consumer._session.driver.member_epoch == generation


async def test_a_leader_sees_new_partitions(world, readers):
    topic = world.topic(2)
    first = await readers(topic, metadata_max_age_ms=200)
    await until(shared((first,), 2, 2))
    world.grow(topic, 5)
    await until(shared((first,), 5, 5))
