"""KIP848Consumer before its start, after a failed start, in FATAL, and while it unsubscribes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiokafka import ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    IllegalStateError,
)

from fencepost import EmbeddedKafka, KIP848Consumer
from fencepost.member.base.errors import CallbackFailed
from fencepost.member.consumer.states import ConsumerMemberState

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

PLACE = TopicPartition("orders", 0)
REFUSED = "GROUP_AUTHORIZATION_FAILED"


@pytest.fixture
async def kafka() -> AsyncIterator[Any]:
    async with EmbeddedKafka(topics={"orders": 1}) as running:
        running.produce("orders", "a", "b")
        yield running


def consumer_on(kafka: EmbeddedKafka, *topics: str, **settings: Any) -> KIP848Consumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "group_id": "g", **settings}
    return KIP848Consumer(*topics, bootstrap_servers=kafka.bootstrap_servers, retry_backoff_ms=20, **settings)


async def read_both(consumer: KIP848Consumer) -> None:
    async with asyncio.timeout(30):
        assert [(await consumer.getone()).value for _ in range(2)] == [b"a", b"b"]


async def later(call: Callable[[], Any]) -> None:
    """Call something that may be no coroutine function."""
    result = call()
    if isinstance(result, Awaitable):
        await result


class Committing(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Commits as partitions go: all, or given offsets."""

    def __init__(self, offsets: dict[TopicPartition, int] | None) -> None:
        self.consumer: KIP848Consumer
        self._offsets = offsets

    async def on_partitions_assigned(self, assigned: Any) -> None:
        """Nothing to do."""

    async def on_partitions_revoked(self, revoked: Any) -> None:
        assert await self.consumer.position(PLACE) == 2
        await self.consumer.commit(self._offsets)


@pytest.mark.parametrize("offsets", [None, {PLACE: 2}], ids=["all", "given"])
async def test_what_unsubscribe_gives_up_may_be_committed(
    kafka: EmbeddedKafka, offsets: dict[TopicPartition, int] | None
) -> None:
    listener = Committing(offsets)
    consumer = listener.consumer = consumer_on(kafka)
    consumer.subscribe(["orders"], listener=listener)
    await consumer.start()
    await read_both(consumer)
    await consumer.unsubscribe()
    assert await consumer.getmany(timeout_ms=0) == {}
    assert kafka.group("g").offsets() == {PLACE: 2}
    with pytest.raises(IllegalStateError, match="Not subscribed"):
        await consumer.commit()
    await consumer.stop()


async def test_a_member_in_fatal_refuses_each_call_that_needs_one(kafka: EmbeddedKafka) -> None:
    consumer = consumer_on(kafka, "orders")
    await consumer.start()
    await read_both(consumer)
    kafka.fail_next("ConsumerGroupHeartbeat", REFUSED)
    with pytest.raises(GroupAuthorizationFailedError):
        await asyncio.wait_for(consumer.getone(), 30)
    assert consumer.state is ConsumerMemberState.FATAL
    commits: list[Callable[[], Any]] = [consumer.commit, lambda: consumer.commit({PLACE: 1})]
    others: list[Callable[[], Any]] = [
        consumer.getone,
        consumer.getmany,
        consumer.__anext__,
        lambda: consumer.position(PLACE),
        lambda: consumer.seek(PLACE, 0),
        consumer.seek_to_beginning,
        consumer.seek_to_end,
        consumer.seek_to_committed,
        lambda: consumer.pause(PLACE),
        lambda: consumer.resume(PLACE),
        lambda: consumer.highwater(PLACE),
    ]
    for _ in range(2):
        for call in commits:
            with pytest.raises(CommitFailedError, match=f"stopped for good.*{REFUSED}"):
                await later(call)
        for call in others:
            with pytest.raises(GroupAuthorizationFailedError):
                await later(call)
    assert await consumer.committed(PLACE) is None
    await consumer.unsubscribe()
    with pytest.raises(CommitFailedError):
        await consumer.commit()
    await consumer.stop()
    for call in (*commits, *others[:2], *others[3:]):
        with pytest.raises(ConsumerStoppedError, match="stopped"):
            await later(call)
    assert kafka.group("g").offsets() == {}


async def test_a_consumer_says_where_it_stands_from_its_making_on(kafka: EmbeddedKafka) -> None:
    consumer = consumer_on(kafka, "orders")
    assert (consumer.state, consumer.member_id, consumer.member_epoch) == ("UNSUBSCRIBED", "", 0)
    assert not consumer.is_connected()
    await consumer.start()
    assert consumer.is_connected()
    (member,) = kafka.group("g").members()
    assert (consumer.member_id, consumer.member_epoch) == (member.member_id, member.epoch)
    await consumer.stop()
    assert (consumer.state, consumer.member_id, consumer.member_epoch) == (
        "UNSUBSCRIBED",
        member.member_id,
        0,
    )
    assert not consumer.is_connected()


async def test_a_lost_connection_is_noticed_with_the_next_heartbeat() -> None:
    config = {"group.consumer.min.heartbeat.interval.ms": 50, "group.consumer.heartbeat.interval.ms": 100}
    async with EmbeddedKafka(topics={"orders": 1}, config=config) as kafka:
        consumer = consumer_on(kafka, "orders", request_timeout_ms=500)
        await consumer.start()
        assert consumer.is_connected()
        kafka.lose_next_response("ConsumerGroupHeartbeat", consumer.member_id)
        async with asyncio.timeout(30):
            while consumer.is_connected():
                await consumer.getmany(timeout_ms=10)
            while not consumer.is_connected():
                await consumer.getmany(timeout_ms=10)
        await consumer.stop()


class Failing(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Fails so many times as partitions come."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.calls = 0

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise KeyError("not ready")

    async def on_partitions_revoked(self, revoked: Any) -> None:
        """Nothing to do."""


async def test_a_callback_that_fails_once_in_a_start_is_tried_again(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    listener = Failing(1)
    consumer = consumer_on(kafka, "orders", listener=listener)
    with caplog.at_level(logging.WARNING, "fencepost"):
        await consumer.start()
    assert listener.calls == 2
    assert "not ready" in caplog.text
    await read_both(consumer)
    await consumer.commit()
    await consumer.stop()
    assert kafka.group("g").offsets() == {PLACE: 2}


async def test_a_callback_that_fails_twice_ends_the_start_and_later_calls_say_why(
    kafka: EmbeddedKafka,
) -> None:
    consumer = consumer_on(kafka, "orders", listener=Failing(5))
    with pytest.raises(CallbackFailed, match="not ready"):
        await consumer.start()
    assert kafka.group("g").members() == []
    for call in (consumer.getone, consumer.getmany, consumer.commit, consumer.unsubscribe):
        with pytest.raises(ConsumerStoppedError, match=r"its start failed with CallbackFailed.*not ready"):
            await later(call)


async def test_a_fatal_error_of_a_start_is_raised_by_later_calls(kafka: EmbeddedKafka) -> None:
    kafka.fail_next("ConsumerGroupHeartbeat", REFUSED)
    consumer = consumer_on(kafka, "orders")
    with pytest.raises(GroupAuthorizationFailedError):
        await consumer.start()
    calls: tuple[Callable[[], Any], ...] = (
        consumer.start,
        consumer.getone,
        consumer.getmany,
        consumer.__anext__,
        lambda: consumer.position(PLACE),
        lambda: consumer.seek(PLACE, 0),
        lambda: consumer.subscribe(["orders"]),
    )
    for _ in range(2):
        for call in calls:
            with pytest.raises(GroupAuthorizationFailedError, match=REFUSED):
                await later(call)
        with pytest.raises(CommitFailedError, match=REFUSED):
            await consumer.commit()
    assert consumer.state is ConsumerMemberState.FATAL
    await consumer.stop()
    with pytest.raises(ConsumerStoppedError, match="stopped"):
        await consumer.getone()
