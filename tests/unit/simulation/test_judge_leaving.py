"""Members that leave: told to the coordinator in time, and never for good by those that come back."""

from __future__ import annotations

import pytest

from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.simulation.judge.leaving import Leaving
from tests.unit.simulation.member_worlds import SECOND, History, rows


class Left(History):
    """A member of epoch 3."""

    def __init__(self) -> None:
        super().__init__(Leaving())
        self.play("0 move subscribed UNSUBSCRIBED JOINING; 0 beat 0 3")

    def close(self, at_us: int) -> None:
        self.move(at_us, "close", "STABLE", "PREPARE_LEAVING")

    def fenced(self, at_us: int) -> None:
        self.move(at_us, "fenced", "STABLE", "FENCED")

    def idle(self, at_us: int) -> None:
        self.move(at_us, "poll_timed_out", "STABLE", "PREPARE_LEAVING")

    def polled(self, at_us: int) -> None:
        self.move(at_us, "polled", "STALE", "JOINING")

    def released(self, at_us: int, target: str = "JOINING") -> None:
        self.move(at_us, "released", "FENCED", target)


LIVES = """
leaves and says so: 1 close; 1 beat -1 NONE; 2 host stopped ->
leaves and is not heard: 1 close; 1 beat -1 NOT_COORDINATOR; 2 host stopped -> leaves-told
leaves and says nothing: 1 close; 2 host stopped -> leaves-told
leaves before the response: 1 close; 1 beat -1; 2 host stopped -> leaves-told
leaves and could not say so in its time: 1 close; 31 host stopped ->
was fenced and owes nothing: 1 close; 1 beat 3 UNKNOWN; 2 host stopped ->
goes on for nothing: 1 beat 3 UNRELEASED_INSTANCE_ID; 2 beat 3 -> gives-up-rightly
joins for nothing: 1 beat 3 UNRELEASED_INSTANCE_ID; 2 beat 0 -> gives-up-rightly
goes on after a refusal: 1 beat 3 REFUSED; 2 beat 3 ->
joins after a refusal: 1 beat 3 REFUSED; 2 beat 0 ->
goes on when it is not known: 1 beat 3 UNKNOWN; 2 beat 3 ->
joins when it is not known: 1 beat 3 UNKNOWN; 2 beat 0 ->
frees its instance id: 1 beat 0 UNRELEASED_INSTANCE_ID; 1 beat -2 -2; 2 beat 0 ->
stops for what it retries: 1 beat 3 LOADING; 1 move fatal_error STABLE FATAL
    -> gives-up-rightly
stops for what ends a membership: 1 beat 3 UNKNOWN; 1 move fatal_error STABLE FATAL -> gives-up-rightly
stops for what nothing mends: 1 beat 3 GROUP_AUTHORIZATION_FAILED; 1 move fatal_error STABLE FATAL ->
joins again without a leave: 1 idle; 9 polled; 9 beat 0 -> leaves-told
joins again after a leave: 1 idle; 1 beat -1; 9 polled; 9 beat 0 ->
joins again whatever the leave got: 1 idle; 1 beat -1 GROUP_ID_NOT_FOUND; 9 polled; 9 beat 0 ->
returns when it has given up all: 1 fenced; 1 call lost begin 0; 3 call lost end 0; 3 released ->
returns late: 1 fenced; 1 call lost begin 0; 3 call lost end 0; 4 released -> fenced-returns
joins when it is closed: 0 poll begin; 1 fenced; 1 call lost begin 0; 2 host stop; 2 call lost end 0;
    2 released ->
joins when it is closed as a classic one: 0 poll begin; 1 fenced; 1 call lost begin 0; 2 host stop;
    2 call lost end 0; 2 released UNJOINED ->
joins after it was closed: 0 poll begin; 1 fenced; 1 call lost begin 0; 2 host stop; 3 call lost end 0;
    3 released -> leaves-told
joins after it was closed as a classic one: 0 poll begin; 1 fenced; 1 call lost begin 0; 2 host stop;
    3 call lost end 0; 3 released UNJOINED -> leaves-told
closes when it polls: 0 poll begin end; 1 host stop; 5 released ->
closes when it goes on: 0 poll begin; 1 host stop; 2 host freeze; 5 host thaw; 5 released ->
"""


@pytest.mark.parametrize(("script", "broken"), rows(LIVES))
def test_a_member_that_may_leave(script, broken):
    assert Left().play(script) == broken


@pytest.mark.parametrize("classic", [False, True])
@pytest.mark.parametrize(
    ("is_static", "stopped", "wanted", "broken"),
    [
        (True, True, True, True),  # a deploy
        (True, False, True, True),  # it did not poll
        (True, True, False, False),  # it was scaled away
        (False, True, True, False),
    ],
)
def test_a_static_member_that_comes_back_keeps_its_place(classic, is_static, stopped, wanted, broken):
    history = History(Leaving())
    host = history.world.members["m"]
    host.instance_id, host.wanted = "a" if is_static else None, wanted
    history.play("0 host start; 1 host stop" if stopped else "0 host start")
    if classic:
        history.send(SECOND, LeaveGroupRequest(group_id="g", member_id="m"))
    else:
        history.play("1 beat -1")
    assert history.found == (["leaves-told"] if broken else [])
