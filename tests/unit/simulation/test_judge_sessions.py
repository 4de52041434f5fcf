"""Who is removed, and when: a coordinator's removals that are early, late or without a cause are reported."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.leaving import removal_records
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.outcome import (
    DeadlineReached,
    MemberFenced,
    Outcome,
    SessionEnded,
    TopicsChanged,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.coordination import Coordination

SESSION_MS = 45_000
REBALANCE_MS = 60_000
IMAGE = TopicsImage.of([Topic(topic_id="X" * 22, name="x", partitions=2)])


class Judged:
    """A coordinator whose every step is judged: what is reported of the group is in `found`."""

    config = GroupCoordinatorConfig(group_consumer_assignment_interval_ms=0)

    def __init__(self) -> None:
        self.live = GroupCoordinator(self.config)
        self.journal = MemoryJournal()
        world = SimpleNamespace(
            config=self.live.config,
            journal=self.journal,
            active=self.live,
            coordinators={"b": SimpleNamespace(coordinator=self.live)},
        )
        self.found: set[str] = set()
        self.judge = Coordination()
        self.judge.attach(world, lambda invariant, message, rule="": self.found.add(invariant))
        self.now_ms = 0
        self.step(TopicsChanged(image=IMAGE))

    def at(self, now_ms):
        self.now_ms = now_ms
        return self

    def step(self, event, damage=lambda live: None):
        self.take(event, self.live.handle(event, self.now_ms), damage)

    def take(self, event, outcome, damage=lambda live: None):
        if outcome.records:
            self.journal.append(outcome.records)
        self.live.apply_batch(outcome.records)
        damage(self.live)
        self.judge.on_coordinator_step("b", event, outcome, self.now_ms * 1_000)

    def join(self, member_id, **fields):
        self.step(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=member_id,
                member_epoch=0,
                rebalance_timeout_ms=REBALANCE_MS,
                subscribed_topic_names=("x",),
                topic_partitions={},
                api_version=1,
                **fields,
            )
        )

    def heartbeat(self, member_id, owned=None, **fields):
        member = self.live.groups["g"].members[member_id]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=member_id,
            member_epoch=member.member_epoch,
            topic_partitions=owned,
            api_version=1,
        )
        self.step(msgspec.structs.replace(request, **fields))

    def remove(self, member_id, event, *effects):
        group = self.live.groups["g"]
        config = self.live.config
        records = removal_records(group, (group.members[member_id],), IMAGE, config.release_version)
        self.take(event, Outcome(records=records, effects=effects))

    def expire(self, member_id, reason):
        fenced = MemberFenced(group_id="g", member_id=member_id, reason=reason)
        self.remove(member_id, DeadlineReached(), fenced)


@pytest.fixture
def group():
    """A and B, heard at 0."""
    it = Judged()
    it.join("A")
    it.join("B")
    return it


@pytest.mark.parametrize(
    ("before", "at_ms", "member_id", "reason", "found"),
    [
        (None, SESSION_MS, "A", "session", set()),
        (None, SESSION_MS - 1, "A", "session", {"members-kept"}),
        ({"member_id": "A"}, SESSION_MS, "B", "session", set()),
        ({"member_id": "A"}, SESSION_MS + 9_999, "A", "session", {"members-kept", "gone-members"}),
        ({"member_id": "A", "member_epoch": 99}, SESSION_MS, "A", "session", set()),
        (None, SESSION_MS, "A", "rebalance", {"members-kept"}),
    ],
)
def test_a_session_has_its_full_length_after_a_heartbeat_that_was_accepted(
    group, before, at_ms, member_id, reason, found
):
    if before is not None:
        group.at(10_000).heartbeat(**before)
    group.at(at_ms).expire(member_id, reason)
    assert group.found == found


def test_after_a_load_sessions_have_their_full_length(group):
    group.judge.on_coordinator_state("b", "active", 0)
    group.judge.on_coordinator_state("b", "active", 20_000_000)
    group.at(SESSION_MS + 19_999).expire("A", "session")
    assert group.found == {"members-kept"}


@pytest.mark.parametrize(
    ("waited_ms", "found"), [(REBALANCE_MS - 1, {"members-kept"}), (REBALANCE_MS, set())]
)
def test_a_revocation_has_its_whole_rebalance_timeout(group, waited_ms, found):
    group.at(1_000).heartbeat("A", {"X" * 22: (0, 1)})
    assert group.live.groups["g"].members["A"].pending_revocation
    for second in range(2, 62, 2):
        group.at(second * 1_000).heartbeat("A")
        group.heartbeat("B")
    group.at(1_000 + waited_ms).expire("A", "rebalance")
    assert group.found == found


def test_a_removal_that_nobody_explains_is_flagged(group):
    group.at(SESSION_MS).remove("A", DeadlineReached())
    assert group.found == {"members-kept"}


def test_one_member_does_not_remove_another(group):
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="B", member_epoch=-1)
    group.remove("A", request)
    assert "members-kept" in group.found


@pytest.mark.parametrize(
    "event",
    [
        ConsumerGroupHeartbeatRequest(group_id="g", member_id="A", member_epoch=-1),
        LeaveGroupRequest(group_id="g", member_id="A"),
        SessionEnded(group_id="g", member_id="A"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_member_may_leave_at_any_time_or_be_removed_by_name(group, event):
    group.at(1_000).step(event)
    assert "A" not in group.live.groups["g"].members
    assert group.found == set()


def test_an_administrator_removes_only_whom_he_names(group):
    group.remove("A", LeaveGroupRequest(group_id="g", member_id="B"))
    assert group.found == {"members-kept"}


def test_a_static_member_gives_way_to_the_one_that_comes_back(group):
    group.join("S", instance_id="i")
    group.at(1_000).heartbeat("S", member_epoch=-2, instance_id="i")
    group.at(2_000).join("T", instance_id="i")
    assert "S" not in group.live.groups["g"].members
    assert group.found == set()


def test_a_member_that_outlives_its_session_is_flagged_while_the_run_goes_on(group):
    group.at(SESSION_MS + 1).heartbeat("B")
    assert group.found == set()
    group.at(SESSION_MS + 5_002).heartbeat("B", {})
    assert group.found == {"gone-members"}


def test_timers_that_could_do_nothing_are_excused(group):
    group.judge.on_fault("append-failure", "begin", "", 30_000_000)
    group.at(SESSION_MS + 5_000).heartbeat("B", {})
    group.judge.on_fault("append-failure", "end", "", 50_000_000)
    group.at(50_000 + SESSION_MS).heartbeat("B", {})
    assert group.found == set()
    group.at(50_000 + SESSION_MS + 5_000).heartbeat("B", {})
    assert group.found == {"gone-members"}
