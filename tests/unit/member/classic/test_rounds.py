"""`Rounds` by itself: the requests of a round, when they are due, and what a leader makes of the answers."""

from __future__ import annotations

import itertools
import random

import pytest

from fencepost.coordinator.protocol import consumer_protocol
from fencepost.coordinator.protocol.classic import JoinGroupMember, JoinGroupResponse
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.base.backoff import Backoff
from fencepost.member.classic.actions import CountPartitions
from fencepost.member.classic.assignors.plain import RangeAssignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.rounds import Rounds

CONFIG = ClassicConfig(
    session_timeout_ms=9_000,
    heartbeat_interval_ms=1_000,
    max_poll_interval_ms=60_000,
    request_timeout_ms=500,
    group_instance_id="i",
    client_rack="r",
)
RANGE = RangeAssignor()


@pytest.fixture
def rounds() -> Rounds:
    return Rounds("g", CONFIG, Backoff(100, 1_000, random.Random(7)), itertools.count(1))


def answer(leader: str, *members: tuple[str, bytes], skips: bool = False) -> JoinGroupResponse:
    """The response of a generation to the member `m`."""
    return JoinGroupResponse(
        generation=4,
        protocol_name="range",
        leader=leader,
        member_id="m",
        skip_assignment=skips,
        members=tuple(JoinGroupMember(member_id=name, metadata=metadata) for name, metadata in members),
    )


def wants(*topics: str) -> bytes:
    return consumer_protocol.write_subscription(consumer_protocol.ConsumerProtocolSubscription(topics=topics))


def test_a_join_says_what_the_member_owns_and_waits_as_long_as_the_rebalance(rounds: Rounds) -> None:
    owned = [TopicPartition("t", 2), TopicPartition("u", 0), TopicPartition("t", 0)]
    sent = rounds.join("m", 3, ("t", "u"), owned, (RANGE,))
    assert rounds.in_flight == sent.token == 1
    assert sent.timeout_ms == 65_000
    (protocol,) = sent.request.protocols
    said = consumer_protocol.read_subscription(protocol.metadata)
    assert (protocol.name, said.topics, said.generation, said.rack_id) == ("range", ("t", "u"), 3, "r")
    assert {topic: sorted(numbers) for topic, numbers in said.owned.items()} == {"t": [0, 2], "u": [0]}
    request = sent.request
    assert (request.session_timeout_ms, request.rebalance_timeout_ms) == (9_000, 60_000)
    assert (request.group_id, request.member_id, request.instance_id) == ("g", "m", "i")


def test_a_first_join_has_no_generation(rounds: Rounds) -> None:
    (protocol,) = rounds.join("", 0, ("t",), (), (RANGE,)).request.protocols
    assert consumer_protocol.read_subscription(protocol.metadata).generation == -1


def test_a_sync_names_the_protocol_that_the_group_has_chosen(rounds: Rounds) -> None:
    rounds.joined(answer("other"))
    sent = rounds.sync("m", 4, {})
    assert (rounds.in_flight, sent.timeout_ms) == (sent.token, 500)
    assert (sent.request.protocol_name, sent.request.generation) == ("range", 4)


def test_one_heartbeat_is_in_flight_and_the_next_is_due_after_the_interval(rounds: Rounds) -> None:
    first = rounds.beat("m", 4, 10)
    assert first is not None
    assert (first.token, rounds.beat_at_ms) == (rounds.beat_in_flight, 1_010)
    assert rounds.beat("m", 4, 2_000) is None
    rounds.beat_in_flight = None
    assert [rounds.beat("m", 4, now_ms) is None for now_ms in (1_009, 1_010)] == [True, False]


def test_failures_wait_longer_and_a_success_ends_that(rounds: Rounds) -> None:
    waits = []
    for _ in range(4):
        rounds.failed(5_000)
        waits.append(rounds.not_before_ms - 5_000)
    assert waits == sorted(waits)
    assert waits[0] <= 120
    assert waits[3] >= 640
    rounds.joined(answer("other"))
    rounds.failed(5_000)
    assert rounds.not_before_ms <= 5_120


def test_a_leader_has_the_roster_and_asks_for_all_topics_of_it(rounds: Rounds) -> None:
    rounds.joined(answer("m", ("m", wants("u", "t")), ("n", wants("t")), ("stranger", b"\x00"), skips=True))
    assert rounds.skips_assignment
    assert [(one.member_id, one.subscription is None) for one in rounds.roster] == [
        ("m", False),
        ("n", False),
        ("stranger", True),
    ]
    assert rounds.topics() == ("t", "u")
    assert rounds.count(rounds.topics()) == CountPartitions(1, ("t", "u"))
    assert rounds.counting == 1


def test_a_follower_has_no_roster(rounds: Rounds) -> None:
    rounds.joined(answer("m", ("m", wants("t"))))
    rounds.joined(answer("other", ("m", wants("t"))))
    assert (rounds.roster, rounds.topics(), rounds.skips_assignment) == ((), (), False)


def test_every_member_of_the_roster_gets_bytes(rounds: Rounds) -> None:
    rounds.joined(answer("m", ("m", wants("t")), ("n", wants("t")), ("stranger", b"\x00")))
    given = rounds.assigned(RANGE, {"t": 3})
    assert {
        name: dict(consumer_protocol.read_assignment(each).partitions) for name, each in given.items()
    } == {
        "m": {"t": (0, 1)},
        "n": {"t": (2,)},
        "stranger": {},
    }


def test_a_round_that_is_abandoned_waits_for_nothing(rounds: Rounds) -> None:
    rounds.join("m", 3, ("t",), (), (RANGE,))
    rounds.joined(answer("m", ("m", wants("t"))))
    rounds.count(("t",))
    rounds.beat("m", 3, 0)
    rounds.abandon()
    assert (rounds.in_flight, rounds.counting, rounds.beat_in_flight, rounds.roster) == (None, None, None, ())
