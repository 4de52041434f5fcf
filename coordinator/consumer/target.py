"""The target assignment of a group: the assignor's input, and the records of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.subscription import SubscriptionCounts, effective_topics, topic_ids
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage


class ConsumerTarget(msgspec.Struct, frozen=True, gc=False):
    """The target that a member is reconciled to, and the records that a new one needs."""

    epoch: int
    partitions: Partitions
    records: tuple[Record, ...] = ()


def last_target(group: ConsumerGroup, member_id: MemberId) -> ConsumerTarget:
    """Return the present target of the member that the group knows by that id."""
    return ConsumerTarget(group.assignment_epoch, group.targets.get(member_id, NO_PARTITIONS))


def preferred_assignor(
    counts: SubscriptionCounts, assignors: Sequence[str], member: ConsumerGroupMember | None = None
) -> str:
    """Return the assignor that most members ask for; the first one if no member asks.

    Ties are decided by the order of Kafka's hash map. With one vote each, the assignor of `member` wins,
    whose heartbeat needs the target; otherwise `uniform` precedes `range`.
    """
    votes = {name: counts.assignors[name] for name in assignors if counts.assignors.get(name)}
    if not votes:
        return assignors[0]
    most = max(votes.values())
    if most == 1 and member is not None and member.server_assignor in votes:
        return member.server_assignor
    tied = [name for name in votes if votes[name] == most]
    return min(tied, key=lambda name: _ORDER_OF_TIES.get(name, len(_ORDER_OF_TIES)))


_ORDER_OF_TIES = {"uniform": 0, "range": 1}


def compute_target(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    counts: SubscriptionCounts,
    *,
    epoch: int,
    image: TopicsImage,
    assignor: Assignor,
    now_ms: int,
) -> ConsumerTarget:
    """Compute a new target for the group, with `member` in place of the group's version of it.

    `counts` are the group's with that member. The records hold each target that changed, by member id, then
    the epoch.

    :raises ProtocolError: UNKNOWN_SERVER_ERROR if the assignor fails.
    """
    spec = _group_spec(group, member, counts, image)
    try:
        answer = assignor(spec)
    except Exception as error:
        raise ProtocolError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"Failed to compute a new target assignment for epoch {epoch}: {error}",
        ) from error
    targets = {member_id: answer.get(member_id, NO_PARTITIONS) for member_id in spec.subscriptions}
    records = group.target_records(spec.targets, targets, epoch, now_ms)
    return ConsumerTarget(epoch, targets[member.member_id], records)


def _group_spec(
    group: ConsumerGroup, member: ConsumerGroupMember, counts: SubscriptionCounts, image: TopicsImage
) -> GroupSpec:
    members = _members(group, member)
    homogeneous = counts.homogeneous(len(members))
    if homogeneous:  # each join of a large group runs this: no loop over its members
        ids = topic_ids(effective_topics(member, group.resolved), image)
        subscriptions, topics = dict.fromkeys(members, ids), ids
    else:
        subscriptions = _subscriptions(group, members, image)
        topics = tuple(sorted({topic_id for ids in subscriptions.values() for topic_id in ids}))
    targets = dict(group.targets)
    if not targets.keys() <= members.keys():
        targets = {member_id: held for member_id, held in targets.items() if member_id in members}
    replaced = replaced_id(group, member)
    if replaced is not None:
        targets[member.member_id] = group.targets.get(replaced, NO_PARTITIONS)
    return GroupSpec(
        subscriptions=subscriptions,
        partitions={topic_id: image.by_id[topic_id].partitions for topic_id in topics},
        targets=targets,
        instance_ids=_instances(group, members, member),
        homogeneous=homogeneous,
    )


def _subscriptions(
    group: ConsumerGroup, members: Mapping[MemberId, ConsumerGroupMember], image: TopicsImage
) -> dict[MemberId, tuple[TopicId, ...]]:
    subscriptions: dict[MemberId, tuple[TopicId, ...]] = {}
    shared: dict[tuple[tuple[str, ...], str | None], tuple[TopicId, ...]] = {}
    for member_id, each in members.items():
        key = each.subscribed_topic_names, each.regex
        ids = shared.get(key)
        if ids is None:
            ids = shared[key] = topic_ids(effective_topics(each, group.resolved), image)
        subscriptions[member_id] = ids
    return subscriptions


def _instances(
    group: ConsumerGroup, members: Mapping[MemberId, ConsumerGroupMember], member: ConsumerGroupMember
) -> dict[MemberId, str]:
    if not group.static_members and member.instance_id is None:
        return {}
    return {
        member_id: each.instance_id for member_id, each in members.items() if each.instance_id is not None
    }


def _members(group: ConsumerGroup, member: ConsumerGroupMember) -> Mapping[MemberId, ConsumerGroupMember]:
    """Return the group's members with this one, without the one it replaces, by member id.

    The order depends on the ids alone, so that a target does not depend on how the journal was compacted.
    """
    members = {**group.members, member.member_id: member}
    replaced = replaced_id(group, member)
    if replaced is not None:
        del members[replaced]
    return {member_id: members[member_id] for member_id in sorted(members)}


def replaced_id(group: ConsumerGroup, member: ConsumerGroupMember) -> MemberId | None:
    """Return the id under which the group still knows a static member that returned with another one."""
    holder = None if member.instance_id is None else group.static_members.get(member.instance_id)
    return None if holder == member.member_id else holder
