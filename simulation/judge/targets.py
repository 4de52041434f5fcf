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
from fencepost.coordinator.protocol.topics import metadata_hash
from fencepost.simulation.judge.base import Finding, shown
from fencepost.simulation.judge.consumer_model import Matches, both, minus, subscribed_topics
from fencepost.simulation.kernel.observers import RecordsObserved

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.judge.step import GroupStep


def check_targets(step: GroupStep, group: ConsumerGroup, default_assignor: str) -> Iterator[Finding]:
    """Findings of an event that wrote targets."""
    new_targets, unseen = step.touched.new_targets, isinstance(step.event, RecordsObserved)
    if not new_targets and not unseen:
        yield from _unasked(step, group)
        return
    given: dict[TopicId, dict[int, MemberId]] = {}
    for member_id, target in group.targets.items():
        for topic_id, numbers in target.items():
            of_topic = given.setdefault(topic_id, {})
            for number in numbers:
                if (holder := of_topic.setdefault(number, member_id)) != member_id:
                    twice = f"{topic_id}-{number} is in the targets of {holder} and {member_id}"
                    yield "target-exclusive", f"{step.group_id}: {twice}"
    if not new_targets or not group.members:
        return
    subscriptions = subscriptions_of(group, step.image)
    yield from _covers(step, group, subscriptions, given)
    # Members of a classic group keep the assignment of their own assignor, until a target is computed anew.
    if not step.touched.converted or new_targets > 1:
        name = assignor_of(group.members.values(), default_assignor)
        if name == "uniform":
            alike = len(set(subscriptions.values())) == 1 and homogeneous(group.members.values())
            yield from (_even if alike else _mixed)(step, subscriptions)
        elif name == "range":
            yield from _ranges(step, subscriptions)
    if digest_of(group, step.image) not in (None, group.metadata_hash):
        yield (
            "metadata-hash",
            f"target {group.assignment_epoch} of {step.group_id} was computed for other topics than"
            f" the digest {group.metadata_hash} of its epoch {group.group_epoch}",
        )


def _unasked(step: GroupStep, group: ConsumerGroup) -> Iterator[Finding]:
    """Check that targets stay without a new epoch: only a static member's passes to its successor."""
    inherited = _inherited(step)
    for member_id, before, after in step.targets:
        right = inherited.get(member_id, before) if member_id in group.members else None
        if (after or NO_PARTITIONS) != (right or NO_PARTITIONS) and not step.touched.converted:
            yield (
                "target-due",
                f"the target of {member_id} of {step.group_id} is {shown(after or NO_PARTITIONS)} without a"
                f" new epoch, expected is {shown(right or NO_PARTITIONS)}",
            )


def _covers(
    step: GroupStep,
    group: ConsumerGroup,
    subscriptions: Mapping[MemberId, frozenset[TopicId]],
    given: Mapping[TopicId, Mapping[int, MemberId]],
) -> Iterator[Finding]:
    """Check that just the existing partitions of subscribed topics are given, each to a subscriber."""
    what = f"target {group.assignment_epoch} of {step.group_id}"
    wanted = frozenset[TopicId]().union(*set(subscriptions.values()))  # equal ones are one object
    for topic_id in sorted((wanted | given.keys()) - step.unsettled):
        count = step.image.by_id[topic_id].partitions if topic_id in wanted else 0
        got = given.get(topic_id, {})
        if len(got) != count or (got and max(got) >= count):
            yield "target-covers", f"{what} has {len(got)} partitions of {topic_id}, expected are {count}"
    for member_id, _, target in step.targets:
        foreign = (
            (target or NO_PARTITIONS).keys() - subscriptions.get(member_id, frozenset()) - step.unsettled
        )
        if foreign:
            yield "target-covers", f"{what} gives {member_id} topics of others: {', '.join(sorted(foreign))}"


def digest_of(group: ConsumerGroup, image: TopicsImage) -> int | None:
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
    matched: Matches = {text: value.topics for text, value in group.resolved.items()}
    known: dict[tuple[tuple[str, ...], str | None], frozenset[TopicId]] = {}
    subscriptions = {}
    for member_id, member in group.members.items():
        kind = member.subscribed_topic_names, member.subscribed_topic_regex
        if kind not in known:
            known[kind] = subscribed_topics(member, matched, image)
        subscriptions[member_id] = known[kind]
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


def _even(step: GroupStep, subscriptions: Mapping[MemberId, frozenset[TopicId]]) -> Iterator[Finding]:
    """The uniform assignor if all members subscribe alike: it takes away what is above a member's quota.

    Members that had most are the first to have one more than others.
    """
    group = step.group
    assert group is not None
    sizes = {
        member_id: partition_count(group.targets.get(member_id, NO_PARTITIONS)) for member_id in subscriptions
    }
    if (most := max(sizes.values())) - (least := min(sizes.values())) > 1:
        what = f"target {group.assignment_epoch} of {step.group_id}"
        yield "target-balanced", f"{what} has sizes from {least} to {most}"
    inherited = _inherited(step)
    grown: dict[MemberId, int] = {}
    moved = 0
    for member_id, before, after in step.targets:
        had = inherited.get(member_id, before or NO_PARTITIONS)
        if after is None or after == had:
            continue
        topics = subscriptions.get(member_id, frozenset())
        existing = {t: tuple(range(step.image.by_id[t].partitions)) for t in had if t in topics}
        lost, gained = both(minus(had, after), existing), minus(after, had)
        grown[member_id] = partition_count(gained) - partition_count(lost)
        moved += partition_count(lost)
        if lost and gained and not lost.keys() <= step.unsettled:
            who = f"the target of {member_id} of {step.group_id}"
            yield "target-sticky", f"{who} lost {shown(lost)} and got {shown(gained)}"
            return
    if not moved or step.unsettled:
        return
    share, extra = divmod(sum(sizes.values()), len(sizes))
    above = [count - share for m, size in sizes.items() if (count := size - grown.get(m, 0)) > share]
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
        moved += kept - partition_count(both(mine, now))
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
    group = step.group
    assert group is not None
    found: dict[MemberId, Partitions] = {}
    if step.touched.converted:
        for record in step.outcome.records:
            if isinstance(record.key, TargetKey) and isinstance(record.value, TargetValue):
                found.setdefault(record.key.member_id, record.value.partitions)
        return found
    for member_id, old, target in step.targets:
        gone = step.known.members.get(member_id) if target is None else None
        if gone is None or gone.instance_id is None:
            continue
        heir = group.static_members.get(gone.instance_id)
        if heir is not None:
            found[heir] = old or NO_PARTITIONS
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
