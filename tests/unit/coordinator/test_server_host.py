"""A served host on a virtual clock: sessions end in time, expressions are matched behind the reply."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.regular_expressions import resolve
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    LeaveGroupBatchRequest,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_PARTITIONS
from fencepost.coordinator.protocol.outcome import ResolveRegularExpressions, TopicsChanged
from fencepost.coordinator.protocol.slices import Sliced
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.server.groups import ServedHooks, ask
from fencepost.coordinator.server.internal_topics import InternalTopics
from fencepost.coordinator.server.loop import ServerClock
from fencepost.coordinator.server.turns import Share
from tests.waiting import until

IMAGE = TopicsImage.of(
    Topic(topic_id=f"topic-id-{name:>013}", name=name, partitions=2)
    for name in ("audit", "orders", "orders-eu")
)


@pytest.fixture
async def host():
    hooks = ServedHooks(InternalTopics())
    clock = ServerClock(asyncio.get_running_loop())
    host = hooks.host = CoordinatorHost(
        GroupCoordinator(GroupCoordinatorConfig()), MemoryJournal(), clock, hooks
    )
    host.process(TopicsChanged(image=IMAGE))
    yield host
    if not host.closed:
        host.close()


def join(member_id: str, **subscription) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        topic_partitions=NO_PARTITIONS,
        **subscription,
    )


def members(host: CoordinatorHost[GroupCoordinator]) -> list[str]:
    return list(host.coordinator.groups["g"].members)


async def test_each_session_ends_in_time_and_not_before(host):
    ask(host, join("early", subscribed_topic_names=("orders",)))
    await asyncio.sleep(10)
    ask(host, join("late", subscribed_topic_names=("orders",)))
    await asyncio.sleep(34.9)
    assert members(host) == ["early", "late"]
    await asyncio.sleep(0.2)
    assert members(host) == ["late"]
    await asyncio.sleep(10)
    assert members(host) == []


async def test_heartbeats_keep_a_session_alive(host):
    reply = ask(host, join("m", subscribed_topic_names=("orders",)))
    again = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=reply.member_epoch)
    for _ in range(30):
        await asyncio.sleep(5)
        reply = ask(host, again)
        assert reply.error_code is ErrorCode.NONE
    await asyncio.sleep(44)
    assert members(host) == ["m"]
    await asyncio.sleep(2)
    assert ask(host, again).error_code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_closed_runner_does_nothing_by_itself(host):
    ask(host, join("m", subscribed_topic_names=("orders",)))
    host.close()
    await asyncio.sleep(1_000)
    assert members(host) == ["m"]


async def test_an_expression_is_matched_behind_the_reply(host):
    first = ask(host, join("m", subscribed_topic_regex="orders.*"))
    assert first.assignment == {}
    again = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=first.member_epoch)
    await asyncio.sleep(2)
    reply = ask(host, again)
    names = {IMAGE.name_of(topic_id) for topic_id in reply.assignment}
    assert names == {"orders", "orders-eu"}


async def test_the_slices_of_expressions_take_turns_with_the_work_of_clients(host):
    ran: list[str] = []

    def work(name: str) -> Sliced[None]:
        for _ in range(3):
            ran.append(name)
            yield

    hooks = host._hooks
    heavy = Share()
    heavy.due_s = 1.0
    hooks.later(work("expression"))
    hooks.turns.run(Share(), lambda: hooks.turns.run(heavy, lambda: ran.append("heavy")))
    await until(lambda: len(ran) == 4, found=lambda: ran)
    assert ran == ["expression", "expression", "expression", "heavy"]


async def test_other_work_has_its_turn_between_timers_that_are_due_together(host, monkeypatch):
    for number in range(20):
        ask(host, join(f"m{number}", subscribed_topic_names=("orders",)))
    left = []
    monkeypatch.setattr(ServedHooks, "turn", lambda _: left.append(len(members(host))) or iter([None]))
    await asyncio.sleep(50)
    assert left == list(range(20, 0, -1))


def test_timers_that_are_due_together_run_for_one_piece_of_work_at_a_time():
    times = iter((1.0, 1.0004, 1.0008, 1.0012))
    hooks = object.__new__(ServedHooks)
    loop: Any = SimpleNamespace(time=lambda: next(times))
    hooks._loop = loop
    assert len(list(hooks.turn())) == 3


async def test_a_deadline_that_comes_with_a_mere_answer_is_kept(host):
    def join_classic(token: int, **fields: str) -> classic.JoinGroupRequest:
        return classic.JoinGroupRequest(
            group_id="c",
            protocol_type="consumer",
            protocols=(classic.JoinGroupProtocol("range", b""),),
            session_timeout_ms=45_000,
            rebalance_timeout_ms=45_000,
            new_member_suffix=str(token),
            token=token,
            **fields,
        )

    answer = ask(host, join_classic(1))
    assert isinstance(answer, classic.JoinGroupResponse)
    assert answer.error_code is ErrorCode.MEMBER_ID_REQUIRED
    waiting = ask(host, join_classic(2, instance_id="i"))
    assert isinstance(waiting, asyncio.Future)
    joined = await waiting
    leave = LeaveGroupRequest(group_id="c", member_id=joined.member_id)
    ask(host, LeaveGroupBatchRequest(group_id="c", members=(leave,)))
    # Nobody is left whose rebalance time-out could be waited for.
    await asyncio.sleep(0.1)
    assert host.coordinator.classic.groups["c"].state == "Empty"


def matching(expression: str) -> tuple[str, ...]:
    wanted = ResolveRegularExpressions(group_id="g", regular_expressions=(expression,))
    return resolve(wanted, IMAGE).topics[expression]


def test_an_expression_matches_whole_names():
    assert matching("orders") == ("orders",)
    assert matching("orders.*|audit") == ("audit", "orders", "orders-eu")


def test_an_expression_of_another_version_that_does_not_compile_matches_nothing():
    assert matching("(broken") == ()
