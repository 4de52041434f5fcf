"""Epochs, targets and reconciliations: each for a reason, and each in time."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig, ReleaseVersion
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    Outcome,
    RebalanceRequested,
    RegularExpressionsResolved,
    TopicsChanged,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from tests.unit.simulation.test_judge_sessions import REBALANCE_MS, Judged

X = "X" * 22
GROWN = TopicsImage.of([Topic(topic_id=X, name="x", partitions=4)])


@pytest.fixture
def group():
    """A and B, static as a and b; A has yet to release."""
    it = Judged()
    it.join("A", instance_id="a")
    it.at(1_000).join("B", instance_id="b")
    assert it.found == set()
    return it


def epoch_of(group):
    return group.live.groups["g"].group_epoch


def epoch(group, number):
    digest = group.live.groups["g"].metadata_hash
    return r.Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(number, digest))


def says(group, member_id, **fields):
    """A heartbeat that changes a member."""
    member = group.live.groups["g"].members[member_id]
    return r.Record(
        r.ConsumerGroupMemberMetadataKey("g", member_id),
        msgspec.structs.replace(member.metadata_record("g").value, **fields),
    )


def heartbeat(member_id, member_epoch=2, owned=None):
    return ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=member_epoch, topic_partitions=owned, api_version=1
    )


# -- the group epoch


def asked():
    return RebalanceRequested(group_id="g")


OTHERS = {"subscribed_topic_names": ("y",)}


@pytest.mark.parametrize(
    ("event", "said", "raised", "broken"),
    [
        (DeadlineReached(), None, 1, True),
        (DeadlineReached(), None, 2, True),
        (heartbeat("A"), OTHERS, 0, True),
        (heartbeat("A"), OTHERS, 1, False),
        (heartbeat("A"), OTHERS, 2, True),
        *(
            (heartbeat("A"), said, raised, bool(raised))
            for said in ({"rack_id": "r"}, {"rebalance_timeout_ms": 1}, {"client_id": "c"})
            for raised in (0, 1)
        ),
        (asked(), {}, 0, True),
        (asked(), {}, 1, False),
    ],
)
def test_an_epoch_is_raised_once_for_a_change_of_an_input(group, event, said, raised, broken):
    records = () if said is None else (says(group, "A", **said),)
    if raised:
        records += (epoch(group, epoch_of(group) + raised),)
    group.take(event, Outcome(records=records))
    assert ("epoch-caused" in group.found) == broken


def test_a_static_member_that_comes_back_as_it_was_is_no_cause(group):
    before = epoch_of(group)
    group.heartbeat("B", member_epoch=-2, instance_id="b")
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="C",
        instance_id="b",
        member_epoch=0,
        rebalance_timeout_ms=REBALANCE_MS,
        subscribed_topic_names=("x",),
        topic_partitions={},
        api_version=1,
    )
    outcome = group.live.handle(request, group.now_ms)
    group.take(request, outcome)
    assert (epoch_of(group), group.found) == (before, set())
    group.take(request, Outcome(records=(epoch(group, before + 1),)))
    assert group.found == {"epoch-caused"}


def test_topics_and_requests_are_causes(group):
    before = epoch_of(group)
    group.step(TopicsChanged(image=GROWN))
    group.at(2_000).heartbeat("A")
    group.step(RebalanceRequested(group_id="g"))
    assert (epoch_of(group), group.found) == (before + 2, set())


def test_an_expression_that_matches_something_else_is_a_cause(group):
    group.at(2_000).step(
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="A",
            instance_id="a",
            member_epoch=group.live.groups["g"].members["A"].member_epoch,
            subscribed_topic_names=(),
            subscribed_topic_regex="x",
            api_version=1,
        )
    )
    answer = RegularExpressionsResolved(group_id="g", topics={"x": ("x",)}, image_version=1)
    outcome = group.live.handle(answer, group.now_ms)
    group.take(answer, outcome)
    assert group.found == set()
    again = msgspec.structs.replace(outcome.records[0].value, topics=())
    group.take(answer, Outcome(records=(msgspec.structs.replace(outcome.records[0], value=again),)))
    assert "epoch-caused" in group.found


# -- targets


def target(epoch_, dated_ms):
    key = r.ConsumerGroupTargetAssignmentMetadataKey("g")
    return r.Record(key, r.ConsumerGroupTargetAssignmentMetadataValue(epoch_, dated_ms))


class Slow(Judged):
    """A group with an assignment interval."""

    config = GroupCoordinatorConfig(group_consumer_assignment_interval_ms=5_000)


@pytest.fixture
def slow():
    """A and B; the target of B's epoch waits for the interval to pass."""
    it = Slow()
    it.at(1_000).join("A")
    it.at(2_000).join("B")
    known = it.live.groups["g"]
    assert (known.group_epoch, known.assignment_epoch, it.found) == (3, 2, set())
    return it


def test_a_target_after_the_interval_is_right(slow):
    slow.at(6_000).heartbeat("A")
    assert (slow.live.groups["g"].assignment_epoch, slow.found) == (3, set())


@pytest.mark.parametrize(
    ("now_ms", "epoch_", "dated_ms"), [(5_999, 3, 5_999), (6_000, 3, 5_000), (6_000, 2, 6_000)]
)
def test_a_target_that_is_early_or_old_is_flagged(slow, now_ms, epoch_, dated_ms):
    slow.at(now_ms).take(DeadlineReached(), Outcome(records=(target(epoch_, dated_ms),)))
    assert "target-due" in slow.found


@pytest.mark.parametrize(("now_ms", "found"), [(5_999, set()), (6_000, {"target-due"})])
def test_a_heartbeat_that_makes_no_target_that_is_due_is_flagged(slow, now_ms, found):
    reply = ConsumerGroupHeartbeatResponse(member_id="A", member_epoch=2, heartbeat_interval_ms=5_000)
    slow.at(now_ms).take(heartbeat("A"), Outcome(reply=reply))
    assert slow.found == found


class Newer(Judged):
    """A group of Kafka 4.4."""

    config = GroupCoordinatorConfig(release_version=ReleaseVersion.V4_4)


@pytest.mark.parametrize(
    ("kind", "dated_ms", "right"), [(Judged, 0, False), (Newer, 0, True), (Newer, 2_000, False)]
)
def test_a_group_without_members_has_a_target_in_newer_releases_only(kind, dated_ms, right):
    it = kind()
    it.at(1_000).join("A")
    leaves = ConsumerGroupHeartbeatRequest(group_id="g", member_id="A", member_epoch=-1)
    outcome = it.at(2_000).live.handle(leaves, 2_000)
    others = tuple(each for each in outcome.records if type(each.key) is not type(target(3, 0).key))
    epoch_ = it.live.groups["g"].group_epoch + 1
    it.take(leaves, msgspec.structs.replace(outcome, records=(*others, target(epoch_, dated_ms))))
    assert ("target-due" in it.found) != right


# -- members


MOVES = {"heartbeat-reconciles"}
BEATS = {"a": {X: (0, 1)}, "A": {X: (0,)}, "b": None}
"""A lists both partitions, then the one that it keeps. B lists none."""


@pytest.mark.parametrize(
    ("before", "request_", "said", "found"),
    [
        # A has to release a partition, is asked to, and is not given up before it does.
        ("", heartbeat("A"), None, MOVES),
        ("a", heartbeat("A", owned={X: (0, 1)}), None, set()),
        ("a", heartbeat("A", owned={X: (0,)}), None, MOVES),
        # B gets what is free, and nothing before.
        ("b", heartbeat("B", 3), None, set()),
        ("baA", heartbeat("B", 3), None, MOVES),
        # A topic that was just dropped is not kept.
        ("aA", heartbeat("A", 3), {"subscribed_topic_names": ()}, MOVES),
    ],
)  # fmt: skip
def test_a_heartbeat_moves_its_member_as_far_as_others_allow(group, before, request_, said, found):
    for each in before:
        group.heartbeat(each.upper(), BEATS[each])
    assert group.found == set()
    reply = ConsumerGroupHeartbeatResponse(
        member_id=request_.member_id, member_epoch=request_.member_epoch, heartbeat_interval_ms=5_000
    )
    records = () if said is None else (says(group, "A", **said), epoch(group, epoch_of(group) + 1))
    group.take(request_, Outcome(records=records, reply=reply))
    assert found <= group.found if said else found == group.found
