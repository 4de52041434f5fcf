"""Targets: exclusive, complete, balanced, and no more different from the last than they must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, TopicId, partition_count
from fencepost.coordinator.protocol.records import GroupMetadataKey
from fencepost.coordinator.protocol.topics import metadata_hash
from fencepost.simulation.checkers.base import Finding, shown
from fencepost.simulation.checkers.ownership import Holders, in_order
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
        self._sizes: dict[MemberId, int] = {}
        """How many partitions each target has, by the records of targets."""

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
            if not is_taken_over(step):
                yield from self._balanced(step, subscriptions)
            yield from _digest(step)

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
                    f"target {epoch} of {step.group_id} has partitions of {topic_id}, to which nobody"
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
        if (
            name == "uniform"
            and len(set(subscriptions.values())) == 1
            and homogeneous(group.members.values())
        ):
            sizes = [self._sizes.get(member_id, 0) for member_id in subscriptions]
            if max(sizes) - min(sizes) > 1:
                yield (
                    "target-balanced",
                    f"target {group.assignment_epoch} of {step.group_id} has sizes from {min(sizes)}"
                    f" to {max(sizes)}",
                )
            yield from _sticky(step, subscriptions)
        elif name == "range":
            yield from _ranges(step, subscriptions)


def is_taken_over(step: GroupStep) -> bool:
    """Whether the group was a classic one until now: its members keep what their own assignor gave them."""
    return any(type(record.key) is GroupMetadataKey for record in step.outcome.records)


def _digest(step: GroupStep) -> Iterator[Finding]:
    """The group's epoch was raised for these topics: its record has their digest.

    An expression whose topics are not known yet comes without a new epoch, and the one before it goes at
    once: the digest waits for the answer.
    """
    group = step.group
    assert group is not None
    expressions = {member.subscribed_topic_regex for member in group.members.values()}
    if any(expression and expression not in group.resolved for expression in expressions):
        return
    kinds = {member.subscribed_topic_names for member in group.members.values()}
    names = {name for kind in kinds for name in kind}
    names.update(name for value in group.resolved.values() for name in value.topics)
    if group.metadata_hash != metadata_hash(sorted(names), step.image):
        yield (
            "metadata-hash",
            f"target {group.assignment_epoch} of {step.group_id} was computed for other topics than the"
            f" digest {group.metadata_hash} of its epoch {group.group_epoch}",
        )


def subscriptions_of(group: ConsumerGroup, image: TopicsImage) -> dict[MemberId, frozenset[TopicId]]:
    """What each member subscribes to; worked out once for all that subscribe alike."""
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
    """Whether all subscribe alike, as the uniform assignor sees it: names only, or one expression only."""
    kinds = {(member.subscribed_topic_regex or "", member.subscribed_topic_names) for member in members}
    return len(kinds) == 1 and not all(next(iter(kinds)))


def assignor_of(members: Iterable[ConsumerGroupMember], default: str) -> str | None:
    """The assignor with most votes; None if there is a draw."""
    votes = Counter(member.server_assignor for member in members if member.server_assignor is not None)
    if not votes:
        return default
    (name, most), *rest = votes.most_common(2)
    return None if rest and rest[0][1] == most else name


def _sticky(step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]) -> Iterator[Finding]:
    for change in step.targets:
        if not change.lost or not change.gained:
            continue
        topics = subscriptions.get(change.member_id, frozenset())
        lost = {
            topic_id: kept
            for topic_id, numbers in change.lost
            if topic_id in topics
            and (kept := tuple(n for n in sorted(numbers) if n < step.image.by_id[topic_id].partitions))
        }
        if lost and not lost.keys() <= step.unsettled:
            yield (
                "target-sticky",
                f"the target of {change.member_id} of {step.group_id} lost {shown(lost)} and got"
                f" {shown(in_order(change.gained))}",
            )


def _ranges(step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]) -> Iterator[Finding]:
    subscribers = Counter(topic_id for topics in subscriptions.values() for topic_id in topics)
    for change in step.targets:
        for topic_id, numbers in (change.after or NO_PARTITIONS).items():
            topic = step.image.by_id.get(topic_id)
            if topic is None or topic_id in step.unsettled or not subscribers[topic_id]:
                continue
            least = topic.partitions // subscribers[topic_id]
            if len(numbers) not in (least, least + 1) or numbers[-1] - numbers[0] != len(numbers) - 1:
                yield (
                    "target-balanced",
                    f"{change.member_id} of {step.group_id} has the range {numbers} of {topic_id}, which has"
                    f" {topic.partitions} partitions for {subscribers[topic_id]} members",
                )
