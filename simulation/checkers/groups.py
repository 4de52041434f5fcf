"""A group as a whole: its epochs, the state derived from its members, its tombstones and its soft state.

Nothing is left of removed members. Timers and contacts exist for exactly the current members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fencepost.coordinator.consumer.soft import ConsumerGroupSoftState
from fencepost.coordinator.consumer.states import GROUP_TABLE, ConsumerGroupMemberState, GroupState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import STATIC_LEAVE_EPOCH, MemberId
from fencepost.coordinator.timers import GroupTimerKind
from fencepost.simulation.checkers.base import Finding
from fencepost.simulation.kernel.observers import RecordsObserved

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.simulation.checkers.step import GroupStep, MemberChange


class GroupInvariants:
    """Checks one group after each event that wrote records of it."""

    def __init__(self) -> None:
        self._state = GroupState.EMPTY
        self._static = 0

    def check(self, step: GroupStep, held_partitions: int) -> Iterator[Finding]:
        """Findings of one event; `held_partitions` is the number of partitions that the members hold."""
        if step.ends:
            yield from _tombstones(step)
        group = step.group
        if group is None:
            return
        state = group.state
        if state is not self._state and not step.is_load and not GROUP_TABLE.allows(self._state, state):
            yield (
                "transitions",
                f"{group.group_id} went from {self._state} to {state}, which is not an arrow of its table",
            )
        if state is not self._state and state is not (right := _state(group)):
            yield "transitions", f"{group.group_id} is {state}, by its epochs and members it is {right}"
        self._state = state
        yield from self._instances(step, group)
        yield from _sizes(group, held_partitions)
        if not group.members:
            yield from _empty(group)

    def stands(self, group: ConsumerGroup, held_partitions: int) -> bool:
        """Return true if the group is unchanged: same state, as many static members, nothing left over."""
        members, static = len(group.members), len(group.static_members)
        return (
            group.state is self._state
            and static == self._static
            and static <= members
            and len(group.targets) <= members
            and len(group.partition_epochs) == held_partitions
            and not group.resolved
        )

    def _instances(self, step: GroupStep, group: ConsumerGroup) -> Iterator[Finding]:
        for change in step.members:
            old = None if change.before is None else change.before.instance_id
            new = None if change.after is None else change.after.instance_id
            self._static += (new is not None) - (old is not None)
            if new is not None and (holder := group.static_members.get(new)) != change.member_id:
                yield (
                    "static-bijection",
                    f"{group.group_id}: instance {new} of {change.member_id} belongs to {holder}",
                )
            if old is not None and old != new and group.static_members.get(old) == change.member_id:
                yield (
                    "static-bijection",
                    f"{group.group_id}: instance {old} still belongs to {change.member_id}",
                )
        if len(group.static_members) != self._static:
            yield (
                "static-bijection",
                f"{group.group_id} has {self._static} static members and {len(group.static_members)}"
                " instance ids",
            )


def _state(group: ConsumerGroup) -> GroupState:
    """Return the state by KIP-848's conditions."""
    if not group.members:
        return GroupState.EMPTY
    if group.assignment_epoch < group.group_epoch:
        return GroupState.ASSIGNING
    settled = all(
        member.member_epoch == group.assignment_epoch and member.state is ConsumerGroupMemberState.STABLE
        for member in group.members.values()
    )
    return GroupState.STABLE if settled else GroupState.RECONCILING


def _sizes(group: ConsumerGroup, held_partitions: int) -> Iterator[Finding]:
    """Check that maps by member are no larger than the group, and the map of epochs as large as the held
    partitions."""
    members = len(group.members)
    for name, mapping in (("targets", group.targets), ("instance ids", group.static_members)):
        if len(mapping) > members:
            yield "bounded-memory", f"{group.group_id} has {members} members and {len(mapping)} {name}"
    if len(group.partition_epochs) != held_partitions:
        yield (
            "owners-map",
            f"{group.group_id}: the map has {len(group.partition_epochs)} partitions, members hold"
            f" {held_partitions}",
        )
    if group.resolved and (foreign := group.resolved.keys() - group.counts.regexes.keys()):
        yield (
            "regexes-subscribed",
            f"{group.group_id} keeps the resolution of {sorted(foreign)}, to which no member subscribes",
        )


def _empty(group: ConsumerGroup) -> Iterator[Finding]:
    leftovers: Mapping[str, int] = {
        "targets": len(group.targets),
        "held partitions": len(group.partition_epochs),
        "resolved expressions": len(group.resolved),
        "instance ids": len(group.static_members),
        "topic counts": len(group.counts.by_name) + len(group.counts.by_regex),
        "digest of topics": group.metadata_hash,
    }
    if left := {name: count for name, count in leftovers.items() if count}:
        yield "empty-group", f"{group.group_id} has no members, but {left}"


_ORDER = (
    r.ConsumerGroupCurrentMemberAssignmentKey,
    r.ConsumerGroupTargetAssignmentMemberKey,
    r.ConsumerGroupMemberMetadataKey,
)


def _tombstones(step: GroupStep) -> Iterator[Finding]:
    """Check the order of tombstones: a member's are 8, then 7, then 5, in one batch; a group's own comes
    last."""
    seen: dict[MemberId, list[int]] = {}
    ended = False
    for record in step.outcome.records:
        key = record.key
        if type(key) is r.OffsetCommitKey or key.group_id != step.group_id:
            continue
        if ended and type(key) is not r.GroupMetadataKey:  # its type now, if it has become a classic one
            yield "journal-batches", f"{step.group_id}: a record of {key} follows the group's tombstone"
        if record.value is not None:
            continue
        if isinstance(key, _ORDER):
            seen.setdefault(key.member_id, []).append(_ORDER.index(type(key)))
        ended = ended or type(key) is r.ConsumerGroupMetadataKey
    for member_id, places in seen.items():
        # The member may never have had a target of its own; its tombstone may be left out then.
        if places != sorted(places) or (2 in places) != (0 in places):
            yield (
                "journal-batches",
                f"the tombstones of {member_id} of {step.group_id} are of types"
                f" {[(8, 7, 5)[place] for place in places]}",
            )


def check_epochs(step: GroupStep) -> Iterator[Finding]:
    """Findings of epochs-monotone and epochs-ordered."""
    group = step.group
    if group is None:
        return
    known = step.known
    if group.group_epoch < known.group_epoch:
        yield (
            "epochs-monotone",
            f"the epoch of {step.group_id} fell from {known.group_epoch} to {group.group_epoch}",
        )
    if group.assignment_epoch < known.assignment_epoch:
        yield (
            "epochs-monotone",
            f"the target epoch of {step.group_id} fell from {known.assignment_epoch} to"
            f" {group.assignment_epoch}",
        )
    if group.assignment_epoch > group.group_epoch:
        yield (
            "epochs-ordered",
            f"{step.group_id} has target epoch {group.assignment_epoch} at group epoch {group.group_epoch}",
        )
    for change in step.members:
        yield from _member(step, group.assignment_epoch, change)
        if group.group_epoch == known.group_epoch and _subscribes_to_others(change):
            yield (
                "subscription-raises-epoch",
                f"{change.member_id} of {step.group_id} subscribes to other topics, and the group epoch is"
                f" still {group.group_epoch}",
            )


def _subscribes_to_others(change: MemberChange) -> bool:
    """Return true if a member changed its names, or dropped its expression; the topics of a new one come
    later."""
    before, after = change.before, change.after
    if before is None or after is None:
        return False
    dropped = bool(before.subscribed_topic_regex) and not after.subscribed_topic_regex
    return dropped or {*before.subscribed_topic_names} != {*after.subscribed_topic_names}


def _member(step: GroupStep, assignment_epoch: int, change: MemberChange) -> Iterator[Finding]:
    after, before = change.after, change.before
    if after is None:
        return
    who = f"{change.member_id} of {step.group_id}"
    away = after.member_epoch == STATIC_LEAVE_EPOCH
    if after.member_epoch < 0 and not away:
        yield "epochs-ordered", f"{who} is stored with epoch {after.member_epoch}"
    if away and after.instance_id is None:
        yield "epochs-monotone", f"{who} has no instance id, but epoch -2"
    if after.member_epoch > assignment_epoch:
        yield "epochs-ordered", f"{who} has epoch {after.member_epoch}, its target has {assignment_epoch}"
    if not away and after.previous_member_epoch > after.member_epoch:
        yield (
            "epochs-ordered",
            f"{who} has previous epoch {after.previous_member_epoch} at epoch {after.member_epoch}",
        )
    if not away and after.previous_member_epoch < 0 and not isinstance(step.event, RecordsObserved):
        yield "epochs-ordered", f"{who} exists with previous epoch {after.previous_member_epoch}"
    if not away and not isinstance(step.event, RecordsObserved) and (before or after.classic is None):
        came_from = max(0 if before is None else before.member_epoch, 0)
        if came_from not in (after.member_epoch, after.previous_member_epoch):
            yield (
                "epochs-ordered",
                f"{who} went from epoch {came_from} to {after.member_epoch}, and its previous epoch is"
                f" {after.previous_member_epoch}",
            )
    if before is not None and not away and after.member_epoch < before.member_epoch:
        yield (
            "epochs-monotone",
            f"the epoch of {who} fell from {before.member_epoch} to {after.member_epoch}",
        )


# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
SESSION, REBALANCE = GroupTimerKind.SESSION, GroupTimerKind.REBALANCE
UNREVOKED = ConsumerGroupMemberState.UNREVOKED_PARTITIONS


class SoftStateInvariants:
    """Checks one coordinator after the other. It keeps counts, so that no step has to look at all groups."""

    def __init__(self) -> None:
        self._groups: Mapping[str, ConsumerGroupSoftState] = {}
        """The groups that were counted; a coordinator that loads makes others."""
        self._contacts: dict[str, int] = {}
        self._total = 0

    def check(self, live: GroupCoordinator, step: GroupStep) -> Iterator[Finding]:
        """Findings of timers-armed and bounded-memory after one event."""
        group_id, soft = step.group_id, live.soft
        members = 0 if step.group is None else len(step.group.members)
        known = soft.groups.get(group_id)
        contacts = 0 if known is None else len(known.contacts)
        if contacts != members:
            yield "bounded-memory", f"{group_id} has {members} members and contacts of {contacts}"
        if len(soft.groups) > len(live.groups):
            yield (
                "bounded-memory",
                f"there are {len(live.groups)} groups, and soft state of {len(soft.groups)}",
            )
        if soft.groups is not self._groups:
            self._count(soft.groups)
        self._total += contacts - self._contacts.get(group_id, 0)
        self._contacts[group_id] = contacts
        if known is None:
            del self._contacts[group_id]
        limit = 1 + 2 * self._total
        if len(soft.timers) > limit:
            self._count(soft.groups)
            limit = 1 + 2 * self._total
            if step.group is not None:
                # A classic member is expected to join, and to sync.
                limit += sum(member.classic is not None for member in step.group.members.values())
            if len(soft.timers) > limit:
                yield "bounded-memory", f"{len(soft.timers)} timers run, {limit} at most are for members"
        yield from _timers(live, step)

    def stands(self, live: GroupCoordinator, group_id: str, member_id: MemberId) -> bool:
        """Return true if nothing was added or removed since the step before, and a settled member has its
        timer."""
        soft, members = live.soft, len(live.groups[group_id].members)
        known, timers = soft.groups.get(group_id), soft.timers
        return (
            known is not None
            and soft.groups is self._groups
            and len(known.contacts) == members == self._contacts.get(group_id)
            and len(soft.groups) <= len(live.groups)
            and len(timers) <= 1 + 2 * self._total
            and (SESSION, group_id, member_id) in timers  # equal to a TimerKey
            and (REBALANCE, group_id, member_id) not in timers
        )

    def _count(self, groups: Mapping[str, ConsumerGroupSoftState]) -> None:
        self._groups = groups
        self._contacts = {group_id: len(group.contacts) for group_id, group in groups.items()}
        self._total = sum(self._contacts.values())


def _timers(live: GroupCoordinator, step: GroupStep) -> Iterator[Finding]:
    """Return true if each member that changed has the timers that it needs."""
    group_id, timers = step.group_id, live.soft.timers
    for change in step.members:
        member = change.after
        revoking = (
            member is not None
            and member.state is UNREVOKED
            and member.member_epoch >= 0
            and member.classic is None
        )
        for kind, wanted in ((SESSION, member is not None), (REBALANCE, revoking)):
            if ((kind, group_id, change.member_id) in timers) != wanted:  # equal to a TimerKey
                yield (
                    "timers-armed",
                    f"{change.member_id} of {group_id} has {'no' if wanted else 'a'} {kind} timer, it is"
                    f" {'removed' if member is None else f'{member.state} at epoch {member.member_epoch}'}",
                )
