"""The runner on a virtual clock: sessions end in time, expressions are matched behind the reply."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.regular_expressions import resolve
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.classic import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
)
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    LeaveGroupBatchRequest,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_PARTITIONS
from fencepost.coordinator.protocol.outcome import ResolveRegularExpressions, TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.runtime import CoordinatorRuntime
from fencepost.coordinator.server.clock import ServerClock
from fencepost.coordinator.server.runner import CoordinatorRunner

IMAGE = TopicsImage.of(
    Topic(topic_id=f"topic-id-{name:>013}", name=name, partitions=2)
    for name in ("audit", "orders", "orders-eu")
)


@pytest.fixture
async def runner():
    runtime = CoordinatorRuntime(GroupCoordinator(GroupCoordinatorConfig()), MemoryJournal())
    runner = CoordinatorRunner(runtime, ServerClock(asyncio.get_running_loop()))
    runner.process(TopicsChanged(image=IMAGE))
    yield runner
    runner.close()


def join(member_id: str, **subscription) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        topic_partitions=NO_PARTITIONS,
        **subscription,
    )


def members(runner: CoordinatorRunner) -> list[str]:
    return list(runner.runtime.coordinator.groups["g"].members)


async def test_each_session_ends_in_time_and_not_before(runner):
    runner.process(join("early", subscribed_topic_names=("orders",)))
    await asyncio.sleep(10)
    runner.process(join("late", subscribed_topic_names=("orders",)))
    await asyncio.sleep(34.9)
    assert members(runner) == ["early", "late"]
    await asyncio.sleep(0.2)
    assert members(runner) == ["late"]
    await asyncio.sleep(10)
    assert members(runner) == []


async def test_heartbeats_keep_a_session_alive(runner):
    reply = runner.process(join("m", subscribed_topic_names=("orders",)))
    again = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=reply.member_epoch)
    for _ in range(30):
        await asyncio.sleep(5)
        reply = runner.process(again)
        assert reply.error_code is ErrorCode.NONE
    await asyncio.sleep(44)
    assert members(runner) == ["m"]
    await asyncio.sleep(2)
    assert runner.process(again).error_code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_closed_runner_does_nothing_by_itself(runner):
    runner.process(join("m", subscribed_topic_names=("orders",)))
    runner.close()
    await asyncio.sleep(1_000)
    assert members(runner) == ["m"]


async def test_an_expression_is_matched_behind_the_reply(runner):
    first = runner.process(join("m", subscribed_topic_regex="orders.*"))
    assert first.assignment == {}
    again = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=first.member_epoch)
    await asyncio.sleep(2)
    reply = runner.process(again)
    names = {IMAGE.name_of(topic_id) for topic_id in reply.assignment}
    assert names == {"orders", "orders-eu"}


async def test_a_deadline_that_comes_with_a_mere_answer_is_kept(runner):
    def join_classic(token: int, **fields: str) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id="c",
            protocol_type="consumer",
            protocols=(JoinGroupProtocol("range", b""),),
            session_timeout_ms=45_000,
            rebalance_timeout_ms=45_000,
            new_member_suffix=str(token),
            token=token,
            **fields,
        )

    answer = runner.process(join_classic(1))
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code is ErrorCode.MEMBER_ID_REQUIRED
    joined = await runner.process(join_classic(2, instance_id="i"))
    leave = LeaveGroupRequest(group_id="c", member_id=joined.member_id)
    runner.process(LeaveGroupBatchRequest(group_id="c", members=(leave,)))
    # Nobody is left whose rebalance time-out could be waited for.
    await asyncio.sleep(0.1)
    assert runner.runtime.coordinator.classic.groups["c"].state == "Empty"


def test_an_expression_matches_whole_names():
    """One that does not compile comes from the journal of another version."""
    expressions = ("orders", "orders.*|audit", "(broken", ".{1,1000}" * 20)
    effect = ResolveRegularExpressions(group_id="g", regular_expressions=expressions)
    assert list(resolve(effect, IMAGE).topics.values()) == [
        ("orders",),
        ("audit", "orders", "orders-eu"),
        (),
        (),
    ]
