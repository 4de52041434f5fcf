"""Kafka's log of groups, as a real broker writes it: its trace tells what the members saw."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import aiokafka
import pytest
from aiokafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fencepost.simulation.brokers.blocking import ask_topics
from fencepost.simulation.live.group_log import GroupLog, LogRecord
from fencepost.simulation.live.reader import TopicPart, TopicReader
from fencepost.simulation.live.records import GROUP_LOG
from fencepost.simulation.trace.schema import Row, RowKind

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

DEADLINE_S = 60


def trace_of(servers, group):
    """The rows of a group, from the log as Spark reads it by our source."""
    reader = TopicReader(servers, GROUP_LOG, 1_000_000)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ReadAllAvailable())
    by_id = {known.topic_id: name for name, known in ask_topics(servers, "--kafka").items()}
    log = GroupLog(group, by_id.__getitem__)
    rows = []
    for part in reader.partitions(begin, end):
        assert isinstance(part, TopicPart)
        for batch in reader.read(part):
            records = [
                LogRecord(round(each["timestamp"].timestamp() * 1_000), each["key"], each["value"])
                for each in batch.to_pylist()
            ]
            marker = len(group).to_bytes(2, "big") + group.encode()
            rows += log.take(each for each in records if (each.key or b"")[2:].startswith(marker))
    assert log.unreadable == 0
    return rows


def owners(rows: list[Row]) -> dict[str, set[TopicPartition]]:
    """Who has what, at the end of the trace."""
    held: dict[str, set[TopicPartition]] = defaultdict(set)
    for row in rows:
        if row.kind == RowKind.CALLBACK_END and row.detail == "assigned":
            held[row.actor] |= {TopicPartition(*each) for each in row.partitions}
        elif row.kind == RowKind.CALLBACK_END:
            held[row.actor] -= {TopicPartition(*each) for each in row.partitions}
        elif row.kind == RowKind.MEMBER_REMOVED:
            del held[row.actor]
    return {actor: parts for actor, parts in held.items() if parts}


async def settled(consumers, partitions):
    """Wait until the consumers share all partitions."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            parts = [consumer.assignment() for consumer in consumers]
            if all(parts) and sum(map(len, parts)) == partitions and len(set().union(*parts)) == partitions:
                return parts
            await asyncio.gather(*(consumer.getmany(timeout_ms=50) for consumer in consumers))


async def test_a_consumer_group_of_a_real_broker(world):
    topic = world.topic(4)
    await world.produce(topic, range(8))
    async with world.consumer(topic) as first:
        async with world.consumer(topic) as second:
            shares = await settled((first, second), 4)
            await first.commit({each: OffsetAndMetadata(1, "") for each in shares[0]})
            rows = await asyncio.to_thread(trace_of, world.servers, world.group)
            assert set(map(frozenset, owners(rows).values())) == set(map(frozenset, shares))
        await settled((first,), 4)
    rows = await asyncio.to_thread(trace_of, world.servers, world.group)
    states = [row.state_to for row in rows if row.kind == RowKind.GROUP_STATE]
    assert "Stable" in states
    assert states[-1] == "Empty"
    assert owners(rows) == {}
    epochs = [row.group_epoch for row in rows if row.kind == RowKind.GROUP_EPOCH]
    assert epochs == sorted(set(epochs))
    assert len([row for row in rows if row.kind == RowKind.MEMBER_REMOVED]) == 2
    committed = {(part, row.t_us) for row in rows if row.kind == RowKind.COMMIT for part in row.partitions}
    assert {part.topic for part, _ in committed} == {topic}
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))


async def test_a_classic_group_of_a_real_broker(world):
    topic = world.topic(4)
    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=world.servers, group_id=world.group, enable_auto_commit=False
    ) as consumer:
        await settled((consumer,), 4)
        rows = await asyncio.to_thread(trace_of, world.servers, world.group)
        assert list(owners(rows).values()) == [consumer.assignment()]
        assert [row.state_to for row in rows if row.kind == RowKind.GROUP_STATE][-1] == "Stable"
