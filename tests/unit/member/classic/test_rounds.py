"""`Rounds` by itself: how long it waits after failures, and what is left of a round that is abandoned."""

from __future__ import annotations

import itertools
import random

import pytest

from fencepost.coordinator.protocol.classic import JoinGroupMember, JoinGroupResponse
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from fencepost.member.base.backoff import Backoff
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.rounds import Rounds

WANTS_T = write_subscription(ConsumerProtocolSubscription(topics=("t",)))
LEADS = JoinGroupResponse(
    generation=4,
    protocol_name="range",
    leader="m",
    member_id="m",
    members=(JoinGroupMember(member_id="m", metadata=WANTS_T),),
)


@pytest.fixture
def rounds() -> Rounds:
    return Rounds("g", ClassicConfig(), Backoff(100, 1_000, random.Random(7)), itertools.count(1))


def test_failures_wait_longer_and_a_success_ends_that(rounds: Rounds) -> None:
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


def test_a_round_that_is_abandoned_waits_for_nothing(rounds: Rounds) -> None:
    rounds.join("m", 3, ("t",), (), (RangeAssignor(),))
    rounds.joined(LEADS)
    rounds.count(("t",))
    rounds.beat("m", 3, 0)
    rounds.abandon()
    assert (rounds.in_flight, rounds.counting, rounds.beat_in_flight, rounds.roster) == (None, None, None, ())
