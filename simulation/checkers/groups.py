"""A group as a whole: nothing is left of members that went, and what is derived agrees with its members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from fencepost.coordinator.consumer.states import GROUP_TABLE, GroupState
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.simulation.checkers.base import Finding

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.simulation.checkers.step import GroupStep


class GroupWatch:
    """Checks one group after each event that wrote records of it."""

    def __init__(self) -> None:
        self._state = GroupState.EMPTY
        self._static = 0

    def check(self, step: GroupStep, held_partitions: int) -> Iterator[Finding]:
        """Findings of one event; `held_partitions` is how many partitions the members hold."""
        if step.ends:
            yield from _tombstones(step)
        group = step.group
        if group is None:
            return
        state = group.state
        if state is not self._state and not step.is_load and not GROUP_TABLE.allows(self._state, state):
            yield (
                "transitions",
                f"{group.group_id} went from {self._state} to {state}, which is no arrow of its table",
            )
        self._state = state
        yield from self._instances(step, group)
        yield from _sizes(group, held_partitions)
        if not group.members:
            yield from _empty(group)

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


def _sizes(group: ConsumerGroup, held_partitions: int) -> Iterator[Finding]:
    """Maps by member are no larger than the group, the map of epochs as large as what is held."""
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
            f"{group.group_id} keeps the resolution of {sorted(foreign)}, to which nobody subscribes",
        )


def _empty(group: ConsumerGroup) -> Iterator[Finding]:
    leftovers: Mapping[str, int] = {
        "targets": len(group.targets),
        "held partitions": len(group.partition_epochs),
        "resolved expressions": len(group.resolved),
        "instance ids": len(group.static_members),
        "topic counts": len(group.counts.by_name) + len(group.counts.by_regex),
    }
    if left := {name: count for name, count in leftovers.items() if count}:
        yield "empty-group", f"{group.group_id} has no members, but {left}"


_ORDER = (
    r.ConsumerGroupCurrentMemberAssignmentKey,
    r.ConsumerGroupTargetAssignmentMemberKey,
    r.ConsumerGroupMemberMetadataKey,
)


def _tombstones(step: GroupStep) -> Iterator[Finding]:
    """A member's tombstones are 8, then 7, then 5, in one batch; a group's own comes last."""
    seen: dict[MemberId, list[int]] = {}
    ended = False
    for record in step.outcome.records:
        key = record.key
        if type(key) is r.OffsetCommitKey or key.group_id != step.group_id:
            continue
        if ended and type(key) is not r.GroupMetadataKey:  # what it has become, if it is a classic one now
            yield "journal-batches", f"{step.group_id}: a record of {key} follows the group's tombstone"
        if record.value is not None:
            continue
        if isinstance(key, _ORDER):
            seen.setdefault(key.member_id, []).append(_ORDER.index(type(key)))
        ended = ended or type(key) is r.ConsumerGroupMetadataKey
    for member_id, places in seen.items():
        # A target of its own the member may never have had; its tombstone may be left out then.
        if places != sorted(places) or (2 in places) != (0 in places):
            yield (
                "journal-batches",
                f"the tombstones of {member_id} of {step.group_id} are of types"
                f" {[(8, 7, 5)[place] for place in places]}",
            )
