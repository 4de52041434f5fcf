"""KIP848Consumer as a member: others come and go, brokers restart, programs stand still."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter

import aiokafka
import pytest
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError, KafkaError

from fencepost.member.base.errors import CallbackFailed
from fencepost.member.base.leave import CloseOption
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

TopicPartition = aiokafka.TopicPartition


class Reader:
    """A program: reads until it is told to stop, and notes what it was given."""

    def __init__(self, world, *topics, **settings):
        self.consumer = world.consumer(*topics, **settings)
        self.values = []
        self._task = None

    async def start(self):
        await self.consumer.start()
        self._task = asyncio.ensure_future(self._read())
        return self

    async def _read(self):
        with contextlib.suppress(ConsumerStoppedError):  # stopped before it began
            async for record in self.consumer:
                assert (record.topic, record.partition) in self.consumer.assignment()
                self.values.append(int(record.value))

    async def stop(self, *arguments):
        await self.consumer.stop(*arguments)
        if self._task is not None:
            await self._task

    @property
    def owned(self):
        return self.consumer.assignment()


@contextlib.asynccontextmanager
async def stopping(readers):
    try:
        yield readers
    finally:
        await asyncio.gather(*(reader.stop() for reader in readers))


def balanced(readers, total):
    def condition():
        each = Counter(partition for reader in readers for partition in reader.owned)
        sizes = sorted(len(reader.owned) for reader in readers)
        return len(each) == total == sum(sizes) and sizes[-1] - sizes[0] <= 1

    return condition


async def test_one_two_three_and_back(world):
    topic = world.topic(12)
    async with stopping([]) as readers:
        for _ in range(3):
            readers.append(await Reader(world, topic).start())
            await until(balanced(readers, 12))
        described = await world.described()
        assert described == {reader.consumer.member_id: reader.owned for reader in readers}
        leaver = readers.pop()
        await leaver.stop()
        assert leaver.consumer.member_id not in await world.described(), "it left at once"
        await until(balanced(readers, 12))


async def test_nothing_is_lost_and_nothing_doubled_while_members_come_and_go(world):
    topic = world.topic(8)
    expected = 6_000
    gone = []

    async def produce():
        for start in range(0, expected, 200):
            await world.produce(topic, range(start, start + 200))
            await asyncio.sleep(0.02)

    async with stopping([await Reader(world, topic, auto_commit_interval_ms=100).start()]) as readers:
        producing = asyncio.ensure_future(produce())
        for _ in range(4):
            readers.extend(await asyncio.gather(*(Reader(world, topic).start() for _ in range(2))))
            await asyncio.sleep(0.25)
            gone += [readers.pop(0), readers.pop(0)]
            await asyncio.gather(*(reader.stop() for reader in gone[-2:]))
            readers.append(await Reader(world, topic).start())
            await asyncio.sleep(0.1)
        await producing
        await until(lambda: sum(len(reader.values) for reader in (*readers, *gone)) >= expected)
        await asyncio.sleep(0.3)
        values = Counter(value for reader in (*readers, *gone) for value in reader.values)
    assert sorted(values) == list(range(expected))
    assert [value for value, count in values.items() if count > 1] == []


async def test_each_partition_is_read_in_order_through_rebalances(world):
    topic = world.topic(4)
    await world.produce(topic, range(8_000))
    async with stopping([await Reader(world, topic, max_partition_fetch_bytes=4_096).start()]) as readers:
        await until(lambda: len(readers[0].values) > 200)
        readers.append(await Reader(world, topic).start())
        await until(balanced(readers, 4))
        await until(lambda: sum(len(reader.values) for reader in readers) >= 8_000)
    for reader, number in itertools.product(readers, range(4)):
        mine = [value for value in reader.values if value % 4 == number]
        assert mine == sorted(set(mine))
    assert sorted(value for reader in readers for value in reader.values) == list(range(8_000))


async def test_a_static_member_comes_back_to_its_partitions(world):
    topic = world.topic(6)
    async with stopping([]) as readers:
        for name in ("one", "two"):
            readers.append(await Reader(world, topic, group_instance_id=name).start())
        await until(balanced(readers, 6))
        before, others = readers[0].owned, readers[1].owned
        epoch = readers[1].consumer.member_epoch
        await readers.pop(0).stop()
        await asyncio.sleep(0.3)
        assert readers[0].owned == others, "it may come back any moment"
        readers.append(await Reader(world, topic, group_instance_id="one").start())
        await until(lambda: readers[1].owned == before)
        assert readers[0].owned == others
        assert readers[0].consumer.member_epoch == epoch
        await readers.pop(1).stop(CloseOption.LEAVE_GROUP)
        await until(lambda: len(readers[0].owned) == 6)


async def test_an_instance_id_in_use_is_fatal(world):
    topic = world.topic(1)
    async with world.consumer(topic, group_instance_id="one"):
        second = world.consumer(topic, group_instance_id="one")
        with pytest.raises(KafkaError, match="UNRELEASED_INSTANCE_ID"):
            await second.start()


async def test_the_broker_s_assignors(world):
    topic = world.topic(4)
    async with world.consumer(topic, group_remote_assignor="range") as consumer:
        await until(lambda: len(consumer.assignment()) == 4)
        other = world.consumer(topic, group_remote_assignor="astrologer")
        with pytest.raises(KafkaError, match="UNSUPPORTED_ASSIGNOR"):
            await other.start()


async def test_an_expression_is_matched_by_the_broker(world):
    prefix = f"invoices-{world.group}"
    for year in (2024, 2025):
        world.topic(1, prefix=f"{prefix}-{year}")
    world.topic(1, prefix=f"more-{prefix}")
    consumer = world.consumer()
    await consumer.start()
    try:
        consumer.subscribe(pattern=f"{prefix}-[0-9]{{4}}-.*")
        async with asyncio.timeout(60):
            while len(consumer.assignment()) < 2:
                await consumer.getmany(timeout_ms=50)
        assert {topic[: len(prefix) + 5] for topic in consumer.subscription()} == {
            f"{prefix}-2024",
            f"{prefix}-2025",
        }
        await consumer.unsubscribe()
        assert consumer.assignment() == set()
        assert await world.described() == {}
        consumer.subscribe(pattern="(")
        with pytest.raises(KafkaError, match="INVALID_REGULAR_EXPRESSION"):
            await asyncio.wait_for(consumer.getone(), 60)
    finally:
        await consumer.stop()


async def test_a_topic_that_comes_besides_others_of_an_expression_is_read(world):
    topics = world.topic(1), world.topic(1)
    for topic in topics:
        await world.produce(topic, range(3))
    both = [world.consumer(enable_auto_commit=False) for _ in topics]
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        for consumer in both:
            await consumer.start()
            stack.push_async_callback(consumer.stop)
            consumer.subscribe(pattern="|".join(topics))
        while [len(each.assignment()) for each in both] != [1, 1]:
            await asyncio.gather(*(each.getmany(timeout_ms=50) for each in both))
        stays, goes = both
        ((topic, _),) = goes.assignment()
        while stays.partitions_for_topic(topic) is not None:  # who does not read it forgets it
            await asyncio.gather(*(each.getmany(timeout_ms=50) for each in both))
        await goes.stop()
        values = []
        while len(values) < 3:
            records = await stays.getmany(timeout_ms=50)
            values += [each.value for each in records.get(TopicPartition(topic, 0), ())]
        assert values == [b"0", b"1", b"2"]


async def test_another_subscription_and_new_partitions(world):
    first, second = world.topic(2), world.topic(3)
    async with stopping([await Reader(world, first).start()]) as readers:
        consumer = readers[0].consumer
        consumer.subscribe([first, second])
        await until(lambda: len(readers[0].owned) == 5)
        await asyncio.to_thread(world.grow, second, 4)
        await until(lambda: len(readers[0].owned) == 6)
        consumer.subscribe([second])
        await until(lambda: {partition.topic for partition in readers[0].owned} == {second})
        await world.produce(second, range(20))
        await until(lambda: sorted(readers[0].values) == list(range(20)))


class Noting:
    """A listener of ours: async, with on_partitions_lost."""

    def __init__(self):
        self.heard = []

    async def on_partitions_assigned(self, partitions):
        await asyncio.sleep(0.01)
        self.heard.append(("assigned", {one.partition for one in partitions}))

    async def on_partitions_revoked(self, partitions):
        await asyncio.sleep(0.01)
        self.heard.append(("revoked", {one.partition for one in partitions}))

    async def on_partitions_lost(self, partitions):
        self.heard.append(("lost", {one.partition for one in partitions}))


async def test_callbacks_come_in_order_and_say_what_changed(world):
    topic = world.topic(4)
    listener = Noting()
    async with stopping([await Reader(world, topic, listener=listener).start()]) as readers:
        await until(lambda: listener.heard == [("assigned", {0, 1, 2, 3})])
        readers.append(await Reader(world, topic).start())
        await until(balanced(readers, 4))
        kept = {one.partition for one in readers[0].owned}
        await until(lambda: len(listener.heard) == 3)
        assert listener.heard[1:] == [("revoked", {0, 1, 2, 3} - kept), ("assigned", set())]
        await readers[1].stop()
        await until(lambda: len(readers[0].owned) == 4)
        await until(lambda: listener.heard[3:] == [("assigned", {0, 1, 2, 3} - kept)])
    assert listener.heard[4:] == [("revoked", {0, 1, 2, 3})]


class Keeping(ConsumerRebalanceListener):
    """A listener of aiokafka's: keeps offsets in a store of its own, and starts from there."""

    def __init__(self, store):
        self.store = store
        self.consumer = None
        self.revoked = []

    async def on_partitions_revoked(self, revoked):
        self.revoked.append(set(revoked))
        for partition in revoked:
            with contextlib.suppress(IllegalStateError):
                self.store[partition] = await self.consumer.position(partition)

    async def on_partitions_assigned(self, assigned):
        for partition in assigned:
            if partition in self.store:
                self.consumer.seek(partition, self.store[partition])
            else:
                await self.consumer.seek_to_beginning(partition)
            assert await self.consumer.position(partition) == self.store.get(partition, 0)


async def test_offsets_that_a_listener_keeps(world):
    topic = world.topic(2)
    await world.produce(topic, range(20))
    store, values = {}, []
    for _ in range(2):
        listener = Keeping(store)
        listener.consumer = world.consumer(
            topic, listener=listener, enable_auto_commit=False, auto_offset_reset="none"
        )
        async with listener.consumer as consumer:
            async with asyncio.timeout(60):
                values += [int((await consumer.getone()).value) for _ in range(10)]
        assert sum(store.values()) == len(values)
    assert sorted(values) == list(range(20))


async def test_a_commit_in_the_callback_is_in_time(world):
    topic = world.topic(2)
    await world.produce(topic, range(20))

    class Committing(Noting):
        async def on_partitions_revoked(self, partitions):
            await consumer.commit()

    consumer = world.consumer(topic, listener=Committing(), enable_auto_commit=False)
    async with consumer, asyncio.timeout(60):
        values = [int((await consumer.getone()).value) for _ in range(13)]
    async with world.consumer(topic) as consumer, asyncio.timeout(60):
        values += [int((await consumer.getone()).value) for _ in range(7)]
    assert sorted(values) == list(range(20))


async def test_callbacks_come_while_the_program_waits_for_records(world):
    topic = world.topic(4)
    await world.produce(topic, range(400))
    in_hand, behind_its_back = [], []

    class Committing(Noting):
        async def on_partitions_revoked(self, partitions):
            await super().on_partitions_revoked(partitions)
            behind_its_back.extend(in_hand)
            await consumer.commit()

    consumer = world.consumer(topic, listener=(listener := Committing()), enable_auto_commit=False)
    others = []
    async with consumer, asyncio.timeout(60), stopping(others):
        while ("assigned", set()) not in listener.heard:
            batch = await consumer.getmany(timeout_ms=100, max_records=1)
            in_hand.extend(batch)
            if not others:
                others.append(await Reader(world, topic).start())
            await asyncio.sleep(0.02)
            in_hand.clear()
        assert await consumer.getmany(timeout_ms=30_000), "what it keeps is read on"
    assert behind_its_back == []


async def test_a_callback_that_raises_is_raised_and_tried_again(world):
    topic = world.topic(1)

    class Failing(Noting):
        async def on_partitions_assigned(self, partitions):
            await super().on_partitions_assigned(partitions)
            if len(self.heard) == 1:
                raise KeyError("not ready")

    consumer = world.consumer(listener=Failing())
    await consumer.start()
    try:
        consumer.subscribe([topic], listener=Failing())
        with pytest.raises(CallbackFailed, match="not ready"):
            await asyncio.wait_for(consumer.getone(), 60)
        await world.produce(topic, [1])
        assert (await asyncio.wait_for(consumer.getone(), 60)).value == b"1"
    finally:
        await consumer.stop()


async def test_who_does_not_poll_is_out_and_comes_back(world):
    topic = world.topic(2)
    await world.produce(topic, range(10))
    listener = Noting()
    async with world.consumer(topic, max_poll_interval_ms=2_000, listener=listener) as consumer:
        async with asyncio.timeout(60):
            values = [int((await consumer.getone()).value) for _ in range(4)]
            await until(lambda: consumer.state == "STALE")
            await until(lambda: listener.heard[1:] == [("lost", {0, 1})])
            while await world.described():
                pass
            values += [int((await consumer.getone()).value) for _ in range(10)]
    assert set(values) == set(range(10))
    assert sorted(values[4:]) == list(range(10)), "nothing was committed, so all of it comes again"
    assert [kind for kind, _ in listener.heard] == ["assigned", "lost", "assigned", "revoked"]


async def test_who_waits_for_records_polls(world):
    topic = world.topic(1)
    async with world.consumer(topic, max_poll_interval_ms=1_000) as consumer:
        waiting = asyncio.ensure_future(consumer.getone())
        await asyncio.sleep(2)
        assert consumer.state == "STABLE"
        await world.produce(topic, [1])
        assert (await asyncio.wait_for(waiting, 60)).value == b"1"


async def test_a_network_that_breaks(ours):
    topic = ours.topic(4)

    def cut(broker):
        for connection in tuple(broker.connections):
            connection.close()

    async with stopping([await Reader(ours, topic).start() for _ in range(2)]) as readers:
        await until(balanced(readers, 4))
        epochs = [reader.consumer.member_epoch for reader in readers]
        for start in range(0, 500, 100):
            await ours.produce(topic, range(start, start + 100))
            await asyncio.to_thread(ours.broker.look, cut)
        await until(lambda: sum(len(reader.values) for reader in readers) >= 500)
        assert sorted(value for reader in readers for value in reader.values) == list(range(500))
        assert [reader.consumer.member_epoch for reader in readers] == epochs


@pytest.mark.long
async def test_a_broker_that_is_killed_and_comes_back(mortal):
    topic = mortal.topic(4)
    async with stopping([await Reader(mortal, topic).start() for _ in range(2)]) as readers:
        await until(balanced(readers, 4))
        await mortal.produce(topic, range(500))
        await until(lambda: sum(len(reader.values) for reader in readers) >= 500)
        await mortal.broker.kill(1)
        await asyncio.sleep(0.5)
        await mortal.broker.restart(1)
        await mortal.produce(topic, range(500, 1_000))
        await until(lambda: {v for reader in readers for v in reader.values} == set(range(1_000)))
        await until(balanced(readers, 4))
        with contextlib.suppress(CommitFailedError):
            await readers[0].consumer.commit()


async def test_a_broker_that_stands_still(mortal):
    topic = mortal.topic(4)
    settings = {"request_timeout_ms": 1_000, "auto_commit_interval_ms": 100}
    async with stopping([await Reader(mortal, topic, **settings).start() for _ in range(2)]) as readers:
        await until(balanced(readers, 4))
        await mortal.produce(topic, range(100))
        await until(lambda: sum(len(reader.values) for reader in readers) >= 100)
        await mortal.broker.pause(1)
        await asyncio.sleep(3.5)
        await mortal.broker.resume(1)
        await mortal.produce(topic, range(100, 200))
        await until(lambda: {v for reader in readers for v in reader.values} == set(range(200)))
        await until(balanced(readers, 4))


@pytest.mark.long
async def test_stopping_without_a_broker_takes_no_longer_than_asked(mortal):
    topic = mortal.topic(1)
    reader = await Reader(mortal, topic, request_timeout_ms=2_000).start()
    await mortal.produce(topic, [1])
    await until(lambda: reader.values)
    await mortal.broker.kill(1)
    try:
        async with asyncio.timeout(20):
            await reader.consumer.stop(timeout_ms=2_000)
    finally:
        await mortal.broker.restart(1)
