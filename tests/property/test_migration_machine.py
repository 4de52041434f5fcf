"""Random members of both protocols in one group, which changes its kind; judged as in simulated runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from fencepost.coordinator.config import ConsumerGroupMigrationPolicy, GroupCoordinatorConfig
from fencepost.coordinator.protocol import classic as c
from fencepost.coordinator.protocol import consumer, consumer_protocol
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from fencepost.simulation.judge.coordination import Coordination
from tests.property.judged import GROUP, ClassicClient, ClassicRequests

PARTITIONS = 6
slots = st.integers(0, 3)


class Client(ClassicClient):
    """One consumer, which may change its protocol by a restart. A classic one is cooperative."""

    owned: tuple[int, ...] = ()
    modern_epoch: int | None = None


class MigrationMachine(ClassicRequests):
    """Slot 3 is a static member."""

    judge_types = (Coordination, ClassicRounds)
    partitions = PARTITIONS
    image = TopicsImage.of([Topic(topic_id="id-of-x", name="x", partitions=PARTITIONS)], 1)

    @initialize(
        policy=st.sampled_from(["bidirectional"] * 5 + ["upgrade", "downgrade", "disabled"]),
        classic=st.sampled_from([2, 3, 1, 0]),
        modern=st.sampled_from(["last", "in a round", "for a while", "first", "none"]),
    )
    def start(self, policy: str, classic: int, modern: str) -> None:
        """Some members are there already. The first ones speak the classic protocol."""
        self.begin(
            GroupCoordinatorConfig(
                group_consumer_migration_policy=ConsumerGroupMigrationPolicy(policy),
                group_consumer_assignment_interval_ms=0,
            )
        )
        self.clients = [self.client_of(slot) for slot in range(4)]
        if modern == "first":
            self.modernise(classic)
        for slot in range(classic):
            self.join(slot, True)
            self.join(slot, True)
        self.pass_time(6_000)
        for slot in range(classic):
            self.sync(slot)
        if modern == "in a round":
            self.join(0, False)
        if modern in ("last", "in a round", "for a while"):
            self.modernise(classic)
        if modern == "for a while":
            self.leave(classic, False)

    def client_of(self, slot: int) -> Client:
        return Client(slot, "i" if slot == 3 else None)

    def take(self, client: Client, reply: Any) -> None:
        """Keep a generation that was refused. Ignore responses to heartbeats: modern members beat too."""
        if isinstance(reply, c.HeartbeatResponse):
            return
        generation = client.generation
        super().take(client, reply)
        if isinstance(reply, c.SyncGroupResponse):
            client.generation = generation
            if reply.error_code is ErrorCode.NONE:
                client.owned = consumer_protocol.read_assignment(reply.assignment).partitions.get("x", ())

    @rule(slot=slots, eager=st.booleans())
    def join(self, slot: int, eager: bool) -> None:
        client = self.clients[slot]
        if client.modern_epoch is not None:
            return
        if eager:
            client.owned = ()
        self.send_join(client, client.owned)

    @rule(slot=slots)
    def modernise(self, slot: int) -> None:
        client = self.clients[slot]
        if client.modern_epoch is None:
            client = self.clients[slot] = self.client_of(slot)
            client.member_id = f"modern-{self.tokens}-{slot}"
        self.modern(client, 0, {})

    @rule(slot=slots, confirm=st.booleans())
    def modern_beat(self, slot: int, confirm: bool) -> None:
        client = self.clients[slot]
        if client.modern_epoch:
            owned = {"id-of-x": client.owned} if client.owned else {}
            self.modern(client, client.modern_epoch, owned if confirm else None)

    def modern(self, client: Client, epoch: int, owned: Any) -> None:
        joining = epoch == 0
        request = consumer.ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            member_epoch=epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=30_000 if joining else -1,
            subscribed_topic_names=("x",) if joining else None,
            topic_partitions=owned,
        )
        reply = self.step(request).reply
        assert isinstance(reply, consumer.ConsumerGroupHeartbeatResponse)
        if reply.error_code is ErrorCode.NONE:
            client.modern_epoch = reply.member_epoch
            if reply.assignment is not None:
                client.owned = reply.assignment.get("id-of-x", ())
        elif reply.error_code is not ErrorCode.NOT_COORDINATOR:
            self.restart(client.slot)

    @rule(slot=slots, for_a_while=st.booleans())
    def leave(self, slot: int, for_a_while: bool) -> None:
        client = self.clients[slot]
        if client.modern_epoch:
            self.modern(client, -2 if for_a_while and slot == 3 else -1, None)
        elif client.member_id:
            self.send_leave(client)
        self.restart(slot)

    @invariant()
    def it_is_of_one_kind(self) -> None:
        assert not (GROUP in self.coordinator.groups and GROUP in self.coordinator.classic.groups)

    @invariant()
    def every_member_has_a_session(self) -> None:
        group = self.coordinator.groups.get(GROUP)
        soft = self.coordinator.soft
        contacts = soft.groups[GROUP].contacts if GROUP in soft.groups else {}
        members = {} if group is None else group.members
        assert {one: contact.session_ms for one, contact in contacts.items()} == {
            one: None if member.classic is None else 10_000 for one, member in members.items()
        }


MigrationMachine.TestCase.settings = settings(
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestMigration = pytest.mark.timeout(120)(MigrationMachine.TestCase)


def test_the_only_member_comes_back_with_the_classic_protocol() -> None:
    """The response has its new target, and no other member has to join again."""
    machine = MigrationMachine()
    machine.start(policy="bidirectional", modern="last", classic=3)
    machine.leave(0, False)
    machine.leave(1, False)
    machine.leave(2, False)
    machine.restart(3)
    machine.join(3, False)
    assert machine.coordinator.classic.groups[GROUP].members
    machine.teardown()
