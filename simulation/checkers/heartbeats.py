"""Heartbeats and their replies: the right error for the epoch, and a reply that has the stored state.

`expected_error` is a second statement of Kafka's rules (KIP-848, Member Epoch and Static Membership), based
on the state of the group before the request; it shares no code with the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    Partitions,
)
from fencepost.simulation.checkers.base import OF_LOG, Finding, shown

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.simulation.checkers.ownership import Ownership
    from fencepost.simulation.checkers.step import KnownGroup

NONE = ErrorCode.NONE
"""A name of its own: in Python 3.11 an attribute of an enum class costs as much as a call."""


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return true if a heartbeat has the fields that ask for the whole assignment."""
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


def is_subset(owned: Partitions, assigned: Partitions) -> bool:
    """Return true if each owned partition is assigned."""
    return all(set(numbers) <= set(assigned.get(topic_id, ())) for topic_id, numbers in owned.items())


def malformed(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return true if the fields alone make a request INVALID_REQUEST."""
    epoch = request.member_epoch
    named = request.api_version >= 1 or epoch > 0 or epoch == LEAVE_EPOCH
    if (named and not request.member_id.strip()) or not request.group_id.strip():
        return True
    for name in (request.instance_id, request.rack_id):
        if name is not None and not name.strip():
            return True
    if epoch == JOIN_EPOCH:
        nothing = request.subscribed_topic_names is None and request.subscribed_topic_regex is None
        return request.rebalance_timeout_ms == -1 or request.topic_partitions != {} or nothing
    return epoch < STATIC_LEAVE_EPOCH or (epoch == STATIC_LEAVE_EPOCH and request.instance_id is None)


def expected_error(request: ConsumerGroupHeartbeatRequest, known: KnownGroup | None) -> ErrorCode | None:
    """Return Kafka's error; None if more than epochs and names decide (limits, expressions, assignors).

    `known` is the group before the request, None if there was no group.
    """
    if malformed(request):
        return ErrorCode.INVALID_REQUEST
    epoch = request.member_epoch
    if known is None:
        return NONE if epoch == JOIN_EPOCH else ErrorCode.GROUP_ID_NOT_FOUND
    if request.instance_id is not None:
        return _expected_of_static(request, known)
    member = known.members.get(request.member_id)
    if epoch == JOIN_EPOCH:
        return NONE
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return NONE if epoch == LEAVE_EPOCH else _expected_by_epoch(request, member)


def _expected_of_static(request: ConsumerGroupHeartbeatRequest, known: KnownGroup) -> ErrorCode | None:
    assert request.instance_id is not None
    holder_id = known.instances.get(request.instance_id)
    holder = None if holder_id is None else known.members.get(holder_id)
    epoch = request.member_epoch
    if epoch == JOIN_EPOCH:
        # A classic member never sends that it is away for a while: it is replaced like that.
        classic = holder is not None and holder.classic is not None
        free = holder is None or classic or holder.member_epoch == STATIC_LEAVE_EPOCH
        if free and request.member_id in known.members and holder_id != request.member_id:
            return None  # one member id under two names
        return NONE if free else ErrorCode.UNRELEASED_INSTANCE_ID
    if epoch == LEAVE_EPOCH and request.member_id in known.members and holder_id != request.member_id:
        return None
    if holder is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if holder_id != request.member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    return NONE if epoch < 0 else _expected_by_epoch(request, holder)


def _expected_by_epoch(request: ConsumerGroupHeartbeatRequest, member: ConsumerGroupMember) -> ErrorCode:
    epoch, owned = request.member_epoch, request.topic_partitions
    if epoch == member.member_epoch:
        return NONE
    lost_reply = epoch < member.member_epoch and epoch == member.previous_member_epoch and owned is not None
    if lost_reply and is_subset(owned or NO_PARTITIONS, member.assigned):
        return NONE
    return ErrorCode.FENCED_MEMBER_EPOCH


def check_answer(
    request: ConsumerGroupHeartbeatRequest, reply: ConsumerGroupHeartbeatResponse, known: KnownGroup | None
) -> Sequence[Finding]:
    """Return true if the request was accepted or refused as its epoch demands."""
    expected, got = expected_error(request, known), reply.error_code
    if expected is None or expected == got or (expected == NONE and _has_own_reason(request, got, known)):
        return ()
    member = None if known is None else known.members.get(request.member_id)
    stored = (
        "unknown"
        if member is None
        else f"at epoch {member.member_epoch} after {member.previous_member_epoch}"
    )
    owned = "none" if request.topic_partitions is None else shown(request.topic_partitions)
    finding = (
        "heartbeat-answers",
        f"{request.member_id} of {request.group_id}, {stored}, sent epoch {request.member_epoch} with"
        f" owned {owned}:"
        f" {got.name} instead of {expected.name}",
    )
    return (finding,)


def _has_own_reason(request: ConsumerGroupHeartbeatRequest, got: ErrorCode, known: KnownGroup | None) -> bool:
    """Return true if a refusal may have another cause than the epoch and the names."""
    return (
        got in OF_LOG
        or (got is ErrorCode.GROUP_MAX_SIZE_REACHED and request.member_epoch == JOIN_EPOCH)
        or (got is ErrorCode.INVALID_REGULAR_EXPRESSION and bool(request.subscribed_topic_regex))
        or (got is ErrorCode.UNSUPPORTED_ASSIGNOR and request.server_assignor is not None)
        or (got is ErrorCode.UNSUPPORTED_VERSION and known is None)
    )


def check_reply(
    request: ConsumerGroupHeartbeatRequest,
    reply: ConsumerGroupHeartbeatResponse,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember | None,
    ownership: Ownership | None,
) -> Iterator[Finding]:
    """Check that a successful reply agrees with the stored member, before and after the request."""
    who = f"{reply.member_id} of {request.group_id}"
    if request.member_epoch < 0:
        if reply.member_epoch != request.member_epoch or reply.assignment is not None:
            yield (
                "reply-equals-state",
                f"{who} left with {request.member_epoch}, received {reply.member_epoch}",
            )
        if request.member_epoch == LEAVE_EPOCH and after is not None:
            yield "reply-equals-state", f"{who} left, and is still there at epoch {after.member_epoch}"
        return
    if after is None:
        yield "reply-equals-state", f"{who} received epoch {reply.member_epoch}, but is not stored"
        return
    if reply.member_epoch != after.member_epoch:
        yield (
            "reply-equals-state",
            f"{who} received epoch {reply.member_epoch}, stored is {after.member_epoch}",
        )
    if reply.heartbeat_interval_ms <= 0:
        yield "reply-equals-state", f"{who} received a heartbeat interval of {reply.heartbeat_interval_ms} ms"
    if (differing := _not_as_told(request, before, after)) is not None:
        yield "heartbeat-recorded", f"{who} is stored with {differing}, by its request and its state before"
    yield from _check_assignment(request, reply, before, after, who)
    if ownership is not None and reply.assignment is not None:
        for topic_id, number, holder in ownership.others(after.member_id, reply.assignment):
            yield (
                "granted-after-release",
                f"{who} received {topic_id}-{number} at epoch {after.member_epoch} while {holder} holds it",
            )


def _not_as_told(
    request: ConsumerGroupHeartbeatRequest, before: ConsumerGroupMember | None, after: ConsumerGroupMember
) -> str | None:
    """Return the first field of the stored member that is neither what the request says, nor, if it says
    nothing, what it was."""
    names, old = request.subscribed_topic_names, after if before is None else before
    timeout_ms = request.rebalance_timeout_ms
    for name, said, known in (
        (
            "subscribed_topic_names",
            None if names is None else tuple(sorted({*names})),
            old.subscribed_topic_names,
        ),
        ("subscribed_topic_regex", request.subscribed_topic_regex, old.subscribed_topic_regex),
        ("server_assignor", request.server_assignor, old.server_assignor),
        ("rebalance_timeout_ms", None if timeout_ms == -1 else timeout_ms, old.rebalance_timeout_ms),
        ("instance_id", request.instance_id, old.instance_id),
        ("rack_id", request.rack_id, old.rack_id),
    ):
        stored, right = getattr(after, name), known if said is None else said
        if stored != right:
            return f"{name} {stored!r} instead of {right!r}"
    return None if after.classic is None else "the data of a classic member"


def _check_assignment(
    request: ConsumerGroupHeartbeatRequest,
    reply: ConsumerGroupHeartbeatResponse,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember,
    who: str,
) -> Iterator[Finding]:
    """Check that the assignment is the stored one, and that it is there when it must be, and only then."""
    changed = before is not None and before.assigned != after.assigned
    if request.member_epoch == JOIN_EPOCH:
        why = "joined"
    elif changed:
        why = "changed"
    else:
        why = "requested it" if is_full(request) else ""
    if reply.assignment is None:
        if why:
            yield (
                "assignment-present",
                f"{who} {why} at epoch {after.member_epoch}, and received no assignment",
            )
        return
    if not why and before is not None:
        yield (
            "assignment-present",
            f"{who} received an assignment at epoch {after.member_epoch}, which is unchanged and which it did"
            " not request",
        )
    if reply.assignment != after.assigned:
        yield (
            "reply-equals-state",
            f"{who} received {shown(reply.assignment)} at epoch {after.member_epoch}, assigned is"
            f" {shown(after.assigned)}",
        )
