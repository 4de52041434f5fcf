"""What a coordinator keeps beside its records: timers and contacts for exactly the members that it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fencepost.coordinator.consumer.soft import ConsumerGroupSoftState, ConsumerTimerKind
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.simulation.checkers.base import Finding

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.simulation.checkers.step import GroupStep

# Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call.
SESSION, REBALANCE = ConsumerTimerKind.SESSION, ConsumerTimerKind.REBALANCE
UNREVOKED = ConsumerGroupMemberState.UNREVOKED_PARTITIONS


class SoftWatch:
    """Checks one coordinator after the other. It keeps count, so that no step has to look at all groups."""

    def __init__(self) -> None:
        self._groups: Mapping[str, ConsumerGroupSoftState] = {}
        """Those that were counted; a coordinator that loads makes others."""
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
                # One that speaks the classic protocol is expected to join, and to sync.
                limit += sum(member.classic is not None for member in step.group.members.values())
            if len(soft.timers) > limit:
                yield "bounded-memory", f"{len(soft.timers)} timers run, {limit} at most are for members"
        yield from _timers(live, step)

    def _count(self, groups: Mapping[str, ConsumerGroupSoftState]) -> None:
        self._groups = groups
        self._contacts = {group_id: len(group.contacts) for group_id, group in groups.items()}
        self._total = sum(self._contacts.values())


def _timers(live: GroupCoordinator, step: GroupStep) -> Iterator[Finding]:
    """Whether each member that changed has the timers that it needs."""
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
                    f" {'gone' if member is None else f'{member.state} at epoch {member.member_epoch}'}",
                )
