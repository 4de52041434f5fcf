"""Rounds of joining: how a rebalance starts, and how a generation begins.

A round ends when every member has joined and every id that was given out is used. It ends at the latest after
the rebalance timeout of the slowest member. An empty group waits a little for its first members instead, and
a little longer while more of them join.
"""

from __future__ import annotations

from fencepost.coordinator.classic.states import ClassicGroupEvent, ClassicGroupState
from fencepost.coordinator.classic.step import ClassicStep
from fencepost.coordinator.protocol.classic import JoinGroupResponse, SyncGroupResponse, Token
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.timers import GroupTimerKind

_State = ClassicGroupState

_LEAST_RETRY_MS = 100
"""The least time between two ends of a round that nobody has joined. A client's rebalance timeout may be 0:
without this, time would never pass. Kafka tries again at once, for as long as the sessions last."""


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
    """Start a rebalance after a member joined, left or changed, or complete the one that runs."""
    if step.group.is_in(_State.PREPARING_REBALANCE):
        complete_if_all_joined(step)
    else:
        start(step)


def complete_if_all_joined(step: ClassicStep) -> None:
    """Complete the round, unless the group waits for a member, or the first members are still joining."""
    group = step.group
    if group.is_in(_State.PREPARING_REBALANCE) and group.initial_delay is None and group.has_all_joined:
        complete(step)


def join_time_over(step: ClassicStep) -> None:
    """End the time to join. While the first members join, extend it if another one joined meanwhile."""
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
        # Only static members are left, and none of them joined: the end of their sessions removes them.
        step.set_timer(GroupTimerKind.JOIN, max(group.rebalance_timeout_ms, _LEAST_RETRY_MS))
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
    """Remove members that did not ask for their assignment in time; the others join again."""
    group = step.group
    late = [group.members[member_id] for member_id in group.pending_syncs]
    if late:
        for member in late:
            step.remove(member)
        start(step)


def fail_syncs(step: ClassicStep, code: ErrorCode) -> None:
    """Send an error to members that wait for their assignment; their previous assignments become void."""
    for member in step.group.members.values():
        member.assignment = b""
        token, member.sync = member.sync, None
        if answer_sync_error(step, token, code):
            step.restart_session(member)


def answer_sync_error(step: ClassicStep, token: Token | None, code: ErrorCode) -> bool:
    """Respond to a parked SyncGroup request with an error; return true if one was parked."""
    return step.answer(token, SyncGroupResponse(error_code=code))
