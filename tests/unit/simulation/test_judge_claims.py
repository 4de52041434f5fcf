"""Hand-made histories of who believes that it owns what, good ones and bad ones."""

from __future__ import annotations

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
from fencepost.simulation.judge.claims import OneClaimant
from fencepost.simulation.kernel.observers import WorldView
from tests.unit.simulation.member_worlds import rows

P0, P1 = (TopicPartition("x", number) for number in range(2))


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
        self.messages = []
        self.judge.attach(cast("WorldView", self.world), self.report)

    def report(self, invariant, message, rule=""):
        self.found.append(invariant)
        self.messages.append(message)

    def play(self, script):
        """Return what is reported. Members and what they have are words such as `A01`."""
        for number, part in enumerate(script.split("|")):
            assert not number or self.found == []
            for step in filter(None, map(str.strip, part.split(";"))):
                verb, *words = step.split()
                getattr(self, verb)(*words)
        return self.found

    def classic(self, *given):
        """It is a classic group from now on."""
        held = {each[0]: {"x": tuple(map(int, each[1:]))} for each in given}
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
                assignment=write_assignment(ConsumerProtocolAssignment(partitions=held.get(host, {}))),
            )
            group.add(member, "consumer")

    def consumer(self):
        self.groups.clear()

    def step(self, *records, reply=None, event=None):
        outcome = Outcome(records=records, reply=reply)
        self.judge.on_coordinator_step("b", event or DeadlineReached(), outcome, 0)

    def joined(self, *hosts):
        for host in hosts:
            self.step(reply=JoinGroupResponse(generation=3, member_id=host))

    def assigned(self, *words, event=None):
        """The records of a consumer group's members; `-` ends one, `+` is a topic that is gone."""
        records = []
        for host, *held in words:
            numbers = tuple(int(each) for each in held if each.isdigit())
            topics = {"id": numbers, **({"gone": (0,)} if "+" in held else {})} if numbers else {}
            value = None if "-" in held else ConsumerGroupCurrentMemberAssignmentValue(3, 3, 0, topics)
            records.append(Record(ConsumerGroupCurrentMemberAssignmentKey("g", host), value))
        self.step(*records, event=event)

    def epoch(self, host, epoch):
        value = ConsumerGroupCurrentMemberAssignmentValue(int(epoch), 3, 0, {})
        self.step(Record(ConsumerGroupCurrentMemberAssignmentKey("g", host), value))

    def late(self, epoch):
        """A join of A comes late, or in time: it has that epoch."""
        self.hosts["A"].driver = SimpleNamespace(member_epoch=int(epoch))
        self.consumers["g"] = SimpleNamespace(members={"A": SimpleNamespace(assigned={"id": (1,)})})
        join = ConsumerGroupHeartbeatRequest(group_id="g", member_id="A", member_epoch=0)
        self.assigned("A1", event=join)

    def removed(self, host):
        self.groups["g"].remove(host)
        self.step()

    def elsewhere(self):
        """Another coordinator leads."""
        self.judge.on_coordinator_state("c", "active", 0)

    def claims(self, host, *numbers, kind="assigned", phase="end"):
        self.judge.on_callback(host, kind, phase, tuple((P0, P1)[int(each)] for each in numbers), 0)

    def releases(self, host, *numbers):
        self.claims(host, *numbers, kind="revoked")

    def loses(self, host, *numbers):
        self.claims(host, *numbers, kind="lost", phase="begin")

    def dies(self, host):
        self.judge.on_member_host(host, "crash", 0)

    def deleted(self):
        self.judge.on_topic("x", "deleted", 0, 0)


OWNED = "assigned A B; claims A 0"
UNKNOWN = "classic A; joined A B; claims A 0; consumer; assigned A B"
"""A claims what its group does not know of."""
CLAIMS = {
    "": """
what the classic group has given: classic A0; joined A B; claims A 0; consumer; assigned A B | claims B 0
    -> one-claimant
what the consumer group has assigned: classic; joined A; claims A 0; consumer; assigned A B; assigned A0+ |
    claims B 0 -> one-claimant
what another coordinator knows: classic A0; elsewhere; joined A; claims A 0 1; classic A1; elsewhere;
    consumer; assigned A B; claims B 0 | claims B 1 -> one-claimant
what a late join takes: assigned A01 B; claims A 0 1; late 3; claims B 0 ->
what a late join leaves: assigned A01 B; claims A 0 1; late 3 | claims B 1 -> one-claimant
what a join in time leaves: assigned A01 B; claims A 0 1; late 0 | claims B 0 -> one-claimant
what another join in time leaves: assigned A01 B; claims A 0 1; late 0 | claims B 1 -> one-claimant
a claim in a group that became classic: assigned A B; classic; assigned A- B-; claims B 0 | claims A 0
    -> one-claimant
a claim of a member that left the classic group: assigned A B; classic; assigned A- B-; removed A; claims B 0;
    claims A 0 ->
""",
    OWNED: """
two claimants: claims B 0 1 -> one-claimant
two claimants again: claims B 0; releases B 0; claims B 0 -> one-claimant one-claimant
after a release: releases A 0; claims B 0 ->
after a loss: loses A 0; claims B 0 ->
of a process that died: dies A; claims B 0 ->
of a zombie that was removed: assigned A-; claims B 0; claims A 0 ->
of a zombie that is away: epoch A -2; claims B 0; claims A 0 ->
of a topic that was created again: deleted; claims B 0 ->
""",
    UNKNOWN: """
of what the group cannot know of: claims B 0 ->
of what is assigned again: assigned A01 | claims B 0; claims B 1 -> one-claimant
of what is assigned again and not free: claims B 0 | assigned A0 -> one-claimant
of what other assignments leave unknown: assigned A1; claims B 0 ->
of what no assignment tells: assigned A; claims B 0 ->
unknown and released: releases A 0; assigned A0; claims B 0 ->
unknown and lost: loses A 0; assigned A0; claims B 0 ->
unknown and dead: dies A; assigned A0; claims B 0 ->
unknown and deleted: deleted; assigned A0; claims B 0 ->
unknown and removed: assigned A-; assigned A0; claims B 0 ->
""",
}


@pytest.mark.parametrize(
    ("before", "script", "broken"),
    [pytest.param(before, *row.values, id=row.id) for before, table in CLAIMS.items() for row in rows(table)],
)
def test_claims_in_one_group(before, script, broken):
    group = OneGroup()
    assert group.play(before) == []
    assert group.play(script) == broken


def test_a_finding_names_both_claimants_and_their_epochs():
    group = OneGroup()
    group.play(f"{OWNED}; epoch B 4; claims B 0 1")
    assert "B (epoch 4) believes that it owns x-0, and so does A (epoch 3)" in group.messages[0]
