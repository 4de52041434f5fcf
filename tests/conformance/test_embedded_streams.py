"""Streams groups (KIP-1071) on an embedded Kafka, as a test looks at them and plays with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from fencepost import AsyncEmbeddedKafka, EmbeddedKafka, StreamsApp
from fencepost import StreamThreadState as T
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.trace.schema import RowKind
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

ORDERS = {TopicPartition("orders", number) for number in range(6)}
QUICK = {
    "group.streams.initial.rebalance.delay.ms": 0,
    "group.streams.min.heartbeat.interval.ms": 100,
    "group.streams.heartbeat.interval.ms": 200,
}


@pytest.fixture
async def kafka() -> AsyncIterator[AsyncEmbeddedKafka]:
    async with EmbeddedKafka(topics={"orders": 6}, config=QUICK) as kafka:
        yield kafka


async def ignore(partition: Any, records: Sequence[Any]) -> None:
    """Process nothing."""


def app_on(kafka: AsyncEmbeddedKafka, **settings: Any) -> StreamsApp:
    settings = {"topics": ["orders"], "group_id": "billing", "threads": 2, **settings}
    return StreamsApp(ignore, bootstrap_servers=kafka.bootstrap_servers, **settings)


async def test_a_group_shows_its_members_and_their_tasks(kafka: AsyncEmbeddedKafka) -> None:
    group = kafka.group("billing")
    assert (group.state, group.members()) == ("Dead", [])
    async with app_on(kafka):
        members = await group.wait_stable(2)
        assert group.state == "Stable"
    assert [each.protocol for each in members] == ["streams", "streams"]
    assert all(each.topics == ("orders",) and each.owned == each.assignment for each in members)
    assert sorted(len(each.active_tasks) for each in members) == [3, 3]
    assert {task for each in members for task in each.active_tasks} == {f"0_{n}" for n in range(6)}
    assert {one for each in members for one in each.assignment} == ORDERS
    assert not any(each.standby_tasks or each.warmup_tasks for each in members)
    await group.wait_stable(0)
    assert group.state == "Empty"
    assert kafka.check() == []


async def test_time_passes_for_who_is_gone_and_not_for_who_is_connected(kafka: AsyncEmbeddedKafka) -> None:
    group = kafka.group("billing")
    async with app_on(kafka):
        before = await group.wait_stable(2)
        kafka.clock.advance(100)
        assert group.members() == before
        assert not [row for row in kafka.events() if row.kind == RowKind.MEMBER_REMOVED]
    assert kafka.check() == []


@pytest.mark.parametrize("verb", ["fence", "expire"])
async def test_a_member_that_is_removed_comes_back(kafka: AsyncEmbeddedKafka, verb: str) -> None:
    group = kafka.group("billing")
    async with app_on(kafka) as app:
        one, _ = await group.wait_stable(2)
        getattr(group, verb)(one)
        again = await group.wait_stable(2)
        removed = [row for row in kafka.events() if row.kind == RowKind.MEMBER_REMOVED]
        why = {"fence": "fenced", "expire": "session"}[verb]
        assert [(row.actor, row.detail) for row in removed] == [(one.member_id, why)]
        assert all(each.epoch > one.epoch for each in again)
        await until(lambda: list(app.threads.values()).count(T.RUNNING) == 2)
    assert kafka.check() == []


async def test_a_rebalance_that_is_asked_for_raises_the_epoch(kafka: AsyncEmbeddedKafka) -> None:
    group = kafka.group("billing")
    with pytest.raises(FencepostError, match="has no members"):
        group.rebalance()
    async with app_on(kafka, threads=1):
        (before,) = await group.wait_stable(1)
        group.rebalance()
        assert group.state == "Assigning"
        (after,) = await group.wait_stable(1)
        assert after.epoch == before.epoch + 1
    assert kafka.check() == []


async def test_the_trace_tells_of_streams_groups(kafka: AsyncEmbeddedKafka) -> None:
    group = kafka.group("billing")
    async with app_on(kafka):
        members = {each.member_id for each in await group.wait_stable(2)}
    await group.wait_stable(0)
    rows = [row for row in kafka.events() if row.group == "billing"]
    said = {kind: [row for row in rows if row.kind == kind] for kind in {row.kind for row in rows}}
    assert {row.actor for row in said[RowKind.HEARTBEAT]} == members
    assert {row.detail for row in said[RowKind.HEARTBEAT]} >= {"join", "ack", "leave"}
    assert [row.state_to for row in said[RowKind.GROUP_STATE]][-1] == "Empty"
    assert "Stable" in [row.state_to for row in said[RowKind.GROUP_STATE]]
    assert {row.detail for row in said[RowKind.GROUP_EPOCH]} >= {"join", "leave"}
    assert {row.actor for row in said[RowKind.MEMBER_REMOVED]} == members
    assert {row.detail for row in said[RowKind.MEMBER_REMOVED]} == {"left"}
    given = {p for row in said[RowKind.CALLBACK_END] if row.detail == "assigned" for p in row.partitions}
    assert given == ORDERS
    assert {"JOINING", "STABLE"} <= {row.state_to for row in said[RowKind.MEMBER_STATE]}
    assert said[RowKind.TARGET]
    assert {p for row in said[RowKind.ASSIGNMENT] for p in row.partitions} == ORDERS


def test_java_streams(streams_application) -> None:
    """Two instances of two threads each: their tasks, a clock that leaves them alone, a rebalance."""
    # Who joins while others do is given tasks, says in its next heartbeat that it has none, and takes them up
    # then: they may be another one's by that time. With a delay nobody is given any before all have joined.
    config = {**QUICK, "group.streams.initial.rebalance.delay.ms": 2_000}
    with EmbeddedKafka(topics={"orders": 4, "single": 1}, config=config) as kafka:
        group = kafka.group("app")
        arguments = (kafka.bootstrap_servers, "app", "streams", "count", "orders", "single")
        for _ in range(2):
            streams_application(*arguments, "num.stream.threads=2")
        before = group.wait_stable(4, timeout=120)
        assert {each.protocol for each in before} == {"streams"}
        tasks = {task for each in before for task in each.active_tasks}
        assert tasks == {f"{subtopology}_{number}" for subtopology in (0, 1) for number in range(4)}
        assert {one.topic for each in before for one in each.owned} == {"orders", "app-counts-repartition"}
        kafka.clock.advance(100)
        assert group.members() == before
        group.rebalance()
        after = group.wait_stable(4, timeout=120)
        assert {each.epoch for each in after} == {before[0].epoch + 1}
        assert kafka.check() == []
