"""Clients that act when they are polled: `wait_stable` polls them, and what is said of them has names."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, closing

import pytest
from confluent_kafka import Consumer, TopicPartition

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import FencepostError

pytestmark = pytest.mark.real


def consumer(kafka: EmbeddedKafka, name: str) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "billing",
            "client.id": name,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    made.subscribe(["orders"])
    return made


@pytest.fixture
def kafka() -> EmbeddedKafka:
    return EmbeddedKafka(topics={"orders": 4})


def test_polled_clients_join_and_share_and_lose_no_record(kafka: EmbeddedKafka) -> None:
    with kafka, ExitStack() as stack:
        kafka.produce("orders", *map(str, range(40)))
        one, two = (stack.enter_context(closing(consumer(kafka, name))) for name in ("one", "two"))
        members = kafka.group("billing").wait_stable(2, polling=[one, two])
        assert sorted(len(each.assignment) for each in members) == [2, 2]
        read: list[bytes] = []
        while len(read) < 40:
            for each in (one, two):
                message = each.poll(0.1)
                if message is not None:
                    assert message.error() is None
                    read.append(message.value() or b"")
        assert sorted(read) == sorted(str(number).encode() for number in range(40))


def test_a_function_polls_as_it_likes(kafka: EmbeddedKafka) -> None:
    with kafka, closing(consumer(kafka, "one")) as one:
        seen: list[object] = []
        kafka.produce("orders", "a")
        kafka.group("billing").wait_stable(1, polling=[lambda: seen.append(one.poll(0.02))])
        assert seen


async def test_an_async_test_goes_on_while_clients_are_polled(kafka: EmbeddedKafka) -> None:
    with kafka:
        two = consumer(kafka, "two")
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        (member,) = await kafka.awaited.group("billing").wait_stable(1, polling=[two])
        counting.cancel()
        assert member.client_id == "two"
        assert turns > 10
        await asyncio.to_thread(two.close)


def test_a_wait_ends_when_polling_raises(kafka: EmbeddedKafka) -> None:
    def fails() -> None:
        raise ZeroDivisionError

    with kafka:
        group = kafka.group("billing")
        with pytest.raises(ZeroDivisionError):
            group.wait_stable(1, polling=[fails])
        loop = group.thread._loop
        assert loop is not None

        async def waiting() -> list[str]:
            for _ in range(5):  # what is cancelled ends in one of the loop's next turns
                await asyncio.sleep(0)
            return [repr(task) for task in asyncio.all_tasks() if "_wait_stable" in repr(task)]

        assert asyncio.run_coroutine_threadsafe(waiting(), loop).result() == []


def test_nothing_else_can_be_polled(kafka: EmbeddedKafka) -> None:
    with kafka:
        with pytest.raises(FencepostError, match="polling: 3 has no method poll: expected consumers"):
            kafka.group("billing").wait_stable(1, polling=[3])
        with pytest.raises(FencepostError, match="polling='one': expected a list"):
            kafka.group("billing").wait_stable(1, polling="one")


def test_rules_and_violations_and_missing_members_have_names(kafka: EmbeddedKafka) -> None:
    with kafka, ExitStack() as stack:
        one, two = (stack.enter_context(closing(consumer(kafka, name))) for name in ("one", "two"))
        group = kafka.group("billing")
        members = {each.client_id: each for each in group.wait_stable(2, polling=[one, two])}
        with pytest.raises(TimeoutError, match=r"members: 3 expected, there are 2 \((one, two|two, one)\)$"):
            group.wait_stable(3, timeout=0.1)
        kafka.fail_next("OffsetCommit", "NOT_COORDINATOR", members["two"])
        kafka.fail_next("OffsetCommit", "NOT_COORDINATOR", members["two"].member_id)
        group.fence("two")
        assert kafka.unmet() == [
            "fail_next('OffsetCommit', 'NOT_COORDINATOR', 'two') met 0 of 1",
            "fail_next('OffsetCommit', 'NOT_COORDINATOR', 'two') met 0 of 1",
        ]
        mine = next(iter(one.assignment()))
        one.commit(offsets=[TopicPartition(mine.topic, mine.partition, 77)], asynchronous=False)
        (found,) = kafka.check()
        assert members["one"].member_id not in found.message
        assert "one" in found.message
        assert f"orders-{mine.partition}" in found.message
