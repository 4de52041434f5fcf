"""Random requests, faults and time against one consumer group; KIP-848's invariants after every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.regular_expressions import resolve
from fencepost.coordinator.consumer.soft import TimerKey, TimerKind
from fencepost.coordinator.consumer.states import GroupState, MemberState
from fencepost.coordinator.consumer.subscription import effective_topics
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import Partitions
from fencepost.coordinator.protocol.outcome import Outcome, ResolveRegularExpressions, TopicsChanged
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    Record,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage, metadata_hash
from fencepost.coordinator.runtime import AppendFailed, CoordinatorRuntime

GROUP = "g"
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


class UnreliableJournal(MemoryJournal):
    """Fails the next append when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = False

    def append(self, records: tuple[Record, ...]) -> None:
        if self.failing:
            raise AppendFailed(ErrorCode.NOT_LEADER_OR_FOLLOWER, "told to fail")
        super().append(records)


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
    epoch_before: int = 0
    """The member epoch that it last confirmed to have seen."""


class ConsumerGroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.ids = 0
        self.generations: dict[str, int] = {"x": 0, "y": 0, "z": 0}
        self.start(0)

    @initialize(interval_ms=st.sampled_from([0, 0, 1_000]))
    def start(self, interval_ms: int) -> None:
        self.config = GroupCoordinatorConfig(
            group_consumer_max_size=4, group_consumer_assignment_interval_ms=interval_ms
        )
        self.journal = UnreliableJournal()
        self.image = TopicsImage.of([self.topic("x", 4), self.topic("y", 2)])
        self.runtime = self.started()
        self.clients = [self.fresh(slot) for slot in range(SLOTS)]
        for client in self.clients:
            client.names = ("x",)
        self.unresolved: list[ResolveRegularExpressions] = []
        self.seen: tuple[Any, ...] = ("", 0, 0)

    # What the machine is made of

    def topic(self, name: str, partitions: int) -> Topic:
        return Topic(topic_id=f"{name}{self.generations[name]}", name=name, partitions=partitions)

    def fresh(self, slot: int) -> Client:
        self.ids += 1
        instance_id = f"instance-{slot}" if slot % 2 else None
        return Client(member_id=f"member-{self.ids}", instance_id=instance_id)

    def started(self) -> CoordinatorRuntime:
        coordinator = GroupCoordinator(self.config)
        coordinator.replay(self.journal, self.now_ms)
        runtime = CoordinatorRuntime(coordinator, self.journal)
        runtime.process(TopicsChanged(image=self.image), self.now_ms)
        return runtime

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.runtime.coordinator

    @property
    def group(self) -> ConsumerGroup | None:
        return self.coordinator.groups.get(GROUP)

    def process(self, event: Any) -> Outcome:
        """One step, with what must be true of any single step."""
        before = self.coordinator.hard_state()
        outcome = self.runtime.process(event, self.now_ms)
        error = getattr(outcome.reply, "error_code", ErrorCode.NONE)
        if error:
            assert not outcome.records
            assert self.coordinator.hard_state() == before, "a failed request changed something"
        self.check_order(outcome.records)
        self.check_new_target(outcome.records)
        for effect in outcome.effects:
            if isinstance(effect, ResolveRegularExpressions):
                self.unresolved.append(effect)
        return outcome

    def beat(self, client: Client, lost: bool, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=client.instance_id,
            **{"member_epoch": client.epoch, **fields},
        )
        known = None if self.group is None else self.group.members.get(client.member_id)
        reply = self.process(request).reply
        assert isinstance(reply, ConsumerGroupHeartbeatResponse)
        self.check_reply(request, reply, known)
        if not reply.error_code and request.member_epoch >= 0:
            self.check_evaluation(client.member_id, known)
        client.unsure = lost
        if not lost:
            self.received(client, reply)
        return reply

    def received(self, client: Client, reply: ConsumerGroupHeartbeatResponse) -> None:
        if reply.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            client.epoch, client.owned, client.target = 0, {}, {}
        elif reply.error_code:
            client.unsure = True
        elif reply.member_epoch > 0:
            client.epoch = reply.member_epoch
            if reply.assignment is not None:
                client.target = reply.assignment

    def join(self, client: Client, lost: bool) -> ConsumerGroupHeartbeatResponse:
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
            self.process(LeaveGroupRequest(group_id=GROUP, member_id=client.member_id))
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
            reply = self.beat(stranger, True, member_epoch=epoch, topic_partitions=owned)
            assert reply.error_code

    @rule(slot=slots, epoch=st.integers(1, 12))
    def comes_with_another_epoch(self, slot: int, epoch: int) -> None:
        """Invariant 22: which epochs a known member may come with."""
        client = self.clients[slot]
        known = None if self.group is None else self.group.members.get(client.member_id)
        if known is not None and known.member_epoch > 0 and epoch != known.member_epoch:
            reply = self.beat(client, True, member_epoch=epoch)
            assert reply.error_code is ErrorCode.FENCED_MEMBER_EPOCH

    @rule(by_ms=st.sampled_from([1, 1_000, 5_000, 11_000, 46_000, 700_000]))
    def time_passes(self, by_ms: int) -> None:
        self.now_ms += by_ms
        for outcome in self.runtime.run_due(self.now_ms):
            self.check_order(outcome.records)

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
        self.process(TopicsChanged(image=self.image))

    @rule()
    def expressions_are_resolved(self) -> None:
        while self.unresolved:
            self.process(resolve(self.unresolved.pop(), self.image))

    @rule(compact=st.sampled_from(["no", "keep tombstones", "yes"]))
    def coordinator_fails_over(self, compact: str) -> None:
        before = self.coordinator.hard_state()
        if compact != "no":
            self.journal.compact(keep_tombstones=compact == "keep tombstones")
        self.unresolved.clear()
        self.runtime = self.started()
        assert self.coordinator.hard_state() == before

    @rule(slot=slots, join=st.booleans())
    def append_fails(self, slot: int, join: bool) -> None:
        client = self.clients[slot]
        self.journal.failing = True
        if join:
            self.join(client, True)
        elif client.epoch:
            self.confirm(client, True)
        self.journal.failing = False
        self.unresolved = [effect for effect in self.unresolved if self.coordinator.soft.resolving]

    # What must be true of a single step

    def check_order(self, records: tuple[Record, ...]) -> None:
        """Invariant 26: a member ends with its assignment, its target and then itself."""
        ends: dict[str, list[type]] = {}
        for record in records:
            if record.value is None and hasattr(record.key, "member_id"):
                ends.setdefault(record.key.member_id, []).append(type(record.key))
        for order in ends.values():
            assert order == [
                ConsumerGroupCurrentMemberAssignmentKey,
                ConsumerGroupTargetAssignmentMemberKey,
                ConsumerGroupMemberMetadataKey,
            ]

    def check_new_target(self, records: tuple[Record, ...]) -> None:
        """Invariants 10 and 11, at the moment when a target is made."""
        group = self.group
        computed = any(isinstance(record.key, ConsumerGroupTargetAssignmentMetadataKey) for record in records)
        if group is None or not computed or group.assignment_epoch < 0:
            return
        wanted: dict[str, set[str]] = {}
        for member_id, member in group.members.items():
            for name in effective_topics(member, group.resolved):
                if name in self.image.by_name:
                    wanted.setdefault(self.image.by_name[name].topic_id, set()).add(member_id)
        given = [
            (topic_id, partition, member_id)
            for member_id, target in group.targets.items()
            for topic_id, numbers in target.items()
            for partition in numbers
        ]
        assert all(member_id in wanted.get(topic_id, ()) for topic_id, _, member_id in given)
        expected = sorted((t, p) for t in wanted for p in range(self.image.by_id[t].partitions))
        assert sorted((topic_id, partition) for topic_id, partition, _ in given) == expected
        everyone = set(group.members)
        votes = group.counts.assignors
        if votes.get("range", 0) <= votes.get("uniform", 0) and all(s == everyone for s in wanted.values()):
            sizes = [sum(map(len, group.targets[member_id].values())) for member_id in group.members]
            assert max(sizes) - min(sizes) <= 1

    def check_reply(
        self,
        request: ConsumerGroupHeartbeatRequest,
        reply: ConsumerGroupHeartbeatResponse,
        before: ConsumerGroupMember | None,
    ) -> None:
        """Invariants 18, 19 and 24."""
        if reply.error_code:
            return
        if request.member_epoch < 0:
            assert reply.member_epoch == request.member_epoch
            return
        assert before is not None or request.member_epoch == 0
        assert self.group is not None
        member = self.group.members[request.member_id]
        assert reply.member_epoch == member.member_epoch >= 1
        full = (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )
        if request.member_epoch == 0 or full:
            assert reply.assignment is not None
        if reply.assignment is not None:
            assert reply.assignment == member.assigned
        else:
            assert before is not None
            assert before.assigned == member.assigned

    def check_evaluation(self, member_id: str, before: ConsumerGroupMember | None) -> None:
        """Invariants 6, 8 and 9, at the moment when a member was evaluated."""
        assert self.group is not None
        member = self.group.members[member_id]
        if before is not None and member.assignment_record(GROUP) == before.assignment_record(GROUP):
            return  # what it said of itself may have changed, but it was not evaluated
        topics = effective_topics(member, self.group.resolved)
        subscribed = {self.image.by_name[name].topic_id for name in topics if name in self.image.by_name}
        assert set(member.assigned) <= subscribed
        if member.state is MemberState.UNREVOKED_PARTITIONS and before is not None:
            assert member.member_epoch == before.member_epoch
        if member.state is MemberState.UNRELEASED_PARTITIONS:
            target = self.group.targets.get(member_id, {})
            others = [m for m in self.group.members.values() if m is not member]
            held = [union(other.assigned, other.pending_revocation) for other in others]
            assert any(
                partition in of_other.get(topic_id, ())
                for topic_id, numbers in target.items()
                for partition in numbers
                for of_other in held
            )

    # What must always be true

    @invariant()
    def no_partition_has_two_holders(self) -> None:
        """Invariants 1 and 2."""
        if self.group is None:
            return
        held: dict[str, dict[int, int]] = {}
        for member in self.group.members.values():
            for part in (member.assigned, member.pending_revocation):
                for topic_id, numbers in part.items():
                    assert numbers == tuple(sorted(set(numbers))) != ()
                    for partition in numbers:
                        assert partition not in held.setdefault(topic_id, {})
                        held[topic_id][partition] = member.member_epoch
        assert held == self.group.partition_epochs.as_dict()
        assert sum(map(len, held.values())) == len(self.group.partition_epochs)

    @invariant()
    def no_two_honest_members_use_a_partition(self) -> None:
        used: set[tuple[str, int]] = set()
        for client in self.clients:
            known = None if self.group is None else self.group.members.get(client.member_id)
            if known is None or not client.epoch or known.member_epoch < 0:
                continue  # it was fenced, or it left
            for topic_id, numbers in client.owned.items():
                for partition in numbers:
                    assert (topic_id, partition) not in used
                    used.add((topic_id, partition))

    @invariant()
    def epochs_are_in_order(self) -> None:
        """Invariants 3 and 4."""
        group = self.group
        if group is None:
            self.seen = ("", 0, 0)
            return
        assert group.assignment_epoch <= group.group_epoch
        _, group_epoch, assignment_epoch = self.seen
        assert group.group_epoch >= group_epoch
        assert group.assignment_epoch >= assignment_epoch
        self.seen = (GROUP, group.group_epoch, group.assignment_epoch)
        for member in group.members.values():
            assert member.member_epoch <= group.assignment_epoch
            if member.member_epoch != -2:
                assert member.previous_member_epoch <= member.member_epoch >= 1

    @invariant()
    def members_are_where_their_state_says(self) -> None:
        """Invariants 5, 7 and 9."""
        for member in () if self.group is None else self.group.members.values():
            assert self.group is not None
            away = member.member_epoch == -2
            assert bool(member.pending_revocation) == (
                member.state is MemberState.UNREVOKED_PARTITIONS and not away
            )
            epochs = {t: tuple(sorted(p)) for t, p in member.assignment_epochs.items()}
            assert epochs == union(member.assigned, member.pending_revocation)
            for of_topic in member.assignment_epochs.values():
                assert all(0 <= epoch <= max(member.member_epoch, 0) for epoch in of_topic.values())
            if member.is_reconciled_to(self.group.assignment_epoch):
                target = self.group.targets.get(member.member_id, {})
                assert all(set(p) <= set(target.get(t, ())) for t, p in member.assigned.items())

    @invariant()
    def instances_and_members_agree(self) -> None:
        """Invariant 13."""
        if self.group is not None:
            members = self.group.members.items()
            instances = {m.instance_id: i for i, m in members if m.instance_id is not None}
            assert instances == dict(self.group.static_members)
            assert len(instances) == sum(m.instance_id is not None for _, m in members)

    @invariant()
    def timers_belong_to_members(self) -> None:
        """Invariant 14, and nothing is left of members that went."""
        soft = self.coordinator.soft
        expected: dict[TimerKey, None] = {}
        for group_id, group in self.coordinator.groups.items():
            assert set(soft.groups[group_id].contacts) == set(group.members)
            for member in group.members.values():
                expected[TimerKey(TimerKind.SESSION, group_id, member.member_id)] = None
                if member.pending_revocation:
                    expected[TimerKey(TimerKind.REBALANCE, group_id, member.member_id)] = None
        assert set(soft.groups) == set(self.coordinator.groups)
        timers = set(soft.timers)
        assert timers == set(expected)

    @invariant()
    def what_is_derived_follows(self) -> None:
        """Invariants 15, 16 and 17, and the state that is counted is the state as defined."""
        group = self.group
        if group is None:
            return
        members = group.members.values()
        assert set(group.resolved) <= {m.regex for m in members}
        assert set(group.targets) <= set(group.members)
        assert set(group.counts.regexes) == {m.regex for m in members} - {None}
        assert group.state is state_of(group)
        names = sorted({name for m in members for name in effective_topics(m, group.resolved)})
        assert names == group.counts.topics()
        soft = self.coordinator.soft.groups[GROUP]
        if members and not soft.metadata_expired(group.group_epoch, self.now_ms):
            assert group.metadata_hash == metadata_hash(names, self.image)

    @invariant()
    def replay_gives_the_same_state(self) -> None:
        """Invariant 25, for the journal as it is and for its compactions."""
        live = self.coordinator.hard_state()
        for keep_tombstones in (None, True, False):
            journal = MemoryJournal(self.journal.batches())
            if keep_tombstones is not None:
                journal.compact(keep_tombstones=keep_tombstones)
            other = GroupCoordinator(self.config)
            other.replay(journal, self.now_ms)
            assert other.hard_state() == live

    def teardown(self) -> None:
        """Invariants 23, 39 and 40: once everyone behaves, all converge, and nothing was lost."""
        present = [client for client in self.clients if client.epoch]
        for _ in range(14):
            self.now_ms += 5_000
            self.runtime.run_due(self.now_ms)
            self.expressions_are_resolved()
            for client in present:
                if client.epoch:
                    self.confirm(client, False)
                else:
                    self.join(client, False)
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


def union(first: Partitions, second: Partitions) -> Mapping[str, tuple[int, ...]]:
    topics = {*first, *second}
    return {t: tuple(sorted((*first.get(t, ()), *second.get(t, ())))) for t in topics}


def state_of(group: ConsumerGroup) -> GroupState:
    if not group.members:
        return GroupState.EMPTY
    if group.group_epoch > group.assignment_epoch:
        return GroupState.ASSIGNING
    behind = [
        m
        for m in group.members.values()
        if m.state is not MemberState.STABLE or m.member_epoch != group.assignment_epoch
    ]
    return GroupState.RECONCILING if behind else GroupState.STABLE


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.pytestmark = pytest.mark.timeout(180)
TestConsumerGroup.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow],
)
