"""KIP-848's invariants of one consumer group, for whoever lets something happen to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from hypothesis.stateful import RuleBasedStateMachine, invariant

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState, GroupState
from fencepost.coordinator.consumer.subscription import effective_topics
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import CoordinatorHost
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.ids import Partitions
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind

GROUP = "g"


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


class ConsumerGroupInvariants(RuleBasedStateMachine):
    """What must be true of a group and its members after each step; the steps are a subclass's."""

    config: GroupCoordinatorConfig
    journal: MemoryJournal
    runtime: CoordinatorHost
    image: TopicsImage
    clients: list[Client]
    now_ms: int
    seen: tuple[Any, ...]
    """Which group there was after the step before, its epoch and its assignment's."""

    @property
    def coordinator(self) -> GroupCoordinator:
        return self.runtime.coordinator

    @property
    def group(self) -> ConsumerGroup | None:
        return self.coordinator.groups.get(GROUP)

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
        request: consumer.ConsumerGroupHeartbeatRequest,
        reply: consumer.ConsumerGroupHeartbeatResponse,
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
        if member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS and before is not None:
            assert member.member_epoch == before.member_epoch
        if member.state is ConsumerGroupMemberState.UNRELEASED_PARTITIONS:
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
                member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS and not away
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
        expected: dict[GroupTimerKey, None] = {}
        for group_id, group in self.coordinator.groups.items():
            assert set(soft.groups[group_id].contacts) == set(group.members)
            for member in group.members.values():
                expected[GroupTimerKey(GroupTimerKind.SESSION, group_id, member.member_id)] = None
                if member.pending_revocation:
                    expected[GroupTimerKey(GroupTimerKind.REBALANCE, group_id, member.member_id)] = None
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
        if m.state is not ConsumerGroupMemberState.STABLE or m.member_epoch != group.assignment_epoch
    ]
    return GroupState.RECONCILING if behind else GroupState.STABLE
