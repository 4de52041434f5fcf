"""Reconciles one member with its target: a function of the member, its target, and the free partitions.

A member must release partitions before it receives new ones, and its epoch moves only after that (KIP-848,
Reconciliation). Only the partitions that a heartbeat lists confirm a release: a heartbeat that lists nothing
(None) confirms nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import msgspec

from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import (
    MEMBER_TABLE,
    ConsumerGroupMemberState,
    ConsumerReconciliationStep,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, Partitions, TopicId

# Module-level names: in Python 3.11 an attribute of an enum class costs as much as a call.
STABLE, UNREVOKED, UNRELEASED, UNKNOWN = ConsumerGroupMemberState
REVOKE, WAIT, SETTLE, _ = ConsumerReconciliationStep

Taken = Callable[[TopicId, Iterable[int]], set[int]]
"""Returns those of a topic's partitions that any member holds, this member included."""
Epochs = dict[TopicId, dict[int, int]]


def reconcile(
    member: ConsumerGroupMember,
    *,
    target_epoch: int,
    target: Partitions,
    subscribed: frozenset[TopicId],
    names_nothing: bool,
    subscription_changed: bool,
    owned: Partitions | None,
    taken: Taken,
) -> ConsumerGroupMember:
    """Return the member after one evaluation; the same object if nothing changed.

    `subscribed` are the ids of the existing topics of its subscription; `names_nothing` is true if its
    subscription names no topic, not even one that does not exist. `owned` are the partitions that its
    heartbeat lists.

    :raises ProtocolError: FENCED_MEMBER_EPOCH if a newer coordinator wrote the member's state, and the member
        owns partitions or does not list them.
    """
    if not subscription_changed and member.is_reconciled_to(target_epoch):
        return member
    state = member.state
    if state is STABLE and member.member_epoch == target_epoch:
        found = _shrink(member, subscribed, owned, names_nothing=names_nothing)
    elif state is UNREVOKED and not releases(owned, member.pending_revocation):
        found = member
        if subscription_changed:
            found = _shrink(member, subscribed, owned, names_nothing=names_nothing)
    elif state is UNKNOWN and (owned is None or owned):
        raise ProtocolError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The consumer group member is in a unknown state. "
            "The member must abandon all its partitions and rejoin.",
        )
    else:
        wanted = target
        if not subscribed >= target.keys():
            wanted = {t: numbers for t, numbers in target.items() if t in subscribed}
        found = _next(member, target_epoch, wanted, owned, taken)
    return member if found == member else found


def releases(owned: Partitions | None, partitions: Partitions) -> bool:
    """Return true if the heartbeat reports that the member owns none of these partitions."""
    if owned is None:
        return False
    return all(
        topic_id not in partitions or not set(numbers).intersection(partitions[topic_id])
        for topic_id, numbers in owned.items()
    )


def _shrink(
    member: ConsumerGroupMember,
    subscribed: Collection[TopicId],
    owned: Partitions | None,
    *,
    names_nothing: bool,
) -> ConsumerGroupMember:
    """Take away the topics that are no longer subscribed to, without waiting for a new target.

    A member that names nothing counts as evaluated even if it holds nothing: the epoch before its present
    one is not accepted any more.
    """
    dropped = {t: numbers for t, numbers in member.assigned.items() if t not in subscribed}
    if not dropped and (member.pending_revocation or not names_nothing):
        return member
    assigned = {t: numbers for t, numbers in member.assigned.items() if t not in dropped}
    pending = _union(member.pending_revocation, dropped)
    if not pending or releases(owned, pending):
        return _moved(member, member.state, member.member_epoch, assigned, member.pending_revocation)
    state = MEMBER_TABLE.next(member.state, REVOKE)
    return _moved(member, state, member.member_epoch, assigned, pending)


def _next(
    member: ConsumerGroupMember,
    target_epoch: int,
    target: Partitions,
    owned: Partitions | None,
    taken: Taken,
) -> ConsumerGroupMember:
    """Return the member one step closer to its target: first revoke partitions outside of it, then take free
    ones.

    `target` has no topics outside the subscription (KAFKA-19431).
    """
    if target == member.assigned:
        state = MEMBER_TABLE.next(member.state, SETTLE)
        return _moved(member, state, target_epoch, member.assigned, NO_PARTITIONS)
    keep: dict[TopicId, tuple[int, ...]] = {}
    revoke: dict[TopicId, tuple[int, ...]] = {}
    for topic_id in sorted(member.assigned):
        assigned = member.assigned[topic_id]
        wanted = target.get(topic_id, ())
        if wanted == assigned:
            keep[topic_id] = assigned
        else:
            _put(keep, topic_id, set(assigned).intersection(wanted))
            _put(revoke, topic_id, set(assigned).difference(wanted))
    # The epoch does not change while a revocation is outstanding (KAFKA-19974).
    if revoke and not releases(owned, revoke):
        state = MEMBER_TABLE.next(member.state, REVOKE)
        return _moved(member, state, member.member_epoch, keep, revoke)
    add: dict[TopicId, tuple[int, ...]] = {}
    reached: dict[TopicId, tuple[int, ...]] = {}
    step = SETTLE
    for topic_id in sorted(target):
        wanted = target[topic_id]
        kept = keep.get(topic_id, ())
        if wanted != kept:
            missing = set(wanted).difference(kept)
            # The member's own pending revocation is free for itself: no one else can hold it (KAFKA-19449).
            blocked = taken(topic_id, missing).difference(member.pending_revocation.get(topic_id, ()))
            _put(add, topic_id, missing - blocked)
            if blocked:
                step = WAIT
                wanted = tuple(sorted(set(wanted) - blocked))
        if wanted:
            reached[topic_id] = wanted
    # A whole target is stored as the same object: there are thousands of members.
    assigned_now = target if step is SETTLE and [*reached] == [*target] else reached
    state = MEMBER_TABLE.next(member.state, step)
    return _moved(member, state, target_epoch, assigned_now, NO_PARTITIONS, added=add)


def _moved(
    member: ConsumerGroupMember,
    state: ConsumerGroupMemberState,
    epoch: int,
    assigned: Partitions,
    pending: Partitions,
    *,
    added: Partitions = NO_PARTITIONS,
) -> ConsumerGroupMember:
    """Return the evaluated member. Partitions held before keep their assignment epochs; `added` gets
    `epoch`."""
    if assigned is member.assigned and not pending and not member.pending_revocation and not added:
        held: Epochs = member.assignment_epochs
    else:
        held = _held_since(member, epoch, assigned, pending, added)
    return msgspec.structs.replace(
        member,
        state=state,
        member_epoch=epoch,
        previous_member_epoch=member.member_epoch,
        assigned=assigned,
        pending_revocation=pending,
        assignment_epochs=held,
    )


def _held_since(
    member: ConsumerGroupMember, epoch: int, assigned: Partitions, pending: Partitions, added: Partitions
) -> Epochs:
    held: Epochs = {}
    for part in (assigned, pending):
        for topic_id, numbers in part.items():
            known = member.assignment_epochs.get(topic_id, {})
            if topic_id in added:
                known = known | dict.fromkeys(added[topic_id], epoch)
            if tuple(known) == numbers:
                held[topic_id] = known  # mostly the same object: a change seldom affects all topics
            else:
                of_part = {number: known[number] for number in numbers}
                held[topic_id] = held[topic_id] | of_part if topic_id in held else of_part
    return held


def _put(into: dict[TopicId, tuple[int, ...]], topic_id: TopicId, partitions: set[int]) -> None:
    if partitions:
        into[topic_id] = tuple(sorted(partitions))


def _union(first: Partitions, second: Partitions) -> Partitions:
    topics = sorted({*first, *second})
    return {t: tuple(sorted({*first.get(t, ()), *second.get(t, ())})) for t in topics}
