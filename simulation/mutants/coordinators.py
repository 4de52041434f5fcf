"""Bugs that coordinators had."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

import fencepost.coordinator.consumer.groups as consumer_groups
import fencepost.coordinator.consumer.heartbeat as heartbeats
import fencepost.coordinator.consumer.reconcile as reconciliation
from fencepost.coordinator.consumer import leaving, validation
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.owners import PartitionEpochs
from fencepost.coordinator.consumer.reconcile import Taken
from fencepost.coordinator.consumer.soft import ConsumerSoftState
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.epoch_groups import SoftState
from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import ConsumerGroupTargetAssignmentMemberValue, Record
from fencepost.coordinator.timers import GroupTimerKey, GroupTimerKind
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, instead_of

CHURN: Final = ("scale-up-and-down", "swarm", "rolling-deploy", "crash-and-return")
LOSSES: Final = ("lossy-network", "swarm", "partitioned-members", "coordinator-failover")


def _forgetful_map(
    original: Callable[..., None],
    self: PartitionEpochs,
    old: ConsumerGroupMember | None,
    new: ConsumerGroupMember | None,
) -> None:
    """The new assignment is entered before the old pending one is taken out, although another member may hold
    it by then."""
    topics = self._topics
    original(self, old, new)
    for topic_id, partitions in (ids.NO_PARTITIONS if old is None else old.pending_revocation).items():
        still = () if new is None else new.pending_revocation.get(topic_id, ())
        holders = topics.get(topic_id, [])
        for partition in partitions:
            if partition not in still and partition < len(holders):
                self._held -= holders[partition] is not None
                holders[partition] = None


def _epoch_zero_is_smaller(
    _: Callable[..., None], member: ConsumerGroupMember, epoch: int, owned: ids.Partitions | None
) -> None:
    """A repeated join is treated like any smaller epoch."""
    if epoch == member.member_epoch:
        return
    lost_reply = epoch == member.previous_member_epoch and validation.is_subset(owned, member.assigned)
    if epoch > member.member_epoch or not lost_reply:
        raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is not the member's")


def _lost_reply_is_fenced(
    original: Callable[..., None], member: ConsumerGroupMember, epoch: int, owned: ids.Partitions | None
) -> None:
    """The previous epoch is refused, whatever the member owns."""
    if epoch not in (ids.JOIN_EPOCH, member.member_epoch):
        raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is not the member's")
    original(member, epoch, owned)


def _owner_by_epoch(
    original: Callable[..., ConsumerGroupMember], member: ConsumerGroupMember, *, taken: Taken, **rest: Any
) -> ConsumerGroupMember:
    """A partition whose holder has the same epoch as this member is taken to be its own."""
    epochs = getattr(taken, "__self__", None)
    if not isinstance(epochs, PartitionEpochs):
        return original(member, taken=taken, **rest)

    def by_epoch(topic_id: ids.TopicId, partitions: Iterable[int]) -> set[int]:
        return {p for p in taken(topic_id, partitions) if epochs.of(topic_id, p) != member.member_epoch}

    return original(member, taken=by_epoch, **rest)


def _target_is_told(
    original: Callable[..., Outcome],
    group: ConsumerGroup,
    soft: Any,
    request: Any,
    member_id: str,
    *around: Any,
) -> Outcome:
    """The response has the member's whole target instead of its free part."""
    outcome = original(group, soft, request, member_id, *around)
    reply = outcome.reply
    if not isinstance(reply, ConsumerGroupHeartbeatResponse) or reply.assignment is None:
        return outcome
    told = msgspec.structs.replace(reply, assignment=_target(group, outcome.records, member_id))
    return Outcome(records=outcome.records, reply=told, effects=outcome.effects)


def _target(group: ConsumerGroup, records: tuple[Record, ...], member_id: str) -> ids.Partitions:
    for record in records:
        value = record.value
        if (
            isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
            and getattr(record.key, "member_id", None) == member_id
        ):
            return value.partitions
    return group.targets.get(member_id, ids.NO_PARTITIONS)


def _delivered_is_delivered(
    original: Callable[..., ConsumerGroupHeartbeatResponse],
    request: Any,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
    interval_ms: int,
) -> ConsumerGroupHeartbeatResponse:
    """An assignment is sent once; a full heartbeat does not return it again."""
    answer = original(request, old, new, interval_ms)
    told = request.member_epoch == ids.JOIN_EPOCH or old.assigned != new.assigned
    return answer if told else msgspec.structs.replace(answer, assignment=None)


def _epoch_moves_in_revocation(
    original: Callable[..., ConsumerGroupMember], member: ConsumerGroupMember, target_epoch: int, *rest: Any
) -> ConsumerGroupMember:
    """A revocation that follows another one has the next epoch already."""
    found = original(member, target_epoch, *rest)
    again = found.state is member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS
    if not again or found.member_epoch >= target_epoch:
        return found
    return msgspec.structs.replace(found, member_epoch=found.member_epoch + 1)


def _recomputed_in_revocation(
    original: Callable[..., ConsumerGroupMember],
    member: ConsumerGroupMember,
    *,
    target_epoch: int,
    target: ids.Partitions,
    owned: Any,
    **rest: Any,
) -> ConsumerGroupMember:
    """A newer target adds partitions to revoke, and restarts the timer."""
    waiting = member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS
    if not waiting or reconciliation.releases(owned, member.pending_revocation):
        return original(member, target_epoch=target_epoch, target=target, owned=owned, **rest)
    keep: dict[ids.TopicId, tuple[int, ...]] = {}
    pending = {topic_id: set(numbers) for topic_id, numbers in member.pending_revocation.items()}
    for topic_id, numbers in member.assigned.items():
        wanted = target.get(topic_id, ())
        if kept := tuple(n for n in numbers if n in wanted):
            keep[topic_id] = kept
        if gone := set(numbers).difference(wanted):
            pending.setdefault(topic_id, set()).update(gone)
    revoke = {topic_id: tuple(sorted(numbers)) for topic_id, numbers in sorted(pending.items())}
    return msgspec.structs.replace(member, assigned=keep, pending_revocation=revoke)


def _any_topic_is_subscribed(
    original: Callable[..., ConsumerGroupMember],
    member: ConsumerGroupMember,
    *,
    target: ids.Partitions,
    subscribed: Any,
    **rest: Any,
) -> ConsumerGroupMember:
    """The target is applied unchanged, including topics that the member has unsubscribed from since."""
    everything = frozenset((*subscribed, *target, *member.assigned))
    return original(member, target=target, subscribed=everything, **rest)


def _null_releases(
    original: Callable[..., bool], owned: ids.Partitions | None, partitions: ids.Partitions
) -> bool:
    """A heartbeat without a partition list counts as one that owns nothing."""
    return owned is None or original(owned, partitions)


def _away_and_revoking(
    original: Callable[..., ConsumerGroupMember], member: ConsumerGroupMember
) -> ConsumerGroupMember:
    """A static member that is away keeps the partitions that it had to release."""
    away = original(member)
    return msgspec.structs.replace(
        away,
        pending_revocation=member.pending_revocation,
        assignment_epochs={
            topic: dict.fromkeys(numbers, 0) for topic, numbers in member.assignment_epochs.items()
        },
    )


def _says_nothing_new(
    original: Callable[..., ConsumerGroupMember], self: ConsumerGroupMember, request: Any
) -> Any:
    """A member that is known subscribes to what it subscribed to first."""
    new = original(self, request)
    if not self.subscribed_topic_names or new is self:
        return new
    return msgspec.structs.replace(new, subscribed_topic_names=self.subscribed_topic_names)


def _away_is_gone(original: Callable[..., None], self: ConsumerSoftState, groups: Any, now_ms: int) -> None:
    """A coordinator that loads starts no session of a member that is away."""
    original(self, groups, now_ms)
    for group_id, group in groups.items():
        for member_id, member in group.members.items():
            if member.member_epoch == ids.STATIC_LEAVE_EPOCH:
                self.timers.cancel(GroupTimerKey(GroupTimerKind.SESSION, group_id, member_id))


def _any_list_will_do(
    original: Callable[..., None], member: ConsumerGroupMember, epoch: int, owned: ids.Partitions | None
) -> None:
    """The previous epoch is accepted, whatever the member says it owns."""
    repeats = owned is not None and ids.JOIN_EPOCH < epoch == member.previous_member_epoch
    original(member, epoch, ids.NO_PARTITIONS if repeats else owned)


def _does_nothing(*_arguments: Any, **_named: Any) -> None: ...


COORDINATOR_MUTANTS: Final = (
    Mutant(
        "owner-entry-lost",
        "KAFKA-16147",
        "A partition that returns to the member that was revoking it drops out of the map of owners.",
        ("owners-map", "one-owner"),
        ("churn",),
        (instead_of(PartitionEpochs, "replace", _forgetful_map),),
        ("group.members=2", 'application.callback={median="8s", p99="20s"}'),
    ),
    Mutant(
        "rejoin-fenced",
        "KAFKA-19233",
        "Epoch 0 of a known member counts as a smaller epoch, so the member cannot join again.",
        ("heartbeat-answers",),
        ("lossy-network",),
        (instead_of(validation, "check_epoch", _epoch_zero_is_smaller),),
    ),
    Mutant(
        "owner-by-epoch",
        "franz-go kfake #1438",
        "Ownership is matched by epoch, which two members can share.",
        ("one-owner", "owners-map", "one-claimant"),
        CHURN,
        (instead_of(heartbeats, "reconcile", _owner_by_epoch),),
    ),
    Mutant(
        "target-told-early",
        "crabka #521",
        "A member receives its target before the old owner has released it.",
        ("granted-after-release", "reply-equals-state", "one-claimant"),
        CHURN,
        (instead_of(consumer_groups, "heartbeat", _target_is_told),),
    ),
    Mutant(
        "lost-reply-fenced",
        "KIP-848, Member Epoch",
        "A member whose epoch-raising response was lost is fenced, though it owns nothing too much.",
        ("heartbeat-answers",),
        LOSSES,
        (instead_of(validation, "check_epoch", _lost_reply_is_fenced),),
    ),
    Mutant(
        "lost-assignment-not-repeated",
        "franz-go eca3a457, KAFKA-16367",
        "A sent assignment counts as delivered, so a full heartbeat does not return it again.",
        ("assignment-present",),
        LOSSES,
        (instead_of(heartbeats, "_reply", _delivered_is_delivered),),
    ),
    Mutant(
        "epoch-moves-in-revocation",
        "KAFKA-19974",
        "A member that has revoked and must revoke again gets the next epoch at once.",
        ("revocation-frozen",),
        ("slow-callbacks-and-poll-timeouts", "scale-up-and-down"),
        (instead_of(reconciliation, "_next", _epoch_moves_in_revocation),),
    ),
    Mutant(
        "recomputed-in-revocation",
        "KAFKA-16249",
        "A new target is applied while a revocation is outstanding.",
        ("revocation-frozen", "revocation-bounded"),
        ("slow-callbacks-and-poll-timeouts",),
        (instead_of(heartbeats, "reconcile", _recomputed_in_revocation),),
    ),
    Mutant(
        "unsubscribed-topic-assigned",
        "KAFKA-19431",
        "A target is applied with topics that the member has unsubscribed from in the meantime.",
        ("assigned-in-target",),
        ("mixed-subscriptions",),
        (instead_of(heartbeats, "reconcile", _any_topic_is_subscribed),),
        ("config.group.consumer.assignment.interval.ms=5000",),
    ),
    Mutant(
        "null-releases",
        "franz-go 0af2689c",
        "A heartbeat without a partition list counts as one with an empty list.",
        ("revocation-frozen", "one-claimant"),
        CHURN,
        (instead_of(reconciliation, "releases", _null_releases),),
    ),
    Mutant(
        "stale-instance-entry",
        "KAFKA-20747",
        "The instance id of a removed member still points to that member.",
        ("static-bijection",),
        ("static-rolling-deploy",),
        (instead_of(ConsumerGroup, "_forget_instance", _does_nothing),),
    ),
    Mutant(
        "contacts-leak",
        "KAFKA-20601",
        "Timers and last-contact times of removed members are kept.",
        ("bounded-memory", "timers-armed"),
        CHURN,
        (instead_of(SoftState, "_forget", _does_nothing),),
    ),
    Mutant(
        "away-and-revoking",
        UNREPORTED,
        "A static member that leaves for a while keeps partitions that it had to release.",
        ("revocation-state",),
        ("static-leave-while-revoking",),
        (instead_of(leaving, "_away", _away_and_revoking),),
    ),
    Mutant(
        "subscription-not-stored",
        UNREPORTED,
        "The coordinator ignores a known member's new subscription.",
        ("heartbeat-recorded",),
        ("mixed-subscriptions", "regex-subscriptions"),
        (instead_of(ConsumerGroupMember, "with_heartbeat", _says_nothing_new),),
    ),
    Mutant(
        "away-in-a-failover",
        UNREPORTED,
        "A coordinator that loads keeps static members that are away, for good.",
        ("gone-members",),
        ("static-failover",),
        (instead_of(ConsumerSoftState, "rebuild", _away_is_gone),),
    ),
    Mutant(
        "foreign-partitions-accepted",
        UNREPORTED,
        "The previous epoch is accepted from a member that lists partitions of others.",
        ("heartbeat-answers",),
        ("foreign-members",),
        (instead_of(validation, "check_epoch", _any_list_will_do),),
    ),
)
