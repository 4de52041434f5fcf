"""Slips: simple mistakes for judges that no historic bug of the list triggers.

Some are bugs that Kafka had, with their issue numbers; the others have no report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

import fencepost.coordinator.assign.registry as assignors
import fencepost.coordinator.consumer.heartbeat as heartbeats
import fencepost.coordinator.consumer.reconcile as reconciliation
import fencepost.coordinator.offsets.fetch as fetching
from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.consumer import leaving, offset_fencing
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.groups import ConsumerGroups
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.consumer.subscription import SubscriptionCounts
from fencepost.coordinator.epoch_groups import SoftState
from fencepost.coordinator.offsets import expiry
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    Record,
)
from fencepost.member.consumer.actions import ConsumerMoved
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.states import ConsumerMemberEvent, ConsumerMemberState
from fencepost.simulation.mutants.coordinators import CHURN, LOSSES
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Original, instead_of

_Targets = Mapping[MemberId, Partitions]


def _with_uniform(change: Callable[[Assignor, GroupSpec], _Targets]) -> Callable[[Any], Any]:
    """The uniform assignor, changed."""

    def replace(built_in: Mapping[str, Assignor]) -> Mapping[str, Assignor]:
        uniform = built_in["uniform"]
        return {**built_in, "uniform": lambda spec: change(uniform, spec)}

    return replace


def _forgets_a_partition(uniform: Assignor, spec: GroupSpec) -> _Targets:
    targets = dict(uniform(spec))
    for member_id, partitions in targets.items():
        if partitions:
            topic_id, numbers = next(iter(partitions.items()))
            rest = {topic_id: numbers[:-1]} if len(numbers) > 1 else {}
            targets[member_id] = {**{t: n for t, n in partitions.items() if t != topic_id}, **rest}
            break
    return targets


def _gives_a_partition_twice(uniform: Assignor, spec: GroupSpec) -> _Targets:
    targets = dict(uniform(spec))
    first, *others = targets
    for member_id in others:
        for topic_id, numbers in targets[member_id].items():
            mine = targets[first].get(topic_id, ())
            if topic_id in spec.subscriptions[first]:
                targets[first] = {**targets[first], topic_id: tuple(sorted({*mine, numbers[0]}))}
                return targets
    return targets


def _gives_everything_to_one(_: Assignor, spec: GroupSpec) -> _Targets:
    targets: dict[MemberId, dict[str, tuple[int, ...]]] = {}
    for topic_id, count in spec.partitions.items():
        owner = next(m for m, topics in spec.subscriptions.items() if topic_id in topics)
        targets.setdefault(owner, {})[topic_id] = tuple(range(count))
    return targets


def _forgets_the_target_before(uniform: Assignor, spec: GroupSpec) -> _Targets:
    return uniform(msgspec.structs.replace(spec, targets={}))


def _own_revocation_blocks(original: Original, member: ConsumerGroupMember, *rest: Any) -> Any:
    """A member waits for partitions that only it was to revoke."""
    found = original(member, *rest)
    waits = original(msgspec.structs.replace(member, pending_revocation={}), *rest)
    return waits if member.pending_revocation else found


def _shrinks_without_a_state(
    original: Original, member: ConsumerGroupMember, *rest: Any, **named: Any
) -> Any:
    found = original(member, *rest, **named)
    return msgspec.structs.replace(found, state=member.state)


def _epoch_too_high(original: Original, *arguments: Any, epoch: int, **named: Any) -> Any:
    return original(*arguments, epoch=epoch + 1, **named)


def _epochs_in_a_circle(original: Original, *arguments: Any, epoch: int, **named: Any) -> Any:
    return original(*arguments, epoch=1 + epoch % 3, **named)


def _regex_topics_are_not_noticed(_: Original, self: ConsumerGroup, topic: str) -> bool:
    return topic in self.counts.by_name


def _keeps_expressions(original: Original, *arguments: Any) -> tuple[Record, ...]:
    records: tuple[Record, ...] = original(*arguments)
    return tuple(r for r in records if not isinstance(r.key, ConsumerGroupRegularExpressionKey))


def _wrong_digest(_: Original, names: Iterable[str], image: Any) -> int:
    return 7 + len(list(names))


def _refusal_writes(original: Original, self: ConsumerGroups, request: Any, now_ms: int) -> Outcome:
    """A refused heartbeat raises the group epoch nevertheless."""
    outcome: Outcome = original(self, request, now_ms)
    reply, group = outcome.reply, self.groups.get(request.group_id)
    if group is None or not isinstance(reply, ConsumerGroupHeartbeatResponse) or not reply.error_code:
        return outcome
    value = ConsumerGroupMetadataValue(group.group_epoch + 1, group.metadata_hash)
    return Outcome(records=(Record(ConsumerGroupMetadataKey(group.group_id), value),), reply=reply)


def _no_fence(_: Original, group: Any, request: Any) -> None: ...


def _one_too_far(original: Original, value: Any) -> Any:
    found = original(value)
    return msgspec.structs.replace(found, offset=found.offset + 1)


def _other_tombstones(original: Original, group_id: str, member_id: MemberId) -> tuple[Record, ...]:
    current, target, metadata = original(group_id, member_id)
    return target, current, metadata


def _tombstone_needs_a_member(handlers: Mapping[type, Original]) -> Mapping[type, Original]:
    """Replay demands the state that compaction has removed."""
    original = handlers[ConsumerGroupCurrentMemberAssignmentKey]

    def apply_current_assignment(group: ConsumerGroup, key: Any, value: Any) -> None:
        if value is None and key.member_id not in group.members:
            raise ValueError(f"{key.member_id} is not there")
        original(group, key, value)

    return {**handlers, ConsumerGroupCurrentMemberAssignmentKey: apply_current_assignment}


def _silent_in_callbacks(original: Original, self: ConsumerMember) -> bool:
    return original(self) and self.callbacks.running is None


def _never_over(_: Original, self: SoftState[Any, Any, Any], key: Any, now_ms: int) -> bool:
    self.retry_later(key, now_ms + 60_000)
    return False


def _always_heard_anew(original: Original, self: ConsumerGroupMember, request: Any) -> ConsumerGroupMember:
    found: ConsumerGroupMember = msgspec.structs.replace(original(self, request))
    return found


def _assignor(
    name: str, summary: str, expected: str, change: Callable[[Assignor, GroupSpec], _Targets]
) -> Mutant:
    patch = instead_of(assignors, "BUILT_IN", _with_uniform(change))
    return Mutant(name, UNREPORTED, summary, (expected,), CHURN, (patch,))


def _never_waits(original: Original, *arguments: Any) -> ConsumerGroupMember:
    """A member whose target others still hold settles with its free part."""
    found: ConsumerGroupMember = original(*arguments)
    if found.state is not ConsumerGroupMemberState.UNRELEASED_PARTITIONS:
        return found
    return msgspec.structs.replace(found, state=ConsumerGroupMemberState.STABLE)


def _last_one_still_counts(original: Original, self: SubscriptionCounts, old: Any, new: Any) -> None:
    """The subscription of the last member counts until another member joins."""
    last = self.by_name.copy()
    original(self, old, new)
    if new is None and not self.by_name:
        self.by_name = last


def _nobody_subscribes(original: Original, *arguments: Any, **named: Any) -> tuple[Record, ...]:
    found: tuple[Record, ...] = original(*arguments, **{**named, "is_subscribed": lambda topic: False})
    return found


def _fenced_is_joining(
    original: Original, self: Any, event: ConsumerMemberEvent, target: ConsumerMemberState
) -> None:
    """A fenced member joins at once, which the state table does not allow."""
    if event is not ConsumerMemberEvent.FENCED or target is not ConsumerMemberState.FENCED:
        original(self, event, target)
        return
    self.out.put(ConsumerMoved(event, self.state, ConsumerMemberState.JOINING))
    self.state = ConsumerMemberState.JOINING


def _does_not_wait_for_answers(original: Original, self: Any, now_ms: int) -> int | None:
    """A due heartbeat is sent although the previous one has no response."""
    heartbeats = self.heartbeats
    waits_for, heartbeats.in_flight = heartbeats.in_flight, None
    due_ms: int | None = original(self, now_ms)
    heartbeats.in_flight = waits_for
    is_due = due_ms is not None and now_ms >= due_ms
    return due_ms if waits_for is None or is_due else None


SLIPS: Final = (
    _assignor(
        "partition-forgotten",
        "The assignor assigns one partition to no member.",
        "target-covers",
        _forgets_a_partition,
    ),
    _assignor(
        "partition-given-twice",
        "The assignor gives a partition to two members.",
        "target-exclusive",
        _gives_a_partition_twice,
    ),
    _assignor(
        "all-to-one",
        "The assignor gives a whole topic to one member.",
        "target-balanced",
        _gives_everything_to_one,
    ),
    _assignor(
        "restless-assignor",
        "The assignor ignores the previous target.",
        "target-sticky",
        _forgets_the_target_before,
    ),
    Mutant(
        "waits-for-itself",
        "KAFKA-19449",
        "Partitions that a member must revoke itself count as held by another member.",
        ("unreleased-waits",),
        ("churn",),
        (instead_of(reconciliation, "_next", _own_revocation_blocks),),
        ("group.members=2", 'application.callback={median="8s", p99="20s"}'),
    ),
    Mutant(
        "revocation-without-state",
        UNREPORTED,
        "A member that must revoke topics it unsubscribed from stays STABLE.",
        ("revocation-state",),
        ("regex-subscriptions", "swarm"),
        (instead_of(reconciliation, "_shrink", _shrinks_without_a_state),),
    ),
    Mutant(
        "target-ahead",
        UNREPORTED,
        "A target gets an epoch one above the group epoch.",
        ("epochs-ordered",),
        CHURN,
        (instead_of(heartbeats, "compute_target", _epoch_too_high),),
    ),
    Mutant(
        "target-epoch-restarts",
        UNREPORTED,
        "Target epochs start again from 1.",
        ("epochs-monotone", "assignment-epochs"),
        CHURN,
        (instead_of(heartbeats, "compute_target", _epochs_in_a_circle),),
    ),
    Mutant(
        "regex-topics-unnoticed",
        "KAFKA-18916",
        "The coordinator ignores changes of topics that only a regular expression matches.",
        ("progress", "metadata-hash"),
        ("growing-topics",),
        (instead_of(ConsumerGroup, "is_subscribed_to", _regex_topics_are_not_noticed),),
        ("group.topics=[]", 'group.pattern=".*"'),
    ),
    Mutant(
        "expressions-kept",
        UNREPORTED,
        "The resolution of a regular expression stays after its last subscriber left.",
        ("regexes-subscribed",),
        ("regex-subscriptions",),
        (instead_of(leaving, "removal_records", _keeps_expressions),),
    ),
    Mutant(
        "other-digest",
        UNREPORTED,
        "The digest of the group's topics does not depend on the topics.",
        ("metadata-hash",),
        CHURN,
        (instead_of(heartbeats, "metadata_hash", _wrong_digest),),
    ),
    Mutant(
        "refusal-writes",
        UNREPORTED,
        "A refused heartbeat raises the group epoch.",
        ("failed-changes-nothing",),
        LOSSES,
        (instead_of(ConsumerGroups, "heartbeat", _refusal_writes),),
    ),
    Mutant(
        "commits-unfenced",
        UNREPORTED,
        "The coordinator accepts any commit, whatever its member and epoch.",
        ("commit-fenced",),
        ("frozen-members", *LOSSES),
        (instead_of(offset_fencing, "check_commit", _no_fence),),
    ),
    Mutant(
        "offset-one-too-far",
        UNREPORTED,
        "A fetched offset skips a record.",
        ("at-least-once", "fetch-equals-commit"),
        CHURN,
        (instead_of(fetching, "_position", _one_too_far),),
    ),
    Mutant(
        "tombstones-out-of-order",
        UNREPORTED,
        "A member's tombstones are written in the wrong order.",
        ("journal-batches",),
        CHURN,
        (instead_of(leaving, "member_tombstones", _other_tombstones),),
    ),
    Mutant(
        "tombstone-needs-a-member",
        "KAFKA-17306",
        "A tombstone fails the load if compaction has already removed its member.",
        ("journal-replay",),
        CHURN,
        (instead_of(ConsumerGroup, "applied_by", _tombstone_needs_a_member),),
    ),
    Mutant(
        "silent-in-callbacks",
        UNREPORTED,
        "A member sends no heartbeat while a callback runs.",
        ("heartbeats-go-on",),
        ("slow-callbacks-and-poll-timeouts",),
        (instead_of(ConsumerMember, "_keeps_session", _silent_in_callbacks),),
    ),
    Mutant(
        "sessions-never-end",
        UNREPORTED,
        "Dead members stay in the group.",
        ("gone-members", "progress"),
        ("crash-and-return", "swarm"),
        (instead_of(SoftState, "session_is_over", _never_over),),
    ),
    Mutant(
        "members-rewritten",
        UNREPORTED,
        "Every heartbeat writes the member's record again.",
        ("quiet",),
        ("steady", "rolling-deploy"),
        (instead_of(ConsumerGroupMember, "with_heartbeat", _always_heard_anew),),
    ),
    Mutant(
        "stable-too-soon",
        UNREPORTED,
        "A member becomes STABLE once it has the free part of its target.",
        ("stable-owns-target",),
        CHURN,
        (instead_of(reconciliation, "_next", _never_waits),),
    ),
    Mutant(
        "last-subscription-kept",
        UNREPORTED,
        "The subscription of the last member stays after that member left.",
        ("empty-group",),
        ("rolling-deploy", "crash-and-return"),
        (instead_of(SubscriptionCounts, "replace", _last_one_still_counts),),
        ("group.members=1",),
    ),
    Mutant(
        "subscribed-offsets-expire",
        "KAFKA-4682",
        "Offsets expire although members subscribe to their topics.",
        ("offsets-kept",),
        ("rolling-deploy", "steady"),
        (instead_of(expiry, "expired", _nobody_subscribes),),
        (
            "duration=5m",
            "config.offsets.retention.minutes=1",
            "config.offsets.retention.check.interval.ms=30000",
        ),
    ),
    Mutant(
        "fenced-and-joining",
        UNREPORTED,
        "A fenced member joins before it has released what it owned.",
        ("transitions",),
        ("frozen-members", *LOSSES),
        (instead_of(ConsumerMember, "_move", _fenced_is_joining),),
    ),
    Mutant(
        "heartbeats-overlap",
        UNREPORTED,
        "A due heartbeat does not wait for the response to the previous one.",
        ("one-in-flight",),
        LOSSES,
        (instead_of(ConsumerMember, "_heartbeat_due_ms", _does_not_wait_for_answers),),
    ),
)
