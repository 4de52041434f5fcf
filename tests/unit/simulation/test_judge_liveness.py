"""Progress at the end of a run: hand-made groups that have settled, and that have not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.liveness import Liveness, uncovered, unsettled, untold
from tests.unit.simulation.member_worlds import SECOND, History, names, rows

X = "XXXXXXXXXXXXXXXXXXXXXX"
IMAGE = TopicsImage.of([Topic(topic_id=X, name="x", partitions=4)])


def group(members, *, epoch=3, target_epoch=3):
    """`members` is by id: epoch, state, assigned, target."""
    it = ConsumerGroup("g")
    it.apply_metadata(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(epoch))
    for member_id, (member_epoch, state, assigned, target) in members.items():
        it.apply_member_metadata(
            r.ConsumerGroupMemberMetadataKey("g", member_id),
            r.ConsumerGroupMemberMetadataValue(None, None, "", "", ("x",), None, 1000, None),
        )
        it.apply_target(
            r.ConsumerGroupTargetAssignmentMemberKey("g", member_id),
            r.ConsumerGroupTargetAssignmentMemberValue({X: target} if target else {}),
        )
        it.apply_current_assignment(
            r.ConsumerGroupCurrentMemberAssignmentKey("g", member_id),
            r.ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch, member_epoch, state.code, {X: assigned} if assigned else {}
            ),
        )
    it.apply_target_metadata(
        r.ConsumerGroupTargetAssignmentMetadataKey("g"),
        r.ConsumerGroupTargetAssignmentMetadataValue(target_epoch, 1),
    )
    return it


STABLE, UNRELEASED = ConsumerGroupMemberState.STABLE, ConsumerGroupMemberState.UNRELEASED_PARTITIONS
A = (3, STABLE, (0, 1), (0, 1))
B = (3, STABLE, (2, 3), (2, 3))


def test_a_group_that_has_settled_is_fine():
    settled = group({"A": A, "B": B})
    assert not names(unsettled(settled, ["A", "B"]))
    assert not names(uncovered(settled, IMAGE, "uniform"))


def test_an_empty_group_may_be_ahead_of_its_target():
    assert not names(unsettled(group({}, epoch=4), []))


@pytest.mark.parametrize(
    ("members", "live", "broken"),
    [
        ({"A": A, "B": B}, ["A", "B", "C"], ["progress"]),
        ({"A": A, "B": B}, ["A"], ["gone-members"]),
        ({"A": A, "B": (2, STABLE, (2, 3), (2, 3))}, ["A", "B"], ["progress"]),
        ({"A": A, "B": (3, UNRELEASED, (2,), (2, 3))}, ["A", "B"], ["progress", "progress"]),
    ],
    ids=["no-member", "nobody", "behind", "waits"],
)
def test_a_group_that_has_not_settled_is_flagged(members, live, broken):
    assert names(unsettled(group(members), live)) == broken


def test_a_target_that_is_behind_its_group_is_flagged():
    assert names(unsettled(group({"A": A, "B": B}, epoch=4), ["A", "B"])) == ["progress"] * 3


@pytest.mark.parametrize(
    "members",
    [
        {"A": A, "B": (3, STABLE, (2,), (2, 3))},
        {"A": (3, STABLE, (0, 1, 2), (0, 1, 2)), "B": (3, STABLE, (3,), (3,))},
    ],
    ids=["missing", "uneven"],
)
def test_partitions_that_are_not_spread_are_flagged(members):
    assert names(uncovered(group(members), IMAGE, "uniform")) == ["progress"]


@pytest.mark.parametrize(
    ("subscription", "broken"),
    [((frozenset({"x"}), None), []), ((frozenset({"x", "y"}), None), ["subscription-told"]), (None, [])],
    ids=["known", "other", "not-known"],
)
def test_a_subscription_that_the_coordinator_does_not_have_is_flagged(subscription, broken):
    assert names(untold(group({"A": A, "B": B}), "A", subscription)) == broken


# -- quiet: the group may move for ten seconds after its faults, unless callbacks take long

RAISED = r.Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(4))
COMMITTED = r.Record(r.OffsetCommitKey("g", "x", 0), r.OffsetCommitValue(7, -1, "", 0))
DEADLINE = DeadlineReached()
CONFIG = SimpleNamespace(
    group_consumer_heartbeat_interval_ms=3_000,
    group_consumer_regex_refresh_interval_ms=600_000,
    group_consumer_session_timeout_ms=5_000,
)


class Calm(History):
    """A group whose faults have ended at 100 s, and what happens next."""

    def __init__(self) -> None:
        self.found, self.judges = [], (Liveness(lambda host: host == "busy"),)
        self.judge = self.judges[0]
        self.world = SimpleNamespace(settling_ms=10_000, config=CONFIG)
        self.judge.attach(self.world, lambda invariant, message, rule="": self.found.append(invariant))
        self.play("99 raised")
        self.judge.on_faults_end(100 * SECOND)

    def writes(self, at_us: int, *records: Any, event: Any = DEADLINE) -> None:
        self.judge.on_coordinator_step("b", event, Outcome(records=records), at_us)

    def raised(self, at_us: int) -> None:
        """The group has another epoch."""
        self.writes(at_us, RAISED)

    def commits(self, at_us: int) -> None:
        self.writes(at_us, COMMITTED, event=OffsetCommitRequest(group_id="g", offsets={}))

    def resolve(self, at_us: int, regex: str, topics: str, *more: str) -> None:
        value = r.ConsumerGroupRegularExpressionValue(tuple(topics.split(",")), 1, at_us // 1_000)
        record = r.Record(r.ConsumerGroupRegularExpressionKey("g", regex), value)
        self.writes(at_us, record, *[RAISED for _ in more])

    def away(self, at_us: int, host: str) -> None:
        """A program does not poll for nine seconds."""
        self.judge.on_member_state(host, "poll timed out", "STABLE", "PREPARE_LEAVING", at_us)
        self.judge.on_member_state(host, "polled", "STALE", "JOINING", at_us + 9 * SECOND)

    def fatal(self, at_us: int) -> None:
        self.move(at_us, "fatal_error", "JOINING", "FATAL")
        self.host(at_us, "stopped")


QUIET = """
settles in its time and commits after it: 110 raised; 111 commits ->
moves after its time: 111 raised -> quiet
calls back as long as it may: 105 call revoked begin; 108 call revoked end; 119 raised -> quiet
calls back for longer: 105 call revoked begin; 109 call revoked end; 119 raised ->
is busy: 105 away busy; 123 raised | 125 raised -> quiet
is idle: 105 away idle; 123 raised -> quiet
refreshes an expression: 100 resolve x.* x,xy; 700 resolve x.* x,xy ->
finds a topic gone: 100 resolve x.* x,xy; 700 resolve x.* x R; 710 raised | 711 raised -> quiet
refreshes too soon: 100 resolve x.* x,xy; 699 resolve x.* x,xy -> quiet
raises its epoch without need: 100 resolve x.* x,xy; 700 resolve x.* x,xy R -> quiet
resolves a new expression: 100 resolve x.* x,xy; 700 resolve xy xy -> quiet
gets a static member back: 105 fatal; 150 host start; 160 raised | 161 raised -> quiet
gets a static member back too late: 106 fatal; 150 host start; 160 raised -> quiet
"""


@pytest.mark.parametrize(("script", "broken"), rows(QUIET))
def test_a_group_whose_faults_have_ended(script, broken):
    assert Calm().play(script) == broken


@pytest.mark.parametrize(
    ("state", "subscription", "seconds", "broken"),
    [
        ("UNSUBSCRIBED", (frozenset({"x"}), None), 110, ["progress"]),
        ("UNSUBSCRIBED", (frozenset({"x"}), None), 109, []),
        ("UNSUBSCRIBED", (frozenset(), "x.*"), 110, ["progress"]),
        ("UNSUBSCRIBED", (frozenset(), None), 110, []),
        ("UNSUBSCRIBED", None, 110, []),
        ("FATAL", (frozenset({"x"}), None), 110, []),
        ("JOINING", (frozenset({"x"}), None), 110, ["progress"]),
    ],
    ids=["names", "too-soon", "pattern", "no-subscription", "not-known", "fatal", "joining"],
)
def test_a_program_that_has_subscribed_and_does_not_join_is_flagged(state, subscription, seconds, broken):
    calm = Calm()
    host = SimpleNamespace(name="m", member_id="A", status="running", driver=SimpleNamespace(state=state))
    calm.world.active = SimpleNamespace(classic=SimpleNamespace(groups={}), groups={})
    calm.world.members, calm.world.group_id = {"m": host}, "g"
    calm.world.subscription_of = lambda _: subscription
    calm.judge.on_end(seconds * SECOND)
    assert calm.found == broken
