"""Mutants of single active consumers: a coordinator like RabbitMQ's without one of its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
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
from fencepost.simulation.mutants.mutant import Mutants, Original, instead_of

_SPEC = "RabbitMQ's stream coordinator"


def _disconnected_blocks_nobody(original: Callable[..., int | None], self: GroupDraft) -> int | None:
    eligible = [place for place, one in enumerate(self.consumers) if one.status in draft.CONNECTED]
    if not eligible:
        return None
    return eligible[0 if self.partition_index == sac.SIMPLE else self.partition_index % len(eligible)]


SAC_MUTANTS: Final = Mutants()


@SAC_MUTANTS.bug(
    "sac-no-handover",
    "sac-exclusive",
    ("sac-churn",),
    (GroupDraft, "_step_down_if_wrong"),
    source=f"{_SPEC}, SAC with Super Stream Partition",
)
def _no_handover(original: Callable[..., None], self: GroupDraft, current: int) -> None:
    """A consumer of a super stream becomes active before the last one has stepped down."""
    target = self.target()
    if target is not None and target != current:
        self._move(current, ConsumerEvent.RELEASED, draft.C_WAITING)
        self._notify(current, active=False)
        self._activate(target)
        self._notify(target, active=True)


@SAC_MUTANTS.bug(
    "sac-stale-kept",
    "sac-stale-node",
    ("sac-stale-nodes",),
    (coordinator, "_purge"),
    source=f"{_SPEC}, Stale Node Detection",
)
def _no_purge(original: Callable[..., sac.SacReply], command: Any, step: Any) -> sac.SacReply:
    """Consumers of a node that left the cluster stay in their groups, even active ones."""
    return sac.SacReply()


@SAC_MUTANTS.bug(
    "sac-disconnected-ignored",
    "sac-one-active",
    ("sac-node-failures",),
    (GroupDraft, "current"),
    source=f"{_SPEC}, noconnection management",
    also=(instead_of(GroupDraft, "target", _disconnected_blocks_nobody),),
)
def _disconnected_is_not_current(original: Callable[..., int | None], self: GroupDraft) -> int | None:
    """A group chooses a new consumer while a disconnected one may still be active."""
    place = original(self)
    if place is None or self.consumers[place].status is not draft.D_ACTIVE:
        return place
    others = [
        place
        for place, one in enumerate(self.consumers)
        if one.status in (draft.C_ACTIVE, draft.C_DEACTIVATING)
    ]
    return min(others, default=None)


@SAC_MUTANTS.bug(
    "sac-return-not-evaluated",
    "sac-settled",
    ("sac-node-failures", "sac-stale-nodes"),
    (GroupDraft, "_reconcile"),
    source=f"{_SPEC}, evaluate impacted groups",
)
def _no_reconciliation(original: Callable[..., None], self: GroupDraft, mine: list[int]) -> None:
    """A forgotten active consumer returns and is not asked to step down."""
    for place in mine:
        status = self.consumers[place].status
        if status is draft.F_ACTIVE:
            self._move(place, ConsumerEvent.RECONCILED, draft.C_WAITING)
        elif status is draft.F_WAITING:
            self._move(place, ConsumerEvent.RETURNED, draft.C_WAITING)


@SAC_MUTANTS.bug(
    "sac-lost-is-gone",
    "sac-cause",
    ("sac-node-failures", "sac-stale-nodes"),
    (GroupDraft, "lose_connection"),
    source=f"{_SPEC}, before its machine version 5",
)
def _lost_is_gone(original: Original, self: GroupDraft, connection: str) -> None:
    """Consumers of an unreachable node leave their groups at once."""
    self.end_connection(connection)


@SAC_MUTANTS.bug(
    "sac-lost-step-down-waits",
    "sac-choice",
    ("sac-node-failures",),
    (GroupDraft, "lose_connection"),
    source=f"{_SPEC}, its machine version 5",
)
def _lost_step_down_waits(original: Original, self: GroupDraft, connection: str) -> None:
    """A consumer whose node is lost during a step-down leaves its group without an active one."""
    with mock.patch.object(GroupDraft, "rebalance"):
        original(self, connection)


@SAC_MUTANTS.bug(
    "sac-chosen-again-untold",
    "sac-told",
    ("sac-churn", "sac-node-failures"),
    (GroupDraft, "activate"),
    source=f"{_SPEC}, before July 2026",
)
def _chosen_again_is_told_nothing(original: Original, self: GroupDraft) -> None:
    """A consumer that steps down and is chosen again is not activated."""
    stepping_down = self.target()
    again = stepping_down is not None and self.consumers[stepping_down].status is draft.C_DEACTIVATING
    original(self)
    if again and self.effects and isinstance(self.effects[-1], sac.NotifyConsumer):
        self.effects.pop()


@SAC_MUTANTS.bug(
    "sac-forgotten-not-asked",
    "sac-watched",
    ("sac-node-failures",),
    (coordinator, "_node_up"),
    source=f"{_SPEC}, its machine version 8",
)
def _asks_only_indexed(original: Original, event: Any, step: Any) -> sac.SacReply:
    """A node that returns is not asked about connections that were lost with it."""
    for connection in step.state.connections_on(event.node):
        if step.state.is_indexed(connection):
            step.first += [sac.CheckConnection(connection), sac.MonitorConnection(connection)]
    return sac.SacReply()


@SAC_MUTANTS.bug(
    "sac-return-not-indexed",
    "sac-derived",
    ("sac-node-failures",),
    (coordinator, "_reconnected"),
    source=f"{_SPEC}, its machine version 8",
)
def _timeout_leaves_the_index(original: Original, command: Any, step: Any) -> sac.SacReply:
    """The coordinator misses the end of a connection that was lost and returned."""
    reply: sac.SacReply = original(command, step)
    step.rebuilt = False
    step.index[command.connection] = ()
    return reply


@SAC_MUTANTS.bug("sac-registered-waiting", "sac-replies", ("sac-churn",), (coordinator, "_register"))
def _never_active(original: Original, command: Any, step: Any) -> sac.SacReply:
    """The response to a registration always says that another consumer is active."""
    reply: sac.SacReply = original(command, step)
    return reply if reply.error is not None else sac.SacReply(is_active=False)


@SAC_MUTANTS.bug(
    "sac-leader-forgets",
    "sac-timeout",
    ("sac-node-failures",),
    (SacState, "restart_timers"),
    source=f"{_SPEC}, timers of a new leader",
)
def _times_afresh_with_nothing(original: Original, self: SacState, now_ms: int) -> None:
    """A new leader gives lost connections no time to return."""
    for connection in self.away:
        self.timers.set(connection, now_ms)


@SAC_MUTANTS.bug(
    "sac-never-forgotten",
    "sac-timeout",
    ("sac-node-failures", "sac-stale-nodes"),
    (SacCoordinator, "next_deadline"),
)
def _no_deadline(original: Original, self: SacCoordinator) -> int | None:
    """Lost connections are never forgotten and block their groups."""
    return None


@SAC_MUTANTS.bug(
    "sac-step-down-unheard",
    "sac-unblocked",
    ("sac-churn",),
    (coordinator, "_activate"),
    source=f"{_SPEC}, SAC with Super Stream Partition",
)
def _step_down_leads_nowhere(original: Original, command: Any, step: Any) -> sac.SacReply:
    """After a step-down the group does not choose the next consumer."""
    return sac.SacReply()


@SAC_MUTANTS.bug("sac-loss-untold", "sac-callbacks", ("sac-churn",), (SingleActiveConsumer, "_call"))
async def _loss_is_not_told(original: Original, self: Any, kind: SacCallback) -> None:
    """The application is not notified that its consumer lost the connection."""
    if kind is SacCallback.LOST:
        self._callback_over(None)
    else:
        await original(self, kind)


@SAC_MUTANTS.bug("sac-answers-at-once", "sac-answers", ("sac-churn",), (SacMember, "consumer_update"))
def _answers_at_once(original: Original, self: SacMember, *arguments: Any) -> Any:
    """A consumer responds to a step-down before the application has released the partition."""
    _, correlation, active, _ = arguments
    actions = original(self, *arguments)
    return actions if active else (AnswerUpdate(correlation, NONE), *actions)


@SAC_MUTANTS.bug("sac-offset-too-far", "sac-records", ("sac-churn",), (SingleActiveConsumer, "_stored_or"))
async def _begins_one_too_far(original: Original, self: Any, chosen: object) -> OffsetSpecification:
    """A consumer starts one message after the next one."""
    found: OffsetSpecification = await original(self, chosen)
    return found if found.kind is not OffsetKind.OFFSET else OffsetSpecification.at(found.value + 1)


@SAC_MUTANTS.bug("sac-chunk-from-its-start", "sac-records", ("sac-chunks",), (SacMember, "delivered"))
def _hands_all_over(original: Original, self: SacMember, connection: int, first: int, end: int) -> Any:
    """A consumer hands over the messages of a chunk that lie before the chosen offset."""
    begin = original(self, connection, first, end)
    return None if begin is None else first


@SAC_MUTANTS.bug("sac-retry-storm", "sac-prompt", ("sac-churn", "sac-node-failures"), (Backoff, "next_ms"))
def _at_once_again(original: Original, self: Backoff) -> int:
    """A consumer reconnects at once after each failure."""
    return 1
