from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.kafka.logs import PartitionLogs
from fencepost.simulation.kernel.loop import VirtualLoop


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
    await asyncio.sleep(100)
    partition = TopicPartition("orders", 1)
    log = logs.log(partition)
    assert log is not None
    for offset in (0, 1, logs[partition]):
        at, outside = logs.next_record_us({partition: offset})
        assert log.end(at - 1) == offset
        assert log.end(at) == offset + 1
        assert (log.first(at), log.first(at + 1)) == (offset, offset + 1)
        assert not outside


async def test_all_records_are_younger_than_their_log(logs):
    logs.create("orders", 3, 2.0)
    logs.create("none", 1, 0)
    for name in ("orders", "none"):
        log = logs.log(TopicPartition(name, 0))
        assert log is not None
        assert log.first(-(10**9)) == 0


async def test_the_next_record_is_the_first_of_all(logs):
    logs.create("orders", 3, 2.0)
    await asyncio.sleep(100)
    alone = [logs.next_record_us({partition: position})[0] for partition, position in logs.items()]
    assert len(set(alone)) == 3
    for positions in (dict(logs), dict(reversed([*logs.items()]))):
        assert logs.next_record_us(positions) == (min(alone), [])
    assert logs.next_record_us({TopicPartition("nowhere", 0): 0}) == (None, [])


async def test_a_position_beyond_the_end_is_out_of_range(logs):
    logs.create("orders", 1, 1.0)
    logs.create("none", 1, 0)
    await asyncio.sleep(10)
    orders, none = TopicPartition("orders", 0), TopicPartition("none", 0)
    assert logs.next_record_us({orders: 10, none: 0}) == (11_000_000, [])
    assert logs.next_record_us({orders: 11, none: 1}) == (None, [orders, none])


async def test_a_topic_without_records_stays_empty(logs):
    logs.create("orders", 2, 0)
    await asyncio.sleep(1000)
    assert logs[TopicPartition("orders", 0)] == 0
    assert logs.next_record_us({TopicPartition("orders", 0): 0}) == (None, [])


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
