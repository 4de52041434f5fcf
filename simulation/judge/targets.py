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
from fencepost.simulation.judge.consumer_model import Matches, minus, subscribed_topics
from fencepost.simulation.kernel.observers import RecordsObserved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    given: dict[TopicId, list[int]] = {}
    for target in group.targets.values():
        for topic_id, numbers in target.items():
            given.setdefault(topic_id, []).extend(numbers)
    for topic_id, found in given.items():
        if len({*found}) < len(found):
            twice = shown({topic_id: tuple(number for number, count in Counter(found).items() if count > 1)})
            yield "target-exclusive", f"{step.group_id}: {twice} is in the targets of several members"
    if not new_targets or not group.members:
        return
    subscriptions = subscriptions_of(group, step.image)
    yield from _covers(step, group, subscriptions, given)
    # Members of a classic group keep the assignment of their own assignor, until a target is computed anew.
    if not step.touched.converted or new_targets > 1:
        name = assignor_of(group.members.values(), default_assignor)
        if name == "uniform":
            yield from _uniform(step, group, subscriptions)
        elif name == "range":
            yield from _ranges(step, group, subscriptions)
    yield from check_digest(group, step.image)


def _unasked(step: GroupStep, group: ConsumerGroup) -> Iterator[Finding]:
    """Check that targets stay without a new epoch: only a static member's passes to its successor."""
    inherited = _inherited(step, group)
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
    given: Mapping[TopicId, Sequence[int]],
) -> Iterator[Finding]:
    """Check that just the existing partitions of subscribed topics are given, each to a subscriber."""
    what = f"target {group.assignment_epoch} of {step.group_id}"
    wanted = frozenset[TopicId]().union(*set(subscriptions.values()))  # equal ones are one object
    for topic_id in sorted((wanted | given.keys()) - step.unsettled):
        count = step.image.by_id[topic_id].partitions if topic_id in wanted else 0
        got = {*given.get(topic_id, ())}
        if got != {*range(count)}:
            yield "target-covers", f"{what} has {len(got)} partitions of {topic_id}, expected are {count}"
    for member_id, _, target in step.targets:
        foreign = (
            (target or NO_PARTITIONS).keys() - subscriptions.get(member_id, frozenset()) - step.unsettled
        )
        if foreign:
            yield "target-covers", f"{what} gives {member_id} topics of others: {', '.join(sorted(foreign))}"


def check_digest(group: ConsumerGroup, image: TopicsImage) -> Iterator[Finding]:
    """Check that the group has the digest of its topics, unless the topics of an expression are not known.

    Such an expression comes without a new epoch, and the one before it is removed at once: the digest waits
    for the response.
    """
    expressions = {member.subscribed_topic_regex for member in group.members.values()}
    if any(expression and expression not in group.resolved for expression in expressions):
        return
    kinds = {member.subscribed_topic_names for member in group.members.values()}
    names = {name for kind in kinds for name in kind}
    names.update(name for value in group.resolved.values() for name in value.topics)
    if group.metadata_hash != (digest := metadata_hash(sorted(names), image)):
        yield (
            "metadata-hash",
            f"{group.group_id} at epoch {group.group_epoch} with target {group.assignment_epoch} has the"
            f" digest {group.metadata_hash}, its topics have {digest}",
        )


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


def _uniform(
    step: GroupStep, group: ConsumerGroup, subscriptions: Mapping[MemberId, frozenset[TopicId]]
) -> Iterator[Finding]:
    """The uniform assignor.

    If a member has a partition of a topic, it has at most one partition more than any other subscriber of the
    topic. If all subscribe alike, only what is above a member's quota moves, and members that had most are
    the first to have one more than others. Otherwise one partition too many may have to move from member to
    member to where there is room, once in each topic at most.
    """
    what = f"target {group.assignment_epoch} of {step.group_id}"
    targets = {member_id: group.targets.get(member_id, NO_PARTITIONS) for member_id in subscriptions}
    loads = {member_id: partition_count(target) for member_id, target in targets.items()}
    lightest: dict[frozenset[TopicId], int] = {}
    for member_id, topics in subscriptions.items():
        lightest[topics] = min(loads[member_id], lightest.get(topics, loads[member_id]))
    least: dict[TopicId, int] = {}
    for topics, load in lightest.items():
        least.update({each: min(load, least.get(each, load)) for each in topics - step.unsettled})
    for member_id, target in targets.items():
        topic = min((each for each in target if each in least), key=least.__getitem__, default="")
        if topic and loads[member_id] > least[topic] + 1:
            yield (
                "target-balanced",
                f"{what} gives {member_id} {loads[member_id]} partitions, of {topic} too; a subscriber of"
                f" {topic} has {least[topic]}",
            )
    if step.unsettled:
        return
    inherited, kept, moved = _inherited(step, group), dict(loads), 0
    for member_id, before, after in step.targets:
        if after is not None and member_id in subscriptions:
            topics, had = subscriptions[member_id], inherited.get(member_id, before or NO_PARTITIONS)
            mine = {topic_id: numbers for topic_id, numbers in had.items() if topic_id in topics}
            kept[member_id] = partition_count(mine)
            moved += partition_count(minus(mine, after))
    if len(lightest) == 1 and homogeneous(group.members.values()):
        share, extra = divmod(sum(loads.values()), len(loads))
        above = [count - share for count in kept.values() if count > share]
        most = sum(above) - min(extra, len(above))
    else:
        free = sum(step.image.by_id[topic_id].partitions for topic_id in least) - sum(kept.values())
        most = (free + sum(max(kept[m] - load, 0) for m, load in loads.items())) * len(least)
    if moved > most:
        yield (
            "target-sticky",
            f"{what} takes {moved} partitions from members that subscribe to them; {most} had to move",
        )


def _inherited(step: GroupStep, group: ConsumerGroup) -> dict[MemberId, Partitions]:
    """Return the targets before, by member id, where they are not those before the step.

    A static member that replaces another one has the other one's. Members of a group that was a classic one
    have those that the step writes first.
    """
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


def _ranges(
    step: GroupStep, group: ConsumerGroup, subscriptions: Mapping[MemberId, frozenset[TopicId]]
) -> Iterator[Finding]:
    """Check that each topic has as many ranges as subscribers, in the same order of members for all topics.

    The first ranges may be one longer than the others. So members have the same partitions of topics that are
    alike, and a static member that comes back under another id has the same range as before.
    """
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
