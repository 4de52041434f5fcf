"""The consumer group protocol: what must follow from an event, clause by clause.

This is a second, plain account of KIP-848, written from the KIP and from Kafka 4.3 (GroupMetadataManager,
CurrentAssignmentBuilder). It shares no code with the coordinator that it judges. Every function is pure: from
the state before the event, the event, and what the coordinator was free to choose, it returns the one right
result. A judge that does not see the request gets all results that are possible (`UNSEEN`).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from fencepost.coordinator.consumer.states import ConsumerGroupMemberState, GroupState
from fencepost.coordinator.protocol import consumer, ids
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.outcome import SessionEnded
from fencepost.coordinator.protocol.regular_expressions import compiled

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.coordinator.streams.states import StreamsGroupMemberState
    from fencepost.simulation.kernel.observers import StepEvent

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
STABLE, UNREVOKED, UNRELEASED, _ = ConsumerGroupMemberState
NONE = ErrorCode.NONE


# -- the request is accepted, or refused (KIP-848, ConsumerGroupHeartbeat, Error Handling) ------------------


def refusal(request: ConsumerGroupHeartbeatRequest, known: ConsumerGroup | None) -> ErrorCode | None:
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


def _refusal_of_static(request: ConsumerGroupHeartbeatRequest, known: ConsumerGroup) -> ErrorCode | None:
    """KIP-848, Static Membership: an instance id is free while its member is away."""
    assert request.instance_id is not None
    holder_id = known.static_members.get(request.instance_id)
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


# -- the group epoch (KIP-848, Group Epoch) -----------------------------------------------------------------

FIRST_EPOCH: Final = 1
"""The epoch of a group before its first change, and of its target."""

Pair: TypeAlias = "tuple[ConsumerGroupMember | None, ConsumerGroupMember | None]"
"""A member before and after an event; None if it was, or is, no member."""
Matches: TypeAlias = Mapping[str, tuple[str, ...]]
"""The topics that expressions match, as far as they are resolved."""


def reason_to_raise(pairs: Iterable[Pair], matched: Matches, matched_now: Matches) -> str:
    """Return the change that raises the group epoch; empty if there is none.

    A static member that returns is the member that it replaces: unchanged, it raises nothing (Static
    Membership).
    """
    for text, topics in matched_now.items():
        if topics != matched.get(text, ()):
            return f"{text} matches {topics} now"
    for before, after in pairs:
        if after is None:
            return f"{before.member_id if before else 'a member'} was removed"
        if subscribes_otherwise(before, after):
            return f"{after.member_id} subscribes to {after.subscribed_topic_names}, {after.regex}"
        # The topics of a new expression come later, with an epoch of their own.
        if after.regex in matched and (before is None or before.regex != after.regex):
            return f"{after.member_id} subscribes to {after.regex}, which is known"
    return ""


def subscribes_otherwise(before: ConsumerGroupMember | None, after: ConsumerGroupMember) -> bool:
    """Return true if a member names other topics than before, or dropped its expression (KAFKA-19899)."""
    if before is None:
        return bool(after.subscribed_topic_names)
    dropped = before.regex is not None and after.regex is None
    return dropped or after.subscribed_topic_names != before.subscribed_topic_names


def is_input_changed(pairs: Iterable[Pair]) -> bool:
    """Return true if targets may depend on a change; the preferred assignor raises epochs in some releases
    only."""
    return any(_inputs(before) != _inputs(after) for before, after in pairs)


def _inputs(member: ConsumerGroupMember | None) -> tuple[object, ...]:
    return (member.subscribed_topic_names, member.regex, member.server_assignor) if member else ()


# -- the target is due (KIP-848, Target Assignment; KIP-1263) -----------------------------------------------


def is_target_due(group_epoch: int, target_epoch: int, waited_ms: int, interval_ms: int) -> bool:
    """Return true if a heartbeat has to make a new target: the group has a newer epoch, and the interval
    between two targets is over."""
    return target_epoch < group_epoch and (target_epoch <= FIRST_EPOCH or waited_ms >= interval_ms)


def subscribed_topics(
    member: ConsumerGroupMember, matched: Matches, image: TopicsImage
) -> frozenset[ids.TopicId]:
    """Return the existing topics that a member subscribes to, by name or by expression."""
    names = (*member.subscribed_topic_names, *matched.get(member.regex or "", ()))
    by_name = image.by_name
    return frozenset([topic.topic_id for name in names if (topic := by_name.get(name)) is not None])


# -- expressions (KIP-848, Regular Expressions) -------------------------------------------------------------

LOOKUP_PAUSE_MS: Final = 10_000
"""A group's expressions are not resolved again within this time."""


def is_lookup_due(since_ms: int, refresh_ms: int, *, new: bool) -> bool:
    """Return true if a heartbeat has to start a lookup; `new` if an expression or a topic is.

    `since_ms` is the time since the last lookup.
    """
    return since_ms > LOOKUP_PAUSE_MS and (new or since_ms > refresh_ms)


def matches(text: str, image: TopicsImage) -> tuple[str, ...]:
    """Return the topics whose whole names match an expression; an invalid one matches nothing."""
    try:
        expression = compiled(text)
    except ProtocolError:
        return ()
    return tuple(name for name in sorted(image.by_name) if expression.fullmatch(name) is not None)


# -- the member moves towards its target (KIP-848, Reconciliation) ------------------------------------------


class Standing(NamedTuple):
    """A member's place on the way to its target."""

    state: ConsumerGroupMemberState | StreamsGroupMemberState
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


def held_since(known: Since, before: Standing, after: Standing) -> dict[ids.TopicId, dict[int, int]]:
    """Return the epoch since when each partition is held after a step (KIP-1251).

    That epoch stays while the partition is held: otherwise late commits of its member are refused. It never
    exceeds the member's. A partition that comes, or comes back before it was released, has the epoch that the
    member reaches with it.
    """
    is_away, since = after.epoch == ids.STATIC_LEAVE_EPOCH, dict[ids.TopicId, dict[int, int]]()
    for part, stays in ((after.assigned, before.assigned), (after.revoking, after.revoking)):
        for topic_id, numbers in part.items():
            staying, epochs = () if is_away else stays.get(topic_id, ()), known.get(topic_id, {})
            fresh, of_topic = max(after.epoch, 0), since.setdefault(topic_id, {})
            of_topic.update({n: min(epochs.get(n, fresh), fresh) if n in staying else fresh for n in numbers})
    return since


# -- the response (KIP-848, ConsumerGroupHeartbeatResponse) -------------------------------------------------


def response(
    request: ConsumerGroupHeartbeatRequest, before: Standing, after: Standing
) -> tuple[int, ids.Partitions | None]:
    """Return the epoch of the response; and the assignment after a join, a full request, or a change."""
    if request.member_epoch < 0:
        return request.member_epoch, None
    told = request.member_epoch == ids.JOIN_EPOCH or is_full(request) or before.assigned != after.assigned
    return after.epoch, after.assigned if told else None


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return true if a heartbeat has the fields that ask for the whole assignment."""
    return (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )


# -- members leave, and are removed (KIP-848, Member Session Management, Rebalance Timeout) ----------------


def may_remove(event: StepEvent, member: ConsumerGroupMember) -> bool:
    """Return true if the event removes this member: it leaves, or an administrator or its broker says so."""
    if isinstance(event, consumer.ConsumerGroupHeartbeatRequest):
        return event.member_epoch == ids.LEAVE_EPOCH and event.member_id == member.member_id
    if isinstance(event, SessionEnded):
        return event.member_id == member.member_id
    if isinstance(event, consumer.LeaveGroupRequest | consumer.LeaveGroupBatchRequest):
        named = event.members if isinstance(event, consumer.LeaveGroupBatchRequest) else (event,)
        return any(
            one.member_id == member.member_id
            if one.instance_id is None
            else one.instance_id == member.instance_id
            for one in named
        )
    return False


def timeout_ms(reason: str, member: ConsumerGroupMember, session_ms: int) -> int:
    """Return the time after which a silent member is removed; one of the classic protocol chose its own."""
    if reason != "session":
        return member.rebalance_timeout_ms
    return session_ms if member.classic is None else member.classic.session_timeout_ms


def is_timed(member: ConsumerGroupMember) -> bool:
    """Return true if a rebalance timer runs: the member has to release partitions, and is there.

    A member of the classic protocol has none: it is expected to join, and to sync.
    """
    return member.state is UNREVOKED and member.member_epoch >= 0 and member.classic is None


# -- the group as a whole -----------------------------------------------------------------------------------


def group_state(members: Collection[ConsumerGroupMember], group_epoch: int, target_epoch: int) -> GroupState:
    """Return the state by the epochs and members (ConsumerGroup.maybeUpdateGroupState)."""
    if not members:
        return GroupState.EMPTY
    if target_epoch < group_epoch:
        return GroupState.ASSIGNING
    settled = all(each.member_epoch == target_epoch and each.state is STABLE for each in members)
    return GroupState.STABLE if settled else GroupState.RECONCILING


def held(member: ConsumerGroupMember | None) -> ids.Partitions:
    """Return the partitions that a member holds: the assigned ones, and those that it has to release.

    No other member may hold one of them.
    """
    if member is None:
        return ids.NO_PARTITIONS
    assigned, pending = member.assigned, member.pending_revocation
    return union(assigned, pending) if pending else assigned


# -- sets of partitions -------------------------------------------------------------------------------------


def minus(one: ids.Partitions, other: ids.Partitions) -> ids.Partitions:
    """Return the partitions of the first that are not in the second."""
    if not one or not other:
        return one
    return _filled({t: {*n}.difference(other.get(t, ())) for t, n in one.items() if other.get(t) != n})


def both(one: ids.Partitions, other: ids.Partitions) -> ids.Partitions:
    """Return the partitions that are in both."""
    return _filled({t: {*n}.intersection(other[t]) for t, n in one.items() if t in other})


def union(one: ids.Partitions, other: ids.Partitions) -> ids.Partitions:
    """Return the partitions that are in one of the two."""
    return _filled({t: {*one.get(t, ()), *other.get(t, ())} for t in (*one, *other)})


def _filled(partitions: Mapping[ids.TopicId, Collection[int]]) -> ids.Partitions:
    return {topic_id: tuple(sorted(numbers)) for topic_id, numbers in partitions.items() if numbers}
