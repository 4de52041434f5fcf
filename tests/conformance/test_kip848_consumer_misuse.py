"""KIP848Consumer misused: stopped while it starts, asked once it is stopped, told of by what raises."""

from __future__ import annotations

import asyncio

import aiokafka
import pytest
from aiokafka.errors import ConsumerStoppedError, IllegalStateError

from fencepost.member.base.errors import CallbackFailed

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


async def test_a_stopped_consumer_asks_nobody_anything(ours):
    topic = ours.topic(1)
    place = aiokafka.TopicPartition(topic, 0)
    consumer = ours.consumer(topic)
    await consumer.start()
    await consumer.stop()
    before = asyncio.all_tasks()
    calls = (
        consumer.commit,
        lambda: consumer.commit({place: 1}),
        lambda: consumer.committed(place),
        consumer.unsubscribe,
        consumer.topics,
        consumer.seek_to_beginning,
        lambda: consumer.position(place),
        lambda: consumer.end_offsets([place]),
        lambda: consumer.offsets_for_times({place: 0}),
    )
    for call in calls:
        with pytest.raises(ConsumerStoppedError):
            async with asyncio.timeout(10):
                await call()
    assert asyncio.all_tasks() == before, "it has connected"
    assert consumer.state == "UNSUBSCRIBED"
    assert consumer.subscription() == {topic}


async def test_who_is_not_started_asks_nobody_either(ours):
    consumer = ours.consumer(ours.topic(1))
    for call in (consumer.topics, consumer.unsubscribe):
        with pytest.raises(IllegalStateError, match="not started"):
            await call()
    assert len(consumer.subscription()) == 1
    await consumer.stop()


async def test_a_listener_may_commit_while_the_consumer_stops(ours):
    topic = ours.topic(1)
    place = aiokafka.TopicPartition(topic, 0)
    told = []

    class Revoked(Listener):
        async def on_partitions_revoked(self, partitions):
            await consumer.commit()
            told.append((await consumer.position(place), await consumer.committed(place)))

    async def nothing():
        pass

    await ours.produce(topic, [1, 2])
    consumer = ours.consumer(topic, listener=Revoked(nothing), enable_auto_commit=False)
    await consumer.start()
    async with asyncio.timeout(10):
        await consumer.getone()
    await consumer.stop()
    assert told == [(1, 1)]


class Raising(Listener):
    """Fails as partitions go."""

    def __init__(self):
        pass

    async def on_partitions_assigned(self, partitions):
        pass

    async def on_partitions_revoked(self, partitions):
        raise KeyError("not saved")


async def test_a_callback_that_raises_in_a_stop_is_raised_by_it(ours):
    consumer = ours.consumer(ours.topic(1), listener=Raising())
    await consumer.start()
    with pytest.raises(CallbackFailed, match="on_partitions_revoked raised KeyError"):
        await consumer.stop()
    assert await ours.described() == {}
    await consumer.stop()


async def test_the_first_failure_of_a_block_is_the_one_that_leaves_it(ours):
    with pytest.raises(ZeroDivisionError):
        async with ours.consumer(ours.topic(1), listener=Raising()):
            raise ZeroDivisionError
    with pytest.raises(CallbackFailed, match="not saved"):
        async with ours.consumer(ours.topic(1), listener=Raising()):
            pass
    assert await ours.described() == {}


async def test_a_callback_can_not_wait_for_the_stop_that_waits_for_it(ours):
    async def stop():
        await consumer.stop()

    consumer = ours.consumer(ours.topic(1), listener=Listener(stop))
    async with asyncio.timeout(10):
        with pytest.raises(CallbackFailed, match="can't be called in one"):
            await consumer.start()
    assert await ours.described() == {}


async def test_a_callback_can_not_wait_for_records(ours):
    async def wait():
        assert await consumer.getmany() == {}
        with pytest.raises(IllegalStateError, match="can't be awaited in a rebalance callback"):
            await consumer.getone()
        refused.set()

    topic, refused = ours.topic(1), asyncio.Event()
    await ours.produce(topic, [1])
    consumer = ours.consumer(topic, listener=Listener(wait))
    async with asyncio.timeout(10):
        await consumer.start()
        assert refused.is_set()
        assert (await consumer.getone()).value == b"1"
        await consumer.stop()


async def test_another_event_loop_is_refused_and_does_no_harm(ours):
    topic = ours.topic(1)
    await ours.produce(topic, [7])
    consumer = ours.consumer(topic)
    await consumer.start()

    def elsewhere(call):
        with pytest.raises(RuntimeError, match="run_coroutine_threadsafe"):
            asyncio.run(asyncio.wait_for(call(), 5))

    async def subscribe():
        consumer.subscribe(["others"])

    for call in (consumer.getone, consumer.getmany, consumer.commit, subscribe, consumer.stop):
        await asyncio.to_thread(elsewhere, call)
    async with asyncio.timeout(10):
        assert (await consumer.getone()).value == b"7"
    await consumer.stop()
    assert await ours.described() == {}


async def test_a_callback_may_fail_with_what_is_no_exception(ours):
    async def fail():
        pytest.fail("not these partitions")

    consumer = ours.consumer(ours.topic(1), listener=Listener(fail))
    async with asyncio.timeout(10):
        with pytest.raises(CallbackFailed, match="not these partitions"):
            await consumer.start()


class Watcher:
    """An observer that raises whatever it is told."""

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return self._raise

    def _raise(self, *seen):
        raise RuntimeError("out of ink")


async def test_an_observer_that_raises_holds_nothing_up(ours, caplog):
    topic = ours.topic(1)
    await ours.produce(topic, [5])
    async with asyncio.timeout(10), ours.consumer(topic, observer=Watcher()) as consumer:
        assert (await consumer.getone()).value == b"5"
        await consumer.commit()
        assert await consumer.committed((topic, 0)) == 1
    for what in ("on_state", "on_request", "on_response", "on_callback", "on_commit"):
        assert f"a member's observer failed at={what}" in caplog.text
