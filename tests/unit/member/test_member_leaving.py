"""Unsubscribing, and the leave on its way."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base import actions
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.errors import CallbackFailed
from fencepost.member.base.leave import Leave
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO = "foo-id"
FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)


def test_unsubscribe_revokes_everything_then_leaves(rig: MakeRig) -> None:
    r = rig(enable_auto_commit=True)
    r.stable({FOO: (0, 1)})
    r.poll_end({FOO_0: 5})
    moved = len(r.moves)
    r.unsubscribe()
    assert r.log[-1] == actions.WakeApplication()
    assert r.state == "PREPARE_LEAVING"
    assert r.pending(actions.SendCommit) == []
    assert r.fetchable() == {}
    with pytest.raises(ValueError, match="foo-0 is not assigned"):
        r.member.seek(FOO_0, 5, r.now)
    revoked = r.callback()
    assert (revoked.kind, revoked.partitions) == ("revoked", (FOO_0, FOO_1))
    leave = r.heartbeat()
    assert (leave.member_epoch, leave.instance_id, leave.topic_partitions) == (-1, None, None)
    assert r.steps(moved) == [
        "unsubscribe -> PREPARE_LEAVING",
        "released -> LEAVING",
        "leave built -> UNSUBSCRIBED",
    ]
    assert r.leaves_finished() == 0
    r.answer(-1)
    assert r.leaves_finished() == 1
    assert r.member.member_epoch == 0
    r.advance(600_000)
    r.close()
    assert r.open == []


def test_heartbeats_go_on_while_on_revoked_runs(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.unsubscribe()
    r.subscribe("bar")
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
    r.unsubscribe()
    r.advance(5_000)
    r.answer()
    r.advance(60_000)
    assert r.pending(SendHeartbeat) == []
    r.callback()
    assert r.heartbeat().member_epoch == -1


def test_a_static_member_leaves_for_a_while(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1")
    r.stable({})
    r.unsubscribe()
    assert (r.heartbeat().member_epoch, r.heartbeat().instance_id) == (-2, "host-1")


def test_unsubscribe_before_the_first_answer_leaves_without_waiting_for_it(rig: MakeRig) -> None:
    """KAFKA-17116."""
    r = rig()
    r.join("foo")
    r.unsubscribe()
    join, leave = r.pending(SendHeartbeat)
    assert (join.request.member_epoch, leave.request.member_epoch) == (0, -1)
    assert r.pending(actions.RunCallback) == []
    assert r.state == "UNSUBSCRIBED"


def test_unsubscribe_before_anything_was_sent_tells_nobody(rig: MakeRig) -> None:
    r = rig()
    r.auto_coordinator = False
    r.join("foo")
    r.unsubscribe()
    assert r.state == "UNSUBSCRIBED"
    assert r.pending(SendHeartbeat) == []
    assert r.leaves_finished() == 1


def test_unsubscribe_of_nothing_is_done_at_once(rig: MakeRig) -> None:
    r = rig()
    r.unsubscribe()
    assert r.leaves_finished() == 1
    assert r.state == "UNSUBSCRIBED"


def test_unsubscribe_during_a_pass_waits_for_its_callback_and_abandons_the_rest(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(2, {FOO: (1,)})
    r.unsubscribe()
    assert r.callback().partitions == (FOO_0,)
    assert r.pending(actions.RunCallback) == [], "nothing is assigned any more, and nothing is left to revoke"
    assert r.heartbeat().member_epoch == -1


def test_unsubscribe_while_on_assigned_runs_revokes_what_it_assigned(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.auto_offsets = False
    r.answer(2, {FOO: (0,)})
    r.unsubscribe()
    r.advance(5_000)
    assert r.answer().topic_partitions is None
    with pytest.raises(ValueError, match="foo-0 is not assigned"):
        r.member.seek(FOO_0, 5, r.now)
    assert r.callback().kind == "assigned"
    assert r.pending(actions.FetchOffsets) == []
    revoked = r.callback()
    assert (revoked.kind, revoked.partitions) == ("revoked", (FOO_0,))


def test_unsubscribe_while_fenced_stays_out_after_on_lost(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    r.unsubscribe()
    assert r.state == "UNSUBSCRIBED"
    assert r.leaves_finished() == 0
    r.callback()
    assert r.leaves_finished() == 1
    assert r.open == []


def test_a_member_that_is_fenced_while_it_leaves_has_left(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.unsubscribe()
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.state == "UNSUBSCRIBED"
    assert r.callback().kind == "revoked"
    assert r.pending(SendHeartbeat) == []
    assert r.leaves_finished() == 1


def test_a_member_that_is_fenced_before_on_revoked_could_begin_loses_instead(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.answer(2, {FOO: (0,)})
    r.advance(5_000)
    r.unsubscribe()
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.callback().kind == "assigned"
    assert r.callback().kind == "lost"
    assert r.leaves_finished() == 1


def test_a_fatal_error_while_on_revoked_runs_ends_the_leaving(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.unsubscribe()
    r.answer(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert r.state == "FATAL"
    assert r.leaves_finished() == 0
    assert r.callback().kind == "revoked"
    assert r.pending(actions.RunCallback) == []
    assert r.leaves_finished() == 1


def test_on_revoked_that_raises_does_not_stop_the_leave(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.unsubscribe()
    r.callback(error=RuntimeError("cannot"))
    assert r.heartbeat().member_epoch == -1
    assert isinstance(r.errors[0].error, CallbackFailed)
    assert r.member.owned_partitions() == ()


def test_a_late_answer_does_not_reach_the_member_that_left(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.unsubscribe()
    r.callback()
    keepalive, _ = r.pending(SendHeartbeat)
    r.answer(9, {FOO: (1,)}, action=keepalive)
    assert r.state == "UNSUBSCRIBED"
    assert r.member.member_epoch == 0
    assert r.pending(actions.RunCallback) == []


def test_subscribing_again_joins_with_the_next_poll(rig: MakeRig) -> None:
    r = rig()
    r.stable({FOO: (0,)})
    r.unsubscribe()
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
    r.unsubscribe()
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
    """franz-go 88cf835c."""
    r = rig()
    r.stable({})
    r.unsubscribe()
    for _ in range(3):
        if code is None:
            r.fail()
        else:
            r.answer(error=code)
        assert r.leaves_finished() == 0
        r.advance(1_000)
        assert r.heartbeat().member_epoch == -1
    r.answer(-1)
    assert r.leaves_finished() == 1


@pytest.mark.parametrize("fails", [True, False])
def test_a_leave_is_given_up_in_the_end(rig: MakeRig, fails: bool) -> None:
    r = rig()
    r.stable({})
    r.unsubscribe()
    for _ in range(310):
        if fails and r.pending(SendHeartbeat):
            r.fail()
        r.advance(100)
    assert r.leaves_finished() == 1
    r.advance(600_000)
    assert len(r.open) == (0 if fails else 1), "it waits for no other request"


def test_any_other_error_ends_the_leave(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.unsubscribe()
    r.answer(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert r.leaves_finished() == 1
    assert r.state == "UNSUBSCRIBED"


def test_a_new_leave_does_not_wait_for_what_the_one_before_had_to() -> None:
    leave = Leave(Backoff(100, 1_000, random.Random(7)), itertools.count(1), lambda token, _: token)
    for now_ms in (1_000, 1_050):
        leave.begin("leave", now_ms, 30_000)
        leave.failed(leave.request(now_ms) or 0, now_ms)
        assert leave.retry_ms() in range(now_ms + 80, now_ms + 121)
    token = leave.request(2_000)
    leave.cancel()
    assert not leave.failed(token or 0, 2_000), "a cancelled leave is over"


def test_a_rejoin_stops_the_leave_from_being_sent_again(rig: MakeRig) -> None:
    r = rig()
    r.stable({})
    r.unsubscribe()
    r.fail()
    r.subscribe("bar")
    r.advance(30_000)
    assert all(action.request.member_epoch == 0 for action in r.pending(SendHeartbeat))
    assert r.leaves_finished() == 1
