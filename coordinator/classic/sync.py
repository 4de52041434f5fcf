"""SyncGroup: the leader sends the assignment, the other members receive theirs."""

from __future__ import annotations

from fencepost.coordinator.classic import rounds, sessions
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupEvent, ClassicGroupState
from fencepost.coordinator.classic.step import ClassicStep
from fencepost.coordinator.protocol.classic import SyncGroupRequest, SyncGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.timers import GroupTimerKind

_State = ClassicGroupState


def sync(step: ClassicStep, request: SyncGroupRequest) -> None:
    """Respond to a member with its assignment, now or when the leader has sent it.

    :raises ProtocolError: if the member is not in this generation, or the group rebalances.
    """
    group = step.group
    member = _check(group, request)
    match group.state:
        case _State.PREPARING_REBALANCE:
            raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, "members must join again")
        case _State.COMPLETING_REBALANCE:
            rounds.answer_sync_error(step, member.sync, ErrorCode.REBALANCE_IN_PROGRESS)
            member.sync = request.token
            _has_synced(step, member)
            if member.member_id == group.leader:
                _assign(step, request)
        case _State.STABLE:
            _has_synced(step, member)
            step.answer(request.token, _assignment(group, member.assignment))
        case _:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} is empty")


def _check(group: ClassicGroup, request: SyncGroupRequest) -> ClassicGroupMember:
    member = sessions.check_generation(group, request.member_id, request.instance_id, request.generation)
    if request.protocol_type not in (None, group.protocol_type) or request.protocol_name not in (
        None,
        group.protocol,
    ):
        raise ProtocolError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"{request.protocol_type} {request.protocol_name} is not the group's protocol",
        )
    return member


def _has_synced(step: ClassicStep, member: ClassicGroupMember) -> None:
    pending = step.group.pending_syncs
    pending.pop(member.member_id, None)
    if not pending:
        step.cancel_timer(GroupTimerKind.SYNC)


def _assign(step: ClassicStep, request: SyncGroupRequest) -> None:
    """Write the leader's assignment; all parked requests get their responses when it is written."""
    group = step.group
    assignments = request.assignments
    waiting = [member for member in group.members.values() if member.sync is not None]
    step.write(group.value(assignments))
    for member in waiting:
        step.answer(member.sync, _assignment(group, assignments.get(member.member_id, b"")))

    def written() -> None:
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        for member in waiting:
            member.sync = None
            step.restart_session(member)
        group.move(ClassicGroupEvent.ASSIGNED, step.now_ms)

    def failed(undo: ClassicStep, code: ErrorCode) -> None:
        group.members[request.member_id].sync = None  # the refusal is its response
        rounds.fail_syncs(undo, code)
        rounds.start(undo)

    step.written, step.failed = written, failed


def _assignment(group: ClassicGroup, assignment: bytes) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=assignment
    )
