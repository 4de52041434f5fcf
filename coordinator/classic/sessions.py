"""Heartbeat, LeaveGroup, and sessions that end."""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.coordinator.classic import rounds
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.classic.step import ClassicStep
from fencepost.coordinator.protocol.classic import HeartbeatRequest
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import MemberId

_State = ClassicGroupState


def heartbeat(step: ClassicStep, request: HeartbeatRequest) -> None:
    """Handle a heartbeat: restart the member's session.

    :raises ProtocolError: REBALANCE_IN_PROGRESS if it must join again, or the error that fences it.
    """
    group = step.group
    member = check_generation(group, request.member_id, request.instance_id, request.generation)
    if group.is_in(_State.EMPTY):
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} is empty")
    step.restart_session(member)
    if group.is_in(_State.PREPARING_REBALANCE):
        raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, "members must join again")


def check_generation(
    group: ClassicGroup, member_id: MemberId, instance_id: str | None, generation: int
) -> ClassicGroupMember:
    """Return the member, which must know the group's generation.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION.
    """
    member = group.check_member(member_id, instance_id)
    if generation != group.generation:
        raise ProtocolError(
            ErrorCode.ILLEGAL_GENERATION,
            f"generation {generation} is not {group.generation}, the one of group {group.group_id}",
        )
    return member


def session_over(step: ClassicStep, member_id: MemberId) -> None:
    """End the session of a member, or of an id that was given out.

    Those whose request waits are alive. Only a new one that waits too long is given up: it may have joined
    again without knowing its id.
    """
    group = step.group
    if member_id in group.pending_joins:
        group.remove(member_id)
        rounds.complete_if_all_joined(step)
        return
    member = group.members[member_id]
    if member.is_new or (member.join is None and member.sync is None):
        step.remove(member)
        rounds.start_or_complete(step)


def leave(step: ClassicStep, requests: Sequence[LeaveGroupRequest]) -> tuple[ErrorCode, ...]:
    """Remove members for good, and return the result of each. The others rebalance once for all of them."""
    codes = tuple(_leave(step, request) for request in requests)
    if ErrorCode.NONE in codes and not step.group.is_in(_State.EMPTY, _State.DEAD):
        rounds.start_or_complete(step)
    return codes


def _leave(step: ClassicStep, request: LeaveGroupRequest) -> ErrorCode:
    group = step.group
    member_id = request.member_id
    if not member_id:
        # An administrator who removes a static member only knows its instance id.
        member_id = group.static_members.get(request.instance_id or "", "")
    elif member_id in group.pending_joins:
        group.remove(member_id)
        step.end_session(member_id)
        return ErrorCode.NONE
    try:
        member = group.check_member(member_id, request.instance_id)
    except ProtocolError as error:
        return error.code
    step.remove(member)
    return ErrorCode.NONE
