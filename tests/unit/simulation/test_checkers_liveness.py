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
from fencepost.simulation.checkers.liveness import Liveness, uncovered, unsettled, untold

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


def names(findings):
    return [name for name, _ in findings]


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


# -- quiet: the group may move for ten seconds after its faults, unless callbacks take long -----------------

SECOND = 1_000_000
EPOCH_RAISED = r.Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(4))
COMMITTED = r.Record(r.OffsetCommitKey("g", "x", 0), r.OffsetCommitValue(7, -1, "", 0))


@pytest.fixture
def calm():
    """What is reported once faults have ended, at 100 s, by a checker that is told what happens next."""
    checker: Any = Liveness(lambda host: host == "busy")
    checker.found = []
    config = SimpleNamespace(
        group_consumer_heartbeat_interval_ms=3_000,
        group_consumer_regex_refresh_interval_ms=600_000,
        group_consumer_session_timeout_ms=5_000,
    )
    checker.attach(
        SimpleNamespace(settling_ms=10_000, config=config),
        lambda invariant, message, rule="": checker.found.append(invariant),
    )
    writes(checker, EPOCH_RAISED, 99)
    checker.on_faults_end(100 * SECOND)
    return checker


def writes(checker, record, seconds):
    event = OffsetCommitRequest(group_id="g", offsets={}) if record is COMMITTED else DeadlineReached()
    checker.on_coordinator_step("b", event, Outcome(records=(record,)), seconds * SECOND)


def test_a_group_may_settle_in_its_time_and_commit_after_it(calm):
    writes(calm, EPOCH_RAISED, 110)
    writes(calm, COMMITTED, 111)
    assert calm.found == []


def test_a_group_that_moves_after_its_time_is_flagged(calm):
    writes(calm, EPOCH_RAISED, 111)
    assert calm.found == ["quiet"]


@pytest.mark.parametrize(("until", "broken"), [(108, ["quiet"]), (109, [])])
def test_a_callback_that_takes_longer_than_a_heartbeat_interval_prolongs_the_time(calm, until, broken):
    calm.on_callback("m", "revoked", "begin", (), 105 * SECOND)
    calm.on_callback("m", "revoked", "end", (), until * SECOND)
    writes(calm, EPOCH_RAISED, 119)
    assert calm.found == broken


@pytest.mark.parametrize(("host", "broken"), [("busy", []), ("idle", ["quiet"])])
def test_a_batch_that_takes_longer_than_the_poll_interval_prolongs_the_time(calm, host, broken):
    calm.on_member_state(host, "poll timed out", "STABLE", "PREPARE_LEAVING", 105 * SECOND)
    calm.on_member_state(host, "polled", "STALE", "JOINING", 114 * SECOND)
    writes(calm, EPOCH_RAISED, 123)
    assert calm.found == broken
    writes(calm, EPOCH_RAISED, 125)
    assert calm.found == ["quiet", *broken]


def resolves(checker, topics, seconds, *more, regex="x.*"):
    key = r.ConsumerGroupRegularExpressionKey("g", regex)
    record = r.Record(key, r.ConsumerGroupRegularExpressionValue(topics, 1, seconds * 1_000))
    checker.on_coordinator_step("b", DeadlineReached(), Outcome(records=(record, *more)), seconds * SECOND)


@pytest.mark.parametrize(
    ("regex", "topics", "seconds", "more", "broken"),
    [
        ("x.*", ("x", "xy"), 700, (), []),
        ("x.*", ("x",), 700, (EPOCH_RAISED,), []),
        ("x.*", ("x", "xy"), 699, (), ["quiet"]),
        ("x.*", ("x", "xy"), 700, (EPOCH_RAISED,), ["quiet"]),
        ("xy", ("xy",), 700, (), ["quiet"]),
    ],
    ids=["refreshed", "topic-gone", "too-soon", "raised-without-need", "new"],
)
def test_expressions_may_be_refreshed_when_it_is_time(calm, regex, topics, seconds, more, broken):
    resolves(calm, ("x", "xy"), 100)
    resolves(calm, topics, seconds, *more, regex=regex)
    assert calm.found == broken


def test_a_group_settles_anew_when_a_refresh_finds_a_topic_gone(calm):
    resolves(calm, ("x", "xy"), 100)
    resolves(calm, ("x",), 700, EPOCH_RAISED)
    writes(calm, EPOCH_RAISED, 710)
    assert calm.found == []
    writes(calm, EPOCH_RAISED, 711)
    assert calm.found == ["quiet"]


@pytest.mark.parametrize(("ended", "broken"), [(105, []), (106, ["quiet"])])
def test_a_static_member_that_was_refused_while_sessions_ran_comes_back_late(calm, ended, broken):
    calm.on_member_state("m", "fatal error", "JOINING", "FATAL", ended * SECOND)
    calm.on_member_host("m", "stopped", ended * SECOND)
    calm.on_member_host("m", "start", 150 * SECOND)
    writes(calm, EPOCH_RAISED, 160)
    assert calm.found == broken
    writes(calm, EPOCH_RAISED, 161)
    assert calm.found == ["quiet", *broken]


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
def test_a_program_that_has_subscribed_and_does_not_join_is_flagged(
    calm, state, subscription, seconds, broken
):
    host = SimpleNamespace(name="m", member_id="A", status="running", driver=SimpleNamespace(state=state))
    calm.world.active = SimpleNamespace(classic=SimpleNamespace(groups={}), groups={})
    calm.world.members, calm.world.group_id = {"m": host}, "g"
    calm.world.subscription_of = lambda _: subscription
    calm.on_end(seconds * SECOND)
    assert calm.found == broken
