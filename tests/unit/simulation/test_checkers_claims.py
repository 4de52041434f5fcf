"""Hand-made histories of who believes that it owns what, good ones and bad ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.protocol.classic import JoinGroupResponse
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
)
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment, write_assignment
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    Record,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.checkers.claims import Claims, OneClaimant
from fencepost.simulation.kernel.observers import WorldView

P0, P1 = (TopicPartition("x", number) for number in range(2))


def names(findings):
    return [name for name, _ in findings]


@pytest.fixture
def claims():
    """A (epoch 3) claims P0; B (epoch 4) claims nothing."""
    it = Claims()
    it.stored("A", 3)
    it.stored("B", 4)
    assert not names(it.claim("A", [P0]))
    return it


def test_two_claimants_are_flagged(claims):
    found = list(claims.claim("B", [P0, P1]))
    assert names(found) == ["one-claimant"]
    assert "B (epoch 4) believes that it owns x-0, and so does A (epoch 3)" in found[0][1]


def test_a_claim_after_a_release_is_fine(claims):
    claims.drop("A", [P0])
    assert not names(claims.claim("B", [P0]))


@pytest.mark.parametrize("epoch", [None, -2], ids=["removed", "static-away"])
def test_a_zombie_may_go_on_believing(claims, epoch):
    claims.stored("A", epoch)
    assert not names(claims.claim("B", [P0]))
    assert not names(claims.claim("A", [P0]))  # its callback ended late


def test_a_topic_that_was_created_again_is_another(claims):
    claims.drop_topic("x")
    assert not names(claims.claim("B", [P0]))


def upgraded(claims, *, known=frozenset()):
    """The group of the claims was a classic one, which had given A what is known."""
    claims.known("A", known)
    return claims


def test_what_an_upgraded_group_cannot_know_of_is_given_away(claims):
    assert not names(upgraded(claims).claim("B", [P0]))


def test_what_an_upgraded_group_knows_of_is_not(claims):
    assert names(upgraded(claims, known=frozenset({P0})).claim("B", [P0])) == ["one-claimant"]


def test_what_is_assigned_again_is_claimed_again(claims):
    assert not names(upgraded(claims).assigned("A", frozenset({P0, P1})))
    assert names(claims.claim("B", [P0])) == ["one-claimant"]
    assert not names(claims.claim("B", [P1]))


def test_what_is_assigned_again_must_be_free(claims):
    assert not names(upgraded(claims).claim("B", [P0]))
    assert names(claims.assigned("A", frozenset({P0}))) == ["one-claimant"]


@pytest.mark.parametrize("other", [frozenset(), frozenset({P1})])
def test_other_assignments_leave_it_unknown(claims, other):
    assert not names(upgraded(claims).assigned("A", other))
    assert claims.is_in_doubt("A")
    assert not names(claims.claim("B", [P0]))


@pytest.mark.parametrize(
    "end",
    [
        lambda claims: claims.drop("A", [P0]),
        lambda claims: claims.drop_all("A"),
        lambda claims: claims.drop_topic("x"),
        lambda claims: claims.stored("A", None),
    ],
    ids=["released", "lost", "deleted", "removed"],
)
def test_what_is_unknown_is_forgotten_when_it_is_let_go(claims, end):
    end(upgraded(claims))
    assert not claims.is_in_doubt("A")


class OneGroup:
    """A group with the members A and B, which one-claimant watches."""

    def __init__(self):
        self.groups, self.found = {}, []
        self.hosts = {host: SimpleNamespace(member_id=host, driver=None) for host in "AB"}
        self.consumers = {}
        live = SimpleNamespace(classic=SimpleNamespace(groups=self.groups), groups=self.consumers)
        topics = TopicsImage.of([Topic(topic_id="id", name="x", partitions=2)])
        hosts = {host: host for host in self.hosts}
        self.world = SimpleNamespace(
            group_id="g", members=self.hosts, hosts_by_member=hosts, active=live, topics=topics
        )
        self.checker = OneClaimant()
        self.checker.attach(
            cast("WorldView", self.world), lambda name, message, rule="": self.found.append(name)
        )

    def classic(self, **given):
        """It is a classic group from now on."""
        group = self.groups["g"] = ClassicGroup("g", 0)
        for host in self.hosts:
            member = ClassicGroupMember(
                host,
                instance_id=None,
                client_id="",
                client_host="",
                rebalance_timeout_ms=1,
                session_timeout_ms=1,
                protocols=(),
                assignment=write_assignment(ConsumerProtocolAssignment(partitions=given.get(host, {}))),
            )
            group.add(member, "consumer")
        return group

    def step(self, *records, reply=None):
        self.checker.on_coordinator_step("b", DeadlineReached(), Outcome(records=records, reply=reply), 0)

    def assigned(self, **partitions):
        """The records of a consumer group's members; None ends one."""
        for host, held in partitions.items():
            value = None if held is None else ConsumerGroupCurrentMemberAssignmentValue(3, 3, 0, held)
            yield Record(ConsumerGroupCurrentMemberAssignmentKey("g", host), value)

    def claims(self, host, *partitions):
        self.checker.on_callback(host, "assigned", "end", partitions, 0)


@pytest.mark.parametrize(("given", "broken"), [({"x": (0,)}, ["one-claimant"]), ({}, [])])
def test_a_consumer_group_knows_what_the_classic_one_has_given(given, broken):
    it = OneGroup()
    it.classic(A=given)
    for host in "AB":
        it.step(reply=JoinGroupResponse(generation=3, member_id=host))
    it.claims("A", P0)
    it.groups.clear()
    it.step(*it.assigned(A={}, B={}))
    it.claims("B", P0)
    assert it.found == broken


def test_a_consumer_group_knows_what_it_assigns_itself():
    it = OneGroup()
    it.classic()
    it.step(reply=JoinGroupResponse(generation=3, member_id="A"))
    it.claims("A", P0)
    it.groups.clear()
    it.step(*it.assigned(A={}, B={}))
    it.step(*it.assigned(A={"id": (0,), "gone": (0,)}))
    it.claims("B", P0)
    assert it.found == ["one-claimant"]


def test_another_coordinator_knows_what_was_given():
    it = OneGroup()
    it.classic(A={"x": (0,)})
    it.checker.on_coordinator_state("c", "active", 0)
    it.step(reply=JoinGroupResponse(generation=3, member_id="A"))
    it.claims("A", P0, P1)
    it.classic(A={"x": (1,)})
    it.checker.on_coordinator_state("c", "active", 0)
    it.groups.clear()
    it.step(*it.assigned(A={}, B={}))
    it.claims("B", P0)
    assert it.found == []
    it.claims("B", P1)
    assert it.found == ["one-claimant"]


@pytest.mark.parametrize(("epoch", "broken"), [(0, ["one-claimant"]), (3, [])], ids=["in time", "late"])
@pytest.mark.parametrize("other", [P0, P1])
def test_a_join_that_comes_late_takes_what_its_member_has(epoch, broken, other):
    it = OneGroup()
    it.step(*it.assigned(A={"id": (0, 1)}, B={}))
    it.claims("A", P0, P1)
    it.hosts["A"].driver = SimpleNamespace(member_epoch=epoch)
    it.consumers["g"] = SimpleNamespace(members={"A": SimpleNamespace(assigned={"id": (1,)})})
    join = ConsumerGroupHeartbeatRequest(group_id="g", member_id="A", member_epoch=0)
    it.checker.on_coordinator_step("b", join, Outcome(records=tuple(it.assigned(A={"id": (1,)}))), 0)
    it.claims("B", other)
    assert it.found == (broken if other == P0 else ["one-claimant"])


@pytest.mark.parametrize(("gone", "broken"), [(False, ["one-claimant"]), (True, [])])
def test_a_claim_ends_with_its_member_that_was_taken_into_a_classic_group(gone, broken):
    it = OneGroup()
    it.step(*it.assigned(A={}, B={}))
    classic = it.classic()
    it.step(*it.assigned(A=None, B=None))
    if gone:
        classic.remove("A")
        it.step()
    it.claims("B", P0)
    it.claims("A", P0)  # its callback took long
    assert it.found == broken
