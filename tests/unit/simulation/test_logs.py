from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.nodes.logs import PartitionLogs
from fencepost.simulation.world.loop import VirtualLoop


@pytest.fixture
async def logs() -> PartitionLogs:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return PartitionLogs(loop)


async def test_partitions_share_the_rate_of_their_topic(logs):
    logs.create("orders", 4, 8.0)
    await asyncio.sleep(100)
    assert [logs[TopicPartition("orders", n)] for n in range(4)] == [200, 200, 200, 200]


async def test_a_record_is_there_from_its_time_on(logs):
    logs.create("orders", 3, 2.0)
    log = logs.log(TopicPartition("orders", 1))
    assert log is not None
    for offset in (0, 1, 99):
        at = log.appears_us(offset)
        assert log.end(at - 1) == offset
        assert log.end(at) == offset + 1


async def test_a_topic_without_records_stays_empty(logs):
    logs.create("orders", 2, 0)
    await asyncio.sleep(1000)
    assert logs[TopicPartition("orders", 0)] == 0
    assert logs.log(TopicPartition("orders", 0)).appears_us(0) is None


async def test_new_partitions_begin_empty_and_get_the_same_rate(logs):
    logs.create("orders", 2, 2.0)
    await asyncio.sleep(50)
    logs.grow("orders", 2, 3)
    assert logs[TopicPartition("orders", 2)] == 0
    await asyncio.sleep(50)
    assert [logs[TopicPartition("orders", n)] for n in range(3)] == [100, 100, 50]


async def test_a_deleted_topic_is_gone(logs):
    logs.create("orders", 2, 2.0)
    logs.create("payments", 1, 0)
    logs.delete("orders")
    assert list(logs) == [TopicPartition("payments", 0)]
    assert logs.log(TopicPartition("orders", 0)) is None
