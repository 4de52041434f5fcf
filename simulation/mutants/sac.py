"""Mutants of single active consumers: a coordinator like RabbitMQ's without one of its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from fencepost.coordinator.protocol import sac
from fencepost.coordinator.sac import coordinator, draft
from fencepost.coordinator.sac.coordinator import SacCoordinator
from fencepost.coordinator.sac.draft import GroupDraft
from fencepost.coordinator.sac.state import SacState
from fencepost.coordinator.sac.states import ConsumerEvent
from fencepost.member.base.backoff import Backoff
from fencepost.member.sac.actions import AnswerUpdate, SacCallback
from fencepost.member.sac.consumer import SingleActiveConsumer
from fencepost.member.sac.machine import SacMember
from fencepost.member.sac.offsets import NONE, OffsetKind, OffsetSpecification
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Original, instead_of

_SPEC = "RabbitMQ's stream coordinator"


def _no_handover(original: Callable[..., None], self: GroupDraft, current: int) -> None:
    target = self.target()
    if target is not None and target != current:
        self._move(current, ConsumerEvent.RELEASED, draft.C_WAITING)
        self._notify(current, active=False)
        self._activate(target)
        self._notify(target, active=True)


def _no_purge(original: Callable[..., sac.SacReply], command: Any, step: Any) -> sac.SacReply:
    return sac.SacReply()


def _disconnected_is_not_current(original: Callable[..., int | None], self: GroupDraft) -> int | None:
    place = original(self)
    if place is None or self.consumers[place].status is not draft.D_ACTIVE:
        return place
    others = [
        place
        for place, one in enumerate(self.consumers)
        if one.status in (draft.C_ACTIVE, draft.C_DEACTIVATING)
    ]
    return min(others, default=None)


def _disconnected_blocks_nobody(original: Callable[..., int | None], self: GroupDraft) -> int | None:
    eligible = [place for place, one in enumerate(self.consumers) if one.status in draft.CONNECTED]
    if not eligible:
        return None
    return eligible[0 if self.partition_index == sac.SIMPLE else self.partition_index % len(eligible)]


def _no_reconciliation(original: Callable[..., None], self: GroupDraft, mine: list[int]) -> None:
    for place in mine:
        status = self.consumers[place].status
        if status is draft.F_ACTIVE:
            self._move(place, ConsumerEvent.RECONCILED, draft.C_WAITING)
        elif status is draft.F_WAITING:
            self._move(place, ConsumerEvent.RETURNED, draft.C_WAITING)


def _lost_is_gone(original: Original, self: GroupDraft, connection: str) -> None:
    self.end_connection(connection)


def _lost_step_down_waits(original: Original, self: GroupDraft, connection: str) -> None:
    with mock.patch.object(GroupDraft, "rebalance"):
        original(self, connection)


def _chosen_again_is_told_nothing(original: Original, self: GroupDraft) -> None:
    stepping_down = self.target()
    again = stepping_down is not None and self.consumers[stepping_down].status is draft.C_DEACTIVATING
    original(self)
    if again and self.effects and isinstance(self.effects[-1], sac.NotifyConsumer):
        self.effects.pop()


def _asks_only_indexed(original: Original, event: Any, step: Any) -> sac.SacReply:
    for connection in step.state.connections_on(event.node):
        if step.state.is_indexed(connection):
            step.first += [sac.CheckConnection(connection), sac.MonitorConnection(connection)]
    return sac.SacReply()


def _timeout_leaves_the_index(original: Original, command: Any, step: Any) -> sac.SacReply:
    reply: sac.SacReply = original(command, step)
    step.rebuilt = False
    step.index[command.connection] = ()
    return reply


def _never_active(original: Original, command: Any, step: Any) -> sac.SacReply:
    reply: sac.SacReply = original(command, step)
    return reply if reply.error is not None else sac.SacReply(is_active=False)


def _times_afresh_with_nothing(original: Original, self: SacState, now_ms: int) -> None:
    for connection in self.away:
        self.timers.set(connection, now_ms)


def _no_deadline(original: Original, self: SacCoordinator) -> int | None:
    return None


def _step_down_leads_nowhere(original: Original, command: Any, step: Any) -> sac.SacReply:
    return sac.SacReply()


async def _loss_is_not_told(original: Original, self: Any, kind: SacCallback) -> None:
    if kind is SacCallback.LOST:
        self._callback_over(None)
    else:
        await original(self, kind)


def _answers_at_once(original: Original, self: SacMember, *arguments: Any) -> Any:
    _, correlation, active, _ = arguments
    actions = original(self, *arguments)
    return actions if active else (AnswerUpdate(correlation, NONE), *actions)


async def _begins_one_too_far(original: Original, self: Any, chosen: object) -> OffsetSpecification:
    found: OffsetSpecification = await original(self, chosen)
    return found if found.kind is not OffsetKind.OFFSET else OffsetSpecification.at(found.value + 1)


def _at_once_again(original: Original, self: Backoff) -> int:
    return 1


def _hands_all_over(original: Original, self: SacMember, connection: int, first: int, end: int) -> Any:
    begin = original(self, connection, first, end)
    return None if begin is None else first


SAC_MUTANTS = (
    Mutant(
        name="sac-no-handover",
        bug=f"{_SPEC}, SAC with Super Stream Partition",
        summary="A consumer of a super stream becomes active before the last one has stepped down.",
        expected=("sac-exclusive",),
        scenarios=("sac-churn",),
        replacements=(instead_of(GroupDraft, "_step_down_if_wrong", _no_handover),),
    ),
    Mutant(
        name="sac-stale-kept",
        bug=f"{_SPEC}, Stale Node Detection",
        summary="Consumers of a node that left the cluster stay in their groups, even active ones.",
        expected=("sac-stale-node",),
        scenarios=("sac-stale-nodes",),
        replacements=(instead_of(coordinator, "_purge", _no_purge),),
    ),
    Mutant(
        name="sac-disconnected-ignored",
        bug=f"{_SPEC}, noconnection management",
        summary="A group chooses a new consumer while a disconnected one may still be active.",
        expected=("sac-one-active",),
        scenarios=("sac-node-failures",),
        replacements=(
            instead_of(GroupDraft, "current", _disconnected_is_not_current),
            instead_of(GroupDraft, "target", _disconnected_blocks_nobody),
        ),
    ),
    Mutant(
        name="sac-return-not-evaluated",
        bug=f"{_SPEC}, evaluate impacted groups",
        summary="A forgotten active consumer returns and is not asked to step down.",
        expected=("sac-settled",),
        scenarios=("sac-node-failures", "sac-stale-nodes"),
        replacements=(instead_of(GroupDraft, "_reconcile", _no_reconciliation),),
    ),
    Mutant(
        name="sac-lost-is-gone",
        bug=f"{_SPEC}, before its machine version 5",
        summary="Consumers of an unreachable node leave their groups at once.",
        expected=("sac-cause",),
        scenarios=("sac-node-failures", "sac-stale-nodes"),
        replacements=(instead_of(GroupDraft, "lose_connection", _lost_is_gone),),
    ),
    Mutant(
        name="sac-lost-step-down-waits",
        bug=f"{_SPEC}, its machine version 5",
        summary="A consumer whose node is lost during a step-down leaves its group without an active one.",
        expected=("sac-choice",),
        scenarios=("sac-node-failures",),
        replacements=(instead_of(GroupDraft, "lose_connection", _lost_step_down_waits),),
    ),
    Mutant(
        name="sac-chosen-again-untold",
        bug=f"{_SPEC}, before July 2026",
        summary="A consumer that steps down and is chosen again is not activated.",
        expected=("sac-told",),
        scenarios=("sac-churn", "sac-node-failures"),
        replacements=(instead_of(GroupDraft, "activate", _chosen_again_is_told_nothing),),
    ),
    Mutant(
        name="sac-forgotten-not-asked",
        bug=f"{_SPEC}, its machine version 8",
        summary="A node that returns is not asked about connections that were lost with it.",
        expected=("sac-watched",),
        scenarios=("sac-node-failures",),
        replacements=(instead_of(coordinator, "_node_up", _asks_only_indexed),),
    ),
    Mutant(
        name="sac-return-not-indexed",
        bug=f"{_SPEC}, its machine version 8",
        summary="The coordinator misses the end of a connection that was lost and returned.",
        expected=("sac-derived",),
        scenarios=("sac-node-failures",),
        replacements=(instead_of(coordinator, "_reconnected", _timeout_leaves_the_index),),
    ),
    Mutant(
        name="sac-registered-waiting",
        bug=UNREPORTED,
        summary="The response to a registration always says that another consumer is active.",
        expected=("sac-replies",),
        scenarios=("sac-churn",),
        replacements=(instead_of(coordinator, "_register", _never_active),),
    ),
    Mutant(
        name="sac-leader-forgets",
        bug=f"{_SPEC}, timers of a new leader",
        summary="A new leader gives lost connections no time to return.",
        expected=("sac-timeout",),
        scenarios=("sac-node-failures",),
        replacements=(instead_of(SacState, "restart_timers", _times_afresh_with_nothing),),
    ),
    Mutant(
        name="sac-never-forgotten",
        bug=UNREPORTED,
        summary="Lost connections are never forgotten and block their groups.",
        expected=("sac-timeout",),
        scenarios=("sac-node-failures", "sac-stale-nodes"),
        replacements=(instead_of(SacCoordinator, "next_deadline", _no_deadline),),
    ),
    Mutant(
        name="sac-step-down-unheard",
        bug=f"{_SPEC}, SAC with Super Stream Partition",
        summary="After a step-down the group does not choose the next consumer.",
        expected=("sac-unblocked",),
        scenarios=("sac-churn",),
        replacements=(instead_of(coordinator, "_activate", _step_down_leads_nowhere),),
    ),
    Mutant(
        name="sac-loss-untold",
        bug=UNREPORTED,
        summary="The application is not notified that its consumer lost the connection.",
        expected=("sac-callbacks",),
        scenarios=("sac-churn",),
        replacements=(instead_of(SingleActiveConsumer, "_call", _loss_is_not_told),),
    ),
    Mutant(
        name="sac-answers-at-once",
        bug=UNREPORTED,
        summary="A consumer responds to a step-down before the application has released the partition.",
        expected=("sac-answers",),
        scenarios=("sac-churn",),
        replacements=(instead_of(SacMember, "consumer_update", _answers_at_once),),
    ),
    Mutant(
        name="sac-offset-too-far",
        bug=UNREPORTED,
        summary="A consumer starts one message after the next one.",
        expected=("sac-records",),
        scenarios=("sac-churn",),
        replacements=(instead_of(SingleActiveConsumer, "_stored_or", _begins_one_too_far),),
    ),
    Mutant(
        name="sac-chunk-from-its-start",
        bug=UNREPORTED,
        summary="A consumer hands over the messages of a chunk that lie before the chosen offset.",
        expected=("sac-records",),
        scenarios=("sac-chunks",),
        replacements=(instead_of(SacMember, "delivered", _hands_all_over),),
    ),
    Mutant(
        name="sac-retry-storm",
        bug=UNREPORTED,
        summary="A consumer reconnects at once after each failure.",
        expected=("sac-prompt",),
        scenarios=("sac-churn", "sac-node-failures"),
        replacements=(instead_of(Backoff, "next_ms", _at_once_again),),
    ),
)
