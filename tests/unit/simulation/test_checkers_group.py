"""Hand-made histories of one group's records: each checker flags the bad one and passes the good one."""

from __future__ import annotations

import msgspec
import pytest

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState, GroupState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    DeadlineReached,
    Event,
    Outcome,
    RebalanceRequested,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage, metadata_hash
from fencepost.simulation.checkers.groups import GroupInvariants, check_epochs
from fencepost.simulation.checkers.ownership import Ownership
from fencepost.simulation.checkers.reconciliation import Reconciliation
from fencepost.simulation.checkers.step import GroupStep, MemberChange, Tracker, touched_groups
from fencepost.simulation.checkers.targets import Targets

X = "XXXXXXXXXXXXXXXXXXXXXX"
Y = "YYYYYYYYYYYYYYYYYYYYYY"
IMAGE = TopicsImage.of([Topic(topic_id=X, name="x", partitions=4), Topic(topic_id=Y, name="y", partitions=2)])


OPEN = -9
"""An epoch that follows from the history."""


def subscribes(member_id, *names, instance_id=None, timeout_ms=1000, assignor=None, regex=None):
    return r.Record(
        r.ConsumerGroupMemberMetadataKey("g", member_id),
        r.ConsumerGroupMemberMetadataValue(instance_id, None, "", "", names, regex, timeout_ms, assignor),
    )


def epoch(number, *names, image=IMAGE):
    digest = metadata_hash(names or ("x",), image)
    return r.Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(number, digest))


EMPTIED = r.Record(r.ConsumerGroupMetadataKey("g"), r.ConsumerGroupMetadataValue(5, 0))
"""The epoch of a group that has lost its last member: it has no topics."""


def target_epoch(number):
    key = r.ConsumerGroupTargetAssignmentMetadataKey("g")
    return r.Record(key, r.ConsumerGroupTargetAssignmentMetadataValue(number, 1))


def target(member_id, **partitions):
    key = r.ConsumerGroupTargetAssignmentMemberKey("g", member_id)
    return r.Record(key, r.ConsumerGroupTargetAssignmentMemberValue(_ids(partitions)))


def current(
    member_id,
    member_epoch,
    assigned=None,
    pending=None,
    state=ConsumerGroupMemberState.STABLE,
    *,
    previous=None,
    since=None,
):
    assigned, pending = _ids(assigned or {}), _ids(pending or {})
    held: dict[str, dict[int, int]] = {}
    for part in (assigned, pending):
        for topic_id, numbers in part.items():
            held.setdefault(topic_id, {}).update(dict.fromkeys(numbers, OPEN if since is None else since))
    value = r.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch, OPEN if previous is None else previous, state.code, assigned, pending, held
    )
    return r.Record(r.ConsumerGroupCurrentMemberAssignmentKey("g", member_id), value)


def gone(member_id, order=(8, 7, 5)):
    keys = {
        8: r.ConsumerGroupCurrentMemberAssignmentKey("g", member_id),
        7: r.ConsumerGroupTargetAssignmentMemberKey("g", member_id),
        5: r.ConsumerGroupMemberMetadataKey("g", member_id),
    }
    return [r.Record(keys[kind], None) for kind in order]


def _ids(partitions):
    return {{"x": X, "y": Y}[name]: numbers for name, numbers in partitions.items()}


class History:
    """A group that is written by hand, and the checkers that look on."""

    def __init__(self, image: TopicsImage = IMAGE) -> None:
        self.group = ConsumerGroup("g")
        self.tracker = Tracker()
        self.image = image
        self.ownership = Ownership()
        self.reconciliation = Reconciliation(self.ownership)
        self.targets = Targets("uniform")
        self.watch = GroupInvariants()
        self.found: list[tuple[str, str]] = []

    def write(self, *records: r.Record, event: Event | None = None, now_ms: int = 0) -> set[str]:
        """Applies one batch; answers the names of the invariants that it broke."""
        records = tuple(self._complete(record) for record in records)
        for record in records:
            self._apply(record)
        outcome = Outcome(records=tuple(records))
        found: list[tuple[str, str]] = []
        groups = {"g": self.group}
        named = touched_groups(outcome.records)
        for step in self.tracker.steps(
            named, groups, self.image, event or DeadlineReached(), outcome, now_ms=now_ms
        ):
            found += self.ownership.check(step)
            found += check_epochs(step)
            found += self.targets.check(step)
            found += self.reconciliation.check(step)
            found += self.watch.check(step, self.ownership.holders.total)
        self.found = found
        return {name for name, _ in found}

    def step(self, change: MemberChange) -> GroupStep:
        """A step in which just this member changed."""
        known = self.tracker.groups["g"]
        return GroupStep(
            "g", self.group, known, (change,), (), False, DeadlineReached(), NOTHING, self.image, 0, False
        )

    def _complete(self, record: r.Record) -> r.Record:
        """Add epochs that are left open: the member's last one, and those since which it has partitions."""
        value = record.value
        if not isinstance(value, r.ConsumerGroupCurrentMemberAssignmentValue):
            return record
        known = self.group.members.get(record.key.member_id)
        last, now = 0 if known is None else max(known.member_epoch, 0), value.member_epoch
        previous = last if value.previous_member_epoch == OPEN else value.previous_member_epoch
        held = {} if known is None else known.assignment_epochs
        epochs = {
            topic_id: {
                number: held.get(topic_id, {}).get(number, max(now, 0)) if since == OPEN else since
                for number, since in numbers.items()
            }
            for topic_id, numbers in value.assignment_epochs.items()
        }
        completed = msgspec.structs.replace(value, previous_member_epoch=previous, assignment_epochs=epochs)
        return r.Record(record.key, completed)

    def _apply(self, record: r.Record) -> None:
        group, key, value = self.group, record.key, record.value
        match key:
            case r.ConsumerGroupMetadataKey():
                group.apply_metadata(key, value)
            case r.ConsumerGroupMemberMetadataKey():
                group.apply_member_metadata(key, value)
            case r.ConsumerGroupTargetAssignmentMetadataKey():
                group.apply_target_metadata(key, value)
            case r.ConsumerGroupTargetAssignmentMemberKey():
                group.apply_target(key, value)
            case r.ConsumerGroupCurrentMemberAssignmentKey():
                group.apply_current_assignment(key, value)
            case r.ConsumerGroupRegularExpressionKey():
                group.apply_regular_expression(key, value)


def heartbeat(member_id, member_epoch, owned=None):
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=member_epoch,
        topic_partitions=None if owned is None else _ids(owned),
    )


@pytest.fixture
def history():
    """A alone with x; at epoch 2."""
    it = History()
    assert not it.write(
        subscribes("A", "x"),
        epoch(2),
        target("A", x=(0, 1, 2, 3)),
        target_epoch(2),
        current("A", 2, {"x": (0, 1, 2, 3)}),
    )
    return it


def b_joins(history):
    return history.write(
        subscribes("B", "x"),
        epoch(3),
        target("A", x=(0, 1)),
        target("B", x=(2, 3)),
        target_epoch(3),
        current("B", 3, {}, state=ConsumerGroupMemberState.UNRELEASED_PARTITIONS),
    )


def a_revokes(history, now_ms=0):
    return history.write(
        current("A", 2, {"x": (0, 1)}, {"x": (2, 3)}, ConsumerGroupMemberState.UNREVOKED_PARTITIONS),
        event=heartbeat("A", 2),
        now_ms=now_ms,
    )


def a_acknowledges(history, now_ms=0):
    return history.write(
        current("A", 3, {"x": (0, 1)}, previous=2, since=2),
        event=heartbeat("A", 2, {"x": (0, 1)}),
        now_ms=now_ms,
    )


def test_one_whole_rebalance_breaks_nothing(history):
    assert not b_joins(history)
    assert not a_revokes(history)
    assert not a_acknowledges(history)
    assert not history.write(current("B", 3, {"x": (2, 3)}), event=heartbeat("B", 3))
    assert not history.write(
        *gone("A"), epoch(4), target("B", x=(0, 1, 2, 3)), target_epoch(4), event=heartbeat("A", -1)
    )
    assert not history.write(current("B", 4, {"x": (0, 1, 2, 3)}, previous=3), event=heartbeat("B", 3))
    assert not history.write(*gone("B"), EMPTIED, target_epoch(5))


def test_a_group_without_members_that_keeps_its_topics_is_flagged(history):
    assert history.write(*gone("A"), epoch(3)) == {"empty-group"}


def test_a_heartbeat_makes_a_group_notice_its_topics_once_for_each_image(history):
    assert not list(history.targets.noticed(history.group, IMAGE))
    topics = [msgspec.structs.replace(each, partitions=9) for each in IMAGE.by_id.values()]
    grown = TopicsImage.of(topics)
    assert [name for name, _ in history.targets.noticed(history.group, grown)] == ["metadata-hash"]
    assert not list(history.targets.noticed(history.group, grown))


def test_an_expression_without_topics_yet_has_nothing_to_notice(history):
    history.write(subscribes("B", regex="y.*"))
    grown = TopicsImage.of([Topic(topic_id=X, name="x", partitions=9)])
    assert not list(history.targets.noticed(history.group, grown))


def test_a_partition_with_two_holders_is_flagged(history):
    b_joins(history)
    assert history.write(current("B", 3, {"x": (2, 3)}), event=heartbeat("B", 3)) >= {"one-owner"}
    assert "B at epoch 3 while A (epoch 2) holds it" in history.found[0][1]


def test_a_partition_that_is_still_to_be_revoked_is_held(history):
    b_joins(history)
    a_revokes(history)
    assert "one-owner" in history.write(
        current("B", 3, {"x": (2,)}, state=ConsumerGroupMemberState.UNRELEASED_PARTITIONS)
    )


def test_a_partition_assigned_and_to_be_revoked_at_once_is_flagged(history):
    twin = msgspec.structs.replace(history.group.members["A"], pending_revocation={X: (3,)})
    history.group._members["A"] = twin
    names = {name for name, _ in history.ownership.check(history.step(MemberChange("A", None, twin)))}
    assert "one-owner" in names


def test_a_map_that_lost_an_entry_is_flagged(history):
    history.group.partition_epochs.replace(history.group.members["A"], None)
    assert b_joins(history) == {"owners-map"}


def test_the_whole_map_is_compared_at_failovers(history):
    assert not list(history.ownership.compare_all(history.group))
    history.group.partition_epochs.replace(history.group.members["A"], None)
    assert [name for name, _ in history.ownership.compare_all(history.group)] == ["owners-map"]


@pytest.mark.parametrize(
    ("records", "broken"),
    [
        ([epoch(1)], "epochs-monotone"),
        ([target_epoch(1)], "epochs-monotone"),
        ([target_epoch(3)], "epochs-ordered"),
        ([current("A", 3, {"x": (0, 1, 2, 3)})], "epochs-ordered"),
        ([current("A", 2, {"x": (0, 1, 2, 3)}, previous=3)], "epochs-ordered"),
        ([current("A", 1, {"x": (0, 1, 2, 3)})], "epochs-monotone"),
        ([current("A", -2, {"x": (0, 1, 2, 3)})], "epochs-monotone"),
    ],
    ids=["group", "target", "target-ahead", "member-ahead", "previous-ahead", "member-back", "away-dynamic"],
)
def test_epochs_that_move_wrongly_are_flagged(history, records, broken):
    assert broken in history.write(*records)


def test_a_static_member_may_go_away_and_come_back():
    history = History()
    everything = {"x": (0, 1, 2, 3)}
    assert not history.write(
        subscribes("A", "x", instance_id="i"), epoch(2), target("A", **everything), target_epoch(2),
        current("A", 2, everything),
    )  # fmt: skip
    assert not history.write(current("A", -2, everything, previous=2, since=0), event=heartbeat("A", -2))
    assert not history.write(
        *gone("A"), subscribes("A2", "x", instance_id="i"), target("A2", **everything),
        current("A2", 2, everything, previous=0, since=0),
    )  # fmt: skip


def test_an_instance_that_still_names_a_member_that_went_is_flagged():
    history = History()
    history.write(subscribes("A", "x", instance_id="i"), epoch(2), target_epoch(2), current("A", 2))
    history.group._static_members["j"] = "A"
    assert "static-bijection" in history.write(epoch(3), target_epoch(3))


def test_a_static_member_whose_instance_names_another_is_flagged():
    history = History()
    history.write(subscribes("A", "x", instance_id="i"), epoch(2), target_epoch(2), current("A", 2))
    assert "static-bijection" in history.write(
        subscribes("A", "x", instance_id="i"), subscribes("B", "x", instance_id="i")
    )


def test_revoking_without_pending_partitions_is_flagged(history):
    b_joins(history)
    assert "revocation-state" in history.write(
        current("A", 2, {"x": (0, 1)}, state=ConsumerGroupMemberState.UNREVOKED_PARTITIONS)
    )


@pytest.mark.parametrize(
    ("assigned", "pending", "broken"),
    [
        ({"x": (0, 1)}, {}, set()),
        ({"x": (0, 1)}, {"x": (2, 3)}, {"revocation-state"}),
        ({"x": (0,)}, {}, {"revocation-state", "revocation-frozen"}),
    ],
    ids=["kept", "to-release", "taken"],
)
def test_a_static_member_that_is_away_keeps_what_it_is_assigned(assigned, pending, broken):
    history = History()
    everything = {"x": (0, 1, 2, 3)}
    history.write(
        subscribes("A", "x", instance_id="i"), epoch(2), target("A", **everything), target_epoch(2),
        current("A", 2, everything),
    )  # fmt: skip
    history.write(
        subscribes("B", "x"), epoch(3), target("A", x=(0, 1)), target("B", x=(2, 3)), target_epoch(3)
    )
    a_revokes(history)
    state = ConsumerGroupMemberState.UNREVOKED_PARTITIONS
    away = current("A", -2, assigned, pending, state, previous=2, since=0)
    found = history.write(away, event=heartbeat("A", -2))
    assert found & {"revocation-state"} == broken & {"revocation-state"}


def test_a_revocation_is_frozen_until_it_is_acknowledged(history):
    b_joins(history)
    a_revokes(history)
    moved = current(
        "A", 3, {"x": (0, 1)}, {"x": (2, 3)}, ConsumerGroupMemberState.UNREVOKED_PARTITIONS, since=2
    )
    assert history.write(moved, event=heartbeat("A", 2)) == {"revocation-frozen"}


@pytest.mark.parametrize("owned", [None, {"x": (0, 1, 2)}], ids=["nothing-said", "still-owned"])
def test_partitions_are_not_taken_before_they_are_released(history, owned):
    b_joins(history)
    a_revokes(history)
    taken = current("A", 3, {"x": (0, 1)}, previous=2, since=2)
    assert history.write(taken, event=heartbeat("A", 2, owned)) == {"revocation-frozen"}


def test_partitions_are_not_given_back_before_they_are_released(history):
    b_joins(history)
    a_revokes(history)
    back = current("A", 3, {"x": (0, 1, 2, 3)}, previous=2, since=2)
    assert "revocation-frozen" in history.write(back, event=heartbeat("A", 2))


def test_a_revocation_beyond_the_rebalance_timeout_is_flagged(history):
    b_joins(history)
    a_revokes(history, now_ms=100)
    assert a_acknowledges(history, now_ms=1101) == {"revocation-bounded"}


def test_a_member_of_the_classic_protocol_has_no_rebalance_timer(history):
    described = subscribes("A", "x")
    classic = msgspec.structs.replace(described.value, classic=r.ClassicMemberMetadata(1000, ()))
    assert not history.write(r.Record(described.key, classic))
    b_joins(history)
    a_revokes(history, now_ms=100)
    assert not a_acknowledges(history, now_ms=1101)


def test_a_revocation_within_the_rebalance_timeout_is_not(history):
    b_joins(history)
    a_revokes(history, now_ms=100)
    assert not a_acknowledges(history, now_ms=1100)


def test_a_revocation_that_never_ends_is_flagged_at_the_end(history):
    b_joins(history)
    a_revokes(history, now_ms=100)
    members = dict(history.group.members)
    assert not list(history.reconciliation.overdue("g", members, 1100))
    assert [name for name, _ in history.reconciliation.overdue("g", members, 1101)] == ["revocation-bounded"]
    history.reconciliation.loaded(500)
    assert not list(history.reconciliation.overdue("g", members, 1101))


def test_stable_without_the_whole_target_is_flagged(history):
    b_joins(history)
    a_revokes(history)
    a_acknowledges(history)
    assert history.write(current("B", 3, {"x": (2,)}), event=heartbeat("B", 3)) == {"stable-owns-target"}


def test_unreleased_with_nobody_to_wait_for_is_flagged(history):
    b_joins(history)
    a_revokes(history)
    a_acknowledges(history)
    waits = current("B", 3, {"x": (2,)}, state=ConsumerGroupMemberState.UNRELEASED_PARTITIONS)
    assert history.write(waits, event=heartbeat("B", 3)) == {"unreleased-waits"}


def test_assigned_outside_the_target_is_flagged(history):
    b_joins(history)
    bad = current("A", 3, {"x": (0, 1, 2)}, previous=2, since=2)
    assert "assigned-in-target" in history.write(bad, event=heartbeat("A", 2, {"x": (0, 1)}))


def test_assigned_outside_the_subscription_is_flagged(history):
    assert "assigned-in-target" in history.write(
        subscribes("A", "y"),
        epoch(3),
        target_epoch(3),
        current("A", 3, {"x": (0, 1, 2, 3)}, previous=2, since=2),
    )


@pytest.mark.parametrize("since", [-1, 3])
def test_an_assignment_epoch_beyond_the_member_is_flagged(history, since):
    assert "assignment-epochs" in history.write(current("A", 2, {"x": (0, 1, 2, 3)}, since=since))


@pytest.mark.parametrize(("kept", "broken"), [(2, False), (3, True), (1, True)])
def test_a_partition_keeps_its_epoch_while_it_is_held(history, kept, broken):
    history.write(epoch(3), target_epoch(3))
    found = history.write(current("A", 3, {"x": (0, 1, 2, 3)}, since=kept))
    assert ("assignment-epochs" in found) == broken


@pytest.mark.parametrize(("since", "broken"), [(4, False), (3, True)])
def test_a_partition_that_comes_has_the_epoch_that_brings_it(history, since, broken):
    history.write(epoch(3), target("A", x=(0, 1)), target_epoch(3), current("A", 3, {"x": (0, 1)}))
    history.write(epoch(4), target("A", x=(0, 1, 2, 3)), target_epoch(4))
    record = current("A", 4, {"x": (0, 1, 2, 3)})
    epochs = {X: {0: 2, 1: 2, 2: since, 3: since}}
    record = r.Record(record.key, msgspec.structs.replace(record.value, assignment_epochs=epochs))
    assert ("assignment-epochs" in history.write(record)) == broken


def test_a_member_that_is_back_was_never_away(history):
    """Its epoch before is one that it may come with."""
    assert "epochs-ordered" in history.write(current("A", 2, {"x": (0, 1, 2, 3)}, previous=-2))


def test_a_group_is_in_the_state_of_its_epochs_and_members(history, monkeypatch):
    monkeypatch.setattr(ConsumerGroup, "state", GroupState.ASSIGNING)
    assert history.write(subscribes("B", "x"), epoch(3)) == set()
    monkeypatch.setattr(ConsumerGroup, "state", GroupState.RECONCILING)
    assert "transitions" in history.write(epoch(4))


def test_two_targets_with_one_partition_are_flagged(history):
    found = history.write(
        subscribes("B", "x"), epoch(3), target("B", x=(2, 3)), target_epoch(3),
        current("B", 3, {}, state=ConsumerGroupMemberState.UNRELEASED_PARTITIONS),
    )  # fmt: skip
    assert "target-exclusive" in found


@pytest.mark.parametrize(
    ("image", "records"),
    [
        (IMAGE, [target("A", x=(0, 1, 2))]),
        (IMAGE, [target("A", x=(0, 1, 2, 3), y=(0,))]),
        (IMAGE.with_topic(Topic(topic_id=X, name="x", partitions=5)), [target("A", x=(0, 1, 2, 3))]),
    ],
    ids=["missing", "not-subscribed", "grown"],
)
def test_a_target_that_does_not_cover_the_subscription_is_flagged(history, image, records):
    history.image = image
    assert history.write(epoch(3, image=image), *records, target_epoch(3)) == {"target-covers"}


def test_a_target_for_a_static_replacement_alone_is_not_judged(history):
    assert not history.write(target("A", x=(0, 1, 2)))


def test_an_uneven_uniform_target_is_flagged(history):
    found = history.write(
        subscribes("B", "x"), epoch(3), target("A", x=(0, 1, 2)), target("B", x=(3,)), target_epoch(3),
        current("B", 3, {}, state=ConsumerGroupMemberState.UNRELEASED_PARTITIONS),
    )  # fmt: skip
    assert found == {"target-balanced"}


def test_an_uneven_target_of_unequal_subscriptions_is_not_flagged(history):
    assert not history.write(
        subscribes("B", "y"),
        epoch(3, "x", "y"),
        target("B", y=(0, 1)),
        target_epoch(3),
        current("B", 3, {"y": (0, 1)}),
    )


@pytest.mark.parametrize("numbers", [((0, 2), (1, 3)), ((0, 1, 2), (3,))], ids=["gap", "size"])
def test_a_range_that_is_none_is_flagged(numbers):
    history = History()
    found = history.write(
        subscribes("A", "x", assignor="range"), subscribes("B", "x", assignor="range"), epoch(2),
        target("A", x=numbers[0]), target("B", x=numbers[1]), target_epoch(2),
        current("A", 2, {"x": numbers[0]}),
    )  # fmt: skip
    assert "target-balanced" in found


def test_a_draw_between_assignors_is_not_judged():
    history = History()
    assert not history.write(
        subscribes("A", "x", assignor="range"), subscribes("B", "x", assignor="uniform"), epoch(2),
        target("A", x=(0, 2)), target("B", x=(1, 3)), target_epoch(2), current("A", 2, {"x": (0, 2)}),
        current("B", 2, {"x": (1, 3)}),
    )  # fmt: skip


def with_different_topics(history, a, b):
    """A subscribes to x and y, B to y: a target for both."""
    return history.write(
        subscribes("A", "x", "y"), subscribes("B", "y"), epoch(3, "x", "y"), target("A", **a),
        target("B", **b), target_epoch(3),
    )  # fmt: skip


def test_targets_of_different_subscriptions_are_balanced_topic_by_topic(history):
    assert not with_different_topics(history, {"x": (0, 1, 2, 3)}, {"y": (0, 1)})


@pytest.mark.parametrize(
    ("a", "b"), [({"x": (0, 1, 2, 3), "y": (0,)}, {"y": (1,)}), ({"x": (0, 1, 2, 3), "y": (0, 1)}, {})]
)
def test_a_subscriber_with_much_less_than_an_owner_of_the_topic_is_flagged(history, a, b):
    assert with_different_topics(history, a, b) == {"target-balanced"}


def test_a_needless_move_among_different_subscriptions_is_flagged():
    history = History()
    names = {"A": ("x",), "B": ("x",), "C": ("x", "y")}
    assert not history.write(
        *(subscribes(member_id, *topics) for member_id, topics in names.items()), epoch(2, "x", "y"),
        target("A", x=(0, 1)), target("B", x=(2, 3)), target("C", y=(0, 1)), target_epoch(2),
        current("A", 2, {"x": (0, 1)}), current("B", 2, {"x": (2, 3)}), current("C", 2, {"y": (0, 1)}),
    )  # fmt: skip
    asked = RebalanceRequested(group_id="g")
    assert not history.write(epoch(3, "x", "y"), target_epoch(3), event=asked)
    found = history.write(
        epoch(4, "x", "y"), target("A", x=(0, 2)), target("B", x=(1, 3)), target_epoch(4), event=asked
    )
    assert found == {"target-sticky"}


def test_ranges_go_to_static_members_by_instance_then_to_others_by_id():
    history = History()
    static = {"A": None, "B": "2", "C": "1"}
    written = [
        *(subscribes(m, "x", "y", assignor="range", instance_id=i) for m, i in static.items()),
        epoch(2, "x", "y"),
    ]
    right = (target("C", x=(0, 1), y=(0,)), target("B", x=(2,), y=(1,)), target("A", x=(3,)))
    holds = (
        current("C", 2, {"x": (0, 1), "y": (0,)}),
        current("B", 2, {"x": (2,), "y": (1,)}),
        current("A", 2, {"x": (3,)}),
    )
    assert not history.write(*written, *right, target_epoch(2), *holds)
    other = (target("B", x=(0, 1), y=(0,)), target("C", x=(2,), y=(1,)))
    assert history.write(epoch(3, "x", "y"), *other, target_epoch(3)) == {"target-balanced"}


def test_a_needless_move_is_flagged(history):
    b_joins(history)
    a_revokes(history)
    a_acknowledges(history)
    history.write(current("B", 3, {"x": (2, 3)}), event=heartbeat("B", 3))
    found = history.write(epoch(4), target("A", x=(0, 2)), target("B", x=(1, 3)), target_epoch(4))
    assert found == {"target-sticky"}


@pytest.mark.parametrize(
    ("of_heir", "of_new", "of_other", "broken"),
    [
        ((0,), (1,), (2, 3), False),
        ((3,), (0, 1), (2,), True),  # it loses and gets
        ((0,), (1, 3), (2,), True),  # one of the two could keep both
    ],
)
def test_a_static_member_inherits_what_it_should_keep(of_heir, of_new, of_other, broken):
    history = History()
    assert not history.write(
        subscribes("A", "x", instance_id="1"), subscribes("B", "x"), epoch(2),
        target("A", x=(0, 1)), target("B", x=(2, 3)), target_epoch(2),
        current("A", 2, {"x": (0, 1)}), current("B", 2, {"x": (2, 3)}),
    )  # fmt: skip
    found = history.write(
        *gone("A"), subscribes("C", "x", instance_id="1"), subscribes("D", "x"), epoch(3),
        target("C", x=of_heir), target("D", x=of_new), target("B", x=of_other), target_epoch(3),
    )  # fmt: skip
    assert ("target-sticky" in found) == broken
    assert "target-balanced" not in found


@pytest.mark.parametrize(("previous", "broken"), [(2, False), (1, True), (0, True)])
def test_a_member_remembers_the_epoch_that_it_comes_from(history, previous, broken):
    history.write(epoch(3), target_epoch(3))
    found = history.write(current("A", 3, {"x": (0, 1, 2, 3)}, previous=previous))
    assert ("epochs-ordered" in found) == broken


def test_a_static_member_that_returns_comes_from_nowhere():
    history = History()
    returns = [subscribes("A", "x", instance_id="1"), epoch(2), target("A"), target_epoch(2)]
    assert "epochs-ordered" in history.write(*returns, current("A", 2, previous=1))


def test_a_digest_of_other_topics_is_flagged(history):
    assert history.write(epoch(3, "x", "y"), target_epoch(3)) == {"metadata-hash"}


def test_an_empty_group_that_keeps_something_is_flagged(history):
    history.group.partition_epochs.replace(history.group.members["A"], None)
    history.group.counts.by_name["z"] = 1
    assert "empty-group" in history.write(*gone("A"), epoch(3))


def test_a_target_that_outlives_its_member_is_flagged(history):
    history.group._targets["Z"] = {X: (0,)}
    assert "bounded-memory" in history.write(epoch(3), target_epoch(3))


def test_a_resolution_that_nobody_asks_for_is_flagged(history):
    key = r.ConsumerGroupRegularExpressionKey("g", "x.*")
    record = r.Record(key, r.ConsumerGroupRegularExpressionValue(("x",), 1, 0))
    assert "regexes-subscribed" in history.write(record)


def test_tombstones_out_of_order_are_flagged(history):
    b_joins(history)
    found = history.write(*gone("A", (7, 8, 5)), epoch(4))
    assert found == {"journal-batches"}


def test_a_group_state_without_an_arrow_is_flagged(history):
    history.watch._state = type(history.group.state)("Dead")
    assert history.write(epoch(2)) == {"transitions"}


def test_records_of_offsets_touch_no_group():
    record = r.Record(r.OffsetCommitKey("g", "x", 0), r.OffsetCommitValue(1, -1, "", 0))
    assert not touched_groups((record,))
    assert not touched_groups(())
