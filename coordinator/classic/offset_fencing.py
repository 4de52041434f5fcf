"""Rules for committing, deleting and expiring the offsets of a classic group."""

from __future__ import annotations

from fencepost.coordinator.classic import sessions
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.member import ClassicGroupMember
from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest

_State = ClassicGroupState


def check_commit(group: ClassicGroup, request: OffsetCommitRequest) -> ClassicGroupMember | None:
    """Return the member that commits; None if it is not a member and the group is empty.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, or REBALANCE_IN_PROGRESS
        while the generation has no assignment yet.
    """
    generation = request.member_epoch
    if (generation < 0 and group.is_in(_State.EMPTY)) or request.is_anonymous_transaction:
        return None
    member = sessions.check_generation(group, request.member_id, request.instance_id, generation)
    if group.is_in(_State.COMPLETING_REBALANCE) and not request.is_transactional:
        raise ProtocolError(ErrorCode.REBALANCE_IN_PROGRESS, "the generation has no assignment yet")
    return member


def may_delete_offsets(group: ClassicGroup) -> bool:
    """Return true if offsets of topics without subscribers may be deleted.

    The subscriptions of members other than consumers are not known.
    """
    return group.is_in(_State.EMPTY) or group.uses_consumer_protocol


def offsets_may_expire(group: ClassicGroup) -> bool:
    """Return true if the group's offsets may expire. They may not while it rebalances or has members other
    than consumers."""
    return group.is_in(_State.EMPTY) or (
        group.is_in(_State.STABLE) and group.uses_consumer_protocol and group.subscribed_topics is not None
    )


def retained_since_ms(group: ClassicGroup) -> int | None:
    """Return the time when the group became empty, from which its offsets age; None if each ages from its
    commit."""
    if group.is_in(_State.EMPTY) and group.protocol_type is not None and group.state_timestamp_ms >= 0:
        return group.state_timestamp_ms
    return None
