"""Mutants of single active consumers: a coordinator like RabbitMQ's without one of its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost.coordinator.protocol.sac import SIMPLE, SacReply
from fencepost.coordinator.sac import coordinator, draft
from fencepost.coordinator.sac.draft import GroupDraft
from fencepost.coordinator.sac.states import ConsumerEvent
from fencepost.simulation.mutants.mutant import Mutant, instead_of

_SPEC = "RabbitMQ's stream coordinator"


def _no_handover(original: Callable[..., None], self: GroupDraft, current: int) -> None:
    target = self.target()
    if target is not None and target != current:
        self._move(current, ConsumerEvent.RELEASED, draft.C_WAITING)
        self._notify(current, active=False)
        self._activate(target)
        self._notify(target, active=True)


def _no_purge(original: Callable[..., SacReply], command: Any, step: Any) -> SacReply:
    return SacReply()


def _disconnected_is_not_active(original: Callable[..., bool], status: Any) -> bool:
    return status is not draft.D_ACTIVE and original(status)


def _disconnected_blocks_nobody(original: Callable[..., int | None], self: GroupDraft) -> int | None:
    eligible = [place for place, one in enumerate(self.consumers) if draft.is_connected(one.status)]
    if not eligible:
        return None
    return eligible[0 if self.partition_index == SIMPLE else self.partition_index % len(eligible)]


def _no_reconciliation(original: Callable[..., None], self: GroupDraft, mine: list[int]) -> None:
    for place in mine:
        status = self.consumers[place].status
        if status is draft.F_ACTIVE:
            self._move(place, ConsumerEvent.RECONCILED, draft.C_WAITING)
        elif status is draft.F_WAITING:
            self._move(place, ConsumerEvent.RETURNED, draft.C_WAITING)


SAC_MUTANTS = (
    Mutant(
        name="sac-no-handover",
        bug=f"{_SPEC}, SAC with Super Stream Partition",
        summary="A consumer of a super stream is activated before the one before it has stepped down.",
        expected=("sac-exclusive",),
        scenarios=("sac-churn",),
        patches=(instead_of(GroupDraft, "_step_down_if_wrong", _no_handover),),
    ),
    Mutant(
        name="sac-stale-kept",
        bug=f"{_SPEC}, Stale Node Detection",
        summary="The consumers of a node that left the cluster stay in their groups, active ones too.",
        expected=("sac-stale-node",),
        scenarios=("sac-stale-nodes",),
        patches=(instead_of(coordinator, "_purge", _no_purge),),
    ),
    Mutant(
        name="sac-disconnected-ignored",
        bug=f"{_SPEC}, noconnection management",
        summary="A disconnected active consumer does not keep its group from choosing another one.",
        expected=("sac-one-active",),
        scenarios=("sac-node-failures",),
        patches=(
            instead_of(draft, "is_active", _disconnected_is_not_active),
            instead_of(GroupDraft, "target", _disconnected_blocks_nobody),
        ),
    ),
    Mutant(
        name="sac-return-not-evaluated",
        bug=f"{_SPEC}, evaluate impacted groups",
        summary="A forgotten active consumer comes back and is not told to step down.",
        expected=("sac-settled",),
        scenarios=("sac-node-failures", "sac-stale-nodes"),
        patches=(instead_of(GroupDraft, "_reconcile", _no_reconciliation),),
    ),
)
