"""Members that leave: told to the coordinator in time, and never for good by those that come back."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.checkers.leaving import Leaving
from tests.unit.simulation.member_worlds import world_of_members
from tests.unit.simulation.test_checkers_polls import (
    P0,
    REFUSED,
    SECOND,
    answered,
    attached,
    heartbeat,
    moves,
)


@pytest.fixture
def member() -> Any:
    """A member of epoch 3."""
    checker = attached(Leaving())
    moves(checker, "subscribed", "UNSUBSCRIBED", "JOINING", 0)
    answered(checker, heartbeat(0), ConsumerGroupHeartbeatResponse(member_epoch=3), 0)
    return checker


@pytest.mark.parametrize("answer", [ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, None])
def test_a_member_that_closes_says_so(member, answer):
    moves(member, "close", "STABLE", "PREPARE_LEAVING", 1)
    if answer is not None:
        answered(member, heartbeat(-1), ConsumerGroupHeartbeatResponse(error_code=answer), 1)
    member.on_member_host("m", "stopped", 2 * SECOND)
    assert member.found == ([] if answer is ErrorCode.NONE else ["leaves-told"])


def test_a_member_that_closes_waits_for_the_response_to_its_leave(member):
    moves(member, "close", "STABLE", "PREPARE_LEAVING", 1)
    member.takes_request("m", heartbeat(-1), SECOND)
    member.on_member_host("m", "stopped", 2 * SECOND)
    assert member.found == ["leaves-told"]


@pytest.mark.parametrize("request_", [heartbeat(-1), LeaveGroupRequest(group_id="g", member_id="m")])
@pytest.mark.parametrize(
    ("is_static", "stopped", "wanted", "broken"),
    [
        (True, True, True, True),  # a deploy
        (True, False, True, True),  # it did not poll
        (True, True, False, False),  # it was scaled away
        (False, True, True, False),
    ],
)
def test_a_static_member_that_comes_back_keeps_its_place(request_, is_static, stopped, wanted, broken):
    checker = Leaving()
    world = world_of_members()
    host = world.members["m"]
    host.instance_id, host.wanted = "a" if is_static else None, wanted
    found: list[str] = []
    checker.attach(world, lambda invariant, message, rule="": found.append(invariant))
    checker.on_member_host("m", "start", 0)
    if stopped:
        checker.on_member_host("m", "stop", SECOND)
    checker.takes_request("m", request_, SECOND)
    assert found == (["leaves-told"] if broken else [])


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize(
    ("code", "final"),
    [(ErrorCode.UNRELEASED_INSTANCE_ID, True), (REFUSED, False), (ErrorCode.UNKNOWN_MEMBER_ID, False)],
)
def test_a_member_gives_up_after_an_error_that_nothing_mends(member, epoch, code, final):
    answered(member, heartbeat(3), ConsumerGroupHeartbeatResponse(error_code=code), 1)
    member.takes_request("m", heartbeat(epoch), 2 * SECOND)
    assert member.found == (["gives-up-rightly"] if final else [])


def test_a_member_may_leave_to_free_its_instance_id(member):
    refused = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNRELEASED_INSTANCE_ID)
    answered(member, heartbeat(0), refused, 1)
    answered(member, heartbeat(-2), ConsumerGroupHeartbeatResponse(member_epoch=-2), 1)
    member.takes_request("m", heartbeat(0), 2 * SECOND)
    assert member.found == []


def test_a_member_that_could_not_say_it_in_its_time_is_excused(member):
    moves(member, "close", "STABLE", "PREPARE_LEAVING", 1)
    member.on_member_host("m", "stopped", 31 * SECOND)
    assert member.found == []


@pytest.mark.parametrize("leaves", [False, True])
def test_a_member_that_did_not_poll_leaves_before_it_joins_again(member, leaves):
    moves(member, "poll timed out", "STABLE", "PREPARE_LEAVING", 1)
    if leaves:
        member.takes_request("m", heartbeat(-1), SECOND)
    moves(member, "polled", "STALE", "JOINING", 9)
    member.takes_request("m", heartbeat(0), 9 * SECOND)
    assert member.found == ([] if leaves else ["leaves-told"])


def test_a_member_that_was_fenced_owes_nothing(member):
    moves(member, "close", "STABLE", "PREPARE_LEAVING", 1)
    answered(member, heartbeat(3), ConsumerGroupHeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID), 1)
    member.on_member_host("m", "stopped", 2 * SECOND)
    assert member.found == []


@pytest.mark.parametrize(("at_s", "broken"), [(3, []), (4, ["fenced-returns"])])
def test_a_fenced_member_joins_when_it_has_given_everything_up(member, at_s, broken):
    moves(member, "fenced", "STABLE", "FENCED", 1)
    member.on_callback("m", "lost", "begin", (P0,), SECOND)
    member.on_callback("m", "lost", "end", (P0,), 3 * SECOND)
    moves(member, "released", "FENCED", "JOINING", at_s)
    assert member.found == broken


@pytest.mark.parametrize("target", ["JOINING", "UNJOINED"])
@pytest.mark.parametrize(("at_s", "broken"), [(2, []), (3, ["leaves-told"])])
def test_a_member_that_was_closed_while_fenced_joins_no_more(member, target, at_s, broken):
    member.on_poll("m", "begin", 0)
    moves(member, "fenced", "STABLE", "FENCED", 1)
    member.on_callback("m", "lost", "begin", (P0,), SECOND)
    member.on_member_host("m", "stop", 2 * SECOND)
    member.on_callback("m", "lost", "end", (P0,), at_s * SECOND)
    moves(member, "released", "FENCED", target, at_s)
    assert member.found == broken


def test_an_application_that_is_busy_closes_its_member_later(member):
    member.on_poll("m", "begin", 0)
    member.on_poll("m", "end", 0)
    member.on_member_host("m", "stop", SECOND)
    moves(member, "released", "FENCED", "JOINING", 5)
    assert member.found == []


def test_a_member_whose_process_stood_still_may_hear_of_its_close_late(member):
    member.on_poll("m", "begin", 0)
    member.on_member_host("m", "stop", SECOND)
    member.on_member_host("m", "freeze", 2 * SECOND)
    member.on_member_host("m", "thaw", 5 * SECOND)
    moves(member, "released", "FENCED", "JOINING", 5)
    assert member.found == []


@pytest.mark.parametrize(
    ("code", "broken"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ["gives-up-rightly"]),
        (ErrorCode.UNKNOWN_MEMBER_ID, ["gives-up-rightly"]),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, []),
    ],
)
def test_a_member_stops_only_for_what_nothing_mends(member, code, broken):
    answered(member, heartbeat(3), ConsumerGroupHeartbeatResponse(error_code=code), 1)
    moves(member, "fatal error", "STABLE", "FATAL", 1)
    assert member.found == broken


def test_the_error_of_a_leave_is_no_reason_to_give_up(member):
    gone = ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    moves(member, "poll timed out", "STABLE", "PREPARE_LEAVING", 1)
    answered(member, heartbeat(-1), gone, 1)
    moves(member, "polled", "STALE", "JOINING", 9)
    member.takes_request("m", heartbeat(0), 9 * SECOND)
    assert member.found == []
