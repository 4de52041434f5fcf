"""One event of the coordinator for its checkers: the state before it, and the state now.

Values are immutable, so "before" is a reference that was kept; nothing is copied. Only the groups and members
that the event's records name are compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.simulation.checkers.ownership import Some, changes, held
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember

    Groups: TypeAlias = Mapping[str, ConsumerGroup]


_NOBODY: Mapping[MemberId, ConsumerGroupMember] = {}
_NO_TARGETS: Mapping[MemberId, Partitions] = {}


class MemberChange:
    """A member that records of the event name. None: it did not exist before, or does not now."""

    __slots__ = ("after", "before", "gained", "holds", "holds_the_same", "lost", "member_id")

    def __init__(
        self, member_id: MemberId, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None
    ) -> None:
        self.member_id = member_id
        self.before = before
        self.after = after
        self.holds = held(after)
        """The partitions that it has now, whether to be released or not."""
        self.lost: Some = ()
        """The partitions that it no longer holds; empty if it `holds_the_same`."""
        self.gained: Some = ()
        self.holds_the_same = (
            before is not None
            and after is not None
            and before.assigned is after.assigned
            and before.pending_revocation is after.pending_revocation
        )
        """True if it holds the very same sets as before, as a member of which only the epoch moved."""
        if not self.holds_the_same:
            self.lost, self.gained = changes(held(before), self.holds)


class TargetChange:
    """A member whose target was written. None: there was, or is, no target."""

    __slots__ = ("after", "before", "gained", "lost", "member_id")

    def __init__(self, member_id: MemberId, before: Partitions | None, after: Partitions | None) -> None:
        self.member_id = member_id
        self.before = before
        self.after = after
        self.lost, self.gained = changes(before or NO_PARTITIONS, after or NO_PARTITIONS)


class KnownGroup:
    """A group after the previous event."""

    __slots__ = (
        "assignment_epoch",
        "assignment_timestamp_ms",
        "group_epoch",
        "instances",
        "members",
        "targets",
    )

    def __init__(self) -> None:
        self.members: dict[MemberId, ConsumerGroupMember] = {}
        self.targets: dict[MemberId, Partitions] = {}
        self.instances: dict[str, MemberId] = {}
        self.group_epoch = 0
        self.assignment_epoch = 0
        self.assignment_timestamp_ms = 0

    def settle(self, step: GroupStep) -> None:
        """Take the event in, once every checker has seen it."""
        for change in step.members:
            member_id, before, after = change.member_id, change.before, change.after
            old = None if before is None else before.instance_id
            if old is not None and self.instances.get(old) == member_id:
                del self.instances[old]
            if after is None:
                self.members.pop(member_id, None)
                continue
            self.members[member_id] = after
            if after.instance_id is not None:
                self.instances[after.instance_id] = member_id
        for target in step.targets:
            if target.after is None:
                self.targets.pop(target.member_id, None)
            else:
                self.targets[target.member_id] = target.after
        if step.group is not None:
            self.group_epoch = step.group.group_epoch
            self.assignment_epoch = step.group.assignment_epoch
            self.assignment_timestamp_ms = step.group.assignment_timestamp_ms


class GroupStep(msgspec.Struct, frozen=True, gc=False):
    """The effects of one event on one group. `group` is None once the group is gone."""

    group_id: str
    group: ConsumerGroup | None
    known: KnownGroup
    members: tuple[MemberChange, ...]
    targets: tuple[TargetChange, ...]
    new_target: bool
    """A target assignment was computed."""
    event: StepEvent
    outcome: Outcome
    image: TopicsImage
    now_ms: int
    ends: bool
    """True if one of its records is a tombstone."""

    @property
    def is_load(self) -> bool:
        """True if this is all that a real coordinator had done before the first check."""
        return isinstance(self.event, RecordsObserved) and self.event.cause == "load"

    @property
    def unsettled(self) -> frozenset[TopicId]:
        """Topics on which this step's coordinator and the image may differ; empty in a simulated world."""
        return self.event.unsettled if isinstance(self.event, RecordsObserved) else frozenset()


class Tracker:
    """Remembers each group, and finds the changes of an event."""

    def __init__(self) -> None:
        self.groups: dict[str, KnownGroup] = {}

    def steps(
        self,
        named: Mapping[str, Touched],
        groups: Groups,
        image: TopicsImage,
        event: StepEvent,
        outcome: Outcome,
        *,
        now_ms: int,
    ) -> Iterator[GroupStep]:
        """Yield one step for each group that the outcome's records name; it is settled when the next one is
        requested.

        `named` is the result of `touched_groups` for these records.
        """
        for group_id, touched in named.items():
            known = self.groups.get(group_id)
            if known is None:
                known = self.groups[group_id] = KnownGroup()
            group = groups.get(group_id)
            members = _NOBODY if group is None else group.members
            targets = _NO_TARGETS if group is None else group.targets
            step = GroupStep(
                group_id,
                group,
                known,
                tuple([MemberChange(m, known.members.get(m), members.get(m)) for m in touched.members]),
                tuple([TargetChange(m, known.targets.get(m), targets.get(m)) for m in touched.targets]),
                touched.new_target,
                event,
                outcome,
                image,
                now_ms,
                touched.ends,
            )
            yield step
            known.settle(step)
            if group is None:
                del self.groups[group_id]


class Touched:
    """The keys that the records of a batch name in one group, in their order."""

    __slots__ = ("ends", "members", "new_target", "targets")

    def __init__(self) -> None:
        self.members: dict[MemberId, None] = {}
        self.targets: dict[MemberId, None] = {}
        self.new_target = False
        self.ends = False
        """True if there is a tombstone among them."""


def touched_groups(records: Iterable[r.Record]) -> dict[str, Touched]:
    """Return the keys that these records name, by consumer group. Records of offsets and of other groups
    touch none."""
    groups: dict[str, Touched] = {}
    for record in records:
        key = record.key
        if type(key) not in ConsumerGroup.applied_by:
            continue
        touched = groups.get(key.group_id)
        if touched is None:
            touched = groups[key.group_id] = Touched()
        if record.value is None:
            touched.ends = True
        elif type(key) is r.ConsumerGroupTargetAssignmentMetadataKey:
            touched.new_target = True
        if (
            type(key) is r.ConsumerGroupCurrentMemberAssignmentKey
            or type(key) is r.ConsumerGroupMemberMetadataKey
        ):
            touched.members[key.member_id] = None
        elif type(key) is r.ConsumerGroupTargetAssignmentMemberKey:
            touched.targets[key.member_id] = None
    return groups


def subscribed_topics(
    member: ConsumerGroupMember,
    resolved: Mapping[str, r.ConsumerGroupRegularExpressionValue],
    image: TopicsImage,
) -> frozenset[TopicId]:
    """Return the existing topics that a member subscribes to, by name or by expression."""
    resolution = resolved.get(member.subscribed_topic_regex or "")
    names = member.subscribed_topic_names
    if resolution is not None:
        names = (*names, *resolution.topics)
    by_name = image.by_name
    return frozenset([topic.topic_id for name in names if (topic := by_name.get(name)) is not None])
