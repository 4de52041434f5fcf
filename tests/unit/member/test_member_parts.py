"""Parts of a member's machine, each by itself, where a whole member does not show what they promise."""

from __future__ import annotations

import itertools
import random

from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.classic import JoinGroupMember, JoinGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.member.base import actions
from fencepost.member.base.application import RebalanceCallbacks
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.leave import Leave
from fencepost.member.base.lookups import ResolvedTopicNames
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.ownership import ClassicCallback
from fencepost.member.classic.rounds import Rounds


def backoff() -> Backoff:
    return Backoff(100, 1_000, random.Random(7))


def test_the_outbox_hands_out_a_step_once_and_wakes_last() -> None:
    out = actions.Outbox()
    out.raise_to_application(ValueError("why"))
    out.put(None)
    out.put(actions.CommitFinished(1, ErrorCode.NONE))
    first, second, third = out.take()
    assert isinstance(first, actions.RaiseToApplication)
    assert (second, third) == (actions.CommitFinished(1, ErrorCode.NONE), actions.WakeApplication())
    assert out.take() == ()


def test_a_callback_ends_once_and_under_its_own_token() -> None:
    callbacks = RebalanceCallbacks()
    assert callbacks.ended(3) is None
    callbacks.running = callback = ClassicCallback(3, actions.REVOKED, (), releases=False)
    assert callbacks.ended(2) is None
    assert callbacks.ended(3) is callback
    assert callbacks.ended(3) is None


def test_a_leave_that_may_not_have_arrived_is_sent_again() -> None:
    leave = Leave(backoff(), itertools.count(1), lambda token, request: (token, request))
    leave.begin("bye", 0, 500)
    leave.request(0)
    assert leave.failed(1, 10)
    retry_ms = leave.retry_ms()
    assert retry_ms is not None
    assert leave.request(retry_ms - 1) is None
    assert leave.request(retry_ms) == (2, "bye")
    assert leave.expires_ms() == 500


def test_names_that_are_missing_are_asked_for_again_and_new_ones_do_not_wait() -> None:
    names = ResolvedTopicNames(backoff(), itertools.count(1))
    sent = names.request(("a", "b"), 0)
    assert sent is not None
    assert names.answered(sent.token, {"a": "orders"}, 0)
    assert names.unknown(("a", "b")) == ("b",)
    assert names.request(("b",), 1) is None
    assert names.request(("b", "c"), 1) is not None


def new_rounds() -> Rounds:
    return Rounds("g", ClassicConfig(), backoff(), itertools.count(1))


LEADS = JoinGroupResponse(
    generation=4,
    protocol_name="range",
    leader="m",
    member_id="m",
    members=(
        JoinGroupMember(
            member_id="m",
            metadata=consumer_protocol.write_subscription(
                consumer_protocol.ConsumerProtocolSubscription(topics=("t",))
            ),
        ),
    ),
)


def test_failures_of_a_round_wait_longer_and_a_success_ends_that() -> None:
    rounds = new_rounds()
    waits = []
    for _ in range(4):
        rounds.failed(5_000)
        waits.append(rounds.not_before_ms - 5_000)
    assert waits == sorted(waits)
    assert waits[0] <= 120
    assert waits[3] >= 640
    rounds.joined(LEADS)
    rounds.failed(5_000)
    assert rounds.not_before_ms <= 5_120


def test_a_round_that_is_abandoned_waits_for_nothing() -> None:
    rounds = new_rounds()
    rounds.join("m", 3, ("t",), (), (RangeAssignor(),))
    rounds.joined(LEADS)
    rounds.count(("t",))
    rounds.beat("m", 3, 0)
    rounds.abandon()
    assert (rounds.in_flight, rounds.counting, rounds.beat_in_flight, rounds.roster) == (None, None, None, ())
