"""Known bugs that take more than an edit: a function in place of another one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

import fencepost.coordinator.assign.registry as assignors
import fencepost.coordinator.consumer.heartbeat as heartbeats
from fencepost.coordinator.assign.spec import Assignor, GroupSpec
from fencepost.coordinator.consumer.groups import ConsumerGroups
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.consumer.owners import PartitionEpochs
from fencepost.coordinator.consumer.reconcile import releases
from fencepost.coordinator.consumer.states import ConsumerGroupMemberState
from fencepost.coordinator.protocol import ids
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.streams import Tasks
from fencepost.coordinator.streams import groups as streams_groups
from fencepost.member.base.actions import CallbackKind
from fencepost.member.base.commits import Commit, CommitKind, Commits
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.consumer.reconciliation import Callback, Pass, PassResult, Reconciler
from fencepost.member.streams.actions import StreamsMoved
from fencepost.member.streams.application.driver import StreamsDriver
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import StreamClientEvent, StreamClientState
from fencepost.simulation.mutants.mutant import CHURN, LOSSES, Mutants, Original, instead_of

_Targets = Mapping[ids.MemberId, ids.Partitions]
_STREAMS: Final = ("streams-failures",)

CODED: Final = Mutants()


@CODED.bug(
    "owner-entry-lost",
    "owners-map one-owner",
    ("churn",),
    (PartitionEpochs, "replace"),
    source="KAFKA-16147",
    overrides=("group.members=2", 'application.callback={median="8s", p99="20s"}'),
)
def _forgetful_map(
    original: Original,
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


@CODED.bug(
    "recomputed-in-revocation",
    "revocation-frozen revocation-bounded",
    ("slow-callbacks-and-poll-timeouts",),
    (heartbeats, "reconcile"),
    source="KAFKA-16249",
)
def _recomputed_in_revocation(
    original: Original,
    member: ConsumerGroupMember,
    *,
    target_epoch: int,
    target: ids.Partitions,
    owned: Any,
    **rest: Any,
) -> ConsumerGroupMember:
    """A new target is applied while a revocation is outstanding."""
    waiting = member.state is ConsumerGroupMemberState.UNREVOKED_PARTITIONS
    if not waiting or releases(owned, member.pending_revocation):
        found: ConsumerGroupMember = original(
            member, target_epoch=target_epoch, target=target, owned=owned, **rest
        )
        return found
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


_put_aside: Final[dict[Reconciler, tuple[Any, int]]] = {}
"""By reconciler, the offsets of a late commit and its time. Members themselves have no place for it."""


def _commit_after_release(
    original: Original, self: Any, callback: Callback, error: BaseException | None, now_ms: int
) -> None:
    """The commit that was put aside is sent after the callback has ended."""
    original(self, callback, error, now_ms)
    if self.reconciler in _put_aside and callback.kind is CallbackKind.REVOKED:
        self.commits.make(CommitKind.AUTO, *_put_aside.pop(self.reconciler), self.reconciler.topic_ids())


_left_behind: Final[dict[ConsumerMember, int]] = {}
"""The epoch of each member before its last step."""


@CODED.bug(
    "revoked-partition-committed-late",
    "commit-before-release commit-while-owned",
    ("slow-callbacks-and-poll-timeouts", *CHURN),
    (Reconciler, "_commit"),
    source="KIP-848, Rebalance Listener",
    also=(instead_of(ConsumerMember, "_callback_ended", _commit_after_release),),
    memory=(_put_aside,),
)
def _late_commit(_: Original, self: Reconciler, current: Pass, offsets: Any, deadline_ms: int) -> PassResult:
    """A member commits a revoked partition's records after it released the partition."""
    _put_aside[self] = offsets, deadline_ms
    return self._revoke(current)


@CODED.bug(
    "commit-with-old-epoch",
    "epoch-as-answered",
    CHURN,
    (ConsumerMember, "_send_others"),
    source="franz-go 6f5471d4",
    memory=(_left_behind,),
)
def _epoch_of_the_step_before(original: Original, self: ConsumerMember, now_ms: int) -> None:
    """A commit carries an epoch older than the member's."""
    newest = self.member_epoch
    self.member_epoch = _left_behind.get(self, newest)
    try:
        original(self, now_ms)
    finally:
        self.member_epoch = _left_behind[self] = newest


def _assignor(name: str, expected: str) -> Callable[[Callable[[Assignor, GroupSpec], _Targets]], Any]:
    """Return a decorator of a changed uniform assignor, which takes the original one before the group."""

    def add(change: Callable[[Assignor, GroupSpec], _Targets]) -> Any:
        def replace(built_in: Mapping[str, Assignor]) -> Mapping[str, Assignor]:
            return {**built_in, "uniform": functools.partial(change, built_in["uniform"])}

        replace.__doc__ = change.__doc__
        return CODED.bug(name, expected, CHURN, (assignors, "BUILT_IN"))(replace)

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
    targets: dict[ids.MemberId, dict[str, tuple[int, ...]]] = {}
    for topic_id, count in spec.partitions.items():
        owner = next(m for m, topics in spec.subscriptions.items() if topic_id in topics)
        targets.setdefault(owner, {})[topic_id] = tuple(range(count))
    return targets


@CODED.bug("refusal-writes", "failed-changes-nothing", LOSSES, (ConsumerGroups, "heartbeat"))
def _refusal_writes(original: Original, self: ConsumerGroups, request: Any, now_ms: int) -> Outcome:
    """A refused heartbeat raises the group epoch."""
    outcome: Outcome = original(self, request, now_ms)
    reply, group = outcome.reply, self.groups.get(request.group_id)
    if group is None or not isinstance(reply, ConsumerGroupHeartbeatResponse) or not reply.error_code:
        return outcome
    value = r.ConsumerGroupMetadataValue(group.group_epoch + 1, group.metadata_hash)
    return Outcome(records=(r.Record(r.ConsumerGroupMetadataKey(group.group_id), value),), reply=reply)


_RETRY_DEADLINE_MS: Final = 30_000
"""Deadline of the commit that is sent again, in ms."""


_lost: Final[dict[int, Commit]] = {}
"""Commits without a response, by the identity of their member's queue."""


def _lost_is_sent_again(original: Original, self: Commits, token: int, response: Any, now_ms: int) -> Any:
    """A commit without a response is sent again after the commit that followed it."""
    found = original(self, token, response, now_ms)
    ended = found is not None and found[3]
    if ended and (lost := _lost.pop(id(self), None)) is not None and lost is not found[0]:
        self.make(CommitKind.AUTO, dict(lost.offsets), now_ms + _RETRY_DEADLINE_MS, {})
    return found


@CODED.bug(
    "retry-overtakes",
    "offsets-advance",
    ("manual-commits", "rolling-deploy", "lossy-network"),
    (Commits, "failed"),
    also=(instead_of(Commits, "answered", _lost_is_sent_again),),
    memory=(_lost,),
)
def _lost_is_kept(original: Original, self: Commits, token: int, now_ms: int) -> Any:
    """A commit without a response is sent again after a newer commit."""
    if self._sent is not None:
        _lost[id(self)] = self._sent
    return original(self, token, now_ms)


@CODED.bug(
    "error-left-by-close",
    "streams-terminal streams-transitions",
    _STREAMS,
    (StreamsClient, "close"),
    source="KIP-696",
)
def _leaves_error(original: Original, self: StreamsClient) -> Any:
    """close() moves a client from ERROR to PENDING_SHUTDOWN."""
    if self.state is not StreamClientState.ERROR:
        return original(self)
    self._actions.append(
        StreamsMoved(
            self.level, self.name, StreamClientEvent.CLOSE, self.state, StreamClientState.PENDING_SHUTDOWN
        )
    )
    self.state = StreamClientState.PENDING_SHUTDOWN
    self._closing_resources = False
    return self._done()


@CODED.bug("listeners-out-of-order", "streams-listener", _STREAMS, (StreamsDriver, "_tell_listener"))
def _calls_later(original: Original, self: StreamsDriver, step: StreamsMoved) -> None:
    """The listener's call for a rebalance arrives after the call for the client's next step."""

    async def call() -> None:
        original(self, step)

    if step.event == StreamClientEvent.REBALANCING:
        self.runtime.spawn(call(), "listener")
    else:
        original(self, step)


@CODED.bug("task-left-out", "streams-target", _STREAMS, (streams_groups, "sticky"))
def _one_task_left_out(original: Original, spec: Any) -> Any:
    """The target of one member lacks its last task, which no member gets."""
    found = dict(original(spec))
    member_id = max(found)
    active = {one: numbers[:-1] for one, numbers in found[member_id].active.items() if numbers[:-1]}
    found[member_id] = Tasks(active, found[member_id].standby)
    return found
