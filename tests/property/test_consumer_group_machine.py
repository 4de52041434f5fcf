"""Random requests, faults and time against one consumer group, judged step by step as simulated runs are."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.regular_expressions import resolve
from fencepost.coordinator.consumer.states import GroupState
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions
from fencepost.coordinator.protocol.outcome import (
    Outcome,
    ResolveRegularExpressions,
    TopicsChanged,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.coordination import Coordination
from tests.property.judged import GROUP, JudgedMachine

SLOTS = 4
REBALANCE_TIMEOUT_MS = 60_000
SUBSCRIPTIONS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("x",), None),
    (("x",), None),
    (("x", "y"), None),
    (("y", "z"), ""),
    ((), "x|y"),
    (("z",), "y.*"),
    ((), None),
)

slots = st.integers(0, SLOTS - 1)
BEATS = ("keepalive", "keepalive", "keepalive", "confirm", "confirm", "lost", "unfinished")
"""Unfinished: the member lists what it still has, because it has not stopped anything yet."""
subscriptions = st.sampled_from(SUBSCRIPTIONS)


class Client(msgspec.Struct):
    """An honest member: it never starts what it was not given, and stops before it confirms."""

    member_id: str
    instance_id: str | None = None
    names: tuple[str, ...] = ()
    regex: str | None = None
    epoch: int = 0
    owned: Partitions = {}
    target: Partitions = {}
    unsure: bool = False
    """The answer to its last request was lost."""


class ConsumerGroupMachine(JudgedMachine):
    judge_types = (Coordination,)
    protocol = "consumer"

    @initialize(interval_ms=st.sampled_from([0, 0, 1_000]))
    def start(self, interval_ms: int) -> None:
        self.ids = 0
        self.generations = {"x": 0, "y": 0, "z": 0}
        self.unresolved: list[ResolveRegularExpressions] = []
        self.image = TopicsImage.of([self.topic("x", 4), self.topic("y", 2)])
        self.begin(
            GroupCoordinatorConfig(
                group_consumer_max_size=4, group_consumer_assignment_interval_ms=interval_ms
            )
        )
        self.clients = [self.fresh(slot) for slot in range(SLOTS)]
        for client in self.clients:
            client.names = ("x",)

    @property
    def group(self) -> ConsumerGroup | None:
        return self.coordinator.groups.get(GROUP)

    # What the machine is made of

    def topic(self, name: str, partitions: int) -> Topic:
        return Topic(topic_id=f"{name}{self.generations[name]}", name=name, partitions=partitions)

    def fresh(self, slot: int) -> Client:
        self.ids += 1
        instance_id = f"instance-{slot}" if slot % 2 else None
        return Client(member_id=f"member-{self.ids}", instance_id=instance_id)

    def load(self) -> None:
        self.unresolved.clear()
        super().load()

    def step(self, event: Any) -> Outcome:
        outcome = super().step(event)
        self.unresolved += [each for each in outcome.effects if isinstance(each, ResolveRegularExpressions)]
        return outcome

    def beat(self, client: Client, lost: bool, **fields: Any) -> consumer.ConsumerGroupHeartbeatResponse:
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=client.instance_id,
            **{"member_epoch": client.epoch, **fields},
        )
        reply = self.step(request).reply
        assert isinstance(reply, consumer.ConsumerGroupHeartbeatResponse)
        client.unsure = lost
        if not lost:
            self.received(client, reply)
        return reply

    def received(self, client: Client, reply: consumer.ConsumerGroupHeartbeatResponse) -> None:
        if reply.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            client.epoch, client.owned, client.target = 0, {}, {}
        elif reply.error_code:
            client.unsure = True
        elif reply.member_epoch > 0:
            client.epoch = reply.member_epoch
            if reply.assignment is not None:
                client.target = reply.assignment

    def join(self, client: Client, lost: bool) -> consumer.ConsumerGroupHeartbeatResponse:
        client.epoch, client.owned, client.target = 0, {}, {}
        return self.beat(
            client,
            lost,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=client.names,
            subscribed_topic_regex=client.regex,
            topic_partitions={},
        )

    def confirm(self, client: Client, lost: bool) -> None:
        """Stop what was taken away, start what was given, and say so in a full request."""
        client.owned = client.target
        self.beat(
            client,
            lost,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            subscribed_topic_names=client.names,
            subscribed_topic_regex=client.regex,
            topic_partitions=client.owned,
        )

    # Steps

    @rule(slot=slots, subscription=subscriptions, lost=st.booleans())
    def joins(self, slot: int, subscription: tuple[tuple[str, ...], str | None], lost: bool) -> None:
        client = self.clients[slot]
        client.names, client.regex = subscription
        self.join(client, lost)

    @rule(steps=st.lists(st.tuples(slots, st.sampled_from(BEATS)), min_size=1, max_size=12))
    def members_beat(self, steps: list[tuple[int, str]]) -> None:
        for slot, kind in steps:
            self.now_ms += 300
            client = self.clients[slot]
            if not client.epoch:
                self.join(client, kind == "lost")
            elif kind == "keepalive" and not client.unsure:
                self.beat(client, False)
            elif kind == "unfinished":
                self.beat(client, False, topic_partitions=client.owned)
            else:
                self.confirm(client, kind == "lost")
            self.no_two_honest_members_use_a_partition()

    @rule(slot=slots, subscription=subscriptions)
    def changes_its_subscription(self, slot: int, subscription: tuple[tuple[str, ...], str | None]) -> None:
        client = self.clients[slot]
        if client.epoch and not client.unsure:
            names, regex = subscription
            client.names, client.regex = names, regex or ""
            self.beat(client, False, subscribed_topic_names=client.names, subscribed_topic_regex=client.regex)

    @rule(slot=slots, assignor=st.sampled_from(["uniform", "range"]))
    def asks_for_an_assignor(self, slot: int, assignor: str) -> None:
        client = self.clients[slot]
        if client.epoch and not client.unsure:
            self.beat(client, False, server_assignor=assignor)

    @rule(
        slot=slots,
        how=st.sampled_from(["for good", "for a while", "for a while, same id", "crash", "removed"]),
    )
    def goes(self, slot: int, how: str) -> None:
        client = self.clients[slot]
        again = self.fresh(slot)
        again.names, again.regex = client.names, client.regex
        if how == "removed":
            self.step(consumer.LeaveGroupRequest(group_id=GROUP, member_id=client.member_id))
            return
        if how == "for good" and client.epoch:
            self.beat(client, True, member_epoch=-1)
        elif how.startswith("for a while") and client.epoch and client.instance_id is not None:
            self.beat(client, True, member_epoch=-2)
            again.member_id = client.member_id if how.endswith("same id") else again.member_id
        self.clients[slot] = again

    @rule(slot=slots, instance=st.sampled_from(["instance-1", "instance-3", "instance-9"]))
    def joins_under_another_instance_id(self, slot: int, instance: str) -> None:
        client = self.clients[slot]
        client.instance_id = instance
        if self.join(client, False).error_code:
            self.clients[slot] = self.fresh(slot)

    @rule(slot=slots, epoch=st.integers(-3, 9), owned=st.sampled_from([None, {}, {"x0": (0,)}, {"q": (1,)}]))
    def sends_nonsense(self, slot: int, epoch: int, owned: Partitions | None) -> None:
        """A stranger under the member's instance id, or with no id known: never does harm."""
        stranger = Client(member_id="stranger", instance_id=self.clients[slot].instance_id)
        if epoch > 0 or epoch < -2:
            self.beat(stranger, True, member_epoch=epoch, topic_partitions=owned)

    @rule(slot=slots, epoch=st.integers(1, 12))
    def comes_with_another_epoch(self, slot: int, epoch: int) -> None:
        self.beat(self.clients[slot], True, member_epoch=epoch)

    @rule(name=st.sampled_from(["x", "y", "z"]), partitions=st.integers(0, 3))
    def topics_change(self, name: str, partitions: int) -> None:
        """Created, grown, or (with 0) deleted."""
        known = self.image.by_name.get(name)
        if not partitions:
            self.generations[name] += 1
            self.image = self.image.without(name)
        else:
            count = partitions if known is None else known.partitions + partitions
            self.image = self.image.with_topic(self.topic(name, min(count, 8)))
        self.step(TopicsChanged(image=self.image))

    @rule()
    def expressions_are_resolved(self) -> None:
        while self.unresolved:
            self.step(resolve(self.unresolved.pop(), self.image))

    @invariant()
    def no_two_honest_members_use_a_partition(self) -> None:
        used: set[tuple[str, int]] = set()
        for client in self.clients:
            known = None if self.group is None else self.group.members.get(client.member_id)
            if known is None or not client.epoch or known.member_epoch < 0:
                continue  # it was fenced, or it left
            for topic_id, numbers in client.owned.items():
                assert used.isdisjoint((topic_id, number) for number in numbers)
                used.update((topic_id, number) for number in numbers)

    def finish(self) -> None:
        """Once all members behave, all converge, and nothing was lost."""
        self.journal.refuses = False
        present = [client for client in self.clients if client.epoch]
        for _ in range(14):
            self.pass_time(5_000)
            self.expressions_are_resolved()
            for client in present:
                if client.epoch:
                    self.confirm(client, False)
                else:
                    self.join(client, False)
        self.observe("on_end")
        group = self.group
        if group is None or not group.members:
            return
        assert group.state is GroupState.STABLE, group.hard_state()
        for client in present:
            member = group.members.get(client.member_id)
            if member is None:
                continue
            assert member.member_epoch == client.epoch == group.group_epoch
            assert member.assigned == client.owned == group.targets.get(member.member_id, {})


def test_a_member_takes_the_place_of_one_that_went_for_a_while() -> None:
    """It is in the group already, under no instance id: the coordinator forgets what it was."""
    machine = ConsumerGroupMachine()
    machine.start(interval_ms=0)
    machine.joins(slot=0, subscription=SUBSCRIPTIONS[0], lost=False)
    machine.joins(slot=1, subscription=SUBSCRIPTIONS[0], lost=False)
    machine.asks_for_an_assignor(slot=1, assignor="range")
    machine.goes(slot=1, how="for a while")
    machine.joins_under_another_instance_id(slot=0, instance="instance-1")
    assert machine.group is not None
    assert [member.instance_id for member in machine.group.members.values()] == ["instance-1"]
    machine.teardown()


def test_a_member_comes_back_without_its_instance_id() -> None:
    """It is a known member that joins again: the epoch before is that of its absence."""
    machine = ConsumerGroupMachine()
    machine.start(interval_ms=0)
    machine.joins(slot=1, subscription=SUBSCRIPTIONS[0], lost=False)
    machine.goes(slot=1, how="for a while, same id")
    machine.clients[1].instance_id = None
    machine.joins(slot=1, subscription=SUBSCRIPTIONS[0], lost=False)
    assert machine.group is not None
    (member,) = machine.group.members.values()
    assert member.instance_id == "instance-1"
    assert member.previous_member_epoch == -2
    machine.teardown()


def test_a_violation_ends_a_run() -> None:
    machine = ConsumerGroupMachine()
    machine.start(interval_ms=0)
    begun_ms = machine.now_ms
    with pytest.raises(AssertionError, match="one-owner: x-0 has two"):
        machine.report("one-owner", "x-0 has two")
    machine.teardown()
    assert machine.now_ms == begun_ms


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.pytestmark = pytest.mark.timeout(180)  # type: ignore[attr-defined]
TestConsumerGroup.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
