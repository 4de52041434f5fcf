"""What a shell that plays with time tells a coordinator: members are heard, or gone, and groups rebalance."""

from __future__ import annotations

import pytest

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    MemberFenced,
    MemberHeard,
    RebalanceRequested,
    SessionEnded,
    TopicsChanged,
)
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest, Subtopology, Topology
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from tests.hosting import steps_due

ORDERS = Topic(topic_id="topic-id-of-orders-000", name="orders", partitions=4)
SESSION_MS = 45_000


@pytest.fixture
def runtime():
    config = GroupCoordinatorConfig(group_initial_rebalance_delay_ms=0)
    runtime = CoordinatorHost(GroupCoordinator(config), MemoryJournal())
    runtime.step(TopicsChanged(image=TopicsImage.of([ORDERS])), 0)
    return runtime


def join(runtime, member_id, now_ms=0):
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=("orders",),
        topic_partitions={},
    )
    return runtime.step(request, now_ms).reply


def beat(runtime, member_id, epoch, now_ms=0):
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch)
    return runtime.step(request, now_ms).reply


def classic_member(runtime):
    request = classic.JoinGroupRequest(
        group_id="g",
        protocol_type="consumer",
        protocols=(classic.JoinGroupProtocol("range", b""),),
        session_timeout_ms=SESSION_MS,
        rebalance_timeout_ms=10_000,
        api_version=3,
        new_member_suffix="1",
        token=1,
    )
    runtime.step(request, 0)
    (reply,) = (effect.response for outcome in steps_due(runtime, 0) for effect in outcome.effects)
    sync = classic.SyncGroupRequest(
        group_id="g", generation=reply.generation, member_id=reply.member_id, assignments={}, token=2
    )
    runtime.step(sync, 0)
    assert runtime.coordinator.classic.groups["g"].state is ClassicGroupState.STABLE
    return reply


def test_who_is_heard_lives_on_and_others_do_not(runtime):
    join(runtime, "heard")
    join(runtime, "silent")
    assert runtime.step(MemberHeard(group_id="g", member_id="heard"), SESSION_MS - 1) is NOTHING
    steps_due(runtime, SESSION_MS)
    assert list(runtime.coordinator.groups["g"].members) == ["heard"]


def test_a_session_that_is_ended_takes_the_member_with_it(runtime):
    epoch = join(runtime, "m").member_epoch
    outcome = runtime.step(SessionEnded(group_id="g", member_id="m"), 1)
    assert outcome.effects == (MemberFenced(group_id="g", member_id="m", reason="session"),)
    assert beat(runtime, "m", epoch, 2).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_rebalance_that_is_asked_for_raises_the_epoch_and_moves_nothing(runtime):
    joined = join(runtime, "m")
    runtime.step(RebalanceRequested(group_id="g"), 1)
    group = runtime.coordinator.groups["g"]
    assert group.group_epoch == joined.member_epoch + 1
    told = beat(runtime, "m", joined.member_epoch, 5_000)
    assert (told.error_code, told.member_epoch) == (ErrorCode.NONE, joined.member_epoch + 1)
    assert group.members["m"].assigned == {ORDERS.topic_id: (0, 1, 2, 3)}


@pytest.mark.parametrize(
    "event",
    [
        MemberHeard(group_id="g", member_id="nobody"),
        SessionEnded(group_id="g", member_id="nobody"),
        MemberHeard(group_id="none", member_id="m"),
        SessionEnded(group_id="none", member_id="m"),
        RebalanceRequested(group_id="none"),
    ],
)
def test_what_is_not_there_is_left_alone(runtime, event):
    join(runtime, "m")
    assert runtime.step(event, 1) is NOTHING


def test_classic_members_are_heard(runtime):
    member = classic_member(runtime)
    runtime.step(MemberHeard(group_id="g", member_id=member.member_id), SESSION_MS - 1)
    steps_due(runtime, SESSION_MS)
    assert list(runtime.coordinator.classic.groups["g"].members) == [member.member_id]
    steps_due(runtime, 2 * SESSION_MS - 1)
    assert not runtime.coordinator.classic.groups["g"].members


def test_a_classic_session_ends(runtime):
    member = classic_member(runtime)
    outcome = runtime.step(SessionEnded(group_id="g", member_id=member.member_id), 1)
    assert [effect.reason for effect in outcome.effects] == ["session"]
    assert not runtime.coordinator.classic.groups["g"].members
    assert runtime.step(SessionEnded(group_id="g", member_id=member.member_id), 2) is NOTHING


def test_a_classic_group_joins_anew(runtime):
    member = classic_member(runtime)
    runtime.step(RebalanceRequested(group_id="g"), 1)
    request = classic.HeartbeatRequest(group_id="g", generation=member.generation, member_id=member.member_id)
    assert runtime.step(request, 2).reply.error_code is ErrorCode.REBALANCE_IN_PROGRESS


def streams_member(runtime, member_id, now_ms=0):
    request = StreamsGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        topology=Topology(0, (Subtopology("0", ("orders",)),)),
        process_id="p",
        active_tasks={},
        standby_tasks={},
        warmup_tasks={},
    )
    return runtime.step(request, now_ms).reply


def test_streams_members_are_heard(runtime):
    streams_member(runtime, "heard")
    streams_member(runtime, "silent")
    runtime.step(MemberHeard(group_id="g", member_id="heard"), SESSION_MS - 1)
    steps_due(runtime, SESSION_MS)
    assert list(runtime.coordinator.streams.groups["g"].members) == ["heard"]


def test_a_streams_session_ends(runtime):
    streams_member(runtime, "m")
    streams_member(runtime, "n")
    outcome = runtime.step(SessionEnded(group_id="g", member_id="m"), 1)
    assert outcome.effects == (MemberFenced(group_id="g", member_id="m", reason="session"),)
    assert list(runtime.coordinator.streams.groups["g"].members) == ["n"]
    assert runtime.step(SessionEnded(group_id="g", member_id="m"), 2) is NOTHING


def test_a_streams_group_gets_another_epoch(runtime):
    streams_member(runtime, "m")
    group = runtime.coordinator.streams.groups["g"]
    epoch = group.group_epoch
    runtime.step(RebalanceRequested(group_id="g"), 1)
    assert group.group_epoch == epoch + 1
    runtime.step(SessionEnded(group_id="g", member_id="m"), 2)
    assert runtime.step(RebalanceRequested(group_id="g"), 3) is NOTHING
