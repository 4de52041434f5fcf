"""Hand-made histories of one group's records: a true step, one thing changed, what fires."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState as S
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.outcome import DeadlineReached, Event, Outcome, RebalanceRequested
from fencepost.coordinator.protocol.topics import Topic, TopicsImage, metadata_hash
from fencepost.simulation.judge.consumer_groups import ConsumerGroupJudge
from fencepost.simulation.judge.step import steps_of, touched_groups

X, Y = "X" * 22, "Y" * 22
IMAGE = TopicsImage.of([Topic(topic_id=X, name="x", partitions=4), Topic(topic_id=Y, name="y", partitions=2)])
UNREVOKED, UNRELEASED = S.UNREVOKED_PARTITIONS, S.UNRELEASED_PARTITIONS
ALL = (0, 1, 2, 3)
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
    state=S.STABLE,
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
    """A group that is written by hand, and its judge."""

    def __init__(self, image: TopicsImage = IMAGE) -> None:
        self.group = ConsumerGroup("g")
        self.known = ConsumerGroup("g")
        """The group before a batch."""
        self.image = image
        self.judge = ConsumerGroupJudge("uniform")
        self.found: list[tuple[str, str]] = []

    def write(self, *records: r.Record, event: Event | None = None, now_ms: int = 0) -> set[str]:
        """Apply one batch, and return the names of the invariants that it broke."""
        completed = tuple(self._complete(record) for record in records)
        self._apply(self.group, completed)
        live: Any = SimpleNamespace(groups={"g": self.group}, image=self.image)
        steps = steps_of(
            touched_groups(completed), {"g": self.known}, live, event or DeadlineReached(),
            Outcome(records=completed), now_ms=now_ms,
        )  # fmt: skip
        self.found = [finding for step in steps for finding in self.judge.check(step)]
        self._apply(self.known, completed)
        return {name for name, _ in self.found}

    @staticmethod
    def _apply(group: ConsumerGroup, records: tuple[r.Record, ...]) -> None:
        for record in records:
            ConsumerGroup.applied_by[type(record.key)](group, record.key, record.value)

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


def heartbeat(member_id, member_epoch, owned=None):
    return ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member_id,
        member_epoch=member_epoch,
        topic_partitions=None if owned is None else _ids(owned),
    )


def alone(assignor=None, **fields):
    """A alone with x, at epoch 2."""
    history = History()
    assert not history.write(
        subscribes("A", "x", assignor=assignor, **fields), epoch(2), target("A", x=ALL), target_epoch(2),
        current("A", 2, {"x": ALL}),
    )  # fmt: skip
    return history


def static():
    """A alone with x, as instance i."""
    return alone(instance_id="i")


def joined():
    """B has joined, and waits for two partitions of A."""
    history = alone()
    assert not history.write(
        subscribes("B", "x"), epoch(3), target("A", x=(0, 1)), target("B", x=(2, 3)), target_epoch(3),
        current("B", 3, {}, state=UNRELEASED),
    )  # fmt: skip
    return history


REVOKES = current("A", 2, {"x": (0, 1)}, {"x": (2, 3)}, UNREVOKED)
RELEASED = current("A", 3, {"x": (0, 1)}, previous=2, since=2)
OWNS = {"x": (0, 1)}


def revoking():
    """A has to release two partitions, since 100 ms."""
    history = joined()
    assert not history.write(REVOKES, event=heartbeat("A", 2), now_ms=100)
    return history


def released():
    """A has released them, and B may have them."""
    history = revoking()
    assert not history.write(RELEASED, event=heartbeat("A", 2, OWNS), now_ms=200)
    return history


def settled():
    """A and B have two partitions each, at epoch 3."""
    history = released()
    assert not history.write(current("B", 3, {"x": (2, 3)}), event=heartbeat("B", 3))
    return history


def newer():
    """The group is at epoch 3, and A is not."""
    history = alone()
    assert not history.write(epoch(3), target_epoch(3), event=RebalanceRequested(group_id="g"))
    return history


def test_one_whole_rebalance_breaks_nothing():
    history = settled()
    assert not history.write(
        *gone("A"), epoch(4), target("B", x=ALL), target_epoch(4), event=heartbeat("A", -1)
    )
    assert not history.write(current("B", 4, {"x": ALL}, previous=3), event=heartbeat("B", 3))
    assert not history.write(*gone("B"), EMPTIED, target_epoch(5))


def resolution(text, *topics):
    value = r.ConsumerGroupRegularExpressionValue(topics, 1, 0)
    return r.Record(r.ConsumerGroupRegularExpressionKey("g", text), value)


REBALANCE = RebalanceRequested(group_id="g")
BEATS = {each: heartbeat(each, 3 if each == "B" else 2) for each in "AB"}
B_JOINS = [subscribes("B", "x"), epoch(3)]
AWAY = heartbeat("A", -2)
STILL = heartbeat("A", 2, {"x": (0, 1, 2)})
BACK = current("A", 3, {"x": ALL}, previous=2, since=2)


@pytest.mark.parametrize(
    ("before", "records", "event", "broken"),
    [
        # Epochs.
        (alone, [epoch(1)], None, {"epochs-monotone"}),
        (alone, [target_epoch(1)], None, {"epochs-monotone"}),
        (alone, [target_epoch(3)], None, {"epochs-ordered"}),
        (alone, [current("A", 3, {"x": ALL})], None, {"epochs-ordered"}),
        (alone, [current("A", 2, {"x": ALL}, previous=3)], None, {"epochs-ordered"}),
        (alone, [current("A", 1, {"x": ALL})], None, {"epochs-monotone"}),
        (newer, [current("A", 3, {"x": ALL}, previous=2)], None, set()),
        (newer, [current("A", 3, {"x": ALL}, previous=1)], None, {"epochs-ordered"}),
        (newer, [current("A", 3, {"x": ALL}, previous=0)], None, {"epochs-ordered"}),
        # A member that is back was never away: its epoch before is one that it may come with.
        (alone, [current("A", 2, {"x": ALL}, previous=-2)], None, {"epochs-ordered"}),
        (History, [subscribes("A", "x", instance_id="1"), epoch(2), target("A"), target_epoch(2),
                   current("A", 2, previous=1)], None, {"epochs-ordered"}),
        (alone, [epoch(3)], None, {"epoch-caused"}),
        (alone, [epoch(4)], REBALANCE, {"epoch-caused"}),
        # Partitions have one owner.
        (joined, [current("B", 3, {"x": (2, 3)})], BEATS["B"], {"one-owner"}),
        (revoking, [current("B", 3, {"x": (2,)}, state=UNRELEASED)], None, {"one-owner"}),
        # A revocation is frozen until it is acknowledged.
        (joined, [current("A", 2, OWNS, state=UNREVOKED)], None, {"revocation-state"}),
        (joined, [current("A", 3, {"x": (0, 1, 2)}, previous=2, since=2)], heartbeat("A", 2, OWNS),
         {"assigned-in-target"}),
        (revoking, [current("A", 3, OWNS, {"x": (2, 3)}, UNREVOKED, since=2)], BEATS["A"],
         {"revocation-frozen"}),
        (revoking, [RELEASED], BEATS["A"], {"revocation-frozen"}),
        (revoking, [RELEASED], STILL, {"revocation-frozen"}),
        (revoking, [BACK], BEATS["A"], {"revocation-frozen"}),
        (released, [current("B", 3, {"x": (2,)})], BEATS["B"], {"stable-owns-target"}),
        (released, [current("B", 3, {"x": (2,)}, state=UNRELEASED)], BEATS["B"], {"unreleased-waits"}),
        (alone, [subscribes("A", "y"), epoch(3), target_epoch(3), BACK], None, {"assigned-in-target"}),
        # The epochs of partitions.
        (alone, [current("A", 2, {"x": ALL}, since=-1)], None, {"assignment-epochs"}),
        (alone, [current("A", 2, {"x": ALL}, since=3)], None, {"assignment-epochs"}),
        (newer, [current("A", 3, {"x": ALL}, since=2)], None, set()),
        (newer, [current("A", 3, {"x": ALL}, since=3)], None, {"assignment-epochs"}),
        (newer, [current("A", 3, {"x": ALL}, since=1)], None, {"assignment-epochs"}),
        # A static member that is away keeps what it is assigned, and loses what it has to release.
        (alone, [current("A", -2, {"x": ALL}, previous=0, since=0)], AWAY, {"revocation-state"}),
        (static, [current("A", -2, {"x": ALL}, previous=0, since=0)], AWAY, set()),
        (static, [current("A", -2, {"x": (0,)}, previous=0, since=0)], AWAY, {"revocation-state"}),
        (static, [current("A", -2, {"x": (0,)}, {"x": (1,)}, previous=0, since=0)], AWAY,
         {"revocation-state"}),
        (static, [subscribes("A", "x", instance_id="i"), subscribes("B", "x", instance_id="i")], None,
         {"static-bijection"}),
        # Targets.
        (alone, [epoch(3), target("A", x=(0, 1, 2)), target_epoch(3)], REBALANCE, {"target-covers"}),
        (alone, [epoch(3), target("A", x=ALL, y=(0,)), target_epoch(3)], REBALANCE, {"target-covers"}),
        (alone, [target("A", x=(0, 1, 2))], None, {"target-due"}),
        (alone, [*B_JOINS, target("B", x=(2, 3)), target_epoch(3), current("B", 3, {}, state=UNRELEASED)],
         None, {"target-exclusive"}),
        (alone, [*B_JOINS, target("A", x=(0, 1, 2)), target("B", x=(3,)), target_epoch(3),
                 current("B", 3, {}, state=UNRELEASED)], None, {"target-balanced"}),
        (alone, [epoch(3, "x", "y"), target_epoch(3)], REBALANCE, {"metadata-hash"}),
        (settled, [epoch(4), target("A", x=(0, 2)), target("B", x=(1, 3)), target_epoch(4)], REBALANCE,
         {"target-sticky"}),
        # What is left over.
        (alone, [*gone("A"), epoch(3)], heartbeat("A", -1), {"empty-group"}),
        (alone, [resolution("x.*", "x")], None, {"regexes-subscribed"}),
        (joined, [*gone("A", (7, 8, 5)), epoch(4)], heartbeat("A", -1), {"journal-batches"}),
    ],
)  # fmt: skip
def test_one_thing_changed_breaks_an_invariant(before, records, event, broken):
    found = before().write(*records, event=event)
    assert found == broken if not broken else broken <= found


def forget_owners(history):
    history.group.partition_epochs.replace(history.group.members["A"], None)


def name_another_instance(history):
    history.group._static_members["j"] = "A"


def keep_a_target(history):
    history.group._targets["Z"] = {X: (0,)}


def keep_a_topic(history):
    forget_owners(history)
    history.group.counts.by_name["z"] = 1


@pytest.mark.parametrize(
    ("damage", "records", "broken"),
    [
        (forget_owners, [*B_JOINS, target("A", x=(0, 1)), target("B", x=(2, 3)), target_epoch(3)],
         "owners-map"),
        (name_another_instance, B_JOINS, "static-bijection"),
        (keep_a_target, [subscribes("A", "x")], "bounded-memory"),
        (keep_a_topic, [*gone("A"), epoch(3)], "empty-group"),
    ],
)  # fmt: skip
def test_derived_state_that_differs_from_the_members_is_flagged(damage, records, broken):
    history = alone()
    damage(history)
    assert broken in history.write(*records)


def test_a_group_is_in_the_state_of_its_epochs_and_members(monkeypatch):
    history = alone()
    monkeypatch.setattr(ConsumerGroup, "state", GroupState.ASSIGNING)
    assert history.write(*B_JOINS) == set()
    monkeypatch.setattr(ConsumerGroup, "state", GroupState.RECONCILING)
    assert "transitions" in history.write(epoch(4))


def test_a_heartbeat_makes_a_group_notice_its_topics_once_for_each_image():
    history = alone()
    assert not list(history.judge.noticed(history.group, IMAGE))
    grown = TopicsImage.of([Topic(topic_id=X, name="x", partitions=9)])
    assert [name for name, _ in history.judge.noticed(history.group, grown)] == ["metadata-hash"]
    assert not list(history.judge.noticed(history.group, grown))
    history.write(subscribes("B", regex="y.*"))  # it has no topics yet
    assert not list(history.judge.noticed(history.group, IMAGE))


def test_a_static_member_may_go_away_and_come_back():
    history = static()
    assert not history.write(current("A", -2, {"x": ALL}, previous=0, since=0), event=heartbeat("A", -2))
    assert not history.write(
        *gone("A"), subscribes("A2", "x", instance_id="i"), target("A2", x=ALL),
        current("A2", 2, {"x": ALL}, previous=0, since=0),
    )  # fmt: skip


@pytest.mark.parametrize(("since", "broken"), [(4, set()), (3, {"assignment-epochs"})])
def test_a_partition_that_comes_has_the_epoch_that_brings_it(since, broken):
    history = settled()
    history.write(*gone("B"), epoch(4), target("A", x=ALL), target_epoch(4), event=heartbeat("B", -1))
    record = current("A", 4, {"x": ALL})
    epochs = {X: {0: 2, 1: 2, 2: since, 3: since}}
    record = r.Record(record.key, msgspec.structs.replace(record.value, assignment_epochs=epochs))
    assert history.write(record) == broken


@pytest.mark.parametrize(
    ("now_ms", "loaded", "found"),
    [(1100, False, []), (1101, False, ["revocation-bounded"]), (1101, True, [])],
)
def test_a_revocation_ends_within_the_rebalance_timeout(now_ms, loaded, found):
    history = revoking()
    if loaded:
        history.judge.timeouts.loaded(500)
    overdue = history.judge.timeouts.overdue("g", history.group.members, None, now_ms)
    assert [name for name, _ in overdue] == found
    assert history.write(RELEASED, event=heartbeat("A", 2, OWNS), now_ms=now_ms) == {*found}


def test_a_member_of_the_classic_protocol_has_no_rebalance_timer():
    history = joined()
    described = subscribes("A", "x")
    classic = msgspec.structs.replace(described.value, classic=r.ClassicMemberMetadata(1000, ()))
    assert not history.write(r.Record(described.key, classic))
    assert not history.write(REVOKES, event=heartbeat("A", 2))
    assert not history.write(RELEASED, event=heartbeat("A", 2, OWNS), now_ms=9_999)


@pytest.mark.parametrize(
    ("subscriptions", "assignors", "targets", "broken"),
    [
        # Subscriptions differ: balanced topic by topic.
        ({"A": "x", "B": "y"}, {}, {"A": {"x": ALL}, "B": {"y": (0, 1)}}, set()),
        ({"A": "xy", "B": "y"}, {}, {"A": {"x": ALL}, "B": {"y": (0, 1)}}, set()),
        ({"A": "xy", "B": "y"}, {}, {"A": {"x": ALL, "y": (0,)}, "B": {"y": (1,)}}, {"target-balanced"}),
        ({"A": "xy", "B": "y"}, {}, {"A": {"x": ALL, "y": (0, 1)}, "B": {}}, {"target-balanced"}),
        # Ranges, and a draw between assignors.
        ({"A": "x", "B": "x"}, {"A": "range", "B": "range"}, {"A": {"x": (0, 2)}, "B": {"x": (1, 3)}},
         {"target-balanced"}),
        ({"A": "x", "B": "x"}, {"A": "range", "B": "range"}, {"A": {"x": (0, 1, 2)}, "B": {"x": (3,)}},
         {"target-balanced"}),
        ({"A": "x", "B": "x"}, {"A": "range", "B": "uniform"}, {"A": {"x": (0, 2)}, "B": {"x": (1, 3)}},
         set()),
    ],
)  # fmt: skip
def test_targets_are_balanced_as_their_assignor_does(subscriptions, assignors, targets, broken):
    names = {*"".join(subscriptions.values())}
    found = History().write(
        *(subscribes(m, *names_, assignor=assignors.get(m)) for m, names_ in subscriptions.items()),
        epoch(2, *sorted(names)),
        *(target(member_id, **of) for member_id, of in targets.items()),
        target_epoch(2),
        *(current(member_id, 2, of) for member_id, of in targets.items()),
    )
    assert found == broken


def test_a_needless_move_among_different_subscriptions_is_flagged():
    history = History()
    names = {"A": ("x",), "B": ("x",), "C": ("x", "y")}
    held = {"A": {"x": (0, 1)}, "B": {"x": (2, 3)}, "C": {"y": (0, 1)}}
    assert not history.write(
        *(subscribes(member_id, *topics) for member_id, topics in names.items()), epoch(2, "x", "y"),
        *(target(m, **of) for m, of in held.items()), target_epoch(2),
        *(current(m, 2, of) for m, of in held.items()),
    )  # fmt: skip
    assert not history.write(epoch(3, "x", "y"), target_epoch(3), event=REBALANCE)
    moved = (target("A", x=(0, 2)), target("B", x=(1, 3)))
    assert history.write(epoch(4, "x", "y"), *moved, target_epoch(4), event=REBALANCE) == {"target-sticky"}


STATIC = {"A": None, "B": "2", "C": "1"}


def test_ranges_go_to_static_members_by_instance_then_to_others_by_id():
    history = History()
    held = {"C": {"x": (0, 1), "y": (0,)}, "B": {"x": (2,), "y": (1,)}, "A": {"x": (3,)}}
    assert not history.write(
        *(subscribes(m, "x", "y", assignor="range", instance_id=i) for m, i in STATIC.items()),
        epoch(2, "x", "y"), *(target(m, **of) for m, of in held.items()), target_epoch(2),
        *(current(m, 2, of) for m, of in held.items()),
    )  # fmt: skip
    other = (target("B", x=(0, 1), y=(0,)), target("C", x=(2,), y=(1,)))
    found = history.write(epoch(3, "x", "y"), *other, target_epoch(3), event=REBALANCE)
    assert found == {"target-balanced"}


@pytest.mark.parametrize(
    ("of_heir", "of_new", "of_other", "broken"),
    [
        ((0,), (1,), (2, 3), set()),
        ((3,), (0, 1), (2,), {"target-sticky"}),  # it loses and gets
        ((0,), (1, 3), (2,), {"target-sticky"}),  # one of the two could keep both
    ],
)
def test_a_static_member_inherits_what_it_should_keep(of_heir, of_new, of_other, broken):
    history = History()
    assert not history.write(
        subscribes("A", "x", instance_id="1"), subscribes("B", "x"), epoch(2),
        target("A", x=(0, 1)), target("B", x=(2, 3)), target_epoch(2),
        current("A", 2, {"x": (0, 1)}), current("B", 2, {"x": (2, 3)}),
    )  # fmt: skip
    assert broken == history.write(
        *gone("A"), subscribes("C", "x", instance_id="1"), subscribes("D", "x"), epoch(3),
        target("C", x=of_heir), target("D", x=of_new), target("B", x=of_other), target_epoch(3),
    )  # fmt: skip


def test_records_of_offsets_touch_no_group():
    record = r.Record(r.OffsetCommitKey("g", "x", 0), r.OffsetCommitValue(1, -1, "", 0))
    assert not touched_groups((record,))
    assert not touched_groups(())
