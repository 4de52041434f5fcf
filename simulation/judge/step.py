"""One event of the coordinator for its judges: each group before it, by a shadow that follows the records,
and the group now.

Only the groups and members that the event's records name are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.judge.consumer_model import Matches, Pair, held, minus
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.coordinator import GroupCoordinator

TargetChange: TypeAlias = tuple[MemberId, Partitions | None, Partitions | None]
"""A member whose target was written, with the target before and after."""


class MemberChange:
    """A member that records of the event name. None: it did not exist before, or does not now."""

    __slots__ = ("after", "before", "gained", "holds", "lost", "member_id")

    def __init__(
        self, member_id: MemberId, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None
    ) -> None:
        self.member_id = member_id
        self.before = before
        self.after = after
        self.holds = held(after)
        """The partitions that it has now, whether to be released or not."""
        held_before = held(before)
        self.lost = self.gained = NO_PARTITIONS
        if held_before != self.holds:
            self.lost, self.gained = minus(held_before, self.holds), minus(self.holds, held_before)


class GroupStep(msgspec.Struct, frozen=True, gc=False):
    """The effects of one event on one group. `group` is None once the group is gone."""

    group_id: str
    group: ConsumerGroup | None
    known: ConsumerGroup
    """The group before the event; an empty one if there was none."""
    members: tuple[MemberChange, ...]
    targets: tuple[TargetChange, ...]
    touched: Touched
    event: StepEvent
    outcome: Outcome
    image: TopicsImage
    now_ms: int

    @property
    def is_load(self) -> bool:
        """True if this is all that a real coordinator had done before the first check."""
        return isinstance(self.event, RecordsObserved) and self.event.cause == "load"

    @property
    def unsettled(self) -> frozenset[TopicId]:
        """Topics on which this step's coordinator and the image may differ; empty in a simulated world."""
        return self.event.unsettled if isinstance(self.event, RecordsObserved) else frozenset()

    @property
    def matched_before(self) -> Matches:
        """The topics that expressions matched before the event."""
        return {text: value.topics for text, value in self.known.resolved.items()}

    @property
    def matched(self) -> Matches:
        """The topics that expressions match after the event, by its records."""
        found = dict(self.matched_before)
        for text, value in self.touched.expressions.items():
            found.pop(text, None)
            if value is not None:
                found[text] = value.topics
        return found

    @property
    def instances(self) -> dict[str, MemberId]:
        """The static members by their instance ids after the event; an id stays with its member."""
        found = dict(self.known.static_members)
        for change in self.members:
            old = None if change.before is None else change.before.instance_id
            if old is not None and found.get(old) == change.member_id:
                del found[old]
        for change in self.members:
            if change.after is not None and change.after.instance_id is not None:
                found.setdefault(change.after.instance_id, change.member_id)
        return found

    def predecessor(self, after: ConsumerGroupMember) -> ConsumerGroupMember | None:
        """Return the static member whose place a member takes under a new id; None if it takes none."""
        if after.instance_id is None:
            return None
        removed = (change.before for change in self.members if change.after is None)
        return next((each for each in removed if each and each.instance_id == after.instance_id), None)

    def pairs(self) -> Iterator[Pair]:
        """Yield each member before and after; one that takes a static member's place was that member."""
        replaced = set()
        for change in self.members:
            if change.before is None and change.after is not None:
                before = self.predecessor(change.after)
                replaced.add(before and before.member_id)
                yield before, change.after
        for change in self.members:
            if change.before is not None and change.member_id not in replaced:
                yield change.before, change.after


def steps_of(
    named: Mapping[str, Touched],
    known: Mapping[str, ConsumerGroup],
    live: GroupCoordinator,
    event: StepEvent,
    outcome: Outcome,
    *,
    now_ms: int,
) -> Iterator[GroupStep]:
    """Yield one step for each group that the outcome's records name, from `known` to the `live` one.

    `named` is the result of `touched_groups` for these records.
    """
    for group_id, touched in named.items():
        before = known.get(group_id) or ConsumerGroup(group_id)
        group = live.groups.get(group_id)
        members = {} if group is None else group.members
        targets = {} if group is None else group.targets
        yield GroupStep(
            group_id,
            group,
            before,
            tuple([MemberChange(m, before.members.get(m), members.get(m)) for m in touched.members]),
            tuple([(m, before.targets.get(m), targets.get(m)) for m in touched.targets]),
            touched,
            event,
            outcome,
            live.image,
            now_ms,
        )


class Touched:
    """The keys that the records of a batch name in one group, in their order."""

    __slots__ = ("converted", "described", "ends", "expressions", "members", "new_targets", "targets")

    def __init__(self) -> None:
        self.members: dict[MemberId, None] = {}
        self.targets: dict[MemberId, None] = {}
        self.expressions: dict[str, r.ConsumerGroupRegularExpressionValue | None] = {}
        self.new_targets = 0
        """Number of targets that were computed."""
        self.ends = False
        """True if there is a tombstone among them."""
        self.described = False
        """True if members came, went, or said something about themselves."""
        self.converted = False
        """True if the group was a classic one, or becomes one: members keep what they have."""


def touched_groups(records: Iterable[r.Record]) -> dict[str, Touched]:
    """Return the keys that these records name, by consumer group. Records of offsets and of other groups
    touch none."""
    groups: dict[str, Touched] = {}
    converted = []
    for record in records:
        key, value = record.key, record.value
        kind = type(key)
        if kind not in ConsumerGroup.applied_by:
            if kind is r.GroupMetadataKey:
                converted.append(key.group_id)
            continue
        touched = groups.get(key.group_id)
        if touched is None:
            touched = groups[key.group_id] = Touched()
        touched.ends |= value is None
        if isinstance(key, r.ConsumerGroupCurrentMemberAssignmentKey):
            touched.members[key.member_id] = None
        elif isinstance(key, r.ConsumerGroupMemberMetadataKey):
            touched.members[key.member_id] = None
            touched.described = True
        elif isinstance(key, r.ConsumerGroupTargetAssignmentMemberKey):
            touched.targets[key.member_id] = None
        elif isinstance(value, r.ConsumerGroupTargetAssignmentMetadataValue):
            touched.new_targets += 1
        elif isinstance(key, r.ConsumerGroupRegularExpressionKey):
            touched.expressions[key.regular_expression] = value  # type: ignore[assignment]
            touched.described = True
    for group_id in converted:
        if group_id in groups:
            groups[group_id].converted = True
    return groups


class Holders:
    """Each partition's holder."""

    __slots__ = ("_topics", "total")

    def __init__(self) -> None:
        self._topics: dict[TopicId, list[MemberId | None]] = {}
        """By topic and partition number: a list takes a fifth of the room of a mapping."""
        self.total = 0

    def of(self, topic_id: TopicId, partitions: Iterable[int]) -> list[MemberId | None]:
        """Return the holders of partitions, in the order of the partitions."""
        holders = self._topics.get(topic_id, [])
        known = len(holders)
        return [holders[number] if number < known else None for number in partitions]

    def others(self, member_id: MemberId, partitions: Partitions) -> Iterator[tuple[TopicId, int, MemberId]]:
        """Yield those of these partitions that another member holds, with the holder."""
        for topic_id, numbers in partitions.items():
            holders = self.of(topic_id, numbers)
            if holders.count(member_id) < len(holders):
                for number, holder in zip(numbers, holders, strict=True):
                    if holder is not None and holder != member_id:
                        yield topic_id, number, holder

    def release(self, member_id: MemberId, lost: Partitions) -> None:
        """Remove the partitions that the member no longer holds."""
        for topic_id, numbers in lost.items():
            for number, holder in zip(numbers, self.of(topic_id, numbers), strict=True):
                if holder == member_id:
                    self._topics[topic_id][number] = None
                    self.total -= 1

    def grant(self, member_id: MemberId, gained: Partitions) -> Iterator[tuple[TopicId, int, MemberId]]:
        """Give the member the partitions that it holds newly; yield those that another one holds, which keeps
        them."""
        for topic_id, numbers in gained.items():
            holders = self._topics.setdefault(topic_id, [])
            holders.extend(repeat(None, max(numbers) + 1 - len(holders)))
            for number in numbers:
                holder = holders[number]
                if holder is None:
                    holders[number] = member_id
                    self.total += 1
                elif holder != member_id:
                    yield topic_id, number, holder
