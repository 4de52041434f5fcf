"""Slips: simple mistakes for judges that no historic bug of the list triggers.

Some are bugs that Kafka had, with their issue numbers; the others have no report.
"""

from __future__ import annotations

import functools
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
from fencepost.coordinator.epoch_groups import EpochGroup, SoftState
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
from fencepost.simulation.mutants.mutant import Mutants, Original

_Targets = Mapping[MemberId, Partitions]


SLIPS: Final = Mutants()


def _assignor(name: str, expected: str) -> Callable[[Callable[[Assignor, GroupSpec], _Targets]], Any]:
    """Return a decorator of a changed uniform assignor, which takes the original one before the group."""

    def add(change: Callable[[Assignor, GroupSpec], _Targets]) -> Any:
        def replace(built_in: Mapping[str, Assignor]) -> Mapping[str, Assignor]:
            return {**built_in, "uniform": functools.partial(change, built_in["uniform"])}

        replace.__doc__ = change.__doc__
        return SLIPS.bug(name, expected, CHURN, (assignors, "BUILT_IN"))(replace)

    return add


@_assignor("partition-forgotten", "target-covers")
def _forgets_a_partition(uniform: Assignor, spec: GroupSpec) -> _Targets:
    """The assignor assigns one partition to no member."""
    targets = dict(uniform(spec))
    for member_id, partitions in targets.items():
        if partitions:
            topic_id, numbers = next(iter(partitions.items()))
            rest = {topic_id: numbers[:-1]} if len(numbers) > 1 else {}
            targets[member_id] = {**{t: n for t, n in partitions.items() if t != topic_id}, **rest}
            break
    return targets


@_assignor("partition-given-twice", "target-exclusive")
def _gives_a_partition_twice(uniform: Assignor, spec: GroupSpec) -> _Targets:
    """The assignor gives a partition to two members."""
    targets = dict(uniform(spec))
    first, *others = targets
    for member_id in others:
        for topic_id, numbers in targets[member_id].items():
            mine = targets[first].get(topic_id, ())
            if topic_id in spec.subscriptions[first]:
                targets[first] = {**targets[first], topic_id: tuple(sorted({*mine, numbers[0]}))}
                return targets
    return targets


@_assignor("all-to-one", "target-balanced")
def _gives_everything_to_one(_: Assignor, spec: GroupSpec) -> _Targets:
    """The assignor gives a whole topic to one member."""
    targets: dict[MemberId, dict[str, tuple[int, ...]]] = {}
    for topic_id, count in spec.partitions.items():
        owner = next(m for m, topics in spec.subscriptions.items() if topic_id in topics)
        targets.setdefault(owner, {})[topic_id] = tuple(range(count))
    return targets


@_assignor("restless-assignor", "target-sticky")
def _forgets_the_target_before(uniform: Assignor, spec: GroupSpec) -> _Targets:
    """The assignor ignores the previous target."""
    return uniform(msgspec.structs.replace(spec, targets={}))


@SLIPS.bug(
    "waits-for-itself",
    "unreleased-waits",
    ("churn",),
    (reconciliation, "_next"),
    source="KAFKA-19449",
    overrides=("group.members=2", 'application.callback={median="8s", p99="20s"}'),
)
def _own_revocation_blocks(original: Original, member: ConsumerGroupMember, *rest: Any) -> Any:
    """Partitions that a member must revoke itself count as held by another member."""
    found = original(member, *rest)
    waits = original(msgspec.structs.replace(member, pending_revocation={}), *rest)
    return waits if member.pending_revocation else found


@SLIPS.bug(
    "revocation-without-state",
    "revocation-state",
    ("regex-subscriptions", "swarm"),
    (reconciliation, "_shrink"),
)
def _shrinks_without_a_state(
    original: Original, member: ConsumerGroupMember, *rest: Any, **named: Any
) -> Any:
    """A member that must revoke topics it unsubscribed from stays STABLE."""
    found = original(member, *rest, **named)
    return msgspec.structs.replace(found, state=member.state)


@SLIPS.bug("target-ahead", "epochs-ordered", CHURN, (heartbeats, "compute_target"))
def _epoch_too_high(original: Original, *arguments: Any, epoch: int, **named: Any) -> Any:
    """A target gets an epoch one above the group epoch."""
    return original(*arguments, epoch=epoch + 1, **named)


@SLIPS.bug(
    "target-epoch-restarts", "epochs-monotone assignment-epochs", CHURN, (heartbeats, "compute_target")
)
def _epochs_in_a_circle(original: Original, *arguments: Any, epoch: int, **named: Any) -> Any:
    """Target epochs start again from 1."""
    return original(*arguments, epoch=1 + epoch % 3, **named)


@SLIPS.bug(
    "regex-topics-unnoticed",
    "progress metadata-hash",
    ("growing-topics",),
    (ConsumerGroup, "is_subscribed_to"),
    source="KAFKA-18916",
    overrides=("group.topics=[]", 'group.pattern=".*"'),
)
def _regex_topics_are_not_noticed(_: Original, self: ConsumerGroup, topic: str) -> bool:
    """The coordinator ignores changes of topics that only a regular expression matches."""
    return topic in self.counts.by_name


@SLIPS.bug("expressions-kept", "regexes-subscribed", ("regex-subscriptions",), (leaving, "removal_records"))
def _keeps_expressions(original: Original, *arguments: Any) -> tuple[Record, ...]:
    """The resolution of a regular expression stays after its last subscriber left."""
    records: tuple[Record, ...] = original(*arguments)
    return tuple(r for r in records if not isinstance(r.key, ConsumerGroupRegularExpressionKey))


@SLIPS.bug("other-digest", "metadata-hash", CHURN, (heartbeats, "metadata_hash"))
def _wrong_digest(_: Original, names: Iterable[str], image: Any) -> int:
    """The digest of the group's topics does not depend on the topics."""
    return 7 + len(list(names))


@SLIPS.bug("refusal-writes", "failed-changes-nothing", LOSSES, (ConsumerGroups, "heartbeat"))
def _refusal_writes(original: Original, self: ConsumerGroups, request: Any, now_ms: int) -> Outcome:
    """A refused heartbeat raises the group epoch."""
    outcome: Outcome = original(self, request, now_ms)
    reply, group = outcome.reply, self.groups.get(request.group_id)
    if group is None or not isinstance(reply, ConsumerGroupHeartbeatResponse) or not reply.error_code:
        return outcome
    value = ConsumerGroupMetadataValue(group.group_epoch + 1, group.metadata_hash)
    return Outcome(records=(Record(ConsumerGroupMetadataKey(group.group_id), value),), reply=reply)


@SLIPS.bug("commits-unfenced", "commit-fenced", ("frozen-members", *LOSSES), (offset_fencing, "check_commit"))
def _no_fence(_: Original, group: Any, request: Any) -> None:
    """The coordinator accepts any commit, whatever its member and epoch."""


@SLIPS.bug("offset-one-too-far", "at-least-once fetch-equals-commit", CHURN, (fetching, "_position"))
def _one_too_far(original: Original, value: Any) -> Any:
    """A fetched offset skips a record."""
    found = original(value)
    return msgspec.structs.replace(found, offset=found.offset + 1)


@SLIPS.bug("tombstones-out-of-order", "journal-batches", CHURN, (EpochGroup, "member_tombstones"))
def _other_tombstones(original: Original, group: Any, member_id: MemberId) -> tuple[Record, ...]:
    """A member's tombstones are written in the wrong order."""
    current, target, metadata = original(group, member_id)
    return target, current, metadata


@SLIPS.bug(
    "tombstone-needs-a-member", "journal-replay", CHURN, (ConsumerGroup, "applied_by"), source="KAFKA-17306"
)
def _tombstone_needs_a_member(handlers: Mapping[type, Original]) -> Mapping[type, Original]:
    """A tombstone fails the load if compaction has already removed its member."""
    original = handlers[ConsumerGroupCurrentMemberAssignmentKey]

    def apply_current_assignment(group: ConsumerGroup, key: Any, value: Any) -> None:
        if value is None and key.member_id not in group.members:
            raise ValueError(f"{key.member_id} is not there")
        original(group, key, value)

    return {**handlers, ConsumerGroupCurrentMemberAssignmentKey: apply_current_assignment}


@SLIPS.bug(
    "silent-in-callbacks",
    "heartbeats-go-on",
    ("slow-callbacks-and-poll-timeouts",),
    (ConsumerMember, "_keeps_session"),
)
def _silent_in_callbacks(original: Original, self: ConsumerMember) -> bool:
    """A member sends no heartbeat while a callback runs."""
    return original(self) and self.callbacks.running is None


@SLIPS.bug(
    "sessions-never-end",
    "gone-members progress",
    ("crash-and-return", "swarm"),
    (SoftState, "session_is_over"),
)
def _never_over(_: Original, self: SoftState[Any, Any, Any], key: Any, now_ms: int) -> bool:
    """Dead members stay in the group."""
    self.retry_later(key, now_ms + 60_000)
    return False


@SLIPS.bug(
    "members-rewritten", "quiet", ("steady", "rolling-deploy"), (ConsumerGroupMember, "with_heartbeat")
)
def _always_heard_anew(original: Original, self: ConsumerGroupMember, request: Any) -> ConsumerGroupMember:
    """Every heartbeat writes the member's record again."""
    found: ConsumerGroupMember = msgspec.structs.replace(original(self, request))
    return found


@SLIPS.bug("stable-too-soon", "stable-owns-target", CHURN, (reconciliation, "_next"))
def _never_waits(original: Original, *arguments: Any) -> ConsumerGroupMember:
    """A member becomes STABLE once it has the free part of its target."""
    found: ConsumerGroupMember = original(*arguments)
    if found.state is not ConsumerGroupMemberState.UNRELEASED_PARTITIONS:
        return found
    return msgspec.structs.replace(found, state=ConsumerGroupMemberState.STABLE)


@SLIPS.bug(
    "last-subscription-kept",
    "empty-group",
    ("rolling-deploy", "crash-and-return"),
    (SubscriptionCounts, "replace"),
    overrides=("group.members=1",),
)
def _last_one_still_counts(original: Original, self: SubscriptionCounts, old: Any, new: Any) -> None:
    """The subscription of the last member stays after that member left."""
    last = self.by_name.copy()
    original(self, old, new)
    if new is None and not self.by_name:
        self.by_name = last


@SLIPS.bug(
    "subscribed-offsets-expire",
    "offsets-kept",
    ("rolling-deploy", "steady"),
    (expiry, "expired"),
    source="KAFKA-4682",
    overrides=(
        "duration=5m",
        "config.offsets.retention.minutes=1",
        "config.offsets.retention.check.interval.ms=30000",
    ),
)
def _nobody_subscribes(original: Original, *arguments: Any, **named: Any) -> tuple[Record, ...]:
    """Offsets expire although members subscribe to their topics."""
    found: tuple[Record, ...] = original(*arguments, **{**named, "is_subscribed": lambda topic: False})
    return found


@SLIPS.bug("fenced-and-joining", "transitions", ("frozen-members", *LOSSES), (ConsumerMember, "_move"))
def _fenced_is_joining(
    original: Original, self: Any, event: ConsumerMemberEvent, target: ConsumerMemberState
) -> None:
    """A fenced member joins before it has released what it owned."""
    if event is not ConsumerMemberEvent.FENCED or target is not ConsumerMemberState.FENCED:
        original(self, event, target)
        return
    self.out.put(ConsumerMoved(event, self.state, ConsumerMemberState.JOINING))
    self.state = ConsumerMemberState.JOINING


@SLIPS.bug("heartbeats-overlap", "one-in-flight", LOSSES, (ConsumerMember, "_heartbeat_due_ms"))
def _does_not_wait_for_answers(original: Original, self: Any, now_ms: int) -> int | None:
    """A due heartbeat does not wait for the response to the previous one."""
    heartbeats = self.heartbeats
    waits_for, heartbeats.in_flight = heartbeats.in_flight, None
    due_ms: int | None = original(self, now_ms)
    heartbeats.in_flight = waits_for
    is_due = due_ms is not None and now_ms >= due_ms
    return due_ms if waits_for is None or is_due else None
