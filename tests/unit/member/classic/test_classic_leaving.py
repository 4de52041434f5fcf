"""How a classic member leaves, joins again on its own, and meets what is wrong."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse
from fencepost.coordinator.protocol.consumer_protocol import (
    read_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.actions import (
    LeaveFinished,
    RaiseToApplication,
)
from fencepost.member.base.errors import RequestFailure
from fencepost.member.base.leave import CloseOption
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.states import CLASSIC_MEMBER
from fencepost.member.classic.states import ClassicMemberState as S

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def test_an_application_that_does_not_poll_makes_room_for_others(new_rig) -> None:
    rig = new_rig(max_poll_interval_ms=2_000)
    rig.stable(0)
    rig.poll(p0=6)
    rig.pass_time(2_000)
    assert rig.member.state is S.STALE
    leave = rig.take(LeaveGroupRequest)
    assert (leave.member_id, leave.instance_id) == ("m", None)
    assert rig.calls[1:] == [("lost", [0])]
    rig.answer(LeaveGroupResponse())
    rig.pass_time(10_000)
    assert rig.sent == []
    rig.poll()
    assert rig.take(classic.JoinGroupRequest).member_id == ""


def test_closing_revokes_leaves_and_ends(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.do(rig.member.close(rig.now))
    assert rig.calls[1:] == [("revoked", [0])]
    rig.take(LeaveGroupRequest)
    rig.do(rig.member.request_failed(rig.token, RequestFailure.DISCONNECTED, rig.now))
    rig.pass_time(150)
    rig.take(LeaveGroupRequest)
    assert LeaveFinished() not in rig.other
    rig.answer(LeaveGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert rig.other[-1] == LeaveFinished()
    with pytest.raises(ValueError, match="closed"):
        rig.member.subscribe(("t",), None, rig.now)


@pytest.mark.parametrize(
    ("instance", "option", "leaves"),
    [
        (None, CloseOption.DEFAULT, True),
        (None, CloseOption.LEAVE_GROUP, True),
        (None, CloseOption.REMAIN_IN_GROUP, False),
        ("static", CloseOption.DEFAULT, False),
        ("static", CloseOption.LEAVE_GROUP, True),
        ("static", CloseOption.REMAIN_IN_GROUP, False),
    ],
)
def test_who_leaves_the_group_on_close(
    new_rig, instance: str | None, option: CloseOption, leaves: bool
) -> None:
    rig = new_rig(group_instance_id=instance)
    rig.stable(0)
    rig.do(rig.member.close(rig.now, option))
    assert [type(each.request) for each in rig.sent] == ([LeaveGroupRequest] if leaves else [])


def test_closing_commits_what_was_handed_over_and_takes_no_longer_than_it_may(new_rig) -> None:
    rig = new_rig(enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.do(rig.member.close(rig.now, timeout_ms=1_000))
    assert rig.take(object).offsets[T0].offset == 9
    rig.held = []
    rig.pass_time(500)
    assert rig.calls[1:] == [("revoked", [0])], "half of the time is for the rest"
    rig.pass_time(500)
    rig.take(LeaveGroupRequest)
    assert rig.other[-1] == LeaveFinished()


def test_who_is_fenced_while_it_closes_has_lost_everything(new_rig) -> None:
    rig = new_rig(enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.do(rig.member.close(rig.now))
    assert rig.take(object).offsets[T0].offset == 9
    rig.pass_time(3_000)
    rig.take(classic.HeartbeatRequest)
    rig.answer(classic.HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert rig.calls[1:] == [("lost", [0])]
    assert (rig.member.owned_partitions(), rig.sent) == ((), [])
    assert LeaveFinished() in rig.other


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (ErrorCode.INVALID_SESSION_TIMEOUT, "session_timeout_ms is 45000, and should be between"),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the group cannot be joined"),
    ],
)
def test_who_cannot_join_is_told_why(new_rig, code: ErrorCode, said: str) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.answer(classic.JoinGroupResponse(error_code=code))
    assert rig.member.state is S.FATAL
    (raised,) = (action.error for action in rig.other if isinstance(action, RaiseToApplication))
    assert said in str(raised)


def test_closing_in_the_middle_of_a_join_tells_whoever_has_its_id(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.beat(ErrorCode.REBALANCE_IN_PROGRESS)
    rig.take(classic.JoinGroupRequest)
    rig.do(rig.member.close(rig.now))
    assert rig.take(LeaveGroupRequest).member_id == "m"
    rig.answer(LeaveGroupResponse())
    assert rig.other[-1] == LeaveFinished()
    before_any_join = new_rig()
    before_any_join.do(before_any_join.member.close(before_any_join.now))
    assert before_any_join.other == [LeaveFinished()]


@pytest.mark.parametrize(
    ("instance", "option"), [(None, CloseOption.DEFAULT), ("i", CloseOption.LEAVE_GROUP)]
)
def test_closing_in_the_middle_of_the_first_join_leaves_as_whom_the_coordinator_made_of_it(
    new_rig, instance: str | None, option: CloseOption
) -> None:
    """Otherwise each round would wait until the session of that one ends."""
    rig = new_rig(group_instance_id=instance)
    rig.subscribe()
    if instance is None:
        rig.do(rig.member.unsubscribe(rig.now))
    rig.do(rig.member.close(rig.now, option))
    rig.answer(classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="m"))
    assert rig.take(LeaveGroupRequest).member_id == "m"
    assert LeaveFinished() not in rig.other
    rig.answer(LeaveGroupResponse())
    assert LeaveFinished() in rig.other


def test_closing_in_the_middle_of_a_first_join_that_fails_leaves_nobody_behind(new_rig) -> None:
    refused, unanswered, late, static = new_rig(), new_rig(), new_rig(), new_rig(group_instance_id="i")
    for rig in (refused, unanswered, late, static):
        rig.subscribe()
        rig.do(rig.member.close(rig.now, timeout_ms=1_000))
        assert (LeaveFinished() in rig.other) is (rig is static), "a static member keeps its place anyway"
    refused.answer(classic.JoinGroupResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE))
    unanswered.do(
        unanswered.member.request_failed(unanswered.token, RequestFailure.DISCONNECTED, unanswered.now)
    )
    late.pass_time(1_000)
    for rig in (refused, unanswered, late):
        assert rig.sent == []
        assert rig.other.count(LeaveFinished()) == 1


def test_who_unsubscribes_in_the_first_join_and_comes_back_does_not_take_the_old_id(new_rig) -> None:
    rig = new_rig()
    rig.subscribe()
    old = rig.token
    rig.do(rig.member.unsubscribe(rig.now))
    rig.subscribe()
    new = rig.token
    rig.token = old
    rig.answer(classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="old"))
    assert rig.take(LeaveGroupRequest).member_id == "old"
    rig.token = new
    rig.answer(classic.JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="new"))
    assert rig.take(classic.JoinGroupRequest).member_id == "new"


def test_unsubscribing_leaves_and_one_can_come_back(new_rig) -> None:
    rig = new_rig(enable_auto_commit=True)
    rig.stable(0)
    rig.poll(p0=9)
    rig.do(rig.member.subscribe((), None, rig.now))
    rig.take(LeaveGroupRequest)
    rig.answer(LeaveGroupResponse())
    assert rig.member.state is S.UNSUBSCRIBED
    assert rig.subscribe().member_id == ""
    with pytest.raises(ValueError, match="names only"):
        rig.member.subscribe((), "^t", rig.now)


def test_a_new_subscription_is_told_at_once_and_drops_what_is_not_in_it(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.do(rig.member.subscribe(("u",), None, rig.now))
    assert rig.calls[1:] == [("revoked", [0])]
    assert read_subscription(rig.take(classic.JoinGroupRequest).protocols[0].metadata).topics == ("u",)


def test_a_subscription_that_changes_in_a_round_is_told_in_the_next_one(new_rig) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.do(rig.member.subscribe(("t", "u"), None, rig.now))
    rig.joined()
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    assert read_subscription(rig.take(classic.JoinGroupRequest).protocols[0].metadata).topics == ("t", "u")


def test_the_assignor_may_want_another_round_later(new_rig) -> None:
    rig = new_rig()
    rig.assignor.again_ms = 5_000
    rig.stable(0)
    assert [each.partitions for each in rig.assignor.taken] == [{"t": (0,)}]
    rig.pass_time(2_999)
    assert rig.sent == []
    rig.pass_time(1)
    rig.take(classic.HeartbeatRequest)
    rig.answer(classic.HeartbeatResponse())
    rig.assignor.again_ms = None
    rig.pass_time(2_000)
    rig.take(classic.JoinGroupRequest)


def test_the_application_may_want_another_round_also_while_one_runs(new_rig) -> None:
    rig = new_rig()
    rig.stable(0)
    rig.do(rig.member.rejoin(rig.now))
    rig.take(classic.JoinGroupRequest)
    rig.do(rig.member.rejoin(rig.now))
    rig.joined(2)
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    rig.take(classic.JoinGroupRequest)
    rig.joined(3)
    rig.take(classic.SyncGroupRequest)
    rig.synced(0)
    assert rig.member.is_settled


def test_an_assignment_that_can_not_be_read_is_the_end_with_a_word(new_rig) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.joined()
    rig.take(classic.SyncGroupRequest)
    rig.answer(classic.SyncGroupResponse(assignment=b"\x00\x01\xff"))
    (error,) = [each for each in rig.other if isinstance(each, RaiseToApplication)]
    assert "assignment cannot be read" in str(error.error)


def test_a_protocol_that_was_not_offered_is_the_end(new_rig) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.answer(classic.JoinGroupResponse(generation=1, protocol_name="sticky", leader="x", member_id="m"))
    assert rig.member.state is S.FATAL


def test_a_callback_that_raises_is_told_and_has_happened(new_rig) -> None:
    rig = new_rig()
    rig.subscribe()
    rig.joined()
    rig.take(classic.SyncGroupRequest)
    rig.held = []
    rig.synced(0)
    rig.do(rig.member.callback_finished(rig.held.pop().token, KeyError("x"), rig.now))
    (raised,) = [each for each in rig.other if isinstance(each, RaiseToApplication)]
    assert "on_partitions_assigned raised" in str(raised.error)
    assert rig.member.owned_partitions() == (T0,)
    assert rig.member.positions.fetchable() == {T0: 5}


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"session_timeout_ms": 0}, "session_timeout_ms: expected at least 1 ms, got 0"),
        ({"heartbeat_interval_ms": 45_000}, "less than session_timeout_ms, 45000"),
        ({"max_poll_interval_ms": 0}, "max_poll_interval_ms"),
    ],
)
def test_impossible_settings_are_refused(setting: dict[str, int], text: str) -> None:
    with pytest.raises(FencepostError, match=text):
        ClassicConfig(**setting)


def test_the_table_has_no_arrow_out_of_fatal_and_every_state_of_kafkas_client() -> None:
    assert CLASSIC_MEMBER.terminal == (S.FATAL,)
    assert {"UNJOINED", "PREPARING_REBALANCE", "COMPLETING_REBALANCE", "STABLE"} <= set(S)
