"""Hand-made histories of who believes that it owns what, good ones and bad ones."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.protocol.classic import JoinGroupResponse
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment, write_assignment
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import DeadlineReached, Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    Record,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.claims import Claims, OneClaimant
from fencepost.simulation.kernel.observers import WorldView
from tests.unit.simulation.member_worlds import History, rows

P0, P1 = (TopicPartition("x", number) for number in range(2))


class Claimed(History):
    """A (epoch 3) claims 0; B (epoch 4) claims nothing."""

    def __init__(self) -> None:
        self.found, self.claims, self.messages = [], Claims(), []
        self.play("0 stored A 3; 0 stored B 4; 0 claim A 0")

    def take(self, findings: Iterable[tuple[str, str]]) -> None:
        for name, message in findings:
            self.found.append(name)
            self.messages.append(message)

    def stored(self, _: int, member_id: str, epoch: str = "") -> None:
        self.claims.stored(member_id, int(epoch) if epoch else None)

    def claim(self, _: int, member_id: str, *numbers: str) -> None:
        self.take(self.claims.claim(member_id, [TopicPartition("x", int(one)) for one in numbers]))

    def drop(self, _: int, what: str) -> None:
        if what == "partition":
            self.claims.drop("A", [P0])
        elif what == "topic":
            self.claims.drop_topic("x")
        else:
            self.claims.drop_all("A")

    def known(self, _: int, *numbers: str) -> None:
        """The group was a classic one, which had given A these."""
        self.claims.known("A", frozenset(TopicPartition("x", int(one)) for one in numbers))

    def assigned(self, _: int, *numbers: str) -> None:
        chosen = frozenset(TopicPartition("x", int(one)) for one in numbers)
        self.take(self.claims.assigned("A", chosen))

    def doubt(self, _: int, is_in: str) -> None:
        assert self.claims.is_in_doubt("A") is (is_in == "yes")


CLAIMS = """
two claimants: 0 claim B 0 1 -> one-claimant
after a release: 0 drop partition; 0 claim B 0 ->
of a zombie that was removed: 0 stored A; 0 claim B 0; 0 claim A 0 ->
of a zombie that is away: 0 stored A -2; 0 claim B 0; 0 claim A 0 ->
of a topic that was created again: 0 drop topic; 0 claim B 0 ->
of what an upgraded group cannot know of: 0 known; 0 claim B 0 ->
of what an upgraded group knows of: 0 known 0; 0 claim B 0 -> one-claimant
of what is assigned again: 0 known; 0 assigned 0 1 | 0 claim B 0; 0 claim B 1 -> one-claimant
of what is assigned again and not free: 0 known; 0 claim B 0 | 0 assigned 0 -> one-claimant
of what other assignments leave unknown: 0 known; 0 assigned 1; 0 doubt yes; 0 claim B 0 ->
of what no assignment tells: 0 known; 0 assigned; 0 doubt yes; 0 claim B 0 ->
unknown and released: 0 known; 0 drop partition; 0 doubt no ->
unknown and lost: 0 known; 0 drop all; 0 doubt no ->
unknown and deleted: 0 known; 0 drop topic; 0 doubt no ->
unknown and removed: 0 known; 0 stored A; 0 doubt no ->
"""


@pytest.mark.parametrize(("script", "broken"), rows(CLAIMS))
def test_claims(script, broken):
    assert Claimed().play(script) == broken


def test_a_finding_names_both_claimants_and_their_epochs():
    history = Claimed()
    history.play("0 claim B 0 1")
    assert "B (epoch 4) believes that it owns x-0, and so does A (epoch 3)" in history.messages[0]


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
        self.judge = OneClaimant()
        self.judge.attach(
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
        self.judge.on_coordinator_step("b", DeadlineReached(), Outcome(records=records, reply=reply), 0)

    def assigned(self, **partitions):
        """The records of a consumer group's members; None ends one."""
        for host, held in partitions.items():
            value = None if held is None else ConsumerGroupCurrentMemberAssignmentValue(3, 3, 0, held)
            yield Record(ConsumerGroupCurrentMemberAssignmentKey("g", host), value)

    def claims(self, host, *partitions):
        self.judge.on_callback(host, "assigned", "end", partitions, 0)


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
    it.judge.on_coordinator_state("c", "active", 0)
    it.step(reply=JoinGroupResponse(generation=3, member_id="A"))
    it.claims("A", P0, P1)
    it.classic(A={"x": (1,)})
    it.judge.on_coordinator_state("c", "active", 0)
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
    it.judge.on_coordinator_step("b", join, Outcome(records=tuple(it.assigned(A={"id": (1,)}))), 0)
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
