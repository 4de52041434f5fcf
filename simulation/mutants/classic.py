"""Bugs of the classic protocol: of its groups, its members, and the assignors that members bring along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fencepost.coordinator.classic import join, rounds, sessions, sync
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.classic.step import ClassicStep
from fencepost.coordinator.consumer import heartbeat
from fencepost.coordinator.consumer.heartbeat import Evaluated
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.migration import downgrade, upgrade
from fencepost.coordinator.protocol.classic import JoinGroupResponse, SyncGroupResponse
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import GroupMetadataMember, GroupMetadataValue
from fencepost.coordinator.timers import GroupTimerKind
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors.sticky import CooperativeStickyAssignor
from fencepost.member.classic.machine import ClassicMember
from fencepost.member.classic.ownership import ClassicOwnership
from fencepost.simulation.mutants.mutant import Mutants, Original

_DEPLOY: Final = ("classic-rolling-deploy",)
_SLOW: Final = ("classic-slow-members",)
_STATIC: Final = ("classic-static-members",)
_RESTARTS_AFTER: Final = 3


CLASSIC_MUTANTS: Final = Mutants()


@CLASSIC_MUTANTS.bug(
    "eager-keeps-partitions",
    "classic-joins",
    _DEPLOY,
    (ClassicOwnership, "prepare"),
    overrides=("group.partition_assignment_strategy=range",),
)
def _keeps_partitions(prepare: Original, self: ClassicOwnership, *arguments: Any) -> bool:
    """A member with an eager assignor joins again without releasing its partitions."""
    was, self.cooperative = self.cooperative, True
    try:
        return bool(prepare(self, *arguments))
    finally:
        self.cooperative = was


@CLASSIC_MUTANTS.bug(
    "cooperative-gives-at-once",
    "classic-assignment",
    _DEPLOY,
    (CooperativeStickyAssignor, "assign"),
    source="KIP-429",
)
def _gives_away_at_once(
    assign: Original, self: Any, partitions: Mapping[str, int], members: Sequence[Subscriber]
) -> Mapping[MemberId, ConsumerProtocolAssignment]:
    """A leader with the cooperative assignor assigns partitions that other members still own."""
    told = []
    for member in members:
        subscription = member.subscription
        if subscription is not None:
            subscription = msgspec.structs.replace(subscription, owned={})
        told.append(member._replace(subscription=subscription))
    given: Mapping[MemberId, ConsumerProtocolAssignment] = assign(self, partitions, told)
    return given


@CLASSIC_MUTANTS.bug("generations-restart", "classic-generations", _DEPLOY, (ClassicGroup, "next_generation"))
def _restarts(next_generation: Original, self: ClassicGroup, now_ms: int) -> None:
    """Generation 3 is followed by generation 1."""
    if self.generation == _RESTARTS_AFTER:
        self.generation = 0
    next_generation(self, now_ms)


@CLASSIC_MUTANTS.bug(
    "any-generation", "classic-answers commit-fenced", _DEPLOY, (sessions, "check_generation")
)
def _any_generation(
    _: Original, group: ClassicGroup, member_id: MemberId, instance_id: str | None, generation: int
) -> ClassicGroupMember:
    """The coordinator accepts heartbeats and commits of any generation."""
    return group.check_member(member_id, instance_id)


@CLASSIC_MUTANTS.bug("last-assignment-written", "classic-record", _DEPLOY, (ClassicGroupMember, "record"))
def _writes_the_last_one(
    record: Original, self: ClassicGroupMember, protocol: str | None, assignment: bytes
) -> GroupMetadataMember:
    """The record of a generation has the previous generation's assignment."""
    written: GroupMetadataMember = record(self, protocol, self.assignment)
    return written


@CLASSIC_MUTANTS.bug(
    "upgraded-with-nothing",
    "one-claimant classic-migrates",
    ("rolling-migration",),
    (upgrade, "read_assignment"),
)
def _nothing(_: Original, data: bytes) -> ConsumerProtocolAssignment:
    """Members of a classic group that becomes a consumer group count as owning nothing."""
    return ConsumerProtocolAssignment(partitions={})


@CLASSIC_MUTANTS.bug("first-members-alone", "classic-rounds", _DEPLOY, (rounds, "join_time_over"))
def _nobody_comes_later(original: Original, step: ClassicStep) -> None:
    """The initial delay of an empty group is not extended when more members join."""
    step.group.new_member_added = False
    original(step)


@CLASSIC_MUTANTS.bug(
    "generation-never-synced", "timers-armed", _SLOW, (ClassicStep, "set_timer"), source="KAFKA-12890"
)
def _no_end(original: Original, step: ClassicStep, kind: GroupTimerKind, length_ms: int) -> None:
    """A generation whose leader left waits forever for its assignment."""
    if kind is not GroupTimerKind.SYNC:
        original(step, kind, length_ms)


@CLASSIC_MUTANTS.bug(
    "late-sync-stays", "classic-members", _SLOW, (rounds, "sync_time_over"), source="KAFKA-12890"
)
def _all_may_stay(_: Original, step: ClassicStep) -> None:
    """Members that did not send SyncGroup in time stay in the group."""
    if step.group.pending_syncs:
        rounds.start(step)


@CLASSIC_MUTANTS.bug(
    "static-return-unwritten", "classic-record", _STATIC, (ClassicStep, "write"), source="KAFKA-10284"
)
def _is_not_written(original: Original, step: ClassicStep, value: GroupMetadataValue | None) -> None:
    """No record has the new member id of a static member that returned."""
    if not step.group.is_in(ClassicGroupState.STABLE):
        original(step, value)


@CLASSIC_MUTANTS.bug(
    "returned-leader-assigns", "classic-joined", _STATIC, (join, "_in_generation"), source="KAFKA-13435"
)
def _assigns_anyway(original: Original, *arguments: Any, **named: Any) -> JoinGroupResponse:
    """A static leader that returned is not told to keep the assignment."""
    told: JoinGroupResponse = original(*arguments, **named)
    return msgspec.structs.replace(told, skip_assignment=False)


@CLASSIC_MUTANTS.bug(
    "late-sync-gets-nothing", "classic-synced", _STATIC, (sync, "_assignment"), source="KAFKA-9801"
)
def _too_late_for_it(original: Original, group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """A static member that returns to a Stable group gets an empty assignment."""
    given: SyncGroupResponse = original(group, assignment)
    stable = group.is_in(ClassicGroupState.STABLE)
    return msgspec.structs.replace(given, assignment=b"") if stable else given


@CLASSIC_MUTANTS.bug(
    "never-downgraded", "classic-migrates", ("rolling-migration",), (downgrade, "may_downgrade")
)
def _stays_as_it_is(_: Original, *arguments: Any, **named: Any) -> bool:
    """A consumer group stays one after its last KIP-848 member left."""
    return False


@CLASSIC_MUTANTS.bug(
    "id-forgotten-with-generation",
    "classic-joins",
    ("classic-static-members", "classic-slow-members"),
    (ClassicMember, "_fenced"),
    source="KAFKA-13419",
)
def _forgets_its_id(fenced: Original, self: ClassicMember, *, forget_id: bool) -> None:
    """A member that gets ILLEGAL_GENERATION joins as a new one, and its old self stays in the group."""
    fenced(self, forget_id=True)


@CLASSIC_MUTANTS.bug("revoked-and-not-joined", "reconciles-on", _DEPLOY, (ClassicOwnership, "reconcile"))
def _never_joins_again(reconcile: Original, self: ClassicOwnership, *arguments: Any) -> bool:
    """A member with a cooperative assignor revokes partitions and does not join again."""
    done = bool(reconcile(self, *arguments))
    self.rejoin_wanted = False
    return done


@CLASSIC_MUTANTS.bug(
    "expression-outlives-its-protocol",
    "classic-migrates",
    ("static-migration",),
    (heartbeat, "evaluate"),
    source="KAFKA-19720",
    overrides=('group.pattern="orders|payments"',),
)
def _expression_stays(
    original: Original, group: Any, soft: Any, old: ConsumerGroupMember, new: ConsumerGroupMember, **rest: Any
) -> Evaluated:
    """A static member that comes back with the classic protocol keeps its regular expression."""
    if new.classic is not None:
        new = msgspec.structs.replace(new, subscribed_topic_regex=old.subscribed_topic_regex)
    evaluated: Evaluated = original(group, soft, old, new, **rest)
    return evaluated
