"""The effect of one heartbeat on its group: join, change, acknowledge, or nothing (KIP-848, Heartbeat).

The order is Kafka's: find the member, update it, raise the group epoch if the assignment's inputs changed,
compute a target if one is due, and bring this one member closer to it. Other members learn of it in their own
heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fencepost.coordinator.assign.spec import Assignor, may_assign_again
from fencepost.coordinator.config import GroupSettings
from fencepost.coordinator.consumer import regular_expressions, validation
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.reconcile import Taken, reconcile
from fencepost.coordinator.consumer.soft import ConsumerGroupSoftState
from fencepost.coordinator.consumer.subscription import (
    SubscriptionCounts,
    effective_topics,
    existing_ids,
)
from fencepost.coordinator.consumer.target import (
    ConsumerTarget,
    compute_target,
    last_target,
    preferred_assignor,
    replaced_id,
)
from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, NO_PARTITIONS, MemberId, Partitions, TopicId
from fencepost.coordinator.protocol.outcome import Effect, Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    Record,
)
from fencepost.coordinator.protocol.topics import TopicsImage, metadata_hash


class ConsumerHeartbeatContext(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """All inputs of a heartbeat other than its group and itself."""

    image: TopicsImage
    newest_topics: int
    """The version of the last image in which a topic was created."""
    settings: GroupSettings
    assignors: Mapping[str, Assignor]
    """Assignors by name; the first is used if no member asks for one."""
    max_size: int
    regex_refresh_interval_ms: int
    resolving: bool
    """True while the group's regular expressions are being resolved."""
    preference_raises_epoch: bool
    """True if another preferred assignor is reason enough for a new target (Kafka 4.4)."""
    now_ms: int


def heartbeat(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    request: consumer.ConsumerGroupHeartbeatRequest,
    member_id: MemberId,
    around: ConsumerHeartbeatContext,
) -> Outcome:
    """Return the outcome of a heartbeat with an epoch of 0 or more; `group` is new if it did not exist.

    :raises ProtocolError: if the heartbeat breaks a rule; nothing changes then.
    """
    validation.check_not_full(group, member_id, request.instance_id, around.max_size)
    old, records = _member(group, request, member_id)
    found = evaluate(
        group,
        soft,
        old,
        old.with_heartbeat(request),
        owned=request.topic_partitions,
        records=records,
        around=around,
    )
    return Outcome(
        records=found.records,
        reply=_reply(request, old, found.member, around.settings.heartbeat_interval_ms),
        effects=found.effects,
    )


class Evaluated(msgspec.Struct, frozen=True, gc=False):
    """A member after one of its requests, with the records and effects of that."""

    member: ConsumerGroupMember
    records: tuple[Record, ...]
    effects: tuple[Effect, ...]


def evaluate(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
    *,
    owned: Partitions | None,
    records: tuple[Record, ...],
    around: ConsumerHeartbeatContext,
) -> Evaluated:
    """Return the result of changing the member `old` into `new`, which owns `owned`; `records` led to `old`.

    :raises ProtocolError: if its expression or its state can't be read, or the assignor fails.
    """
    replaced = replaced_id(group, new)
    same = new is old and replaced is None
    if same and _is_settled(group, soft, new, around.now_ms):
        return Evaluated(new, records, _effects(group, new, group.counts, around))
    # A known member joins under the instance id of another one: its former state no longer counts.
    absorbed = None if replaced is None else group.members.get(new.member_id)
    change = _NO_CHANGE if same else _change(group, old, new, absorbed, around)
    records += change.records
    counts = change.counts or group.counts
    effects = _effects(group, new, counts, around)

    epoch = group.group_epoch
    if change.raises_epoch or soft.metadata_expired(epoch, around.now_ms):
        digest = metadata_hash(counts.topics(), around.image)
        if change.raises_epoch or digest != group.metadata_hash:
            epoch += 1
            key = ConsumerGroupMetadataKey(group.group_id)
            records += (Record(key, ConsumerGroupMetadataValue(epoch, digest)),)
        soft.metadata_refreshed(epoch, around.now_ms)

    target = _due_target(group, new, counts, epoch, around) or last_target(group, replaced or new.member_id)
    records += target.records
    topics = effective_topics(new, group.resolved)
    reconciled = reconcile(
        new,
        target_epoch=target.epoch,
        target=target.partitions,
        subscribed=existing_ids(topics, around.image),
        names_nothing=not topics,
        subscription_changed=change.of_subscription,
        owned=owned,
        taken=group.partition_epochs.taken if absorbed is None else _taken_without(group, absorbed),
    )
    if reconciled is not new:
        records += (reconciled.assignment_record(group.group_id),)
    return Evaluated(reconciled, records, effects)


class _Change(msgspec.Struct, frozen=True, gc=False):
    """The effect on the group of a member that reports something new, or that replaces another member."""

    records: tuple[Record, ...] = ()
    counts: SubscriptionCounts | None = None
    """The group's counts with this member; None if they are unchanged."""
    of_subscription: bool = False
    """True if its topics may differ."""
    raises_epoch: bool = False


_NO_CHANGE = _Change()


def _change(
    group: ConsumerGroup,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
    absorbed: ConsumerGroupMember | None,
    around: ConsumerHeartbeatContext,
) -> _Change:
    """Return the change from `old` to `new`; `absorbed` no longer counts, as if it had left.

    :raises ProtocolError: if its expression can't be read.
    """
    records: tuple[Record, ...] = ()
    if new is not old:
        records = (new.metadata_record(group.group_id),)
    names_changed = old.subscribed_topic_names != new.subscribed_topic_names
    regex_change = regular_expressions.change_of(group, old, new)
    counts = group.counts
    if new is not old or absorbed is not None:
        counts = counts.copy()
        counts.replace(absorbed, None)
        counts.replace(old, new)
        records += regular_expressions.end_unused(group, counts)
    return _Change(
        records,
        counts,
        of_subscription=names_changed or regex_change is not regular_expressions.NONE,
        raises_epoch=names_changed
        or regex_change is regular_expressions.RESOLVED
        or absorbed is not None
        or (around.preference_raises_epoch and _prefers_another(group, new, counts, around)),
    )


def _member(
    group: ConsumerGroup, request: consumer.ConsumerGroupHeartbeatRequest, member_id: MemberId
) -> tuple[ConsumerGroupMember, tuple[Record, ...]]:
    """Return the member before the heartbeat, new or known, and the records by which it replaces a static
    one."""
    joining = request.member_epoch == JOIN_EPOCH
    instance_id = request.instance_id
    if instance_id is None:
        known = group.members.get(member_id) if joining else group.member(member_id)
        if known is None:
            return ConsumerGroupMember(member_id=member_id), ()
        validation.check_epoch(known, request.member_epoch, request.topic_partitions)
        return known, ()
    holder = group.static_member(instance_id)
    if not joining:
        holder = validation.check_instance_known(holder, instance_id)
        validation.check_instance_holder(holder, member_id, instance_id)
        validation.check_epoch(holder, request.member_epoch, request.topic_partitions)
        return holder, ()
    if holder is None:
        return group.members.get(member_id) or ConsumerGroupMember(member_id=member_id), ()
    validation.check_instance_released(holder, member_id, instance_id)
    return replacement(group, holder, member_id)


def replacement(
    group: ConsumerGroup, holder: ConsumerGroupMember, member_id: MemberId
) -> tuple[ConsumerGroupMember, tuple[Record, ...]]:
    """Return a static member that returned, with the state of its predecessor under its new id, and the
    records."""
    group_id = group.group_id
    member = msgspec.structs.replace(holder, member_id=member_id, member_epoch=0, previous_member_epoch=0)
    return member, (
        *group.member_tombstones(holder.member_id),
        member.metadata_record(group_id),
        group.target_record(member_id, group.targets.get(holder.member_id, NO_PARTITIONS)),
        member.assignment_record(group_id),
    )


def _is_settled(
    group: ConsumerGroup, soft: ConsumerGroupSoftState, member: ConsumerGroupMember, now_ms: int
) -> bool:
    """Return true if a member that reports nothing new has reached the newest target, and no other target is
    due."""
    epoch = group.group_epoch
    return (
        group.assignment_epoch == epoch
        and member.is_reconciled_to(epoch)
        and not soft.metadata_expired(epoch, now_ms)
    )


def _taken_without(group: ConsumerGroup, absorbed: ConsumerGroupMember) -> Taken:
    """Return the lookup of held partitions that ignores those of a member that no longer counts."""
    gone = absorbed.assignment_epochs

    def taken(topic_id: TopicId, partitions: Iterable[int]) -> set[int]:
        return group.partition_epochs.taken(topic_id, partitions).difference(gone.get(topic_id, ()))

    return taken


def _prefers_another(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    counts: SubscriptionCounts,
    around: ConsumerHeartbeatContext,
) -> bool:
    """Return true if the group's members, by these counts, now ask for a different assignor.

    Keep the chosen assignor until a vote changes: if each look could decide a tie differently, no group would
    settle.
    """
    if counts.assignors == group.counts.assignors:
        return False
    names = tuple(around.assignors)
    return preferred_assignor(group.counts, names) != preferred_assignor(counts, names, member)


def _effects(
    group: ConsumerGroup,
    new: ConsumerGroupMember,
    counts: SubscriptionCounts,
    around: ConsumerHeartbeatContext,
) -> tuple[Effect, ...]:
    if around.resolving or not counts.regexes:
        return ()
    return regular_expressions.to_resolve(
        group,
        counts,
        brings_new=new.regex is not None and new.regex not in group.counts.regexes,
        newest_topics=around.newest_topics,
        refresh_interval_ms=around.regex_refresh_interval_ms,
        now_ms=around.now_ms,
    )


def _due_target(
    group: ConsumerGroup,
    member: ConsumerGroupMember,
    counts: SubscriptionCounts,
    epoch: int,
    around: ConsumerHeartbeatContext,
) -> ConsumerTarget | None:
    """Return a new target, if it is time for one."""
    due = group.assignment_epoch < epoch and may_assign_again(
        group.assignment_timestamp_ms, around.settings.assignment_interval_ms, around.now_ms
    )
    if not due:
        return None
    assignor = around.assignors[preferred_assignor(counts, tuple(around.assignors), member)]
    return compute_target(
        group, member, counts, epoch=epoch, image=around.image, assignor=assignor, now_ms=around.now_ms
    )


def _reply(
    request: consumer.ConsumerGroupHeartbeatRequest,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
    heartbeat_interval_ms: int,
) -> consumer.ConsumerGroupHeartbeatResponse:
    """Return the response. It has the whole assignment after a full request, or if the assignment changed."""
    full = (
        request.rebalance_timeout_ms != -1
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    shown = request.member_epoch == JOIN_EPOCH or full or old.assigned != new.assigned
    return consumer.ConsumerGroupHeartbeatResponse(
        member_id=new.member_id,
        member_epoch=new.member_epoch,
        heartbeat_interval_ms=heartbeat_interval_ms,
        assignment=new.assigned if shown else None,
    )
