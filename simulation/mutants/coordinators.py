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
from fencepost.simulation.mutants.mutant import Mutant, Mutants, instead_of

CHURN: Final = ("scale-up-and-down", "swarm", "rolling-deploy", "crash-and-return")
LOSSES: Final = ("lossy-network", "swarm", "partitioned-members", "coordinator-failover")


def _target(group: ConsumerGroup, records: tuple[Record, ...], member_id: str) -> ids.Partitions:
    for record in records:
        value = record.value
        if (
            isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
            and getattr(record.key, "member_id", None) == member_id
        ):
            return value.partitions
    return group.targets.get(member_id, ids.NO_PARTITIONS)


def _does_nothing(*_arguments: Any, **_named: Any) -> None: ...


COORDINATOR_MUTANTS: Final = Mutants()


@COORDINATOR_MUTANTS.bug(
    "owner-entry-lost",
    "owners-map one-owner",
    ("churn",),
    (PartitionEpochs, "replace"),
    source="KAFKA-16147",
    overrides=("group.members=2", 'application.callback={median="8s", p99="20s"}'),
)
def _forgetful_map(
    original: Callable[..., None],
    self: PartitionEpochs,
    old: ConsumerGroupMember | None,
    new: ConsumerGroupMember | None,
) -> None:
    """A partition that returns to the member that was revoking it drops out of the map of owners."""
    topics = self._topics
    # The new assignment is entered before the old one is taken out, although another member may hold it.
    original(self, old, new)
    for topic_id, partitions in (ids.NO_PARTITIONS if old is None else old.pending_revocation).items():
        still = () if new is None else new.pending_revocation.get(topic_id, ())
        holders = topics.get(topic_id, [])
        for partition in partitions:
            if partition not in still and partition < len(holders):
                self._held -= holders[partition] is not None
                holders[partition] = None


@COORDINATOR_MUTANTS.bug(
    "rejoin-fenced",
    "heartbeat-answers",
    ("lossy-network",),
    (validation, "check_epoch"),
    source="KAFKA-19233",
)
def _epoch_zero_is_smaller(
    _: Callable[..., None], member: ConsumerGroupMember, epoch: int, owned: ids.Partitions | None
) -> None:
    """Epoch 0 of a known member counts as a smaller epoch, so the member cannot join again."""
    if epoch == member.member_epoch:
        return
    lost_reply = epoch == member.previous_member_epoch and validation.is_subset(owned, member.assigned)
    if epoch > member.member_epoch or not lost_reply:
        raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is not the member's")


@COORDINATOR_MUTANTS.bug(
    "owner-by-epoch",
    "one-owner owners-map one-claimant",
    CHURN,
    (heartbeats, "reconcile"),
    source="franz-go kfake #1438",
)
def _owner_by_epoch(
    original: Callable[..., ConsumerGroupMember], member: ConsumerGroupMember, *, taken: Taken, **rest: Any
) -> ConsumerGroupMember:
    """Ownership is matched by epoch, which two members can share."""
    epochs = getattr(taken, "__self__", None)
    if not isinstance(epochs, PartitionEpochs):
        return original(member, taken=taken, **rest)

    def by_epoch(topic_id: ids.TopicId, partitions: Iterable[int]) -> set[int]:
        return {p for p in taken(topic_id, partitions) if epochs.of(topic_id, p) != member.member_epoch}

    return original(member, taken=by_epoch, **rest)


@COORDINATOR_MUTANTS.bug(
    "target-told-early",
    "granted-after-release reply-equals-state one-claimant",
    CHURN,
    (consumer_groups, "heartbeat"),
    source="crabka #521",
)
def _target_is_told(
    original: Callable[..., Outcome],
    group: ConsumerGroup,
    soft: Any,
    request: Any,
    member_id: str,
    *around: Any,
) -> Outcome:
    """A member receives its target before the old owner has released it."""
    outcome = original(group, soft, request, member_id, *around)
    reply = outcome.reply
    if not isinstance(reply, ConsumerGroupHeartbeatResponse) or reply.assignment is None:
        return outcome
    told = msgspec.structs.replace(reply, assignment=_target(group, outcome.records, member_id))
    return Outcome(records=outcome.records, reply=told, effects=outcome.effects)


@COORDINATOR_MUTANTS.bug(
    "lost-reply-fenced",
    "heartbeat-answers",
    LOSSES,
    (validation, "check_epoch"),
    source="KIP-848, Member Epoch",
)
def _lost_reply_is_fenced(
    original: Callable[..., None], member: ConsumerGroupMember, epoch: int, owned: ids.Partitions | None
) -> None:
    """A member whose epoch-raising response was lost is fenced, though it owns nothing too much."""
    if epoch not in (ids.JOIN_EPOCH, member.member_epoch):
        raise ProtocolError(ErrorCode.FENCED_MEMBER_EPOCH, "the epoch is not the member's")
    original(member, epoch, owned)


@COORDINATOR_MUTANTS.bug(
    "lost-assignment-not-repeated",
    "assignment-present",
    LOSSES,
    (heartbeats, "_reply"),
    source="franz-go eca3a457, KAFKA-16367",
)
def _delivered_is_delivered(
    original: Callable[..., ConsumerGroupHeartbeatResponse],
    request: Any,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
    interval_ms: int,
) -> ConsumerGroupHeartbeatResponse:
    """A sent assignment counts as delivered, so a full heartbeat does not return it again."""
    answer = original(request, old, new, interval_ms)
    told = request.member_epoch == ids.JOIN_EPOCH or old.assigned != new.assigned
    return answer if told else msgspec.structs.replace(answer, assignment=None)


@COORDINATOR_MUTANTS.bug(
    "epoch-moves-in-revocation",
    "revocation-frozen",
    ("slow-callbacks-and-poll-timeouts", "scale-up-and-down"),
    (reconciliation, "_next"),
    source="KAFKA-19974",
)
def _epoch_moves_in_revocation(
    original: Callable[..., ConsumerGroupMember], member: ConsumerGroupMember, target_epoch: int, *rest: Any
) -> ConsumerGroupMember:
    """A member that has revoked and must revoke again gets the next epoch at once."""
    found = original(member, target_epoch, *rest)
    again = found.state is member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS
    if not again or found.member_epoch >= target_epoch:
        return found
    return msgspec.structs.replace(found, member_epoch=found.member_epoch + 1)


@COORDINATOR_MUTANTS.bug(
    "recomputed-in-revocation",
    "revocation-frozen revocation-bounded",
    ("slow-callbacks-and-poll-timeouts",),
    (heartbeats, "reconcile"),
    source="KAFKA-16249",
)
def _recomputed_in_revocation(
    original: Callable[..., ConsumerGroupMember],
    member: ConsumerGroupMember,
    *,
    target_epoch: int,
    target: ids.Partitions,
    owned: Any,
    **rest: Any,
) -> ConsumerGroupMember:
    """A new target is applied while a revocation is outstanding."""
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


@COORDINATOR_MUTANTS.bug(
    "unsubscribed-topic-assigned",
    "assigned-in-target",
    ("mixed-subscriptions",),
    (heartbeats, "reconcile"),
    source="KAFKA-19431",
    overrides=("config.group.consumer.assignment.interval.ms=5000",),
)
def _any_topic_is_subscribed(
    original: Callable[..., ConsumerGroupMember],
    member: ConsumerGroupMember,
    *,
    target: ids.Partitions,
    subscribed: Any,
    **rest: Any,
) -> ConsumerGroupMember:
    """A target is applied with topics that the member has unsubscribed from in the meantime."""
    everything = frozenset((*subscribed, *target, *member.assigned))
    return original(member, target=target, subscribed=everything, **rest)


@COORDINATOR_MUTANTS.bug(
    "null-releases",
    "revocation-frozen one-claimant",
    CHURN,
    (reconciliation, "releases"),
    source="franz-go 0af2689c",
)
def _null_releases(
    original: Callable[..., bool], owned: ids.Partitions | None, partitions: ids.Partitions
) -> bool:
    """A heartbeat without a partition list counts as one with an empty list."""
    return owned is None or original(owned, partitions)


COORDINATOR_MUTANTS.append(
    Mutant(
        "stale-instance-entry",
        "KAFKA-20747",
        "The instance id of a removed member still points to that member.",
        ("static-bijection",),
        ("static-rolling-deploy",),
        (instead_of(ConsumerGroup, "_forget_instance", _does_nothing),),
    )
)


COORDINATOR_MUTANTS.append(
    Mutant(
        "contacts-leak",
        "KAFKA-20601",
        "Timers and last-contact times of removed members are kept.",
        ("bounded-memory", "timers-armed"),
        CHURN,
        (instead_of(SoftState, "_forget", _does_nothing),),
    )
)


@COORDINATOR_MUTANTS.bug(
    "away-and-revoking", "revocation-state", ("static-leave-while-revoking",), (leaving, "_away")
)
def _away_and_revoking(
    original: Callable[..., ConsumerGroupMember], member: ConsumerGroupMember
) -> ConsumerGroupMember:
    """A static member that leaves for a while keeps partitions that it had to release."""
    away = original(member)
    return msgspec.structs.replace(
        away,
        pending_revocation=member.pending_revocation,
        assignment_epochs={
            topic: dict.fromkeys(numbers, 0) for topic, numbers in member.assignment_epochs.items()
        },
    )


@COORDINATOR_MUTANTS.bug(
    "subscription-not-stored",
    "heartbeat-recorded",
    ("mixed-subscriptions", "regex-subscriptions"),
    (ConsumerGroupMember, "with_heartbeat"),
)
def _says_nothing_new(
    original: Callable[..., ConsumerGroupMember], self: ConsumerGroupMember, request: Any
) -> Any:
    """The coordinator ignores a known member's new subscription."""
    new = original(self, request)
    if not self.subscribed_topic_names or new is self:
        return new
    return msgspec.structs.replace(new, subscribed_topic_names=self.subscribed_topic_names)


@COORDINATOR_MUTANTS.bug(
    "away-in-a-failover", "gone-members", ("static-failover",), (ConsumerSoftState, "rebuild")
)
def _away_is_gone(original: Callable[..., None], self: ConsumerSoftState, groups: Any, now_ms: int) -> None:
    """A coordinator that loads keeps static members that are away, for good."""
    original(self, groups, now_ms)
    for group_id, group in groups.items():
        for member_id, member in group.members.items():
            if member.member_epoch == ids.STATIC_LEAVE_EPOCH:
                self.timers.cancel(GroupTimerKey(GroupTimerKind.SESSION, group_id, member_id))


@COORDINATOR_MUTANTS.bug(
    "foreign-partitions-accepted", "heartbeat-answers", ("foreign-members",), (validation, "check_epoch")
)
def _any_list_will_do(
    original: Callable[..., None], member: ConsumerGroupMember, epoch: int, owned: ids.Partitions | None
) -> None:
    """The previous epoch is accepted from a member that lists partitions of others."""
    repeats = owned is not None and ids.JOIN_EPOCH < epoch == member.previous_member_epoch
    original(member, epoch, ids.NO_PARTITIONS if repeats else owned)
