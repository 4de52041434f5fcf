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
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Original, instead_of

_DEPLOY: Final = ("classic-rolling-deploy",)
_SLOW: Final = ("classic-slow-members",)
_STATIC: Final = ("classic-static-members",)
_RESTARTS_AFTER: Final = 3


def _keeps_partitions(prepare: Original, self: ClassicOwnership, *arguments: Any) -> bool:
    was, self.cooperative = self.cooperative, True
    try:
        return bool(prepare(self, *arguments))
    finally:
        self.cooperative = was


def _gives_away_at_once(
    assign: Original, self: Any, partitions: Mapping[str, int], members: Sequence[Subscriber]
) -> Mapping[MemberId, ConsumerProtocolAssignment]:
    told = []
    for member in members:
        subscription = member.subscription
        if subscription is not None:
            subscription = msgspec.structs.replace(subscription, owned={})
        told.append(member._replace(subscription=subscription))
    given: Mapping[MemberId, ConsumerProtocolAssignment] = assign(self, partitions, told)
    return given


def _restarts(next_generation: Original, self: ClassicGroup, now_ms: int) -> None:
    if self.generation == _RESTARTS_AFTER:
        self.generation = 0
    next_generation(self, now_ms)


def _any_generation(
    _: Original, group: ClassicGroup, member_id: MemberId, instance_id: str | None, generation: int
) -> ClassicGroupMember:
    return group.check_member(member_id, instance_id)


def _writes_the_last_one(
    record: Original, self: ClassicGroupMember, protocol: str | None, assignment: bytes
) -> GroupMetadataMember:
    written: GroupMetadataMember = record(self, protocol, self.assignment)
    return written


def _nothing(_: Original, data: bytes) -> ConsumerProtocolAssignment:
    return ConsumerProtocolAssignment(partitions={})


def _nobody_comes_later(original: Original, step: ClassicStep) -> None:
    """Members that arrive during the initial delay of an empty group do not join its first members."""
    step.group.new_member_added = False
    original(step)


def _is_not_written(original: Original, step: ClassicStep, value: GroupMetadataValue | None) -> None:
    """A static member that returns changes only the state in memory."""
    if not step.group.is_in(ClassicGroupState.STABLE):
        original(step, value)


def _assigns_anyway(original: Original, *arguments: Any, **named: Any) -> JoinGroupResponse:
    """A leader that returned assigns again."""
    told: JoinGroupResponse = original(*arguments, **named)
    return msgspec.structs.replace(told, skip_assignment=False)


def _too_late_for_it(original: Original, group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    """A member that sends SyncGroup after the others have their assignment gets nothing."""
    given: SyncGroupResponse = original(group, assignment)
    stable = group.is_in(ClassicGroupState.STABLE)
    return msgspec.structs.replace(given, assignment=b"") if stable else given


def _no_end(original: Original, step: ClassicStep, kind: GroupTimerKind, length_ms: int) -> None:
    """A generation waits for its assignment without a limit."""
    if kind is not GroupTimerKind.SYNC:
        original(step, kind, length_ms)


def _all_may_stay(_: Original, step: ClassicStep) -> None:
    """Members that did not sync in time join again, like the others."""
    if step.group.pending_syncs:
        rounds.start(step)


def _stays_as_it_is(_: Original, *arguments: Any, **named: Any) -> bool:
    return False


def _forgets_its_id(fenced: Original, self: ClassicMember, *, forget_id: bool) -> None:
    fenced(self, forget_id=True)


def _never_joins_again(reconcile: Original, self: ClassicOwnership, *arguments: Any) -> bool:
    """Nobody gets the partitions that a cooperative member revoked."""
    done = bool(reconcile(self, *arguments))
    self.rejoin_wanted = False
    return done


def _expression_stays(
    original: Original, group: Any, soft: Any, old: ConsumerGroupMember, new: ConsumerGroupMember, **rest: Any
) -> Evaluated:
    """A member that comes back with the classic protocol keeps the expression that it subscribed to."""
    if new.classic is not None:
        new = msgspec.structs.replace(new, subscribed_topic_regex=old.subscribed_topic_regex)
    evaluated: Evaluated = original(group, soft, old, new, **rest)
    return evaluated


CLASSIC_MUTANTS: Final = (
    Mutant(
        "eager-keeps-partitions",
        UNREPORTED,
        "A member with an eager assignor joins again without releasing its partitions.",
        ("classic-joins",),
        _DEPLOY,
        (instead_of(ClassicOwnership, "prepare", _keeps_partitions),),
        ("group.partition_assignment_strategy=range",),
    ),
    Mutant(
        "cooperative-gives-at-once",
        "KIP-429",
        "A leader with the cooperative assignor assigns partitions that other members still own.",
        ("classic-assignment",),
        _DEPLOY,
        (instead_of(CooperativeStickyAssignor, "assign", _gives_away_at_once),),
    ),
    Mutant(
        "generations-restart",
        UNREPORTED,
        "Generation 3 is followed by generation 1.",
        ("classic-generations",),
        _DEPLOY,
        (instead_of(ClassicGroup, "next_generation", _restarts),),
    ),
    Mutant(
        "any-generation",
        UNREPORTED,
        "The coordinator accepts heartbeats and commits of any generation.",
        ("classic-answers", "commit-fenced"),
        _DEPLOY,
        (instead_of(sessions, "check_generation", _any_generation),),
    ),
    Mutant(
        "last-assignment-written",
        UNREPORTED,
        "The record of a generation has the previous generation's assignment.",
        ("classic-record",),
        _DEPLOY,
        (instead_of(ClassicGroupMember, "record", _writes_the_last_one),),
    ),
    Mutant(
        "upgraded-with-nothing",
        UNREPORTED,
        "When a classic group becomes a consumer group, its members count as owning nothing.",
        ("one-claimant", "classic-migrates"),
        ("rolling-migration",),
        (instead_of(upgrade, "read_assignment", _nothing),),
    ),
    Mutant(
        "first-members-alone",
        UNREPORTED,
        "The initial delay of an empty group is not extended when more members join.",
        ("classic-rounds",),
        _DEPLOY,
        (instead_of(rounds, "join_time_over", _nobody_comes_later),),
    ),
    Mutant(
        "generation-never-synced",
        "KAFKA-12890",
        "A generation whose leader left waits forever for its assignment.",
        ("timers-armed",),
        _SLOW,
        (instead_of(ClassicStep, "set_timer", _no_end),),
    ),
    Mutant(
        "late-sync-stays",
        "KAFKA-12890",
        "Members that did not send SyncGroup in time stay in the group.",
        ("classic-members",),
        _SLOW,
        (instead_of(rounds, "sync_time_over", _all_may_stay),),
    ),
    Mutant(
        "static-return-unwritten",
        "KAFKA-10284",
        "No record has the new member id of a static member that returned.",
        ("classic-record",),
        _STATIC,
        (instead_of(ClassicStep, "write", _is_not_written),),
    ),
    Mutant(
        "returned-leader-assigns",
        "KAFKA-13435",
        "A static leader that returned is not told to keep the assignment.",
        ("classic-joined",),
        _STATIC,
        (instead_of(join, "_in_generation", _assigns_anyway),),
    ),
    Mutant(
        "late-sync-gets-nothing",
        "KAFKA-9801",
        "A static member that returns to a Stable group gets an empty assignment.",
        ("classic-synced",),
        _STATIC,
        (instead_of(sync, "_assignment", _too_late_for_it),),
    ),
    Mutant(
        "never-downgraded",
        UNREPORTED,
        "A consumer group stays one after its last KIP-848 member left.",
        ("classic-migrates",),
        ("rolling-migration",),
        (instead_of(downgrade, "may_downgrade", _stays_as_it_is),),
    ),
    Mutant(
        "id-forgotten-with-generation",
        "KAFKA-13419",
        "A member that gets ILLEGAL_GENERATION joins as a new one, and its old self stays in the group.",
        ("classic-joins",),
        ("classic-static-members", "classic-slow-members"),
        (instead_of(ClassicMember, "_fenced", _forgets_its_id),),
    ),
    Mutant(
        "revoked-and-not-joined",
        UNREPORTED,
        "A member with a cooperative assignor revokes partitions and does not join again.",
        ("reconciles-on",),
        _DEPLOY,
        (instead_of(ClassicOwnership, "reconcile", _never_joins_again),),
    ),
    Mutant(
        "expression-outlives-its-protocol",
        "KAFKA-19720",
        "A static member that comes back with the classic protocol keeps its regular expression.",
        ("classic-migrates",),
        ("static-migration",),
        (instead_of(heartbeat, "evaluate", _expression_stays),),
        ('group.pattern="orders|payments"',),
    ),
)
