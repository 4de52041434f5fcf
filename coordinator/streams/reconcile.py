"""Reconciles one member with its target: a function of the member, its target, and the owners of tasks.

A member must release tasks before it receives new ones. An active task is blocked while any process has it,
and while the member's own process has it in another role; a standby or warm-up task while the member's own
process has it in any role (KIP-1071, Reconciliation). Only the tasks that a heartbeat lists confirm a
release: a heartbeat that lists nothing (None) confirms nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.streams import NO_TASK_IDS, NO_TASKS, TaskIds, Tasks
from fencepost.coordinator.streams.member import AssignmentEpochs, StreamsGroupMember
from fencepost.coordinator.streams.owners import TaskOwners
from fencepost.coordinator.streams.states import (
    STREAMS_MEMBER_TABLE,
    StreamsGroupMemberState,
    StreamsReconciliationStep,
)


def reconcile(
    member: StreamsGroupMember, *, target_epoch: int, target: Tasks, owned: Tasks | None, owners: TaskOwners
) -> StreamsGroupMember:
    """Return the member after one evaluation; the same object if nothing changed.

    :raises ProtocolError: FENCED_MEMBER_EPOCH if the member's state is one of a newer coordinator and it
        still owns something, or does not say.
    """
    epoch = member.member_epoch
    match member.state:
        case StreamsGroupMemberState.STABLE if epoch == target_epoch:
            return member
        case StreamsGroupMemberState.UNREVOKED_TASKS:
            if owned is None or owned.contains_any(member.pending_revocation):
                return member
            # The revocation is complete; the next step may be another one.
            epoch += 1
        case StreamsGroupMemberState.UNKNOWN:
            if owned is None or owned:
                raise ProtocolError(
                    ErrorCode.FENCED_MEMBER_EPOCH,
                    "The streams group member is in a unknown state. "
                    "The member must abandon all its tasks and rejoin.",
                )
            epoch = target_epoch
        case _:
            pass
    found = _next(member, epoch, target_epoch, target, owned=owned, owners=owners)
    return member if found == member else found


class _Difference(NamedTuple):
    """One role's tasks on their way to the target."""

    kept: TaskIds
    revoked: TaskIds
    added: TaskIds
    waits: bool

    @property
    def reached(self) -> TaskIds:
        return _union(self.kept, self.added)


def _next(
    member: StreamsGroupMember,
    epoch: int,
    target_epoch: int,
    target: Tasks,
    *,
    owned: Tasks | None,
    owners: TaskOwners,
) -> StreamsGroupMember:
    process_id = member.process_id

    def active_is_blocked(subtopology: str, number: int) -> bool:
        return owners.active(subtopology, number) is not None or owners.is_passive_in(
            process_id, subtopology, number
        )

    def passive_is_blocked(subtopology: str, number: int) -> bool:
        return owners.active(subtopology, number) == process_id or owners.is_passive_in(
            process_id, subtopology, number
        )

    has = member.assigned
    active = _difference(has.active, target.active, active_is_blocked)
    standby = _difference(has.standby, target.standby, passive_is_blocked)
    warmup = _difference(has.warmup, target.warmup, passive_is_blocked)
    revoked = Tasks(active.revoked, standby.revoked, warmup.revoked)
    if revoked and (owned is None or owned.contains_any(revoked)):
        kept = Tasks(active.kept, standby.kept, warmup.kept)
        return _moved(member, StreamsReconciliationStep.REVOKE, epoch, kept, pending=revoked)
    waits = active.waits or standby.waits or warmup.waits
    step = StreamsReconciliationStep.WAIT if waits else StreamsReconciliationStep.SETTLE
    reached = Tasks(active.reached, standby.reached, warmup.reached)
    since = {one: dict.fromkeys(numbers, target_epoch) for one, numbers in active.added.items()}
    return _moved(member, step, target_epoch, reached, added_since=since)


def _difference(has: TaskIds, wants: TaskIds, is_blocked: Callable[[str, int], bool]) -> _Difference:
    if has == wants:
        return _Difference(has, NO_TASK_IDS, NO_TASK_IDS, waits=False)
    kept: dict[str, tuple[int, ...]] = {}
    revoked: dict[str, tuple[int, ...]] = {}
    added: dict[str, tuple[int, ...]] = {}
    waits = False
    for subtopology in sorted({*has, *wants}):
        had, wanted = has.get(subtopology, ()), wants.get(subtopology, ())
        missing = [number for number in wanted if number not in had]
        free = [number for number in missing if not is_blocked(subtopology, number)]
        waits = waits or len(free) < len(missing)
        _put(kept, subtopology, (number for number in had if number in wanted))
        _put(revoked, subtopology, (number for number in had if number not in wanted))
        _put(added, subtopology, free)
    return _Difference(kept, revoked, added, waits)


def _moved(
    member: StreamsGroupMember,
    step: StreamsReconciliationStep,
    epoch: int,
    assigned: Tasks,
    *,
    pending: Tasks = NO_TASKS,
    added_since: AssignmentEpochs | None = None,
) -> StreamsGroupMember:
    """Return the evaluated member. An active task that it held before keeps its assignment epoch."""
    epochs: AssignmentEpochs = {}
    for tasks in (assigned.active, pending.active):
        for subtopology, numbers in tasks.items():
            fresh = (added_since or {}).get(subtopology, {})
            known = member.assignment_epochs.get(subtopology, {})
            of_subtopology = epochs.setdefault(subtopology, {})
            for number in numbers:
                of_subtopology[number] = fresh[number] if number in fresh else known[number]
    return msgspec.structs.replace(
        member,
        state=STREAMS_MEMBER_TABLE.next(member.state, step),
        member_epoch=epoch,
        previous_member_epoch=member.member_epoch,
        assigned=assigned,
        pending_revocation=pending,
        assignment_epochs=epochs,
    )


def _put(into: dict[str, tuple[int, ...]], subtopology: str, numbers: Iterable[int]) -> None:
    found = tuple(numbers)
    if found:
        into[subtopology] = found


def _union(first: TaskIds, second: TaskIds) -> TaskIds:
    if not second:
        return first
    return {
        one: tuple(sorted((*first.get(one, ()), *second.get(one, ())))) for one in sorted({*first, *second})
    }
