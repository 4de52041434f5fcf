"""Compares members of a streams group with what must follow from a heartbeat (KIP-1071, Reconciliation)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions
from fencepost.coordinator.protocol.streams import StreamsGroupHeartbeatRequest, Tasks
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.states import StreamsGroupMemberState
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.judge.consumer_groups import told
from fencepost.simulation.judge.consumer_model import Standing, both, held_since, minus, releases, union

STABLE, UNREVOKED, UNRELEASED, _ = StreamsGroupMemberState
_NEW: Final = StreamsGroupMember(member_id="")


def expect(
    before: Standing,
    owned: Partitions | None,
    target_epoch: int,
    target: Partitions,
    blocked: Callable[[Partitions], Partitions],
) -> Standing:
    """Return where a member stands after its heartbeat, which lists what it owns (CurrentAssignmentBuilder).

    The topics of these partitions are a role and a subtopology. `blocked` returns the tasks that it has to
    wait for.
    """
    epoch, assigned = before.epoch, before.assigned
    if before.state is STABLE and epoch == target_epoch:
        return before
    if before.state is UNREVOKED:
        if not releases(owned, before.revoking):
            return before
        epoch += 1  # a revocation that is complete counts as a step of its own
    kept, revoked = both(assigned, target), minus(assigned, target)
    if revoked and not releases(owned, revoked):
        return Standing(UNREVOKED, epoch, before.epoch, kept, revoked)
    missing = minus(target, kept)
    waits = blocked(missing) if missing else NO_PARTITIONS
    state = UNRELEASED if waits else STABLE
    return Standing(state, target_epoch, before.epoch, minus(target, waits), NO_PARTITIONS)


def reconciliations(
    before: Mapping[MemberId, StreamsGroupMember],
    group: StreamsGroup,
    request: StreamsGroupHeartbeatRequest | None,
) -> Iterator[Finding]:
    """Yield what is wrong with members after a step; only the one that sent `request` may have moved."""
    if any(before.get(one) is not member for one, member in group.members.items()):
        yield from _owners(group)
    for member_id, member in group.members.items():
        old = before.get(member_id)
        if request is not None and request.member_id == member_id and request.member_epoch >= 0:
            yield from _stated(old or _NEW, member, request)
            yield from _moved(group, old or _NEW, member, request)
        elif old is not None and old is not member and _standing(old) != _standing(member):
            yield "streams-reconciles", f"{member_id} moves at another member's request"
        if member is not old:
            yield from kept_epochs(old or _NEW, member)


def parts_of(tasks: Tasks) -> Partitions:
    """Return tasks as partitions, whose topics are a role and a subtopology."""
    roles = ("active", tasks.active), ("standby", tasks.standby), ("warmup", tasks.warmup)
    return {f"{role} {one}": numbers for role, ids in roles for one, numbers in ids.items() if numbers}


def _standing(member: StreamsGroupMember) -> Standing:
    assigned, revoking = parts_of(member.assigned), parts_of(member.pending_revocation)
    return Standing(member.state, member.member_epoch, member.previous_member_epoch, assigned, revoking)


def _stated(
    before: StreamsGroupMember, member: StreamsGroupMember, request: StreamsGroupHeartbeatRequest
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
    right = {name: getattr(before, name) if said is None else said for name, said in stated.items()}
    if wrong := [name for name, value in right.items() if getattr(member, name) != value]:
        yield (
            "streams-bookkeeping",
            f"{member.member_id} has another {', '.join(wrong)} than is stored",
        )


def _owners(group: StreamsGroup) -> Iterator[Finding]:
    """Yield active tasks of two members."""
    active: dict[tuple[str, int], MemberId] = {}
    for member_id, member in group.members.items():
        for tasks in (member.assigned, member.pending_revocation):
            for one, numbers in tasks.active.items():
                for number in numbers:
                    other = active.setdefault((one, number), member_id)
                    if other != member_id:
                        yield "streams-one-owner", f"{one}_{number} is active at {other} and at {member_id}"


def kept_epochs(old: StreamsGroupMember, member: StreamsGroupMember) -> Iterator[Finding]:
    """Check by KIP-1251 that active tasks keep their epoch while they are held, and that those that come have
    the member's."""
    was, now = (
        _standing(one)._replace(assigned=one.assigned.active, revoking=one.pending_revocation.active)
        for one in (old, member)
    )
    if member.assignment_epochs != (right := held_since(old.assignment_epochs, was, now)):
        what = f"tasks since {right} by epochs, stored are {member.assignment_epochs}"
        yield "streams-reconciles", f"{member.member_id} has {what}"


def _moved(
    group: StreamsGroup,
    old: StreamsGroupMember,
    member: StreamsGroupMember,
    request: StreamsGroupHeartbeatRequest,
) -> Iterator[Finding]:
    """Compare a member with the place that its heartbeat leads to."""
    was, got = _standing(old), _standing(member)

    def blocked(missing: Partitions) -> Partitions:
        """An active task waits for every process that has it, another one for its own process only."""
        active, mine = dict[str, set[int]](), dict[str, set[int]]()
        for other in group.members.values():
            held = (
                union(was.assigned, was.revoking)
                if other is member
                else union(parts_of(other.assigned), parts_of(other.pending_revocation))
            )
            for part, numbers in held.items():
                role, _, one = part.partition(" ")
                if role == "active":
                    active.setdefault(one, set()).update(numbers)
                if other.process_id == member.process_id:
                    mine.setdefault(one, set()).update(numbers)
        found = {}
        for part, numbers in missing.items():
            role, _, one = part.partition(" ")
            taken = mine.get(one, set()) | (active.get(one, set()) if role == "active" else set())
            found[part] = tuple(taken.intersection(numbers))
        return {part: numbers for part, numbers in found.items() if numbers}

    owned = None if request.owned is None else parts_of(request.owned)
    target = parts_of(group.target(member.member_id))
    right = expect(was, owned, group.assignment_epoch, target, blocked)
    if got != right:
        same = got._replace(epoch=right.epoch, previous=right.previous) == right
        yield (
            "streams-epochs" if same else "streams-reconciles",
            f"{member.member_id}: expected {told(right)}, got {told(got)}; it was {told(was)}",
        )
