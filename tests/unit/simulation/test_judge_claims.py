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

    def claims(self, host, *numbers):
        self.judge.on_callback(host, "assigned", "end", tuple((P0, P1)[int(each)] for each in numbers), 0)


@pytest.mark.parametrize(
    ("script", "broken"),
    [
        # A consumer group knows what the classic one has given, and what it assigns itself.
        ("classic A0; joined A B; claims A 0; consumer; assigned A B | claims B 0", True),
        ("classic A; joined A B; claims A 0; consumer; assigned A B; claims B 0", False),
        ("classic; joined A; claims A 0; consumer; assigned A B; assigned A0+ | claims B 0", True),
        # Another coordinator knows what was given.
        ("classic A0; elsewhere; joined A; claims A 0 1; classic A1; elsewhere; consumer; assigned A B;"
         "claims B 0 | claims B 1", True),
        # A join that comes late takes what its member has.
        ("assigned A01 B; claims A 0 1; late 0 | claims B 0", True),
        ("assigned A01 B; claims A 0 1; late 0 | claims B 1", True),
        ("assigned A01 B; claims A 0 1; late 3 | claims B 0", False),
        ("assigned A01 B; claims A 0 1; late 3 | claims B 1", True),
        # A claim ends with its member that was taken into a classic group; the callback of A took long.
        ("assigned A B; classic; assigned A- B-; claims B 0 | claims A 0", True),
        ("assigned A B; classic; assigned A- B-; removed A; claims B 0; claims A 0", False),
    ],
)  # fmt: skip
def test_claims_in_one_group(script, broken):
    assert OneGroup().play(script) == (["one-claimant"] if broken else [])
