"""Timers and contacts for exactly the members that there are, in many groups at once."""

import itertools

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.outcome import TopicsChanged
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from fencepost.simulation.checkers.groups import SoftStateInvariants
from fencepost.simulation.checkers.step import Tracker, touched_groups

X = "XXXXXXXXXXXXXXXXXXXXXX"
SESSION, REBALANCE = GroupTimerKind.SESSION, GroupTimerKind.REBALANCE


class Scene:
    """A coordinator whose every step is judged."""

    def __init__(self):
        self.live = GroupCoordinator(GroupCoordinatorConfig())
        self.runtime = CoordinatorHost(self.live, MemoryJournal())
        self.watch, self.tracker, self.times = SoftStateInvariants(), Tracker(), itertools.count(1_000, 2_000)

    def step(self, event, tamper=None):
        outcome = self.runtime.step(event, next(self.times))
        if tamper is not None:
            tamper(self.live.soft.timers)
        steps = self.tracker.steps(
            touched_groups(outcome.records), self.live.groups, self.live.image, event, outcome, now_ms=0
        )
        return [finding for step in steps for finding in self.watch.check(self.live, step)]

    def join(self, group_id, member_id, tamper=None):
        return self.step(
            ConsumerGroupHeartbeatRequest(
                group_id=group_id,
                member_id=member_id,
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=("x",),
                topic_partitions={},
                api_version=1,
            ),
            tamper,
        )

    def heartbeat(self, group_id, member_id, tamper=None, owned=None):
        epoch = self.live.groups[group_id].members[member_id].member_epoch
        return self.step(
            ConsumerGroupHeartbeatRequest(
                group_id=group_id, member_id=member_id, member_epoch=epoch, topic_partitions=owned
            ),
            tamper,
        )

    def leave(self, group_id, member_id, tamper=None):
        return self.step(LeaveGroupRequest(group_id=group_id, member_id=member_id), tamper)

    def leak(self, count):
        for number in range(count):
            self.live.soft.timers.set(GroupTimerKey(GroupTimerKind.SESSION, "gone", str(number)), 9_000)


@pytest.fixture
def scene():
    made = Scene()
    assert [made.join(f"g{number}", member) for number in range(5) for member in "AB"] == [[]] * 10
    return made


def test_members_that_come_and_go_are_counted(scene):
    assert [scene.leave(f"g{number}", "B") for number in range(5)] == [[]] * 5
    assert [scene.join("g0", member) for member in "BCD"] == [[]] * 3
    assert scene.watch._total == sum(len(group.contacts) for group in scene.live.soft.groups.values()) == 8


def test_timers_that_nobody_needs_are_found_in_whatever_group_is_next(scene):
    scene.leak(11)
    assert scene.join("g9", "A") == [], "there may be two for each member"
    scene.leak(14)
    assert scene.join("g8", "A") == [("bounded-memory", "26 timers run, 25 at most are for members")]


def test_timers_of_those_who_left_are_found(scene):
    scene.leak(4)
    left = [(f"g{number}", "B") for number in range(5)] + [("g4", "A"), ("g3", "A")]
    assert [scene.leave(*each) for each in left] == [[]] * 7
    assert scene.leave("g2", "A") == [("bounded-memory", "6 timers run, 5 at most are for members")]


def test_a_coordinator_that_loads_is_counted_anew(scene):
    scene.live.soft.rebuild({"g0": scene.live.groups["g0"]}, 2_000)
    scene.leak(5)
    assert scene.join("g0", "C") == [("bounded-memory", "8 timers run, 7 at most are for members")]


def test_a_contact_too_few_is_found(scene):
    scene.live.soft.groups["g0"].contacts.pop("A")
    assert ("bounded-memory", "g0 has 3 members and contacts of 2") in scene.join("g0", "C")


# -- timers of the members that an event changed -------------------------------------------------------------


def without(kind, group_id, member_id):
    """The timer is forgotten."""
    return lambda timers: timers.cancel(GroupTimerKey(kind, group_id, member_id))


def with_one(kind, group_id, member_id):
    """There is a timer that nobody asked for."""
    return lambda timers: timers.set(GroupTimerKey(kind, group_id, member_id), 9_000)


def test_a_member_without_a_session_timer_is_found(scene):
    message = "C of g0 has no session timer, it is STABLE at epoch 4"
    assert scene.join("g0", "C", without(SESSION, "g0", "C")) == [("timers-armed", message)]


def test_a_session_timer_of_a_member_that_went_is_found(scene):
    message = "B of g0 has a session timer, it is removed"
    assert scene.leave("g0", "B", with_one(SESSION, "g0", "B")) == [("timers-armed", message)]


def test_a_rebalance_timer_of_a_member_that_has_nothing_to_revoke_is_found(scene):
    message = "C of g0 has a rebalance timer, it is STABLE at epoch 4"
    assert scene.join("g0", "C", with_one(REBALANCE, "g0", "C")) == [("timers-armed", message)]


@pytest.fixture
def revoking():
    """A has all of g's four partitions, and B has joined: A's next heartbeat tells it to let go of two."""
    made = Scene()
    made.step(TopicsChanged(image=TopicsImage.of([Topic(topic_id=X, name="x", partitions=4)])))
    assert [made.join("g", member) for member in "AB"] == [[], []]
    return made


def test_a_member_that_has_to_revoke_has_a_rebalance_timer_until_it_has(revoking):
    assert revoking.heartbeat("g", "A") == []
    member = revoking.live.groups["g"].members["A"]
    assert member.state == "UNREVOKED_PARTITIONS"
    assert revoking.heartbeat("g", "A", owned=member.assigned) == []
    assert revoking.live.groups["g"].members["A"].state == "STABLE"


def test_a_revocation_without_its_timer_is_found(revoking):
    found = revoking.heartbeat("g", "A", without(REBALANCE, "g", "A"))
    assert found == [("timers-armed", "A of g has no rebalance timer, it is UNREVOKED_PARTITIONS at epoch 2")]


def test_a_rebalance_timer_that_outlives_its_revocation_is_found(revoking):
    assert revoking.heartbeat("g", "A") == []
    owned = revoking.live.groups["g"].members["A"].assigned
    found = revoking.heartbeat("g", "A", with_one(REBALANCE, "g", "A"), owned)
    assert found == [("timers-armed", "A of g has a rebalance timer, it is STABLE at epoch 3")]
