"""KIP848Consumer as a program uses it that came from AIOKafkaConsumer: records, positions, offsets."""

from __future__ import annotations

import asyncio

import aiokafka
import pytest
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    IllegalStateError,
    KafkaConnectionError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    UnsupportedVersionError,
)

from fencepost import KIP848Consumer
from fencepost.coordinator.codec import registry
from fencepost.coordinator.protocol.cluster import ApiVersionsResponse
from fencepost.coordinator.server.brokers import Broker
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

TopicPartition = aiokafka.TopicPartition


async def take(consumer, count, seconds=60):
    """That many values, as numbers."""
    async with asyncio.timeout(seconds):
        return [int((await consumer.getone()).value) for _ in range(count)]


async def assigned(consumer, seconds=60):
    """The group's coordinator may not have heard yet of a topic that was created just now."""
    await until(consumer.assignment, seconds)


async def nothing_more(consumer, ms=300):
    return await consumer.getmany(timeout_ms=ms) == {}


async def test_it_reads_commits_and_another_goes_on(world):
    topic = world.topic()
    await world.produce(topic, range(1000))
    values = []
    async with world.consumer(topic, enable_auto_commit=False) as consumer:
        await assigned(consumer)
        assert consumer.assignment() == {TopicPartition(topic, number) for number in range(4)}
        async for record in consumer:
            assert isinstance(record, aiokafka.ConsumerRecord)
            values.append(int(record.value))
            if len(values) == 600:
                break
        await consumer.commit()
        positions = [await consumer.position(TopicPartition(topic, number)) for number in range(4)]
        committed = [await consumer.committed(TopicPartition(topic, number)) for number in range(4)]
        assert sum(positions) == 600
        assert [each or 0 for each in committed] == positions
    async with world.consumer(topic) as consumer:
        values += await take(consumer, 400)
        assert await nothing_more(consumer)
    assert sorted(values) == list(range(1000))


async def test_what_was_handed_over_is_committed_on_stop(world):
    topic = world.topic(1)
    await world.produce(topic, range(10))
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 3) == [0, 1, 2]
    async with world.consumer(topic) as consumer:
        assert await consumer.committed((topic, 0)) == 3
        batch = await consumer.getmany(timeout_ms=60_000, max_records=4)
        assert [int(record.value) for record in batch[TopicPartition(topic, 0)]] == [3, 4, 5, 6]
    async with world.consumer(topic, enable_auto_commit=False) as consumer:
        assert await take(consumer, 3) == [7, 8, 9]
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 3) == [7, 8, 9], "nothing was committed without being asked for"


async def test_commits_at_intervals_leave_out_what_is_being_processed(world):
    topic = world.topic(1)
    await world.produce(topic, range(10))
    async with world.consumer(topic, auto_commit_interval_ms=50) as consumer:
        assert await take(consumer, 4) == [0, 1, 2, 3]
        await asyncio.sleep(0.2)
        assert await consumer.getmany(timeout_ms=60_000, max_records=1)
        assert await consumer.position((topic, 0)) == 5
        while (committed := await consumer.committed((topic, 0)) or 0) < 4:
            pass
        await asyncio.sleep(0.2)
        assert committed == await consumer.committed((topic, 0)) == 4


async def test_auto_commit_goes_on_while_a_poll_waits(world):
    topic = world.topic(1)
    await world.produce(topic, range(3))
    async with world.consumer(topic, auto_commit_interval_ms=100) as consumer:
        assert await take(consumer, 3) == [0, 1, 2]
        poll = asyncio.ensure_future(consumer.getone())
        async with asyncio.timeout(20):
            while await consumer.committed((topic, 0)) != 3:
                pass
        assert not poll.done()
        await world.produce(topic, [3])
        assert (await poll).value == b"3"


async def test_partitions_of_a_topic_that_comes_later_are_waited_for_without_a_poll(world):
    topic = f"later-{world.group}"
    async with world.consumer(topic) as consumer:
        assert consumer.assignment() == frozenset()
        await asyncio.to_thread(world.topic, 2, name=topic)
        await assigned(consumer)
        assert consumer.assignment() == {TopicPartition(topic, 0), TopicPartition(topic, 1)}


async def test_commits_of_given_offsets(world):
    topic = world.topic(2)
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with world.consumer(topic) as consumer:
        await assigned(consumer)
        await consumer.commit({one: 7, other: (9, "noted")})
        assert await consumer.committed(one) == 7
        assert await consumer.committed(other) == 9
        with pytest.raises(IllegalStateError):
            await consumer.commit({TopicPartition("elsewhere", 0): 1})
        with pytest.raises(ValueError, match="seven"):
            await consumer.commit({one: "seven"})
        assert await consumer.seek_to_committed() == {one: 7, other: 9}
        assert await consumer.position(one) == 7
        assert await consumer.committed(TopicPartition("elsewhere", 0)) is None


@pytest.mark.parametrize("offset", [-1, 2**63, True, 1.5])
async def test_offsets_that_no_log_can_have(ours, offset):
    topic = ours.topic(1)
    place = TopicPartition(topic, 0)
    await ours.produce(topic, range(3))
    async with ours.consumer(topic, enable_auto_commit=False) as consumer:
        for given in (offset, (offset, "")):
            with pytest.raises(ValueError, match=str(offset)):
                await asyncio.wait_for(consumer.commit({place: given}), 10)
        with pytest.raises(ValueError, match="Offset must be"):
            consumer.seek(place, offset)
        await asyncio.wait_for(consumer.commit({place: 2}), 10)
        assert await consumer.committed(place) == 2
        assert await take(consumer, 3) == [0, 1, 2]


async def test_seeks(world):
    topic = world.topic(1)
    await world.produce(topic, range(20))
    partition = TopicPartition(topic, 0)
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 2) == [0, 1]
        consumer.seek(partition, 15)
        assert await consumer.position(partition) == 15
        assert await take(consumer, 2) == [15, 16]
        await consumer.seek_to_beginning()
        assert await take(consumer, 1) == [0]
        await consumer.seek_to_end(partition)
        assert await consumer.position(partition) == 20
        await world.produce(topic, [20])
        assert await take(consumer, 1) == [20]
        with pytest.raises(IllegalStateError):
            consumer.seek(TopicPartition(topic, 9), 0)
        with pytest.raises(ValueError, match="positive"):
            consumer.seek(partition, -1)
        with pytest.raises(IllegalStateError):
            await consumer.position(TopicPartition(topic, 9))


async def test_pausing_keeps_partition_and_place(world):
    topic = world.topic(2)
    await world.produce(topic, range(40))
    one, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with world.consumer(topic) as consumer:
        await assigned(consumer)
        consumer.pause(one)
        assert consumer.paused() == {one}
        records = await consumer.getmany(timeout_ms=60_000)
        assert records.keys() == {other}
        assert await nothing_more(consumer)
        consumer.resume(one)
        assert consumer.paused() == set()
        records = await consumer.getmany(timeout_ms=60_000)
        assert [int(record.value) for record in records[one]] == list(range(0, 40, 2))
        with pytest.raises(IllegalStateError):
            consumer.pause(TopicPartition(topic, 5))
        with pytest.raises(TypeError):
            consumer.pause("orders")


async def test_records_of_chosen_partitions(world):
    topic = world.topic(3)
    await world.produce(topic, range(30))
    async with world.consumer(topic) as consumer:
        last = TopicPartition(topic, 2)
        record = await asyncio.wait_for(consumer.getone(last), 60)
        assert (record.partition, record.offset) == (2, 0)
        rest = await consumer.getmany(last, timeout_ms=60_000)
        assert [each.offset for each in rest[last]] == list(range(1, 10))
        others = 0
        while others < 20:
            batch = await consumer.getmany(timeout_ms=60_000, max_records=7)
            assert 0 < sum(map(len, batch.values())) <= 7
            assert last not in batch
            others += sum(map(len, batch.values()))


async def test_what_is_known_of_the_logs(world):
    topic = world.topic(2)
    await world.produce(topic, range(10), partition=1)
    empty, full = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with world.consumer(topic) as consumer:
        assert await consumer.end_offsets([empty, full]) == {empty: 0, full: 10}
        assert await consumer.beginning_offsets([full]) == {full: 0}
        times = await consumer.offsets_for_times({full: 0, empty: 0})
        assert times[full].offset == 0
        assert times[empty] is None
        with pytest.raises(ValueError, match="negative"):
            await consumer.offsets_for_times({full: -1})
        await take(consumer, 1)
        assert consumer.highwater(full) == 10
        assert consumer.last_stable_offset(full) in (-1, 10)
        assert consumer.last_poll_timestamp(full) > 0
        assert consumer.partitions_for_topic(topic) == {0, 1}
        assert topic in await consumer.topics()
        assert consumer.subscription() == {topic}


async def test_deserializers_and_their_exceptions(world):
    topic = world.topic(1)
    await world.produce(topic, [1, 2, "three", 4])
    async with world.consumer(topic, value_deserializer=int) as consumer:
        assert [(await consumer.getone()).value for _ in range(2)] == [1, 2]
        with pytest.raises(ValueError, match="three"):
            await asyncio.wait_for(consumer.getone(), 60)
        consumer.seek((topic, 0), 3)
        assert (await asyncio.wait_for(consumer.getone(), 60)).value == 4


async def test_read_committed_leaves_out_what_was_aborted(real):
    topic = real.topic(1)
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=real.servers, transactional_id=real.group
    ) as producer:
        async with producer.transaction():
            await producer.send(topic, b"1")
        await producer.begin_transaction()
        await producer.send(topic, b"2")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send(topic, b"3")
    async with real.consumer(topic, isolation_level="read_committed") as consumer:
        assert await take(consumer, 2) == [1, 3]
    async with real.consumer(topic) as consumer:
        assert await nothing_more(consumer, 500)


async def test_without_a_committed_offset(world):
    topic = world.topic(1)
    await world.produce(topic, range(5))
    async with world.consumer(topic, auto_offset_reset="latest") as consumer:
        await assigned(consumer)
        assert await consumer.position((topic, 0)) == 5
        await world.produce(topic, [5])
        assert await take(consumer, 1) == [5]
    world.group += "-none"
    async with world.consumer(topic, auto_offset_reset="none") as consumer:
        for _ in range(2):
            with pytest.raises(NoOffsetForPartitionError):
                await asyncio.wait_for(consumer.getone(), 60)
            with pytest.raises(NoOffsetForPartitionError):
                await asyncio.wait_for(consumer.position((topic, 0)), 60)
        consumer.seek((topic, 0), 4)
        assert await take(consumer, 1) == [4]
        consumer.seek((topic, 0), 1_000)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError):
                await asyncio.wait_for(consumer.getone(), 60)


async def test_a_position_outside_of_the_log_is_reset(world):
    topic = world.topic(1)
    await world.produce(topic, range(5))
    async with world.consumer(topic) as consumer:
        await assigned(consumer)
        consumer.seek((topic, 0), 1_000)
        assert await take(consumer, 5) == [0, 1, 2, 3, 4]


async def test_stopping_ends_what_waits(world):
    topic = world.topic(1)
    consumer = world.consumer(topic)
    await consumer.start()
    one = asyncio.ensure_future(consumer.getone())
    every = asyncio.ensure_future(anext(aiter(consumer), "the end"))
    await asyncio.sleep(0.1)
    await consumer.stop()
    with pytest.raises(ConsumerStoppedError):
        await one
    assert await every == "the end"
    with pytest.raises(ConsumerStoppedError):
        await consumer.getmany()
    await consumer.stop()
    with pytest.raises(IllegalStateError):
        await consumer.start()


async def test_a_cancelled_wait_loses_nothing(world):
    topic = world.topic(1)
    async with world.consumer(topic) as consumer:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.getone(), 0.05)
        producing = asyncio.ensure_future(world.produce(topic, range(200)))
        values = []
        while len(values) < 200:
            try:
                record = await asyncio.wait_for(consumer.getone(), 0.01)
            except TimeoutError:
                continue
            values.append(int(record.value))
        await producing
        assert values == list(range(200))


async def test_several_tasks_may_read(world):
    topic = world.topic(4)
    async with world.consumer(topic) as consumer:
        reading = [asyncio.ensure_future(take(consumer, 50)) for _ in range(4)]
        await world.produce(topic, range(200))
        values = [value for values in await asyncio.gather(*reading) for value in values]
        assert sorted(values) == list(range(200))


async def test_nobody_there():
    consumer = KIP848Consumer("orders", bootstrap_servers="127.0.0.1:1", group_id="g")
    with pytest.raises(KafkaConnectionError, match="Connect call failed"):
        await consumer.start()
    await consumer.stop()


async def test_who_could_not_connect_may_start_again(monkeypatch):
    async with Broker({"orders": 1}) as broker:
        consumer = KIP848Consumer("orders", bootstrap_servers=broker.bootstrap_servers, group_id="g")
        with monkeypatch.context() as patch:
            patch.setattr(consumer._client, "_bootstrap_servers", "127.0.0.1:1")
            with pytest.raises(KafkaConnectionError, match="Connect call failed"):
                await consumer.start()
            with pytest.raises(IllegalStateError, match="not started"):
                await consumer.getone()
        async with asyncio.timeout(10):
            await consumer.start()
        assert consumer.assignment() == {TopicPartition("orders", 0)}
        await consumer.stop()


async def test_a_broker_without_the_protocol(monkeypatch):
    spoken = tuple(api for api in registry.SPOKEN if api.api_key != 68)
    answer = ApiVersionsResponse(api_versions=spoken)
    monkeypatch.setattr("fencepost.coordinator.server.cluster_apis._SPOKEN", answer)
    async with Broker({"orders": 1}) as broker:
        consumer = KIP848Consumer("orders", bootstrap_servers=broker.bootstrap_servers, group_id="g")
        with pytest.raises(UnsupportedVersionError, match=r"Kafka 4\.0 or later"):
            await consumer.start()


async def test_a_commit_of_one_who_is_out_fails(world):
    topic = world.topic(1)
    async with world.consumer(topic) as other, world.consumer(topic, max_poll_interval_ms=1_000) as consumer:
        waiting = asyncio.ensure_future(other.getone())
        await until(lambda: consumer.state == "STALE")
        assert consumer.assignment() == set()
        with pytest.raises((CommitFailedError, IllegalStateError)):
            await consumer.commit({TopicPartition(topic, 0): 1})
        waiting.cancel()


async def test_a_commit_of_what_was_lost_meanwhile_fails(world):
    topic = world.topic(1)
    await world.produce(topic, range(3))
    settings = {"max_poll_interval_ms": 1_000, "enable_auto_commit": False}
    async with world.consumer(topic, **settings) as consumer:
        assert await take(consumer, 2) == [0, 1]
        await until(lambda: not consumer.assignment())
        for _ in range(2):
            with pytest.raises(CommitFailedError):
                await consumer.commit()
        assert await take(consumer, 2) == [0, 1]
        await consumer.commit()
        assert await consumer.committed(TopicPartition(topic, 0)) == 2


class CommittingAtTheEnd(aiokafka.ConsumerRebalanceListener):
    """Commits as partitions go, and notes what the group has then."""

    def __init__(self, topic):
        self._place = (topic, 0)
        self.consumer = None
        self.committed = []

    async def on_partitions_assigned(self, assigned):
        """Nothing to do."""

    async def on_partitions_revoked(self, revoked):
        await self.consumer.commit()
        self.committed.append(await self.consumer.committed(self._place))


async def test_a_listener_commits_what_unsubscribe_gives_up(world):
    topic = world.topic(1)
    await world.produce(topic, range(10))
    listener = CommittingAtTheEnd(topic)
    async with world.consumer(topic, enable_auto_commit=False, listener=listener) as consumer:
        listener.consumer = consumer
        assert consumer.is_connected()
        assert await take(consumer, 3) == [0, 1, 2]
        await consumer.unsubscribe()
        assert listener.committed == [3]
    async with world.consumer(topic) as consumer:
        assert await take(consumer, 1) == [3]
