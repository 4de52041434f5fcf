"""Static members of applications: each thread has its own instance id, which outlives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fencepost import EmbeddedKafka, GroupMember, StreamsApp
from fencepost import StreamClientState as S
from fencepost import StreamThreadExceptionResponse as Response
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.trace.schema import RowKind
from tests.waiting import until

PROTOCOLS = ("consumer", "classic")
JOINS = {"consumer": "ConsumerGroupHeartbeat", "classic": "JoinGroup"}
HEARTBEATS = {"consumer": "ConsumerGroupHeartbeat", "classic": "Heartbeat"}
pytestmark = [pytest.mark.real, pytest.mark.timeout(120), pytest.mark.parametrize("protocol", PROTOCOLS)]


class Work:
    """Remembers what it has seen, and fails once at each value that it is told of."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.bad: set[bytes] = set()

    async def __call__(self, partition: Any, records: Sequence[Any]) -> None:
        for record in records:
            if record.value in self.bad:
                self.bad.remove(record.value)
                raise ValueError("bad record")
            self.seen.append(record.value)


def app_on(kafka: Any, protocol: str, work: Work, **settings: Any) -> StreamsApp:
    return StreamsApp(
        work,
        topics=["orders"],
        group_id="billing",
        threads=2,
        group_protocol=protocol,
        group_instance_id="x",
        commit_interval_ms=50,
        bootstrap_servers=kafka.bootstrap_servers,
        **settings,
    )


def instances(kafka: Any) -> dict[str | None, GroupMember]:
    return {member.instance_id: member for member in kafka.group("billing").members()}


def shares(kafka: Any) -> dict[str | None, tuple[int, Any]]:
    """What a rebalance would change: epochs, and who has what."""
    return {name: (member.epoch, member.assignment) for name, member in instances(kafka).items()}


async def settled(kafka: Any, app: StreamsApp, *names: str) -> None:
    """Wait until these threads have all there is between them, and each has heard of its share."""
    await kafka.group("billing").wait_stable(members=len(names), timeout=60)
    await until(lambda: app.state is S.RUNNING)
    assert instances(kafka).keys() == {*names}


async def test_each_thread_is_a_static_member_that_comes_back_without_a_rebalance(protocol: str) -> None:
    work = Work()
    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        async with app_on(kafka, protocol, work) as app:
            await settled(kafka, app, "x-1", "x-2")
            kafka.produce("orders", b"first", partition=0)
            await until(lambda: work.seen == [b"first"])
            await until(lambda: set(app.threads.values()) == {"RUNNING"})
            before = shares(kafka)
        assert instances(kafka).keys() == {"x-1", "x-2"}
        async with app_on(kafka, protocol, work) as app:
            await until(lambda: app.state is S.RUNNING)
            for partition in range(4):
                kafka.produce("orders", b"again", partition=partition)
            await until(lambda: len(work.seen) == 5)
            assert shares(kafka) == before
        assert kafka.check() == []


async def test_a_thread_that_replaces_another_one_is_the_same_member(protocol: str) -> None:
    work, asked = Work(), []
    work.bad = {b"bad"}

    def on_exception(error: BaseException) -> Response:
        asked.append(error)
        return Response.REPLACE_THREAD

    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        async with app_on(kafka, protocol, work, handler=on_exception) as app:
            await settled(kafka, app, "x-1", "x-2")
            before = shares(kafka)
            kafka.produce("orders", b"bad", partition=0)
            await until(lambda: work.seen == [b"bad"])
            await until(lambda: app.state is S.RUNNING)
            assert len(asked) == 1
            assert shares(kafka) == before
        assert kafka.check() == []


@pytest.mark.long
async def test_a_thread_that_is_removed_leaves_its_number_to_the_next_one(protocol: str) -> None:
    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        async with app_on(kafka, protocol, Work()) as app:
            await settled(kafka, app, "x-1", "x-2")
            assert await app.remove_thread(30)
            await settled(kafka, app, "x-2")
            app.add_thread()
            app.add_thread()
            await settled(kafka, app, "x-1", "x-2", "x-3")
        assert kafka.check() == []


async def test_a_thread_that_is_removed_while_it_joins_leaves_the_group_for_good(protocol: str) -> None:
    delayed = GroupCoordinatorConfig(group_initial_rebalance_delay_ms=3_000)
    async with EmbeddedKafka(topics={"orders": 4}, config=delayed) as kafka:
        app = StreamsApp(
            Work(),
            topics=["orders"],
            group_id="billing",
            group_protocol=protocol,
            group_instance_id="x",
            bootstrap_servers=kafka.bootstrap_servers,
        )
        async with app:
            await until(lambda: "x-1" in instances(kafka))
            assert await app.remove_thread(30)
            await until(lambda: not instances(kafka))
        assert kafka.check() == []


async def test_a_thread_whose_join_got_no_response_joins_all_the_same(protocol: str) -> None:
    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        kafka.lose_next_response(JOINS[protocol])
        async with app_on(kafka, protocol, Work()) as app:
            await settled(kafka, app, "x-1", "x-2")
            assert set(app.threads.values()) == {"RUNNING"}
        assert kafka.check() == []


async def test_a_static_thread_that_is_fenced_goes_on(protocol: str) -> None:
    """Threads of a classic group join again, whose instance ids refuse nobody."""
    work, asked = Work(), []

    def on_exception(error: BaseException) -> Response:
        asked.append(error)
        return Response.REPLACE_THREAD

    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        async with app_on(kafka, protocol, work, handler=on_exception) as app:
            await settled(kafka, app, "x-1", "x-2")
            kafka.group("billing").fence("x-1")
            await until(
                lambda: [row.state_to for row in kafka.events() if row.kind == RowKind.FAULT][-1:] == ["met"]
            )
            kafka.produce("orders", b"record", partition=0)
            await until(lambda: b"record" in work.seen)
            await settled(kafka, app, "x-1", "x-2")
            assert asked == []
        assert kafka.check() == []


@pytest.mark.long
async def test_a_thread_frees_the_instance_id_of_the_thread_that_it_replaces(protocol: str) -> None:
    """An error that ends a member keeps it from leaving: the coordinator has it until its session ends."""
    asked: list[BaseException] = []

    def on_exception(error: BaseException) -> Response:
        asked.append(error)
        return Response.REPLACE_THREAD

    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        async with app_on(kafka, protocol, Work(), handler=on_exception) as app:
            await settled(kafka, app, "x-1", "x-2")
            kafka.fail_next(HEARTBEATS[protocol], "GROUP_AUTHORIZATION_FAILED", member="x-1")
            await until(lambda: asked)
            await settled(kafka, app, "x-1", "x-2")
            assert len(asked) == 1
        assert kafka.check() == []


@pytest.mark.long
async def test_of_two_applications_with_the_same_instance_ids_one_ends(protocol: str) -> None:
    """KIP-848 refuses the second one; a classic group fences the first one."""
    async with EmbeddedKafka(topics={"orders": 4}) as kafka:
        async with app_on(kafka, protocol, Work()) as first:
            await settled(kafka, first, "x-1", "x-2")
            before = shares(kafka)
            async with app_on(kafka, protocol, Work()) as second:
                stays, ends = (first, second) if protocol == "consumer" else (second, first)
                await until(lambda: ends.state is S.ERROR)
                await settled(kafka, stays, "x-1", "x-2")
                if protocol == "consumer":
                    assert shares(kafka) == before
        assert kafka.check() == []
