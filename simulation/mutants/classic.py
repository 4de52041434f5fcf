"""Bugs of the classic protocol: of its groups, its members, and the assignors that members bring along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fencepost.coordinator.classic import sessions
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.migration import upgrade
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import GroupMetadataMember
from fencepost.member.classic.assignor import Subscriber
from fencepost.member.classic.assignors.sticky import CooperativeStickyAssignor
from fencepost.member.classic.ownership import ClassicOwnership
from fencepost.simulation.mutants.mutant import NOBODY, Mutant, Original, instead_of

_DEPLOY: Final = ("classic-rolling-deploy",)
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


CLASSIC_MUTANTS: Final = (
    Mutant(
        "eager-keeps-partitions",
        NOBODY,
        "A member with an eager assignor joins again without letting go of what it has.",
        ("classic-joins",),
        _DEPLOY,
        (instead_of(ClassicOwnership, "prepare", _keeps_partitions),),
        ("group.partition_assignment_strategy=range",),
    ),
    Mutant(
        "cooperative-gives-at-once",
        "KIP-429",
        "A leader with the cooperative assignor gives partitions away that others still have.",
        ("classic-assignment",),
        _DEPLOY,
        (instead_of(CooperativeStickyAssignor, "assign", _gives_away_at_once),),
    ),
    Mutant(
        "generations-restart",
        NOBODY,
        "The generation after the third one is the first again.",
        ("classic-generations",),
        _DEPLOY,
        (instead_of(ClassicGroup, "next_generation", _restarts),),
    ),
    Mutant(
        "any-generation",
        NOBODY,
        "Heartbeats and commits are taken in whatever generation they are sent.",
        ("classic-answers", "commit-fenced"),
        _DEPLOY,
        (instead_of(sessions, "check_generation", _any_generation),),
    ),
    Mutant(
        "last-assignment-written",
        NOBODY,
        "What is written of a generation is the assignment of the one before.",
        ("classic-record",),
        _DEPLOY,
        (instead_of(ClassicGroupMember, "record", _writes_the_last_one),),
    ),
    Mutant(
        "upgraded-with-nothing",
        NOBODY,
        "Members of a classic group that becomes a consumer group count as having nothing.",
        ("one-claimant",),
        ("rolling-migration",),
        (instead_of(upgrade, "read_assignment", _nothing),),
    ),
)
