"""Targets: exclusive, complete, balanced, and as close to the last ones as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId, partition_count
from fencepost.coordinator.protocol.records import (
    ConsumerGroupTargetAssignmentMemberKey as TargetKey,
)
from fencepost.coordinator.protocol.records import (
    ConsumerGroupTargetAssignmentMemberValue as TargetValue,
)
from fencepost.coordinator.protocol.records import (
    ConsumerGroupTargetAssignmentMetadataKey as TargetEpochKey,
)
from fencepost.coordinator.protocol.records import GroupMetadataKey
from fencepost.coordinator.protocol.topics import metadata_hash
from fencepost.simulation.checkers.base import Finding, shown
from fencepost.simulation.checkers.ownership import Holders, changes, in_order
from fencepost.simulation.checkers.step import subscribed_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.checkers.step import GroupStep


class Targets:
    """Checks the targets of one group."""

    def __init__(self, default_assignor: str) -> None:
        self._default = default_assignor
        self._owners = Holders()
        self._noticed: TopicsImage | None = None
        self._sizes: dict[MemberId, int] = {}
        """Number of partitions of each target, by the records of targets."""

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Findings of one event."""
        for change in step.targets:
            self._owners.release(change.member_id, change.lost)
            if change.after is None:
                self._sizes.pop(change.member_id, None)
            else:
                self._sizes[change.member_id] = partition_count(change.after)
        for change in step.targets:
            for topic_id, number, holder in self._owners.grant(change.member_id, change.gained):
                yield (
                    "target-exclusive",
                    f"{step.group_id}: {topic_id}-{number} is in the targets of {holder} and"
                    f" {change.member_id}",
                )
        group = step.group
        if step.new_target and group is not None and group.members:
            subscriptions = subscriptions_of(group, step.image)
            yield from self._covers(step, subscriptions)
            yield from self._within_subscriptions(step, subscriptions)
            if not is_taken_over(step) or _is_computed_anew(step):
                yield from self._balanced(step, subscriptions)
            if _digest(group, step.image) not in (None, group.metadata_hash):
                yield (
                    "metadata-hash",
                    f"target {group.assignment_epoch} of {step.group_id} was computed for other topics than"
                    f" the digest {group.metadata_hash} of its epoch {group.group_epoch}",
                )

    def noticed(self, group: ConsumerGroup, image: TopicsImage) -> Iterator[Finding]:
        """Check, once for each image of the topics, that a heartbeat has made the group notice its changes.

        (KAFKA-18916)
        """
        if image is self._noticed:
            return
        digest = _digest(group, image)
        if digest is None:
            return
        self._noticed = image
        if digest != group.metadata_hash:
            yield (
                "metadata-hash",
                f"{group.group_id} at epoch {group.group_epoch} has the digest {group.metadata_hash} after a"
                f" heartbeat, its topics have {digest}",
            )

    def _covers(
        self, step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]
    ) -> Iterator[Finding]:
        wanted = frozenset[TopicId]().union(*set(subscriptions.values()))  # equal ones are one object
        epoch = step.group.assignment_epoch if step.group is not None else 0
        for topic_id in sorted(wanted - step.unsettled):
            count, given = step.image.by_id[topic_id].partitions, self._owners.count(topic_id)
            if given != count or self._owners.count(topic_id, first=count):
                yield (
                    "target-covers",
                    f"target {epoch} of {step.group_id} has {given} of the {count} partitions of {topic_id}",
                )
        for topic_id in sorted(self._owners.topics - wanted - step.unsettled):
            if self._owners.count(topic_id):
                yield (
                    "target-covers",
                    f"target {epoch} of {step.group_id} has partitions of {topic_id}, to which no member"
                    " subscribes",
                )

    def _within_subscriptions(
        self, step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]
    ) -> Iterator[Finding]:
        for change in step.targets:
            subscribed = subscriptions.get(change.member_id, frozenset())
            foreign = (change.after or NO_PARTITIONS).keys() - subscribed
            if foreign and (foreign := foreign - step.unsettled):
                yield (
                    "target-covers",
                    f"the target of {change.member_id} of {step.group_id} has topics outside its"
                    " subscription:"
                    f" {', '.join(sorted(foreign))}",
                )

    def _balanced(
        self, step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]
    ) -> Iterator[Finding]:
        group = step.group
        assert group is not None
        name = assignor_of(group.members.values(), self._default)
        if name == "uniform":
            alike = len(set(subscriptions.values())) == 1 and homogeneous(group.members.values())
            yield from (self._even if alike else _mixed)(step, subscriptions)
        elif name == "range":
            yield from _ranges(step, subscriptions)

    def _even(
        self, step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]
    ) -> Iterator[Finding]:
        """The uniform assignor if all members subscribe alike."""
        group = step.group
        assert group is not None
        sizes = {member_id: self._sizes.get(member_id, 0) for member_id in subscriptions}
        least, most = min(sizes.values()), max(sizes.values())
        if most - least > 1:
            yield (
                "target-balanced",
                f"target {group.assignment_epoch} of {step.group_id} has sizes from {least} to {most}",
            )
        yield from _sticky(step, subscriptions, sizes)


def is_taken_over(step: GroupStep) -> bool:
    """Return true if the group was a classic one until now: its members keep the assignment of their own
    assignor."""
    return any(type(record.key) is GroupMetadataKey for record in step.outcome.records)


def _is_computed_anew(step: GroupStep) -> bool:
    """Return true if a group that was a classic one until now has already another target than its members'
    own assignor gave it."""
    epochs = [record for record in step.outcome.records if type(record.key) is TargetEpochKey]
    return len(epochs) > 1


def _digest(group: ConsumerGroup, image: TopicsImage) -> int | None:
    """Return the digest of the group's topics; None while the topics of an expression are not known.

    Such an expression comes without a new epoch, and the one before it is removed at once: the digest waits
    for the response.
    """
    expressions = {member.subscribed_topic_regex for member in group.members.values()}
    if any(expression and expression not in group.resolved for expression in expressions):
        return None
    kinds = {member.subscribed_topic_names for member in group.members.values()}
    names = {name for kind in kinds for name in kind}
    names.update(name for value in group.resolved.values() for name in value.topics)
    return metadata_hash(sorted(names), image)


def subscriptions_of(group: ConsumerGroup, image: TopicsImage) -> dict[MemberId, frozenset[TopicId]]:
    """Return the subscription of each member; computed once for all that subscribe alike."""
    known: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
    subscriptions = {}
    for member_id, member in group.members.items():
        kind = member.subscribed_topic_names, member.subscribed_topic_regex
        topics = known.get(kind)
        if topics is None:
            topics = known[kind] = subscribed_topics(member, group.resolved, image)
        subscriptions[member_id] = topics
    return subscriptions


def homogeneous(members: Iterable[ConsumerGroupMember]) -> bool:
    """Return true if all members subscribe alike for the uniform assignor: by names only, or by one
    expression only."""
    kinds = {(member.subscribed_topic_regex or "", member.subscribed_topic_names) for member in members}
    return len(kinds) == 1 and not all(next(iter(kinds)))


def assignor_of(members: Iterable[ConsumerGroupMember], default: str) -> str | None:
    """Return the assignor with most votes; None if there is a draw."""
    votes = Counter(member.server_assignor for member in members if member.server_assignor is not None)
    if not votes:
        return default
    (name, most), *rest = votes.most_common(2)
    return None if rest and rest[0][1] == most else name


def _sticky(
    step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]], sizes: Mapping[MemberId, int]
) -> Iterator[Finding]:
    """The uniform assignor if all members subscribe alike: it takes away what is above a member's quota.

    Members that had most are the first to have one more than others.
    """
    inherited = _inherited(step)
    grown: dict[MemberId, int] = {}
    moved = 0
    for change in step.targets:
        gone, gained = change.lost, change.gained
        before = inherited.get(change.member_id)
        if before is not None:
            gone, gained = changes(before, change.after or NO_PARTITIONS)
        if change.after is None or (not gone and not gained):
            continue
        topics = subscriptions.get(change.member_id, frozenset())
        lost = {
            topic_id: kept
            for topic_id, numbers in gone
            if topic_id in topics
            and (kept := tuple(n for n in sorted(numbers) if n < step.image.by_id[topic_id].partitions))
        }
        grown[change.member_id] = sum(len(numbers) for _, numbers in gained) - partition_count(lost)
        moved += partition_count(lost)
        if lost and gained and not lost.keys() <= step.unsettled:
            yield (
                "target-sticky",
                f"the target of {change.member_id} of {step.group_id} lost {shown(lost)} and got"
                f" {shown(in_order(gained))}",
            )
            return
    if not moved or step.unsettled:
        return
    share, extra = divmod(sum(sizes.values()), len(sizes))
    had = (size - grown.get(member_id, 0) for member_id, size in sizes.items())
    above = [count - share for count in had if count > share]
    needed = sum(above) - min(extra, len(above))
    if moved > needed:
        yield (
            "target-sticky",
            f"a new target of {step.group_id} takes {moved} partitions from members that subscribe to them;"
            f" {needed} were above quotas",
        )


def _mixed(step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]) -> Iterator[Finding]:
    """The uniform assignor if members subscribe to different topics.

    If a member has a partition of a topic, it has at most one partition more than any other subscriber of the
    topic. One partition too many may have to move from member to member to where there is room, once in each
    topic at most.
    """
    group, image = step.group, step.image
    assert group is not None
    targets = {member_id: group.targets.get(member_id, NO_PARTITIONS) for member_id in subscriptions}
    loads = {member_id: partition_count(target) for member_id, target in targets.items()}
    subscribers: dict[TopicId, list[MemberId]] = {}
    for member_id, topics in subscriptions.items():
        for topic_id in topics - step.unsettled:
            subscribers.setdefault(topic_id, []).append(member_id)
    for topic_id, members in sorted(subscribers.items()):
        lightest = min(members, key=loads.__getitem__)
        heaviest = max(
            (m for m in members if topic_id in targets[m]), key=loads.__getitem__, default=lightest
        )
        if loads[heaviest] - loads[lightest] > 1:
            yield (
                "target-balanced",
                f"{heaviest} of {step.group_id} has {loads[heaviest]} partitions, of {topic_id} too, of which"
                f" {lightest} with {loads[lightest]} could have some",
            )
    if step.unsettled:
        return
    before = {**step.known.targets, **_inherited(step)}
    moved = 0
    imbalance = sum(image.by_id[topic_id].partitions for topic_id in subscribers)
    for member_id, topics in subscriptions.items():
        mine, now = before.get(member_id, NO_PARTITIONS), targets[member_id]
        kept = partition_count({topic_id: n for topic_id, n in mine.items() if topic_id in topics})
        stays = sum(len(set(n) & set(now.get(topic_id, ()))) for topic_id, n in mine.items())
        moved += kept - stays
        imbalance += max(kept - loads[member_id], 0) - kept
    if moved > imbalance * len(subscribers):
        yield (
            "target-sticky",
            f"target {group.assignment_epoch} of {step.group_id} takes {moved} partitions from members that"
            f" could keep them; {imbalance} were free, or too many somewhere",
        )


def _inherited(step: GroupStep) -> dict[MemberId, Partitions]:
    """Return the targets before, by member id, where they are not those before the step.

    A static member that replaces another one has the other one's. Members of a group that was a classic one
    have those that the step writes first.
    """
    group, before = step.group, step.known.targets
    assert group is not None
    found: dict[MemberId, Partitions] = {}
    if is_taken_over(step):
        for record in step.outcome.records:
            if isinstance(record.key, TargetKey) and isinstance(record.value, TargetValue):
                found.setdefault(record.key.member_id, record.value.partitions)
        return found
    for change in step.targets:
        gone = step.known.members.get(change.member_id) if change.after is None else None
        if gone is None or gone.instance_id is None:
            continue
        heir = group.static_members.get(gone.instance_id)
        if heir is not None:
            found[heir] = before.get(change.member_id, NO_PARTITIONS)
    return found


def _ranges(step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]) -> Iterator[Finding]:
    """Check that each topic has as many ranges as subscribers, in the same order of members for all topics.

    The first ranges may be one longer than the others. So members have the same partitions of topics that are
    alike, and a static member that comes back under another id has the same range as before.
    """
    group = step.group
    assert group is not None
    members = group.members
    order = sorted(subscriptions, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m))
    for topic_id in sorted(frozenset[TopicId]().union(*set(subscriptions.values())) - step.unsettled):
        subscribers = [member_id for member_id in order if topic_id in subscriptions[member_id]]
        count = step.image.by_id[topic_id].partitions
        least, longer = divmod(count, len(subscribers))
        start = 0
        for index, member_id in enumerate(subscribers):
            end = start + least + (index < longer)
            numbers = group.targets.get(member_id, NO_PARTITIONS).get(topic_id, ())
            if numbers != tuple(range(start, end)):
                yield (
                    "target-balanced",
                    f"{member_id} of {step.group_id} has {numbers} of {topic_id}, not its range from {start}"
                    f" to {end} of {count} partitions for {len(subscribers)} members",
                )
                break
            start = end
