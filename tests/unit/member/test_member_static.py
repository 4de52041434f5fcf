"""A static member whose instance id is its own frees it before it joins again; no other one is disturbed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import STATIC_LEAVE_EPOCH
from fencepost.member.base.actions import RunCallback
from fencepost.member.consumer.actions import SendHeartbeat

MakeRig = Callable[..., Any]
FOO = "foo-id"
UNRELEASED = ErrorCode.UNRELEASED_INSTANCE_ID


@pytest.fixture
def joining_again(rig: MakeRig) -> Any:
    """A static member whose first join got no response, with its second one on the way."""
    r = rig(group_instance_id="host-1")
    r.join("foo")
    r.fail()
    r.advance(1_000)
    assert r.heartbeat().member_epoch == 0
    return r


def test_a_join_whose_response_was_lost_is_taken_in_the_end(joining_again: Any) -> None:
    r = joining_again
    r.answer(error=UNRELEASED)
    leave = r.heartbeat()
    assert (leave.member_epoch, leave.instance_id, leave.member_id) == (
        STATIC_LEAVE_EPOCH,
        "host-1",
        "member",
    )
    assert r.state == "JOINING"
    r.answer(STATIC_LEAVE_EPOCH)
    assert r.heartbeat().member_epoch == 0
    r.answer(3, {FOO: (0,)})
    assert r.errors == []
    assert r.member.member_epoch == 3


def test_a_fenced_member_comes_back(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1")
    r.stable({FOO: (0,)})
    r.advance(5_000)
    r.answer(error=ErrorCode.FENCED_MEMBER_EPOCH)
    while r.pending(RunCallback):
        r.callback()
    r.answer(error=UNRELEASED)
    assert r.heartbeat().member_epoch == STATIC_LEAVE_EPOCH
    r.answer(STATIC_LEAVE_EPOCH)
    assert r.heartbeat().member_epoch == 0
    assert r.errors == []


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND])
def test_an_instance_id_that_nobody_has_any_more_is_free(joining_again: Any, code: ErrorCode) -> None:
    joining_again.answer(error=UNRELEASED)
    joining_again.answer(error=code)
    assert joining_again.heartbeat().member_epoch == 0


def test_an_instance_id_of_another_member_ends_this_one(joining_again: Any) -> None:
    joining_again.answer(error=UNRELEASED)
    joining_again.answer(error=ErrorCode.FENCED_INSTANCE_ID)
    assert joining_again.state == "FATAL"
    assert joining_again.errors[-1].error.code is UNRELEASED


def test_a_leave_that_gets_no_response_is_sent_again_for_a_while(joining_again: Any) -> None:
    r = joining_again
    r.answer(error=UNRELEASED)
    for _ in range(3):
        r.fail()
        r.advance(2_000)
        assert r.heartbeat().member_epoch == STATIC_LEAVE_EPOCH
    r.fail()
    r.advance(r.config.request_timeout_ms)
    leaves = [each for each in r.pending(SendHeartbeat) if each.request.member_epoch < 0]
    for each in leaves:
        r.answer(STATIC_LEAVE_EPOCH, action=each)
    r.advance(1_000)
    assert r.heartbeat().member_epoch == 0, "the join finds out"


def test_a_close_in_between_leaves_once(joining_again: Any) -> None:
    r = joining_again
    r.answer(error=UNRELEASED)
    freeing = r.one(SendHeartbeat)
    r.close()
    leaves = [each for each in r.pending(SendHeartbeat) if each is not freeing]
    assert [each.request.member_epoch for each in leaves] == [STATIC_LEAVE_EPOCH]
    r.answer(STATIC_LEAVE_EPOCH, action=freeing)
    assert r.state == "UNSUBSCRIBED"
    r.answer(error=ErrorCode.FENCED_INSTANCE_ID, action=leaves[0])
    assert (r.state, r.pending(SendHeartbeat)) == ("UNSUBSCRIBED", [])


def test_a_new_process_is_refused_at_once(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1")
    r.join("foo")
    r.answer(error=UNRELEASED)
    assert r.state == "FATAL"
    assert r.pending(SendHeartbeat) == []


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    ],
)
def test_a_join_that_failed_for_now_may_have_been_written(rig: MakeRig, error: ErrorCode) -> None:
    r = rig(group_instance_id="host-1")
    r.join("foo")
    r.answer(error=error)
    r.advance(200)
    r.answer(error=UNRELEASED)
    assert r.heartbeat().member_epoch == STATIC_LEAVE_EPOCH


def test_a_dynamic_member_frees_nothing(rig: MakeRig) -> None:
    r = rig()
    r.join("foo")
    r.fail()
    r.advance(1_000)
    r.answer(error=UNRELEASED)
    assert r.state == "FATAL"
    assert r.pending(SendHeartbeat) == []


def test_a_leave_that_is_refused_for_good_ends_the_member_with_that_error(joining_again: Any) -> None:
    joining_again.answer(error=UNRELEASED)
    joining_again.answer(error=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    assert joining_again.state == "FATAL"
    assert joining_again.errors[-1].error.code is ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_an_id_of_another_member_is_asked_for_as_often_as_the_settings_say(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1", unreleased_instance_id_retries=1)
    r.join("foo")
    r.fail()
    r.advance(1_000)
    r.answer(error=UNRELEASED)
    r.answer(error=ErrorCode.FENCED_INSTANCE_ID)
    assert (r.state, r.open) == ("JOINING", [])
    r.advance(1_000)
    assert r.heartbeat().member_epoch == 0
    r.answer(error=UNRELEASED)
    assert r.state == "FATAL"


def test_a_member_frees_the_id_that_its_predecessor_left_behind(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1", instance_holders=("before",))
    r.join("foo")
    assert (r.heartbeat().member_id, r.heartbeat().member_epoch) == ("member", 0)
    r.answer(error=UNRELEASED)
    assert (r.heartbeat().member_id, r.heartbeat().member_epoch) == ("before", STATIC_LEAVE_EPOCH)
    r.answer(STATIC_LEAVE_EPOCH)
    assert (r.heartbeat().member_id, r.heartbeat().member_epoch) == ("member", 0)


def test_a_member_whose_join_was_lost_names_itself_and_then_its_predecessor(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1", instance_holders=("before",))
    r.join("foo")
    r.fail()
    r.advance(1_000)
    for name in ("member", "before"):
        r.answer(error=UNRELEASED)
        assert (r.heartbeat().member_id, r.heartbeat().member_epoch) == (name, STATIC_LEAVE_EPOCH)
        r.answer(error=ErrorCode.FENCED_INSTANCE_ID)
    assert r.state == "FATAL"
    assert r.member.instance_holders == ()


def test_a_member_that_is_not_polled_while_it_frees_its_id_does_not_join(rig: MakeRig) -> None:
    r = rig(group_instance_id="host-1", max_poll_interval_ms=2_000)
    r.join("foo")
    r.fail()
    r.advance(1_000)
    r.answer(error=UNRELEASED)
    r.poll_end()
    r.advance(2_000)
    assert r.state == "STALE"
    assert all(each.request.member_epoch < 0 for each in r.pending(SendHeartbeat))
