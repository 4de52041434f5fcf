"""Unsubscribing, closing, and leaving because the application does not poll."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.consumer.actions import (
    FindCoordinator,
    LeaveFinished,
    RunCallback,
    SendCommit,
    SendHeartbeat,
)
from fencepost.member.consumer.errors import CallbackFailed
from fencepost.member.consumer.leave import CloseOption

MakeRig = Callable[..., Any]
FOO = "foo-id"
FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def unsubscribe(r: Any) -> None:
    r.take(r.member.unsubscribe(r.now))


def close(r: Any, option: CloseOption = CloseOption.DEFAULT, timeout_ms: int = 30_000) -> None:
    r.take(r.member.close(r.now, option, timeout_ms))


def finished(r: Any) -> int:
    return sum(isinstance(action, LeaveFinished) for action in r.log)


def events(r: Any, since: int) -> list[str]:
    return [f"{move.event} -> {move.target}" for move in r.moves[since:]]


# -- unsubscribe -----------------------------------------------------------------------------------------


def test_unsubscribe_revokes_everything_then_leaves(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    moved = len(r.moves)
    unsubscribe(r)
    assert r.state == "PREPARE_LEAVING"
    assert r.pending(SendCommit) == []
    assert r.fetchable() == {}
    revoked = r.callback()
    assert (revoked.kind, revoked.partitions) == ("revoked", (FOO_0, FOO_1))
    leave = r.heartbeat()
    assert (leave.member_epoch, leave.instance_id, leave.topic_partitions) == (-1, None, None)
    assert events(r, moved) == [
        "unsubscribe -> PREPARE_LEAVING",
        "released -> LEAVING",
        "leave built -> UNSUBSCRIBED",
    ]
    assert finished(r) == 0
    r.answer(-1)
    assert finished(r) == 1
    assert r.member.member_epoch == 0
    r.advance(600_000)
    assert r.open == []


def test_heartbeats_go_on_while_on_revoked_runs(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    unsubscribe(r)
    r.advance(5_000)
    request = r.answer(7, {FOO: (1,)})
    assert request.subscribed_topic_names is None, "the subscription stays until the member has left"
    assert request.topic_partitions is None
    assert r.member.member_epoch == 7
    assert r.state == "PREPARE_LEAVING"


def test_heartbeats_end_where_nobody_polls_while_on_revoked_runs(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=8_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    unsubscribe(r)
    r.advance(5_000)
    r.answer()
    r.advance(60_000)
    assert r.pending(SendHeartbeat) == []
    r.callback()
    assert r.heartbeat().member_epoch == -1


def test_a_static_member_leaves_for_a_while(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1")
    r.stable({})
    unsubscribe(r)
    assert (r.heartbeat().member_epoch, r.heartbeat().instance_id) == (-2, "host-1")


def test_unsubscribe_before_the_first_answer_leaves_without_waiting_for_it(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    unsubscribe(r)
    join, leave = r.pending(SendHeartbeat)
    assert (join.request.member_epoch, leave.request.member_epoch) == (0, -1)
    assert r.pending(RunCallback) == []
    assert r.state == "UNSUBSCRIBED"


def test_unsubscribe_before_anything_was_sent_tells_nobody(rig: MakeRig) -> None:
    r = rig()
    r.auto_coordinator = False
    r.join("foo")
    unsubscribe(r)
    assert r.state == "UNSUBSCRIBED"
    assert r.pending(SendHeartbeat) == []
    assert finished(r) == 1


def test_unsubscribe_of_nothing_is_done_at_once(rig: MakeRig) -> None:
    r = rig()
    unsubscribe(r)
    assert finished(r) == 1
    assert r.state == "UNSUBSCRIBED"


def test_unsubscribe_during_a_pass_waits_for_its_callback_and_abandons_the_rest(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(2, {FOO: (1,)})
    unsubscribe(r)
    assert r.callback().partitions == (FOO_0,)
    assert r.pending(RunCallback) == [], "nothing is assigned any more, and nothing is left to revoke"
    assert r.heartbeat().member_epoch == -1


def test_unsubscribe_while_on_assigned_runs_revokes_what_it_assigned(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    unsubscribe(r)
    assert r.callback().kind == "assigned"
    revoked = r.callback()
    assert (revoked.kind, revoked.partitions) == ("revoked", (FOO_0,))


def test_unsubscribe_while_fenced_stays_out_after_on_lost(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    unsubscribe(r)
    assert r.state == "UNSUBSCRIBED"
    assert finished(r) == 0
    r.callback()
    assert finished(r) == 1
    assert r.open == []


def test_a_member_that_is_fenced_while_it_leaves_has_left(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    unsubscribe(r)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.state == "UNSUBSCRIBED"
    assert r.callback().kind == "revoked"
    assert r.pending(SendHeartbeat) == []
    assert finished(r) == 1


def test_a_member_that_is_fenced_before_on_revoked_could_begin_loses_instead(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)
    unsubscribe(r)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.callback().kind == "assigned"
    assert r.callback().kind == "lost"
    assert finished(r) == 1


def test_a_fatal_error_while_on_revoked_runs_ends_the_leaving(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    unsubscribe(r)
    r.answer(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert r.state == "FATAL"
    assert finished(r) == 0
    assert r.callback().kind == "revoked"
    assert r.pending(RunCallback) == []
    assert finished(r) == 1


def test_on_revoked_that_raises_does_not_stop_the_leave(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    unsubscribe(r)
    r.callback(error=RuntimeError("cannot"))
    assert r.heartbeat().member_epoch == -1
    assert isinstance(r.errors[0].error, CallbackFailed)
    assert r.member.owned_partitions() == ()


def test_a_late_answer_does_not_reach_the_member_that_left(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    unsubscribe(r)
    r.callback()
    keepalive, _ = r.pending(SendHeartbeat)
    r.answer(9, {FOO: (1,)}, action=keepalive)
    assert r.state == "UNSUBSCRIBED"
    assert r.member.member_epoch == 0
    assert r.pending(RunCallback) == []


def test_subscribing_again_joins_with_the_next_poll(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    unsubscribe(r)
    r.callback()
    r.answer(-1)
    r.poll_end()
    r.subscribe("bar")
    assert r.state == "UNSUBSCRIBED"
    r.poll_begin()
    request = r.heartbeat()
    assert (request.member_id, request.member_epoch, request.subscribed_topic_names) == (
        "member",
        0,
        ("bar",),
    )
    assert request.rebalance_timeout_ms != -1


def test_a_rejoin_waits_for_the_heartbeat_that_is_still_in_flight(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.advance(5_000)
    unsubscribe(r)
    r.subscribe("bar")
    assert r.state == "JOINING"
    keepalive, leave = r.pending(SendHeartbeat)
    r.answer(9, {FOO: (1,)}, action=keepalive)
    assert r.state == "JOINING", "the answer belongs to the membership before"
    assert leave in r.pending(SendHeartbeat)
    join = next(a for a in r.pending(SendHeartbeat) if a is not leave)
    assert join.request.member_epoch == 0


# -- the leave on its way --------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [None, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_a_leave_that_may_not_have_arrived_is_sent_again(rig: MakeRig, code: ErrorCode | None) -> None:
    r = rig()
    r.stable({})
    unsubscribe(r)
    for _ in range(3):
        if code is None:
            r.fail()
        else:
            r.answer(error=code)
        assert finished(r) == 0
        r.advance(1_000)
        assert r.heartbeat().member_epoch == -1
    r.answer(-1)
    assert finished(r) == 1


def test_a_leave_is_given_up_in_the_end(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    unsubscribe(r)
    began = r.now
    while not finished(r):
        if r.pending(SendHeartbeat):
            r.fail()
        r.advance(100)
    assert r.now - began <= 31_000
    r.advance(600_000)
    assert r.open == []


def test_any_other_error_ends_the_leave(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    unsubscribe(r)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert finished(r) == 1
    assert r.state == "UNSUBSCRIBED"


def test_a_rejoin_stops_the_leave_from_being_sent_again(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    unsubscribe(r)
    r.fail()
    r.subscribe("bar")
    r.advance(30_000)
    assert all(action.request.member_epoch == 0 for action in r.pending(SendHeartbeat))
    assert finished(r) == 1


# -- close -----------------------------------------------------------------------------------------------


def test_close_commits_revokes_and_leaves(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    close(r)
    assert r.pending(RunCallback) == []
    offsets = r.committed().request.offsets
    assert {partition: each.offset for partition, each in offsets.items()} == {FOO_0: 5}
    assert r.callback().kind == "revoked"
    assert r.answer(-1).member_epoch == -1
    assert finished(r) == 1
    with pytest.raises(ValueError, match="closed"):
        r.subscribe("foo")
    r.poll()
    assert r.open == []


@pytest.mark.parametrize(
    ("instance_id", "option", "epoch"),
    [
        (None, CloseOption.DEFAULT, -1),
        (None, CloseOption.LEAVE_GROUP, -1),
        (None, CloseOption.REMAIN_IN_GROUP, None),
        ("host-1", CloseOption.DEFAULT, -2),
        ("host-1", CloseOption.LEAVE_GROUP, -1),
        ("host-1", CloseOption.REMAIN_IN_GROUP, -2),
    ],
)
def test_close_tells_the_coordinator_what_its_option_says(
    rig: MakeRig, instance_id: str | None, option: CloseOption, epoch: int | None
) -> None:
    r = rig(group_instance_id=instance_id)
    r.stable({})
    close(r, option)
    assert [action.request.member_epoch for action in r.pending(SendHeartbeat)] == (
        [] if epoch is None else [epoch]
    )
    assert r.state == "UNSUBSCRIBED"


@pytest.mark.parametrize("subscribed", [False, True])
def test_close_of_a_member_that_never_joined(rig: MakeRig, subscribed: bool) -> None:
    r = rig()
    if subscribed:
        r.subscribe("foo")
    close(r)
    assert [move.target for move in r.moves] == ["PREPARE_LEAVING", "UNSUBSCRIBED"]
    assert finished(r) == 1
    assert r.open == []


def test_close_waits_for_the_callback_of_a_member_that_has_left_already(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    unsubscribe(r)
    close(r)
    assert finished(r) == 0
    r.callback()
    assert finished(r) == 1


def test_close_after_unsubscribe_decides_how_to_leave(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1")
    r.stable({FOO: (0,)})
    unsubscribe(r)
    close(r, CloseOption.LEAVE_GROUP)
    r.callback()
    assert r.heartbeat().member_epoch == -1


def test_close_takes_no_longer_than_its_time(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    close(r, timeout_ms=1_000)
    r.advance(500)
    r.committed()
    assert r.pending(RunCallback)
    r.advance(499)
    assert finished(r) == 0
    r.advance(1)
    assert finished(r) == 1
    assert r.heartbeat().member_epoch == -1, "the leave goes out even so"
    assert r.member.next_deadline() is None


def test_close_gives_a_commit_up_that_cannot_be_made(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0,)})
    r.poll_end({FOO_0: 5})
    close(r, timeout_ms=1_000)
    r.committed(ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.callback().kind == "revoked"


def test_close_without_a_coordinator_ends_in_time(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.auto_coordinator = False
    r.advance(5_000)
    r.fail()
    close(r, timeout_ms=2_000)
    r.open.clear()
    r.advance(2_000)
    assert finished(r) == 1
    assert r.pending(SendHeartbeat) == []


# -- not polling -----------------------------------------------------------------------------------------


def test_a_member_that_is_not_polled_leaves_and_comes_back_with_the_next_poll(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=20_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    moved = len(r.moves)
    for _ in range(3):
        r.advance(5_000)
        r.answer()
    r.advance(4_999)
    assert r.state == "STABLE"
    r.advance(1)
    assert events(r, moved) == [
        "poll timed out -> PREPARE_LEAVING",
        "poll timed out -> LEAVING",
        "leave built -> STALE",
    ]
    assert r.heartbeat().member_epoch == -1
    assert r.fetchable() == {}
    assert r.callback().kind == "lost"
    r.advance(600_000)
    r.answer(-1)
    assert r.open == []
    assert r.state == "STALE"
    r.poll_begin()
    assert r.state == "JOINING"


def test_a_stale_member_rejoins_only_after_on_lost(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    r.advance(1_000)
    r.answer(-1)
    r.poll_begin()
    assert r.state == "STALE"
    assert r.callback().kind == "lost"
    assert r.state == "JOINING"
    assert r.heartbeat().member_epoch == 0


def test_a_static_member_that_is_not_polled_keeps_its_place(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000, group_instance_id="host-1")
    r.stable({})
    r.poll_end()
    r.advance(1_000)
    assert r.heartbeat().member_epoch == -2


def test_the_poll_timer_does_not_run_inside_a_poll(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({})
    for _ in range(10):
        r.advance(5_000)
        r.answer()
    assert r.state == "STABLE"


def test_a_poll_that_raised_starts_the_poll_timer(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({})
    r.take(r.member.poll_failed(r.now))
    r.advance(1_000)
    assert r.state == "STALE"


def test_a_stale_member_that_unsubscribes_stays_out(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=1_000)
    r.stable({})
    r.poll_end()
    r.advance(1_000)
    r.answer(-1)
    unsubscribe(r)
    assert finished(r) == 1
    r.poll_begin()
    assert r.state == "STALE"
    r.subscribe("foo")
    assert r.state == "JOINING"


def test_a_member_fenced_while_it_is_not_polled_does_not_join(rig: MakeRig) -> None:
    r = rig(max_poll_interval_ms=6_000)
    r.stable({FOO: (0,)})
    r.poll_end()
    r.advance(5_000)
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    r.advance(5_000)
    r.callback()
    assert r.state == "STALE"
    assert r.pending(SendHeartbeat) == []
    assert r.pending(FindCoordinator) == []
