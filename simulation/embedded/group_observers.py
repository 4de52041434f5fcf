"""The observers of an embedded cluster, by group and by coordinator: trace writers and judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from typing import Any

import msgspec

from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import NOTHING, Event, Outcome
from fencepost.simulation.embedded.kept_trace import KeptGroupRows, KeptTrace
from fencepost.simulation.embedded.replayed import ReplayedGroup, ReplayedShard, host_of
from fencepost.simulation.embedded.reported_members import ReportedMembers, RoundMembers
from fencepost.simulation.judge.base import Judge
from fencepost.simulation.judge.claims import OneClaimant
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from fencepost.simulation.judge.clients import Clients
from fencepost.simulation.judge.coordination import Coordination
from fencepost.simulation.judge.journal import compare_coordinators
from fencepost.simulation.judge.liveness import uncovered
from fencepost.simulation.kernel.observers import hook_lists
from fencepost.simulation.trace.groups import GroupTraceWriter
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.writer import TraceWriter

Guarded = Callable[..., None]
"""Calls its first argument with the others, so that an observer that fails does not stop the others."""


class EmbeddedTraceWriter(GroupTraceWriter):
    """Writes the rows of one group. Members have no hosts, so they are named by their ids.

    `fenced` are the members that a test has fenced, which the coordinator sees leave.
    """

    def __init__(self, rows: TraceRows, fenced: Set[MemberId]) -> None:
        super().__init__(rows)
        self._fenced = fenced

    def _reason(self, member_id: MemberId, event: Any, outcome: Outcome) -> str:
        return "fenced" if member_id in self._fenced else super()._reason(member_id, event, outcome)

    def _actor(self, event: Any, reply: Any) -> str:
        return str(event.member_id or getattr(reply, "member_id", "") or getattr(event, "client_id", ""))


class GroupObservers:
    """The observers of one group."""

    def __init__(self, shard: ReplayedShard, group_id: str, trace: KeptTrace) -> None:
        self.replayed = ReplayedGroup(shard, group_id)
        self._trace = trace
        rows = KeptGroupRows(group_id, trace)
        self.trace_writer = EmbeddedTraceWriter(rows, trace.fenced)
        observers = (self.trace_writer, OneClaimant())
        for observer in observers:
            observer.attach(self.replayed, partial(trace.report, group_id))
        self.hooks = hook_lists(observers)
        self.members = ReportedMembers(self.replayed, self.notify)
        self._round_members = RoundMembers(self.replayed, self._write)
        self.confirmed: set[MemberId] = set()
        """Members with an accepted request since the coordinator was loaded.

        JoinGroup does not count. A classic member learns its assignment by SyncGroup, and a follower may send
        that long after the leader's SyncGroup made the group stable.
        """

    def notify(self, hook: str, *arguments: object) -> None:
        """Notify all observers by this hook."""
        for method in self.hooks[hook]:
            method(*arguments, self._trace.now_us)

    def _write(self, hook: str, *arguments: object) -> None:
        """Write rows that judges do not need."""
        getattr(self.trace_writer, hook)(*arguments, self._trace.now_us)

    def note_members(self, event: Event, outcome: Outcome) -> None:
        """Note which members had a request accepted, their names, and which members were removed."""
        self._trace.names.note(event, outcome)
        member_id = getattr(outcome.reply, "member_id", None) or getattr(event, "member_id", None)
        if member_id and getattr(outcome.reply, "error_code", ErrorCode.NONE) is ErrorCode.NONE:
            if isinstance(event, JoinGroupRequest):
                self.confirmed.discard(member_id)
            else:
                self.confirmed.add(member_id)
        for member_id in removed_members(outcome, self.replayed.member_keys):
            self.confirmed.discard(member_id)

    def step(self, host: str, event: Event, outcome: Outcome, steady: bool) -> None:
        """Notify all observers of a step of this group."""
        reply = outcome.reply
        reports = reply is not None and isinstance(event, self.replayed.heartbeat_requests)
        if reports:
            self.members.before(event, reply)
        self.notify("on_steady_step" if steady else "on_coordinator_step", host, event, outcome)
        if isinstance(event, OffsetCommitRequest):
            self.notify("on_commit", event.member_id, event, reply)
        if reports:
            self.members.after(event, reply, self.replayed.active)
        for member_id in removed_members(outcome, self.replayed.member_keys):
            self.members.removed(member_id)
        active = self.replayed.active
        same = steady or isinstance(event, OffsetCommitRequest)  # members are unchanged
        found = None if same or active is None else active.kinds.find(self.replayed.group_id)
        if active is not None and found is not None and not found[0].confirms_by_heartbeat:
            kind, group = found
            self._round_members.compare(kind.members(group, {}, active.image), kind.member_state(group))

    def topic(self, name: str, what: str, partitions: int, guarded: Guarded) -> None:
        """Notify judges of a topic. The trace has one row about it for all groups."""
        for method in self.hooks["on_topic"]:
            if not isinstance(getattr(method, "__self__", None), TraceWriter):
                guarded(method, name, what, partitions, self._trace.now_us)


class ShardObservers:
    """The observers of one coordinator, and of each of its groups."""

    def __init__(self, replayed: ReplayedShard, trace: KeptTrace, guarded: Guarded) -> None:
        self.replayed = replayed
        self._trace = trace
        self._guarded = guarded
        coordination, self._rounds = Coordination(), ClassicRounds()
        coordination.has_the_time = self._rounds.has_the_time = False  # a test may move the clock
        observers = (coordination, Clients(), self._rounds)
        for observer in observers:
            observer.attach(replayed, partial(self._report, observer))
        self._hooks = hook_lists(observers)
        # Steps of classic groups are judged at the coordinator's own time. The trace has the time at which a
        # late timer was due.
        steps = self._hooks["on_coordinator_step"]
        self._hooks["on_coordinator_step"] = tuple(filter(self._rounds.on_coordinator_step.__ne__, steps))
        self._coordination = coordination
        self.groups: dict[str, GroupObservers] = {}
        self.repeated: dict[MemberId, tuple[Event, Outcome]] = {}
        """The last heartbeat of each member since anything changed: one like it brings only its time."""
        self.compared: dict[str, Set[MemberId]] = {}
        """The members, after its last step, of each group whose members leave no tombstones: classic ones."""

    @property
    def host(self) -> str:
        """The name of the broker that leads the shard."""
        return host_of(self.replayed.shard.node_id)

    def _report(self, judge: Judge, invariant: str, message: str, /, rule: str = "") -> None:
        self._trace.report(judge.about, invariant, message, rule)

    def notify(self, hook: str, *arguments: object) -> None:
        """Notify the coordinator's own observers by this hook."""
        self._guarded(self._notify, hook, *arguments)

    def _notify(self, hook: str, *arguments: object) -> None:
        for method in self._hooks[hook]:
            method(*arguments, self._trace.now_us)

    def step(self, event: Event, outcome: Outcome, now_ms: int) -> None:
        """Notify all observers of a step that the shadow coordinator has taken at that time of its own."""
        host, steady, own_us = self.host, is_steady(outcome), now_ms * 1_000
        if outcome is NOTHING:
            self._guarded(self._rounds.on_coordinator_step, host, event, outcome, own_us)
            return
        self.replayed.now_us = self._trace.now_us
        if steady and self._is_repeated(event, outcome):
            self._guarded(self._repeat, host, event, outcome)
            return
        self._trace.group = getattr(event, "group_id", None) or ""
        if steady:
            self.notify("on_steady_step", host, event, outcome)
        else:
            self.repeated.clear()
            self.notify("on_coordinator_step", host, event, outcome)
            self._guarded(self._rounds.on_coordinator_step, host, event, outcome, own_us)
        self._trace.group = ""
        for group_id, part in by_group(event, outcome):
            group = self.groups.get(group_id)
            if group is None:
                group = self.groups[group_id] = GroupObservers(self.replayed, group_id, self._trace)
            self._guarded(group.note_members, event, part)
            self._guarded(group.step, host, event, part, steady)

    def _is_repeated(self, event: Any, outcome: Outcome) -> bool:
        """Return true for a heartbeat that is its member's last one, down to the response."""
        last = self.repeated.get(event.member_id)
        if last is not None and last[0] is event and last[1] is outcome:
            return True
        self.repeated[event.member_id] = event, outcome
        return False

    def _repeat(self, host: str, event: Any, outcome: Outcome) -> None:
        self._coordination.on_steady_step(host, event, outcome, self._trace.now_us)
        self.groups[event.group_id].notify("on_steady_step", host, event, outcome)

    def check(self) -> None:
        """Check the current state of everything."""
        self.notify("on_end")
        self._guarded(self._check_shadow)
        self._guarded(self._check_covered)

    def _check_shadow(self) -> None:
        answers, shadow = self.replayed.shard.coordinator, self.replayed.active
        if answers is not None and shadow is not None:
            for invariant, message in compare_coordinators(shadow, answers, "the shadow coordinator"):
                self._trace.report("", invariant, message)

    def _check_covered(self) -> None:
        coordinator = self.replayed.active
        if coordinator is None:
            return
        default = self.replayed.config.group_consumer_assignors[0]
        consumer = coordinator.consumer
        for group_id, group in consumer.groups.items():
            stable = group.members and group.state == "Stable"
            if stable and consumer.knows_its_topics(group, coordinator.image):
                for invariant, message in uncovered(group, coordinator.image, default):
                    self._trace.report(group_id, invariant, message)


def is_steady(outcome: Outcome) -> bool:
    """Return true for an accepted heartbeat that changed nothing."""
    reply = outcome.reply
    return (
        not outcome.records
        and not outcome.effects
        and type(reply) is ConsumerGroupHeartbeatResponse
        and reply.error_code is ErrorCode.NONE
    )


def removed_members(outcome: Outcome, member_keys: tuple[type, ...]) -> Iterator[MemberId]:
    """Yield the members that a step removed; a member may return in the same step under the same id."""
    for record in outcome.records:
        if record.value is None and isinstance(record.key, member_keys):
            yield record.key.member_id  # type: ignore[union-attr]  # those that are looked for have one


def by_group(event: Event, outcome: Outcome) -> Iterable[tuple[str, Outcome]]:
    """Yield the groups that a step changes, each with its share of the records."""
    group_id: Any = getattr(event, "group_id", None)
    if group_id is not None:
        yield group_id, outcome
        return
    touched = dict.fromkeys(record.key.group_id for record in outcome.records)
    touched.update((each.group_id, None) for each in outcome.effects if hasattr(each, "group_id"))
    for each in touched:
        mine = tuple(record for record in outcome.records if record.key.group_id == each)
        yield each, msgspec.structs.replace(outcome, records=mine)
