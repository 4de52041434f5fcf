"""Classic groups: a real coordinator's steps, and the same with one answer, record or leader wrong."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    JoinGroupProtocol,
    JoinGroupRequest,
    SyncGroupRequest,
)
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import DeadlineReached
from fencepost.coordinator.protocol.records import GroupMetadataValue, Record
from fencepost.simulation.checkers.classic import ClassicGroupsChecker

E = ErrorCode


def same(outcome):
    return outcome


def given(*numbers, topic="x"):
    return write_assignment(ConsumerProtocolAssignment(partitions={topic: numbers} if numbers else {}))


class Scene:
    """A coordinator with one group of two, `c-1` and `c-2`, whose leader has not assigned yet."""

    def __init__(self, owned=()):
        """`owned` is what `c-2` says that it has: (topic, partitions)."""
        self.live = GroupCoordinator(GroupCoordinatorConfig())
        self.found = []
        self.now_ms = 0
        self.checker = ClassicGroupsChecker()
        self.checker.attach(
            SimpleNamespace(active=self.live, coordinators={"b": SimpleNamespace(coordinator=self.live)}),
            lambda invariant, message, rule="": self.found.append(invariant),
        )
        for number, has in ((1, ()), (2, owned)):
            subscription = write_subscription(ConsumerProtocolSubscription(topics=("x",), owned=dict(has)))
            for member_id in ("", f"c-{number}"):
                self.join(member_id, number, subscription)
        for _ in range(2):  # the second one prolongs the wait for the first
            self.step(DeadlineReached(), after_ms=3_000)
        (group,) = self.live.classic.groups.values()
        assert (group.state, group.generation, group.leader) == ("CompletingRebalance", 1, "c-1")
        assert set(group.members) == {"c-1", "c-2"}
        assert self.found == []

    def step(self, event, tamper=same, after_ms=10):
        """One event, whose outcome may be another one; what it was answered."""
        self.now_ms += after_ms
        outcome = tamper(self.live.handle(event, self.now_ms))
        for record in outcome.records:
            self.live.apply(record)
        self.checker.on_coordinator_step("b", event, outcome, self.now_ms * 1_000)
        return outcome.reply

    def join(self, member_id, number, subscription):
        request = JoinGroupRequest(
            group_id="g",
            protocol_type="consumer",
            protocols=(JoinGroupProtocol("range", subscription),),
            member_id=member_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            client_id="c",
            new_member_suffix=str(number),
        )
        return self.step(request)

    def assign(self, first, second, tamper=same):
        """The leader gives these to `c-1` and `c-2`."""
        assignments = {"c-1": first, "c-2": second}
        request = SyncGroupRequest(group_id="g", generation=1, member_id="c-1", assignments=assignments)
        return self.step(request, tamper)

    def sync(self, member_id, generation, tamper=same):
        return self.step(SyncGroupRequest(group_id="g", generation=generation, member_id=member_id), tamper)

    def heartbeat(self, member_id, generation, tamper=same):
        return self.step(HeartbeatRequest(group_id="g", generation=generation, member_id=member_id), tamper)

    def end(self):
        """What is reported in all."""
        self.checker.on_end(self.now_ms * 1_000)
        return self.found


@pytest.fixture
def scene():
    return Scene()


def answering(code):
    """The same outcome with another answer."""

    def tamper(outcome):
        return msgspec.structs.replace(outcome, reply=msgspec.structs.replace(outcome.reply, error_code=code))

    return tamper


def writing(**fields):
    """The same outcome, but for what is written of the group."""

    def tamper(outcome):
        (record,) = outcome.records
        assert isinstance(record.value, GroupMetadataValue)
        value = msgspec.structs.replace(record.value, **fields)
        return msgspec.structs.replace(outcome, records=(Record(record.key, value),))

    return tamper


def test_a_round_in_which_all_is_right(scene):
    assert scene.assign(given(0), given(1)).error_code is E.NONE
    assert scene.sync("c-2", 1).error_code is E.NONE
    for member_id in ("c-1", "c-2"):
        assert scene.heartbeat(member_id, 1).error_code is E.NONE
    assert scene.heartbeat("c-1", 0).error_code is E.ILLEGAL_GENERATION
    assert scene.heartbeat("c-3", 1).error_code is E.UNKNOWN_MEMBER_ID
    assert scene.end() == []


# -- classic-assignment: what a leader gives to whom ---------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (given(0), given(0)),
        (given(0), given(1, topic="other")),
    ],
    ids=["given-twice", "not-subscribed"],
)
def test_a_leader_that_assigns_wrongly_is_found(scene, first, second):
    assert scene.assign(first, second).error_code is E.NONE, "the coordinator does not read assignments"
    assert scene.end() == ["classic-assignment"]


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (given(0), given(1), []),
        (given(1), given(0), ["classic-assignment"]),
    ],
)
def test_what_another_one_has_is_not_given_away(first, second, found):
    scene = Scene(owned=(("x", (1,)),))
    assert scene.assign(first, second).error_code is E.NONE
    assert scene.end() == found


# -- classic-answers: who is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member_id", "generation", "wrong"),
    [
        ("c-1", 1, E.ILLEGAL_GENERATION),
        ("c-1", 0, E.NONE),
        ("c-3", 1, E.ILLEGAL_GENERATION),
        ("c-3", 1, E.NONE),
    ],
)
def test_a_heartbeat_that_is_answered_wrongly_is_found(scene, member_id, generation, wrong):
    assert scene.assign(given(0), given(1)).error_code is E.NONE
    assert scene.heartbeat(member_id, generation).error_code is not wrong
    assert scene.found == []
    scene.heartbeat(member_id, generation, answering(wrong))
    assert scene.end() == ["classic-answers"]


@pytest.mark.parametrize(("generation", "wrong"), [(1, E.UNKNOWN_MEMBER_ID), (0, E.NONE)])
def test_a_sync_that_is_answered_wrongly_is_found(scene, generation, wrong):
    assert scene.assign(given(0), given(1)).error_code is E.NONE
    assert scene.sync("c-2", generation).error_code is not wrong
    assert scene.found == []
    scene.sync("c-2", generation, answering(wrong))
    assert scene.end() == ["classic-answers"]


# -- classic-record: what a generation is on record ----------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [{"generation": 2}, {"leader": "c-2"}, {"protocol": "roundrobin"}, {"members": ()}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_generation_that_is_not_what_its_record_says_is_found(scene, wrong):
    assert scene.assign(given(0), given(1), writing(**wrong)).error_code is E.NONE
    assert scene.found == []
    assert scene.end() == ["classic-record"]


def test_a_group_that_is_on_no_record_is_found(scene):
    assert scene.assign(given(0), given(1)).error_code is E.NONE
    scene.live.classic._stored.pop("g")
    assert scene.end() == ["classic-record"]


def test_a_group_that_is_in_the_middle_of_a_round_is_not_on_record(scene):
    assert scene.live.classic.stored["g"].generation == 0
    assert scene.end() == []
