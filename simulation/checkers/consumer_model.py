"""The consumer group protocol for one member: what must follow from its heartbeat, clause by clause.

This is a second, plain account of KIP-848, written from the KIP and from Kafka 4.3 (GroupMetadataManager,
CurrentAssignmentBuilder). It shares no code with the coordinator that it judges. Every function is pure: from
the member before the event, the event, and what the coordinator was free to choose, it returns the one right
result. A judge that does not see the request gets all results that are possible (`UNSEEN`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
    from fencepost.simulation.checkers.step import KnownGroup

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
STABLE, UNREVOKED, UNRELEASED, _ = ConsumerGroupMemberState
NONE = ErrorCode.NONE


# -- the request is accepted, or refused (KIP-848, ConsumerGroupHeartbeat, Error Handling) ------------------


def refusal(request: ConsumerGroupHeartbeatRequest, known: KnownGroup | None) -> ErrorCode | None:
    """Return the error of the response; None if more than epochs and names decide (limits, expressions).

    `known` is the group before the request, None if there was no group.
    """
    if is_malformed(request):
        return ErrorCode.INVALID_REQUEST
    epoch = request.member_epoch
    if known is None:  # a join makes the group
        return NONE if epoch == ids.JOIN_EPOCH else ErrorCode.GROUP_ID_NOT_FOUND
    if request.instance_id is not None:
        return _refusal_of_static(request, known)
    member = known.members.get(request.member_id)
    if epoch == ids.JOIN_EPOCH:  # also of a known member: it may have missed its response (KAFKA-19233)
        return NONE
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return NONE if epoch == ids.LEAVE_EPOCH else _refusal_by_epoch(request, member)


def is_malformed(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return true if the fields alone make a request INVALID_REQUEST."""
    epoch = request.member_epoch
    # From version 1 on members make their own ids (KIP-1082); before, the coordinator gave one to a join.
    named = request.api_version >= 1 or epoch > 0 or epoch == ids.LEAVE_EPOCH
    if (named and not request.member_id.strip()) or not request.group_id.strip():
        return True
    if any(name is not None and not name.strip() for name in (request.instance_id, request.rack_id)):
        return True
    if epoch == ids.JOIN_EPOCH:
        nothing = request.subscribed_topic_names is None and request.subscribed_topic_regex is None
        return request.rebalance_timeout_ms == -1 or request.topic_partitions != {} or nothing
    return epoch < ids.STATIC_LEAVE_EPOCH or (epoch == ids.STATIC_LEAVE_EPOCH and request.instance_id is None)


def _refusal_of_static(request: ConsumerGroupHeartbeatRequest, known: KnownGroup) -> ErrorCode | None:
    """KIP-848, Static Membership: an instance id is free while its member is away."""
    assert request.instance_id is not None
    holder_id = known.instances.get(request.instance_id)
    holder = None if holder_id is None else known.members.get(holder_id)
    epoch = request.member_epoch
    if epoch == ids.JOIN_EPOCH:
        # A classic member never sends that it is away for a while: it is replaced like that (KAFKA-17228).
        free = holder is None or holder.classic is not None or holder.member_epoch == ids.STATIC_LEAVE_EPOCH
        if free and request.member_id in known.members and holder_id != request.member_id:
            return None  # one member id under two names
        return NONE if free else ErrorCode.UNRELEASED_INSTANCE_ID
    if epoch == ids.LEAVE_EPOCH and request.member_id in known.members and holder_id != request.member_id:
        return None
    if holder is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if holder_id != request.member_id:
        return ErrorCode.FENCED_INSTANCE_ID
    return NONE if epoch < 0 else _refusal_by_epoch(request, holder)


def _refusal_by_epoch(request: ConsumerGroupHeartbeatRequest, member: ConsumerGroupMember) -> ErrorCode:
    """KIP-848, Member Epoch: the epoch before is accepted of a member that lists what it was assigned since,
    as the response with its new epoch may have been lost."""
    epoch, owned = request.member_epoch, request.topic_partitions
    if epoch == member.member_epoch:
        return NONE
    lost_response = epoch == member.previous_member_epoch < member.member_epoch and owned is not None
    if lost_response and not minus(owned or ids.NO_PARTITIONS, member.assigned):
        return NONE
    return ErrorCode.FENCED_MEMBER_EPOCH


# -- what the member says about itself ----------------------------------------------------------------------


def description(
    request: ConsumerGroupHeartbeatRequest, before: ConsumerGroupMember | None
) -> dict[str, object]:
    """Return the member's fields after a request; those that it does not send keep their values."""
    names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
    said = {
        "subscribed_topic_names": None if names is None else tuple(sorted({*names})),
        "subscribed_topic_regex": request.subscribed_topic_regex,
        "server_assignor": request.server_assignor,
        "rebalance_timeout_ms": None if timeout_ms == -1 else timeout_ms,
        "instance_id": request.instance_id,
        "rack_id": request.rack_id,
    }
    if before is not None:
        said = {name: getattr(before, name) if value is None else value for name, value in said.items()}
    else:
        said = {name: value for name, value in said.items() if value is not None}
    return {**said, "classic": None}


# -- the member moves towards its target (KIP-848, Reconciliation) ------------------------------------------


class Standing(NamedTuple):
    """A member's place on the way to its target."""

    state: ConsumerGroupMemberState
    epoch: int
    previous: int
    """The epoch before the last evaluation: a member may still send it."""
    assigned: ids.Partitions
    revoking: ids.Partitions
    """Partitions that it has to release before it gets others."""

    @classmethod
    def of(cls, member: ConsumerGroupMember) -> Standing:
        """Read the standing of a stored member."""
        return cls(
            member.state,
            member.member_epoch,
            member.previous_member_epoch,
            member.assigned,
            member.pending_revocation,
        )


NEW: Final = Standing(STABLE, 0, 0, ids.NO_PARTITIONS, ids.NO_PARTITIONS)
"""A member that has just joined."""


class CoordinatorChoice(NamedTuple):
    """The choices that the coordinator was free to make, and the group around the member."""

    target_epoch: int
    target: ids.Partitions
    topics: frozenset[ids.TopicId]
    """The existing topics that the member subscribes to now, by name or by expression."""
    subscription_changed: bool
    names_nothing: bool
    """True if it subscribes to no topic at all, not even to one that does not exist."""
    taken: Callable[[ids.Partitions], ids.Partitions]
    """Returns those partitions that other members hold, or have not released yet."""

    @property
    def wanted(self) -> ids.Partitions:
        """The target without topics that the member does not subscribe to any more (KAFKA-19431)."""
        if self.target.keys() <= self.topics:
            return self.target
        return {topic_id: numbers for topic_id, numbers in self.target.items() if topic_id in self.topics}


class Unseen(enum.Enum):
    """The request was not seen."""

    REQUEST = enum.auto()


UNSEEN: Final = Unseen.REQUEST
Owned: TypeAlias = ids.Partitions | Unseen | None
"""The partitions that a request lists as owned; None if it lists none, which confirms nothing."""


Confirms: TypeAlias = Callable[[ids.Partitions], bool]
"""Returns true if the request confirms that the member holds none of these partitions any more."""


def standings(before: Standing, owned: Owned, choice: CoordinatorChoice) -> tuple[Standing, ...]:
    """Return where the member may stand after an evaluation: one place, or several if `owned` is unseen."""
    if owned is not UNSEEN:
        return (_evaluated(before, choice, lambda pending: releases(owned, pending)),)
    pending = before.revoking
    confirmations: tuple[Confirms, ...] = (
        lambda _: False,
        lambda partitions: partitions is pending,
        lambda _: True,
    )
    return tuple(_evaluated(before, choice, confirms) for confirms in confirmations)


def releases(owned: ids.Partitions | None, pending: ids.Partitions) -> bool:
    """Return true if a request that lists these partitions as owned confirms a revocation."""
    return owned is not None and not any({*owned.get(t, ())} & {*numbers} for t, numbers in pending.items())


def _evaluated(before: Standing, choice: CoordinatorChoice, confirms: Confirms) -> Standing:
    at_target = before.state is STABLE and before.epoch == choice.target_epoch
    if at_target and not choice.subscription_changed:
        return before  # nothing is left to do
    if at_target or (before.state is UNREVOKED and not confirms(before.revoking)):
        # The target does not matter now: it is reached, or has to wait. Dropped topics go at once.
        return _without_dropped(before, choice, confirms) if choice.subscription_changed else before
    return _towards_target(before, choice, confirms)


def _towards_target(before: Standing, choice: CoordinatorChoice, confirms: Confirms) -> Standing:
    wanted = choice.wanted
    if wanted is before.assigned or wanted == before.assigned:
        return Standing(STABLE, choice.target_epoch, before.epoch, before.assigned, ids.NO_PARTITIONS)
    # First it releases what is not in its target. Its epoch stays until it has (KAFKA-19974).
    kept, revoked = both(before.assigned, wanted), minus(before.assigned, wanted)
    if revoked and not confirms(revoked):
        return Standing(UNREVOKED, before.epoch, before.epoch, kept, revoked)
    # Then it gets what no other member holds. What it had to release itself is free for it (KAFKA-19449).
    missing = minus(wanted, kept)
    taken = minus(choice.taken(missing), before.revoking) if missing else ids.NO_PARTITIONS
    state = UNRELEASED if taken else STABLE
    return Standing(state, choice.target_epoch, before.epoch, minus(wanted, taken), ids.NO_PARTITIONS)


def _without_dropped(before: Standing, choice: CoordinatorChoice, confirms: Confirms) -> Standing:
    """Take away topics that the member has just dropped, without a new target."""
    dropped = {t: numbers for t, numbers in before.assigned.items() if t not in choice.topics}
    if not dropped and (before.revoking or not choice.names_nothing):
        return before
    kept, pending = minus(before.assigned, dropped), union(before.revoking, dropped)
    if not pending or confirms(pending):
        return Standing(before.state, before.epoch, before.epoch, kept, before.revoking)
    return Standing(UNREVOKED, before.epoch, before.epoch, kept, pending)


def away(before: Standing) -> Standing:
    """Return where a static member stands that leaves for a while: it keeps what it is assigned, and others
    get what it had to release (KIP-848, Static Membership)."""
    return before._replace(epoch=ids.STATIC_LEAVE_EPOCH, revoking=ids.NO_PARTITIONS)


Since: TypeAlias = Mapping[ids.TopicId, Mapping[int, int]]
"""The epoch since which partitions are held, by topic and number."""


def held_since(known: Since, before: Standing, after: Standing) -> Iterator[tuple[ids.TopicId, int, int]]:
    """Yield each partition that is held after a step, with the epoch since when (KIP-1251).

    That epoch stays while the partition is held: otherwise late commits of its member are refused. One that
    comes, or comes back before it was released, has the epoch that the member reaches with it.
    """
    is_away = after.epoch == ids.STATIC_LEAVE_EPOCH
    for part, stays in ((after.assigned, before.assigned), (after.revoking, after.revoking)):
        for topic_id, numbers in part.items():
            staying, epochs = () if is_away else stays.get(topic_id, ()), known.get(topic_id, {})
            for number in numbers:
                yield (
                    topic_id,
                    number,
                    epochs[number] if number in staying and number in epochs else max(after.epoch, 0),
                )


# -- the response (KIP-848, ConsumerGroupHeartbeatResponse) -------------------------------------------------


def has_assignment(request: ConsumerGroupHeartbeatRequest, before: Standing, after: Standing) -> bool:
    """Return true if the response has the assignment: after a join, a full request, or a change of it."""
    return request.member_epoch == ids.JOIN_EPOCH or is_full(request) or before.assigned != after.assigned


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return true if a heartbeat has the fields that ask for the whole assignment."""
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


# -- the target is due (KIP-1263) ---------------------------------------------------------------------------

_NO_TARGET: Final = 1
"""The target's epoch in a group that never had one."""


def is_target_due(group_epoch: int, target_epoch: int, waited_ms: int, interval_ms: int) -> bool:
    """Return true if a heartbeat has to make a new target: the group has a newer epoch, and the interval
    between two targets is over."""
    return target_epoch < group_epoch and (target_epoch <= _NO_TARGET or waited_ms >= interval_ms)


# -- sets of partitions -------------------------------------------------------------------------------------


def minus(one: ids.Partitions, other: ids.Partitions) -> ids.Partitions:
    """Return the partitions of the first that are not in the second."""
    if not one or not other:
        return one
    return _filled({t: {*n}.difference(other[t]) if t in other else n for t, n in one.items()})


def both(one: ids.Partitions, other: ids.Partitions) -> ids.Partitions:
    """Return the partitions that are in both."""
    return _filled({t: {*n}.intersection(other[t]) for t, n in one.items() if t in other})


def union(one: ids.Partitions, other: ids.Partitions) -> ids.Partitions:
    """Return the partitions that are in one of the two."""
    return _filled({t: {*one.get(t, ()), *other.get(t, ())} for t in (*one, *other)})


def _filled(partitions: Mapping[ids.TopicId, Collection[int]]) -> ids.Partitions:
    return {
        topic_id: numbers if isinstance(numbers, tuple) else tuple(sorted(numbers))
        for topic_id, numbers in partitions.items()
        if numbers
    }
