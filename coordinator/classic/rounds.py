"""Rounds of joining: how a rebalance starts, and how a generation begins.

A round ends when every member has joined and no id that was given out is open, or when the slowest member's
rebalance time-out is over. A group that was empty waits a little for its first members instead, and a little
longer while more of them come.
"""

from __future__ import annotations

from fencepost.coordinator.classic.states import ClassicGroupEvent, ClassicGroupState
from fencepost.coordinator.classic.step import ClassicStep
from fencepost.coordinator.protocol.classic import JoinGroupResponse, SyncGroupResponse, Token
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.timers import GroupTimerKind

_State = ClassicGroupState


def start(step: ClassicStep) -> None:
    """Start a rebalance: from now on members must join again."""
    group = step.group
    if group.is_in(_State.COMPLETING_REBALANCE):
        fail_syncs(step, ErrorCode.REBALANCE_IN_PROGRESS)
    group.pending_syncs.clear()
    step.cancel_timer(GroupTimerKind.SYNC)
    was_empty = group.is_in(_State.EMPTY)
    group.move(ClassicGroupEvent.REBALANCE_STARTED, step.now_ms)
    if was_empty:
        delay_ms = step.config.group_initial_rebalance_delay_ms
        _wait_for_first_members(step, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    elif group.has_all_joined:
        complete(step)
    else:
        step.set_timer(GroupTimerKind.JOIN, group.rebalance_timeout_ms)


def start_or_complete(step: ClassicStep) -> None:
    """A member came, went or changed: start a rebalance, or complete the one that runs."""
    if step.group.is_in(_State.PREPARING_REBALANCE):
        complete_if_all_joined(step)
    else:
        start(step)


def complete_if_all_joined(step: ClassicStep) -> None:
    """Complete the round unless someone is waited for, or the first members still gather."""
    group = step.group
    if group.is_in(_State.PREPARING_REBALANCE) and group.initial_delay is None and group.has_all_joined:
        complete(step)


def join_time_over(step: ClassicStep) -> None:
    """The time to join is over; while the first members gather, it is extended if one came meanwhile."""
    group = step.group
    if group.initial_delay is not None and group.new_member_added:
        delay_ms, remaining_ms = group.initial_delay
        if remaining_ms:
            next_ms = min(step.config.group_initial_rebalance_delay_ms, remaining_ms)
            _wait_for_first_members(step, next_ms, max(remaining_ms - delay_ms, 0))
            return
    complete(step)


def _wait_for_first_members(step: ClassicStep, delay_ms: int, remaining_ms: int) -> None:
    step.group.new_member_added = False
    step.group.initial_delay = delay_ms, remaining_ms
    step.set_timer(GroupTimerKind.JOIN, delay_ms)


def complete(step: ClassicStep) -> None:
    """End the round with those that have joined, and with the static members that have not."""
    group = step.group
    step.cancel_timer(GroupTimerKind.JOIN)
    for member in tuple(group.members.values()):
        if member.join is None and member.instance_id is None:
            step.remove(member)
    if not group.elect_joined_leader() and group.members:
        # Only static members are left, and none of them joined: their sessions decide about them.
        step.set_timer(GroupTimerKind.JOIN, group.rebalance_timeout_ms)
        return
    group.next_generation(step.now_ms)
    if group.is_in(_State.EMPTY):
        step.write(group.value({}))
        return
    roster = group.roster()
    for member in group.members.values():
        response = JoinGroupResponse(
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or "",
            member_id=member.member_id,
            members=roster if member.member_id == group.leader else (),
        )
        step.answer(group.release_join(member), response)
        step.restart_session(member)
        member.is_new = False
        group.pending_syncs[member.member_id] = None
    step.set_timer(GroupTimerKind.SYNC, group.rebalance_timeout_ms)


def sync_time_over(step: ClassicStep) -> None:
    """Members that did not ask for their assignment in time are removed, and the others join again."""
    group = step.group
    late = [group.members[member_id] for member_id in group.pending_syncs]
    if late:
        for member in late:
            step.remove(member)
        start(step)


def fail_syncs(step: ClassicStep, code: ErrorCode) -> None:
    """Tell those who wait for their assignment that there will be none; what they had is void."""
    for member in step.group.members.values():
        member.assignment = b""
        token, member.sync = member.sync, None
        if answer_sync_error(step, token, code):
            step.restart_session(member)


def answer_sync_error(step: ClassicStep, token: Token | None, code: ErrorCode) -> bool:
    """Answer a SyncGroup request, if one waits, that there is no assignment; whether one did."""
    return step.answer(token, SyncGroupResponse(error_code=code))
