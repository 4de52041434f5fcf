"""Checks how members of a streams group reach their target: what they may hold, give up and wait for
(KIP-1071)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest, Tasks
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.simulation.judge.base import Finding

_STABLE = StreamsGroupMemberState.STABLE
_UNREVOKED = StreamsGroupMemberState.UNREVOKED_TASKS
_UNRELEASED = StreamsGroupMemberState.UNRELEASED_TASKS

_ROLES = ("active", "standby", "warmup")

RoleTask = tuple[str, str, int]


def tasks_of(tasks: Tasks) -> frozenset[RoleTask]:
    """Return tasks with their roles, one by one."""
    roles = ("active", tasks.active), ("standby", tasks.standby), ("warmup", tasks.warmup)
    return frozenset(
        (role, one, number) for role, ids in roles for one, numbers in ids.items() for number in numbers
    )


def reconciliations(
    before: Mapping[MemberId, StreamsGroupMember],
    group: StreamsGroup,
    request: StreamsGroupHeartbeatRequest | None,
    *,
    new_target: bool,
) -> Iterator[Finding]:
    """Yield what is wrong with members after a step; only the one that sent `request` may have moved."""
    if any(before.get(one) is not member for one, member in group.members.items()):
        yield from _owners(group)
    for member_id, member in group.members.items():
        old = before.get(member_id)
        mine = request is not None and request.member_id == member_id and request.member_epoch >= 0
        if old is not None and not mine:
            moved = old.assigned, old.pending_revocation, old.member_epoch, old.state
            if moved != (member.assigned, member.pending_revocation, member.member_epoch, member.state):
                yield "streams-reconciles", f"{member_id} moves at another member's request"
        if new_target or member is not old:
            yield from _state(group, member)
        if old is not None and member is not old:
            yield from kept_epochs(old, member, group.assignment_epoch)
        if mine and request is not None:
            yield from _stated(old, member, request)
            yield from _moved(group, old, member, request)


def _stated(
    old: StreamsGroupMember | None, member: StreamsGroupMember, request: StreamsGroupHeartbeatRequest
) -> Iterator[Finding]:
    """Yield fields that a member states about itself, and that are stored differently."""
    topology, timeout_ms = request.topology, request.rebalance_timeout_ms
    stated: dict[str, Any] = {
        "rack_id": request.rack_id,
        "client_id": request.client_id,
        "client_host": request.client_host,
        "process_id": request.process_id,
        "user_endpoint": request.user_endpoint,
        "client_tags": request.client_tags,
        "topology_epoch": None if topology is None else topology.epoch,
        "rebalance_timeout_ms": None if timeout_ms < 0 else timeout_ms,
    }
    before = old or StreamsGroupMember(member_id=member.member_id)
    right = {name: getattr(before, name) if said is None else said for name, said in stated.items()}
    if wrong := [name for name, value in right.items() if getattr(member, name) != value]:
        yield (
            "streams-bookkeeping",
            f"{member.member_id} has another {', '.join(wrong)} than is stored",
        )


def _owners(group: StreamsGroup) -> Iterator[Finding]:
    """Yield active tasks of two members, and tasks that one process has in two roles or twice."""
    active: dict[tuple[str, int], MemberId] = {}
    for member_id, member in group.members.items():
        for tasks in (member.assigned, member.pending_revocation):
            for one, numbers in tasks.active.items():
                for number in numbers:
                    other = active.setdefault((one, number), member_id)
                    if other != member_id:
                        yield "streams-one-owner", f"{one}_{number} is active at {other} and at {member_id}"


def _state(group: StreamsGroup, member: StreamsGroupMember) -> Iterator[Finding]:
    assigned, pending = tasks_of(member.assigned), tasks_of(member.pending_revocation)
    target = tasks_of(group.target(member.member_id))
    who = member.member_id
    if (member.state is _UNREVOKED) != bool(pending):
        yield "streams-reconciles", f"{who} is {member.state}, and gives up {len(pending)} tasks"
    if assigned & pending:
        yield "streams-reconciles", f"{who} has and gives up the same tasks"
    at_target = member.member_epoch == group.assignment_epoch
    if member.state is _STABLE and at_target and assigned != target:
        yield "streams-reconciles", f"{who} is STABLE with {len(assigned)} tasks of {len(target)}"
    known = {
        (one, number): epoch
        for one, numbers in member.assignment_epochs.items()
        for number, epoch in numbers.items()
    }
    active = {(one, number) for role, one, number in assigned | pending if role == "active"}
    if known.keys() != active or any(not 0 <= epoch <= group.assignment_epoch for epoch in known.values()):
        yield "streams-reconciles", f"{who} has assignment epochs of other tasks than it has"


def kept_epochs(old: StreamsGroupMember, member: StreamsGroupMember, target_epoch: int) -> Iterator[Finding]:
    """Check by KIP-1251 that active tasks keep their epoch while they are held, and that those that come have
    the target's."""
    held = tasks_of(old.assigned) | tasks_of(member.pending_revocation)
    for one, numbers in member.assignment_epochs.items():
        known = old.assignment_epochs.get(one, {})
        for number, epoch in numbers.items():
            stays = ("active", one, number) in held
            right = known.get(number, target_epoch) if stays else target_epoch
            if epoch != right:
                yield (
                    "streams-reconciles",
                    f"{member.member_id} has {one}_{number} since epoch {right}, and {epoch} is stored",
                )
                return


def _moved(
    group: StreamsGroup,
    old: StreamsGroupMember | None,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeatRequest,
) -> Iterator[Finding]:
    who = member.member_id
    assigned, pending = tasks_of(member.assigned), tasks_of(member.pending_revocation)
    target = tasks_of(group.target(who))
    had = frozenset[RoleTask]() if old is None else tasks_of(old.assigned)
    waited = frozenset[RoleTask]() if old is None else tasks_of(old.pending_revocation)
    owned = None if request.owned is None else tasks_of(request.owned)
    if waited and (owned is None or owned & waited):
        if old is not None and (assigned, pending, member.member_epoch) != (had, waited, old.member_epoch):
            yield "streams-reconciles", f"{who} moves on, and has not confirmed its revocation"
        return
    dropped = (had | waited) - assigned - pending
    if dropped and (owned is None or owned & dropped) and request.member_epoch > 0:
        yield "streams-reconciles", f"{who} loses {sorted(dropped)[:4]} without a confirmed revocation"
    if group.assignment_epoch < group.group_epoch:
        return  # its target is delayed
    if waited and pending & waited:
        yield "streams-reconciles", f"{who} has confirmed, and is still to give up {len(pending & waited)}"
    if assigned - target:
        yield "streams-reconciles", f"{who} gets, or keeps, tasks that its target does not have"
    if pending:
        if old is not None and request.member_epoch > 0 and member is not old:
            # A revocation that is complete counts as a step of its own.
            epoch = old.member_epoch + 1 if waited else old.member_epoch
            if member.member_epoch != epoch:
                yield "streams-epochs", f"{who} gives up tasks at {member.member_epoch}, expected {epoch}"
        yield from _gives_up(who, assigned, pending, target=target, had=had, owned=owned)
    else:
        yield from _has_reached(group, member, target - assigned, assigned - had, had | waited)


def _gives_up(
    who: MemberId,
    assigned: frozenset[RoleTask],
    pending: frozenset[RoleTask],
    *,
    target: frozenset[RoleTask],
    had: frozenset[RoleTask],
    owned: frozenset[RoleTask] | None,
) -> Iterator[Finding]:
    if pending - had:
        yield "streams-reconciles", f"{who} is to give up tasks that it does not have"
    if pending & target or assigned - had:
        yield (
            "streams-reconciles",
            f"{who} gives up its target, or gets more before it has confirmed a revocation",
        )
    if owned is not None and not owned & pending:
        yield "streams-reconciles", f"{who} has to confirm tasks that it does not own"


def _has_reached(
    group: StreamsGroup,
    member: StreamsGroupMember,
    missing: frozenset[RoleTask],
    got: frozenset[RoleTask],
    had: frozenset[RoleTask],
) -> Iterator[Finding]:
    """Yield what a member waits for without need, and what it gets too soon.

    `got` is what it has now and had not before; `had` is what it had, or was to give up, until now.
    """
    who = member.member_id
    if member.member_epoch != group.assignment_epoch:
        yield "streams-reconciles", f"{who} stays at {member.member_epoch} of {group.assignment_epoch}"
    if (member.state is _UNRELEASED) != bool(missing):
        yield "streams-reconciles", f"{who} is {member.state}, and misses {len(missing)} tasks"
    free = sorted(task for task in missing if not _is_blocked(group, member, had, task))
    if free:
        yield "streams-reconciles", f"{who} waits for {free[:4]}, which no member has"
    early = sorted(task for task in got if _is_blocked(group, member, had, task))
    if early:
        yield "streams-reconciles", f"{who} gets {early[:4]}, which are not released yet"


def _holds(member: StreamsGroupMember, role: str, one: str, number: int) -> bool:
    for tasks in (member.assigned, member.pending_revocation):
        ids = tasks.active if role == "active" else tasks.standby if role == "standby" else tasks.warmup
        if number in ids.get(one, ()):
            return True
    return False


def _is_blocked(
    group: StreamsGroup, member: StreamsGroupMember, had: frozenset[RoleTask], task: RoleTask
) -> bool:
    """Return whether another member, or another thread of its process, has a task that it waits for."""
    role, one, number = task
    if any((other, one, number) in had for other in _ROLES):
        return True  # it had it, or was to give it up, until now
    for other in group.members.values():
        if other is member:
            continue
        mine = other.process_id == member.process_id
        roles = _ROLES if mine else ("active",) if role == "active" else ()
        if any(_holds(other, each, one, number) for each in roles):
            return True
    return False
