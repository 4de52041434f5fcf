"""Slips: for checkers that no historic bug of the list wakes, the simplest mistake that must.

Some are bugs that Kafka had, told by their number; the others are nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from fencepost.simulation.mutants.mutant import Mutant, Patch

_Function = Callable[..., Any]
_Targets = Mapping[MemberId, Partitions]
NOBODY: Final = "nobody's"


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


def _own_revocation_blocks(original: _Function) -> _Function:
    """A member waits for partitions that only it was to revoke."""

    def next_step(member: ConsumerGroupMember, *rest: Any) -> Any:
        found = original(member, *rest)
        waits = original(msgspec.structs.replace(member, pending_revocation={}), *rest)
        return waits if member.pending_revocation else found

    return next_step


def _shrinks_without_a_state(original: _Function) -> _Function:
    def shrink(member: ConsumerGroupMember, *rest: Any, **named: Any) -> Any:
        found = original(member, *rest, **named)
        return msgspec.structs.replace(found, state=member.state)

    return shrink


def _target_epoch(change: Callable[[int], int]) -> Callable[[_Function], _Function]:
    """The target gets another epoch than the group's."""

    def replace(original: _Function) -> _Function:
        def compute_target(*arguments: Any, epoch: int, **named: Any) -> Any:
            return original(*arguments, epoch=change(epoch), **named)

        return compute_target

    return replace


def _regex_topics_are_not_noticed(_: _Function) -> _Function:
    def is_subscribed_to(self: ConsumerGroup, topic: str) -> bool:
        return topic in self.counts.by_name

    return is_subscribed_to


def _keeps_expressions(original: _Function) -> _Function:
    def removal_records(*arguments: Any) -> tuple[Record, ...]:
        records: tuple[Record, ...] = original(*arguments)
        return tuple(r for r in records if not isinstance(r.key, ConsumerGroupRegularExpressionKey))

    return removal_records


def _wrong_digest(_: _Function) -> _Function:
    return lambda names, image: 7 + len(list(names))


def _refusal_writes(original: _Function) -> _Function:
    """A heartbeat that is refused raises the group epoch all the same."""

    def heartbeat(self: ConsumerGroups, request: Any, now_ms: int) -> Outcome:
        outcome: Outcome = original(self, request, now_ms)
        reply, group = outcome.reply, self.groups.get(request.group_id)
        if group is None or not isinstance(reply, ConsumerGroupHeartbeatResponse) or not reply.error_code:
            return outcome
        value = ConsumerGroupMetadataValue(group.group_epoch + 1, group.metadata_hash)
        return Outcome(records=(Record(ConsumerGroupMetadataKey(group.group_id), value),), reply=reply)

    return heartbeat


def _no_fence(_: _Function) -> _Function:
    return lambda group, request: None


def _one_too_far(original: _Function) -> _Function:
    def position(value: Any) -> Any:
        found = original(value)
        return msgspec.structs.replace(found, offset=found.offset + 1)

    return position


def _other_tombstones(original: _Function) -> _Function:
    def member_tombstones(group_id: str, member_id: MemberId) -> tuple[Record, ...]:
        current, target, metadata = original(group_id, member_id)
        return target, current, metadata

    return member_tombstones


def _tombstone_needs_a_member(handlers: Mapping[type, _Function]) -> Mapping[type, _Function]:
    """Replay demands the state that compaction has removed."""
    original = handlers[ConsumerGroupCurrentMemberAssignmentKey]

    def apply_current_assignment(group: ConsumerGroup, key: Any, value: Any) -> None:
        if value is None and key.member_id not in group.members:
            raise ValueError(f"{key.member_id} is not there")
        original(group, key, value)

    return {**handlers, ConsumerGroupCurrentMemberAssignmentKey: apply_current_assignment}


def _silent_in_callbacks(original: property) -> property:
    getter = original.fget
    assert getter is not None
    return property(lambda self: getter(self) and self.callbacks.running is None)


def _never_over(_: _Function) -> _Function:
    def session_is_over(self: SoftState[Any, Any, Any], key: Any, now_ms: int) -> bool:
        self.retry_later(key, now_ms + 60_000)
        return False

    return session_is_over


def _always_heard_anew(original: _Function) -> _Function:
    def with_heartbeat(self: ConsumerGroupMember, request: Any) -> ConsumerGroupMember:
        found: ConsumerGroupMember = msgspec.structs.replace(original(self, request))
        return found

    return with_heartbeat


def _assignor(
    name: str, summary: str, expected: str, change: Callable[[Assignor, GroupSpec], _Targets]
) -> Mutant:
    patch = Patch(assignors, "BUILT_IN", _with_uniform(change))
    return Mutant(name, NOBODY, summary, (expected,), CHURN, (patch,))


def _never_waits(original: _Function) -> _Function:
    """A member whose target others still hold is settled with what is free of it."""

    def next_step(*arguments: Any) -> ConsumerGroupMember:
        found: ConsumerGroupMember = original(*arguments)
        if found.state is not ConsumerGroupMemberState.UNRELEASED_PARTITIONS:
            return found
        return msgspec.structs.replace(found, state=ConsumerGroupMemberState.STABLE)

    return next_step


def _last_one_still_counts(original: _Function) -> _Function:
    """What a member subscribed to is counted as long as nobody else comes."""

    def replace(self: SubscriptionCounts, old: Any, new: Any) -> None:
        last = self.by_name.copy()
        original(self, old, new)
        if new is None and not self.by_name:
            self.by_name = last

    return replace


def _nobody_subscribes(original: _Function) -> _Function:
    def expired(*arguments: Any, **named: Any) -> tuple[Record, ...]:
        found: tuple[Record, ...] = original(*arguments, **{**named, "is_subscribed": lambda topic: False})
        return found

    return expired


def _fenced_is_joining(original: _Function) -> _Function:
    """A fenced member asks to join at once; the table would not let it."""

    def move(self: Any, event: ConsumerMemberEvent, target: ConsumerMemberState) -> None:
        if event is not ConsumerMemberEvent.FENCED or target is not ConsumerMemberState.FENCED:
            original(self, event, target)
            return
        self.out.put(ConsumerMoved(event, self.state, ConsumerMemberState.JOINING))
        self.state = ConsumerMemberState.JOINING

    return move


def _does_not_wait_for_answers(original: _Function) -> _Function:
    """A heartbeat that is due goes out although the last one was not answered."""

    def heartbeat_due_ms(self: Any, now_ms: int) -> int | None:
        heartbeats = self.heartbeats
        waits_for, heartbeats.in_flight = heartbeats.in_flight, None
        due_ms: int | None = original(self, now_ms)
        heartbeats.in_flight = waits_for
        is_due = due_ms is not None and now_ms >= due_ms
        return due_ms if waits_for is None or is_due else None

    return heartbeat_due_ms


SLIPS: Final = (
    _assignor(
        "partition-forgotten",
        "The assignor gives a partition to nobody.",
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
        "all-to-one", "The assignor gives a topic to one member.", "target-balanced", _gives_everything_to_one
    ),
    _assignor(
        "restless-assignor",
        "The assignor does not look at the target before.",
        "target-sticky",
        _forgets_the_target_before,
    ),
    Mutant(
        "waits-for-itself",
        "KAFKA-19449",
        "Partitions that a member was to revoke itself count as held by another.",
        ("unreleased-waits",),
        ("churn",),
        (Patch(reconciliation, "_next", _own_revocation_blocks),),
        ("group.members=2", 'application.callback={median="8s", p99="20s"}'),
    ),
    Mutant(
        "revocation-without-state",
        NOBODY,
        "Topics that are dropped from a subscription are to be revoked by a member that stays STABLE.",
        ("revocation-state",),
        ("regex-subscriptions", "swarm"),
        (Patch(reconciliation, "_shrink", _shrinks_without_a_state),),
    ),
    Mutant(
        "target-ahead",
        NOBODY,
        "A target has the epoch after the group's.",
        ("epochs-ordered",),
        CHURN,
        (Patch(heartbeats, "compute_target", _target_epoch(lambda epoch: epoch + 1)),),
    ),
    Mutant(
        "target-epoch-restarts",
        NOBODY,
        "Targets are counted from 1 again and again.",
        ("epochs-monotone", "assignment-epochs"),
        CHURN,
        (Patch(heartbeats, "compute_target", _target_epoch(lambda epoch: 1 + epoch % 3)),),
    ),
    Mutant(
        "regex-topics-unnoticed",
        "KAFKA-18916",
        "Changes of topics that only a regular expression matches are not noticed.",
        ("progress", "metadata-hash"),
        ("growing-topics",),
        (Patch(ConsumerGroup, "is_subscribed_to", _regex_topics_are_not_noticed),),
        ("group.topics=[]", 'group.pattern=".*"'),
    ),
    Mutant(
        "expressions-kept",
        NOBODY,
        "The resolution of a regular expression stays when its last subscriber goes.",
        ("regexes-subscribed",),
        ("regex-subscriptions",),
        (Patch(leaving, "removal_records", _keeps_expressions),),
    ),
    Mutant(
        "other-digest",
        NOBODY,
        "The digest of the group's topics does not depend on them.",
        ("metadata-hash",),
        CHURN,
        (Patch(heartbeats, "metadata_hash", _wrong_digest),),
    ),
    Mutant(
        "refusal-writes",
        NOBODY,
        "A refused heartbeat raises the group epoch.",
        ("failed-changes-nothing",),
        LOSSES,
        (Patch(ConsumerGroups, "heartbeat", _refusal_writes),),
    ),
    Mutant(
        "commits-unfenced",
        NOBODY,
        "Anybody may commit at any epoch.",
        ("commit-fenced",),
        ("frozen-members", *LOSSES),
        (Patch(offset_fencing, "check_commit", _no_fence),),
    ),
    Mutant(
        "offset-one-too-far",
        NOBODY,
        "A fetched offset skips a record.",
        ("at-least-once", "fetch-equals-commit"),
        CHURN,
        (Patch(fetching, "_position", _one_too_far),),
    ),
    Mutant(
        "tombstones-out-of-order",
        NOBODY,
        "A member's tombstones are written in another order.",
        ("journal-batches",),
        CHURN,
        (Patch(leaving, "member_tombstones", _other_tombstones),),
    ),
    Mutant(
        "tombstone-needs-a-member",
        "KAFKA-17306",
        "A tombstone of a member that compaction has removed already stops the load.",
        ("journal-replay",),
        CHURN,
        (Patch(ConsumerGroup, "applied_by", _tombstone_needs_a_member),),
    ),
    Mutant(
        "silent-in-callbacks",
        NOBODY,
        "No heartbeat is sent while a callback runs.",
        ("heartbeats-go-on",),
        ("slow-callbacks-and-poll-timeouts",),
        (Patch(ConsumerMember, "_keeps_session", _silent_in_callbacks),),
    ),
    Mutant(
        "sessions-never-end",
        NOBODY,
        "Members that died are kept.",
        ("gone-members", "progress"),
        ("crash-and-return", "swarm"),
        (Patch(SoftState, "session_is_over", _never_over),),
    ),
    Mutant(
        "members-rewritten",
        NOBODY,
        "Every heartbeat writes the member again.",
        ("quiet",),
        ("steady", "rolling-deploy"),
        (Patch(ConsumerGroupMember, "with_heartbeat", _always_heard_anew),),
    ),
    Mutant(
        "stable-too-soon",
        NOBODY,
        "A member is STABLE as soon as it has what is free of its target.",
        ("stable-owns-target",),
        CHURN,
        (Patch(reconciliation, "_next", _never_waits),),
    ),
    Mutant(
        "last-subscription-kept",
        NOBODY,
        "The last member to go leaves its subscription behind.",
        ("empty-group",),
        ("rolling-deploy", "crash-and-return"),
        (Patch(SubscriptionCounts, "replace", _last_one_still_counts),),
        ("group.members=1",),
    ),
    Mutant(
        "subscribed-offsets-expire",
        "KAFKA-4682",
        "Offsets expire although members subscribe to their topics.",
        ("offsets-kept",),
        ("rolling-deploy", "steady"),
        (Patch(expiry, "expired", _nobody_subscribes),),
        (
            "duration=5m",
            "config.offsets.retention.minutes=1",
            "config.offsets.retention.check.interval.ms=30000",
        ),
    ),
    Mutant(
        "fenced-and-joining",
        NOBODY,
        "A fenced member asks to join before it has let go of what it owned.",
        ("transitions",),
        ("frozen-members", *LOSSES),
        (Patch(ConsumerMember, "_move", _fenced_is_joining),),
    ),
    Mutant(
        "heartbeats-overlap",
        NOBODY,
        "A heartbeat that is due does not wait for the answer to the one before.",
        ("one-in-flight",),
        LOSSES,
        (Patch(ConsumerMember, "_heartbeat_due_ms", _does_not_wait_for_answers),),
    ),
)
