"""JoinGroup: a member enters a group, or stays in it for another generation."""

from __future__ import annotations

from fencepost.coordinator.classic import rounds
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.classic.step import ClassicStep
from fencepost.coordinator.config import CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS, GroupCoordinatorConfig
from fencepost.coordinator.protocol.classic import JoinGroupRequest, JoinGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import MemberId

MEMBER_ID_REQUIRED_VERSION = 4
"""From this version on a dynamic member is given its id first, and joins with it then (KIP-394)."""
SKIP_ASSIGNMENT_VERSION = 9
"""The version from which a leader that only rejoined can be told to keep the assignment (KIP-814)."""

_State = ClassicGroupState


def check_request(request: JoinGroupRequest, config: GroupCoordinatorConfig) -> None:
    """Run the checks that need no group.

    :raises ProtocolError: INVALID_GROUP_ID or INVALID_SESSION_TIMEOUT.
    """
    if not request.group_id:
        raise ProtocolError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    low, high = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not low <= request.session_timeout_ms <= high:
        raise ProtocolError(
            ErrorCode.INVALID_SESSION_TIMEOUT,
            f"session timeout {request.session_timeout_ms} is not within {low} and {high}",
        )


def new_member_id(request: JoinGroupRequest) -> MemberId:
    """Return the id of a member that joins without one."""
    return f"{request.client_id if request.instance_id is None else request.instance_id}-" + (
        request.new_member_suffix
    )


def join(step: ClassicStep, request: JoinGroupRequest) -> None:
    """Add a member or refuse it; the response is sent now or when the round ends.

    :raises ProtocolError: if it is refused.
    """
    group = step.group
    if not _has_room(group, request.member_id, step.config.group_max_size):
        full = group.members.get(request.member_id)
        if full is not None:
            step.remove(full)
        else:
            # If that id was given out, no round waits for it any more.
            group.remove(request.member_id)
            step.end_session(request.member_id)
        raise ProtocolError(ErrorCode.GROUP_MAX_SIZE_REACHED, f"group {group.group_id} is full")
    if not group.supports(request.protocol_type, request.protocols):
        raise ProtocolError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"the members of group {group.group_id} do not all offer one of the member's protocols",
        )
    if request.member_id:
        _join_known(step, request)
    elif request.instance_id is not None:
        _join_static(step, request, request.instance_id)
    elif request.api_version >= MEMBER_ID_REQUIRED_VERSION:
        member_id = new_member_id(request)
        group.pending_joins[member_id] = None
        step.set_session(member_id, request.session_timeout_ms)
        step.answer(
            request.token, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        )
    else:
        _add(step, request, new_member_id(request))


def _has_room(group: ClassicGroup, member_id: MemberId, max_size: int) -> bool:
    """Return true if the group has room for the member. During a round, count the members that wait in
    JoinGroup, not those that are expected."""
    member = group.members.get(member_id)
    match group.state:
        case _State.EMPTY | _State.DEAD:
            return True
        case _State.PREPARING_REBALANCE:
            return (member is not None and member.join is not None) or group.joined < max_size
        case _State.COMPLETING_REBALANCE | _State.STABLE:
            return member is not None or len(group.members) < max_size


def _join_known(step: ClassicStep, request: JoinGroupRequest) -> None:
    """Let a member join that has an id: from an earlier generation, or from the response that assigned it."""
    group, member_id = step.group, request.member_id
    if member_id in group.pending_joins and request.instance_id is None:
        _add(step, request, member_id)
        return
    member = group.check_member(member_id, request.instance_id)
    match group.state:
        case _State.PREPARING_REBALANCE:
            rejoins = True
        case _State.COMPLETING_REBALANCE:
            rejoins = not member.says_the_same(request.protocols)
        case _State.STABLE:
            # A leader joins again when something changed that only it can see, such as a topic.
            rejoins = member_id == group.leader or not member.says_the_same(request.protocols)
        case _:
            raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {group.group_id} is empty")
    if rejoins:
        _update(step, member, request)
        rounds.start_or_complete(step)
    else:
        # Its last answer may have been lost.
        step.answer(request.token, _in_generation(group, member_id, group.leader or ""))


def _join_static(step: ClassicStep, request: JoinGroupRequest, instance_id: str) -> None:
    """Let a static member without an id join: it is new, or was restarted (KIP-345)."""
    group = step.group
    old_id = group.static_members.get(instance_id)
    new_id = new_member_id(request)
    if old_id is None:
        _add(step, request, new_id)
    else:
        _replace(step, request, instance_id, old_id, new_id)


def _add(step: ClassicStep, request: JoinGroupRequest, member_id: MemberId) -> None:
    group = step.group
    member = ClassicGroupMember.joining(member_id, request)
    member.is_new = True
    if group.initial_delay is not None:
        group.new_member_added = True
    group.add(member, request.protocol_type)
    group.park_join(member, request.token)
    # A client that gives up and joins again under another id leaves this member behind unnoticed.
    step.set_session(member_id, CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS)
    rounds.start_or_complete(step)


def _update(step: ClassicStep, member: ClassicGroupMember, request: JoinGroupRequest) -> None:
    group = step.group
    group.offer(member, request.protocols)
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    member.session_timeout_ms = request.session_timeout_ms
    superseded = group.park_join(member, request.token)
    step.answer(
        superseded,
        JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id),
    )


def _replace(
    step: ClassicStep, request: JoinGroupRequest, instance_id: str, old_id: MemberId, new_id: MemberId
) -> None:
    """Replace a static member that returned under another id. If nothing else is new, the others don't
    rebalance."""
    group = step.group
    old_leader = group.leader or ""
    member = group.members[old_id]
    before = member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
    fenced = ErrorCode.FENCED_INSTANCE_ID
    step.answer(group.release_join(member), JoinGroupResponse(error_code=fenced, member_id=old_id))
    sync, member.sync = member.sync, None
    rounds.answer_sync_error(step, sync, fenced)
    group.rename(instance_id, old_id, new_id)
    step.end_session(old_id)
    _update(step, member, request)
    step.restart_session(member)
    match group.state:
        case _State.STABLE if group.protocol_of_next_generation() == group.protocol:
            group.release_join(member)

            def put_back(undo: ClassicStep, _code: ErrorCode) -> None:
                group.rename(instance_id, new_id, old_id)
                group.offer(member, before[0])
                member.rebalance_timeout_ms, member.session_timeout_ms = before[1:]
                undo.end_session(new_id)
                undo.restart_session(member)

            step.failed = put_back
            step.write(group.value(group.assignments))
            step.answer(
                request.token,
                _in_generation(group, new_id, group.leader or "", skip_assignment=True)
                if request.api_version >= SKIP_ASSIGNMENT_VERSION
                # An old client that learns that it leads would assign again.
                else _in_generation(group, new_id, old_leader, roster=False),
            )
        case _State.STABLE | _State.COMPLETING_REBALANCE:
            rounds.start(step)
        case _:
            rounds.complete_if_all_joined(step)


def _in_generation(
    group: ClassicGroup,
    member_id: MemberId,
    leader: MemberId,
    *,
    skip_assignment: bool = False,
    roster: bool = True,
) -> JoinGroupResponse:
    """Return the response to a member that is already in the generation."""
    leads = roster and member_id == leader
    return JoinGroupResponse(
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=leader,
        skip_assignment=skip_assignment and leads,
        member_id=member_id,
        members=group.roster() if leads else (),
    )
