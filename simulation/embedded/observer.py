"""Watches the coordinators of an embedded cluster: writes the trace, asks the checkers, wakes who waits.

Who watches reads a coordinator as it was after a step, and to look takes longer than the step itself. So a
second one follows the one that answers, some milliseconds behind it, and that is the one that is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from fencepost.coordinator.config import GroupConfig
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed
from fencepost.coordinator.protocol.classic import JoinGroupRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import NOTHING, DeadlineReached, Event, Outcome
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.groups import ServedHooks, Shard
from fencepost.coordinator.server.internal_topics import InternalTopics
from fencepost.simulation.checkers.claims import OneClaimant
from fencepost.simulation.checkers.classic import ClassicGroupsChecker
from fencepost.simulation.checkers.clients import Clients
from fencepost.simulation.checkers.coordination import Coordination
from fencepost.simulation.checkers.journal import compare_coordinators
from fencepost.simulation.checkers.liveness import uncovered
from fencepost.simulation.embedded.names import MemberNames
from fencepost.simulation.embedded.reported_members import ReportedMembers, RoundMembers
from fencepost.simulation.embedded.shadow import ShadowCoordinator
from fencepost.simulation.embedded.view import WORLD, GroupView, ShardView, host_of
from fencepost.simulation.embedded.waiting import Waiting
from fencepost.simulation.kernel.observers import Violation, hook_lists
from fencepost.simulation.trace.groups import GroupTraceWriter
from fencepost.simulation.trace.rows import Event as TraceEvent
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import Row, RowKind
from fencepost.simulation.trace.writer import TraceWriter

KEPT_ROWS: Final = 200_000
"""Older rows of the trace are dropped."""
_LATER_S: Final = 0.005
"""How long a step may stay untold: a client that joins has its partitions by then."""
_MOST_UNTOLD: Final = 64
"""Steps that may stay untold: clients that never rest let no time pass."""


class _Step(NamedTuple):
    """What a coordinator did."""

    shard: Shard
    event: Event
    outcome: Outcome
    failure: AppendFailed | None
    """Why its records were not kept."""
    now_ms: int
    due_ms: int
    """A timer of a real loop fires a little late: what it does is told as of its own time."""


class ObservedHooks(ServedHooks):
    """The hooks of a served host that is observed: each step is told once its records are applied."""

    __slots__ = ("_shadow", "_shard", "_watch")

    def __init__(
        self,
        internal_topics: InternalTopics,
        shard: Shard,
        shadow: ShadowCoordinator,
        watch: EmbeddedObserver,
    ) -> None:
        super().__init__(internal_topics)
        self._shard = shard
        self._shadow = shadow
        self._watch = watch

    def stepped(self, event: Event, outcome: Outcome, now_ms: int) -> None:
        """Note one step; what a timer did is told as of its own time."""
        told_ms = min(now_ms, event.due_ms) if type(event) is DeadlineReached else now_ms
        self._watch.step(_Step(self._shard, event, outcome, self.host.failure, now_ms, told_ms))

    steady = stepped

    def configured(self, group_id: str, config: GroupConfig | None) -> None:
        """Let the shadow count by it, too."""
        self._watch.catch_up()
        self._shadow.coordinator.set_group_config(group_id, config)

    def closing(self) -> None:
        """Tell all that happened: the coordinator is gone for those who observe."""
        self._watch.catch_up()


class _GroupRecorder(TraceRows):
    """Hands the rows of one group to the trace of all."""

    __slots__ = ("_group", "_keep")

    def __init__(self, group: str, keep: Callable[[str, TraceEvent], None]) -> None:
        super().__init__(world=WORLD, group=group)
        self._group = group
        self._keep = keep

    def append(self, event: TraceEvent) -> None:
        """One row."""
        self._keep(self._group, event)


class EmbeddedTraceWriter(GroupTraceWriter):
    """Writes the rows of one group; members have no hosts, but are called by their ids."""

    def _actor(self, event: Any, reply: Any) -> str:
        return str(event.member_id or getattr(reply, "member_id", "") or getattr(event, "client_id", ""))


class _GroupWatch:
    """Those who watch one group."""

    def __init__(self, shard: ShardView, group_id: str, watch: EmbeddedObserver) -> None:
        self.view = GroupView(shard, group_id)
        self._watch = watch
        recorder = _GroupRecorder(group_id, watch.keep)
        self.trace = EmbeddedTraceWriter(recorder)
        observers = (self.trace, OneClaimant())
        for observer in observers:
            observer.attach(self.view, partial(watch.report, group_id))
        self.hooks = hook_lists(observers)
        self.told = ReportedMembers(self.view, self.tell)
        self._in_rounds = RoundMembers(self.view, self._trace)
        self.heard: set[MemberId] = set()
        """Members of whom a request was accepted since the coordinator was loaded.

        Not by JoinGroup: a classic member that has joined does not yet know what it was given. It is told by
        SyncGroup, which a follower may send long after its leader's made the group stable.
        """

    def tell(self, hook: str, *arguments: object) -> None:
        """Tell all that something happened now."""
        for method in self.hooks[hook]:
            method(*arguments, self._watch.now_us)

    def _trace(self, hook: str, *arguments: object) -> None:
        """Write what checkers do not look at."""
        getattr(self.trace, hook)(*arguments, self._watch.now_us)

    def keep_up(self, event: Event, outcome: Outcome) -> None:
        """Know who was heard, what they are called, and who is gone."""
        self._watch.hear(event, outcome)
        member_id = getattr(outcome.reply, "member_id", None) or getattr(event, "member_id", None)
        if member_id and getattr(outcome.reply, "error_code", ErrorCode.NONE) is ErrorCode.NONE:
            if isinstance(event, JoinGroupRequest):
                self.heard.discard(member_id)
            else:
                self.heard.add(member_id)
        for member_id in _removed(self.view, outcome):
            self.heard.discard(member_id)

    def step(self, host: str, event: Event, outcome: Outcome, steady: bool) -> None:
        """A step of the coordinator that is about this group."""
        reply = outcome.reply
        reports = reply is not None and isinstance(event, self.view.heartbeat_requests)
        if reports:
            self.told.before(event, reply)
        self.tell("on_steady_step" if steady else "on_coordinator_step", host, event, outcome)
        if isinstance(event, OffsetCommitRequest):
            self.tell("on_commit", event.member_id, event, reply)
        if reports:
            self.told.after(event, reply, self.view.active)
        for member_id in _removed(self.view, outcome):
            self.told.removed(member_id)
        active = self.view.active
        found = None if steady or active is None else active.kinds.find(self.view.group_id)
        if active is not None and found is not None and not found[0].confirms_by_heartbeat:
            kind, group = found
            self._in_rounds.compare(kind.members(group, {}, active.image), kind.member_state(group))


class _ShardWatch:
    """Those who watch one coordinator."""

    def __init__(self, view: ShardView, report: Callable[[str, str], None]) -> None:
        self.view = view
        observers = (Coordination(), Clients(), ClassicGroupsChecker())
        for observer in observers:
            observer.attach(view, report)
        self.hooks = hook_lists(observers)
        self.groups: dict[str, _GroupWatch] = {}
        self.compared: dict[str, Set[MemberId]] = {}
        """Who was in each group without tombstones of members after its last step: a classic one."""


class EmbeddedObserver:
    """Everybody who watches a cluster. `now_us` is when that happened which is told now, since the start."""

    def __init__(self) -> None:
        self._rows: deque[Row] = deque(maxlen=KEPT_ROWS)
        self._violations: list[Violation] = []
        self.now_us = 0
        self.failure: Exception | None = None
        """What an observer raised first."""
        self.on_member_gone: Callable[[MemberId], None] = lambda member_id: None
        """Called within the step that removes a member, before it is answered."""
        self.on_row: Callable[[Row], None] = lambda row: None
        """Called with each row of the trace."""
        self._start_ms: int | None = None
        self._seq = 0
        self._brokers: Brokers | None = None
        self._shards: dict[int, _ShardWatch] = {}
        self._names = MemberNames()
        self._untold: deque[_Step] = deque()
        self._is_telling = False
        self._timer: asyncio.Handle | None = None
        self._is_due = False
        """Whether that is to tell in the next turn of the loop."""
        self.waiting = Waiting()
        """Those who look again after each step of a coordinator."""

    def attach(self, brokers: Brokers) -> None:
        """Watch these brokers, which have not started yet."""
        self._brokers = brokers
        for shard in brokers.groups.shards:
            self._shards[shard.number] = _ShardWatch(ShardView(brokers, shard), partial(self.report, ""))

    # -- what happens -----------------------------------------------------------------------------------

    def make_hooks(self, shard: Shard, load: Callable[[], GroupCoordinator]) -> ServedHooks:
        """Return the hooks for a shard's host, and make the coordinator that shadows it."""
        assert self._brokers is not None
        shadow = ShadowCoordinator(load())
        self._shards[shard.number].view.shadowed_by(shadow)
        return ObservedHooks(self._brokers.groups.internal_topics, shard, shadow, self)

    def coordinator_state(self, shard: Shard, what: str) -> None:
        """A broker loads a shard, leads it now, or does no more."""
        self.catch_up()
        watch = self._shards[shard.number]
        for group in watch.groups.values():
            group.heard.clear()
            group.trace.drop_waiting(host_of(shard.node_id))
        self._at(self._now_ms())
        self.note(host_of(shard.node_id), RowKind.COORDINATOR, detail=what)
        self._guarded(self._tell, watch.hooks["on_coordinator_state"], host_of(shard.node_id), what)
        self.waiting.wake()

    def note(
        self, actor: str, kind: RowKind, *, state_to: str = "", group: str = "", detail: str = ""
    ) -> None:
        """A row of the trace that is about no step of a coordinator."""
        self.catch_up()
        self._at(self._now_ms())
        self.keep(group, (self.now_us, actor, kind.value, "", state_to, -1, -1, (), "", detail))

    def topic(self, name: str, what: str, partitions: int) -> None:
        """A topic was created, grown or deleted."""
        self.note(name, RowKind.TOPIC, detail=f"{what} {partitions}")
        for watch in self._shards.values():
            for group in watch.groups.values():
                for method in group.hooks["on_topic"]:
                    if not isinstance(getattr(method, "__self__", None), TraceWriter):
                        self._guarded(method, name, what, partitions, self.now_us)

    def step(self, step: _Step) -> None:
        """A step of a coordinator: told behind its answer, in the next turn of the loop if somebody waits."""
        if not _is_steady(step.outcome):
            self._tell_who_is_gone(step)
        self._untold.append(step)
        if len(self._untold) > _MOST_UNTOLD or type(step.event) is OffsetCommitRequest:
            # What is committed is compared with the ends of logs, which go on.
            self.catch_up()
        elif self.waiting and not self._is_due:
            if self._timer is not None:
                self._timer.cancel()
            self._is_due = True
            self._timer = asyncio.get_running_loop().call_soon(self._later)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LATER_S, self._later)

    def _tell_who_is_gone(self, step: _Step) -> None:
        """Tombstones tell it; groups whose members leave none, such as classic ones, are compared."""
        watch, coordinator = self._shards[step.shard.number], step.shard.coordinator
        if coordinator is None:
            return
        for group_id, part in _by_group(step.event, step.outcome):
            found = coordinator.kinds.find(group_id)
            now: Set[MemberId] = frozenset()
            if found is not None and found[0].member_key is None:
                now = frozenset(found[0].member_ids(found[1]))
            gone = (watch.compared.pop(group_id, frozenset()) - now) | set(_removed(watch.view, part))
            if now:
                watch.compared[group_id] = now
            for member_id in gone:
                if not coordinator.kinds.is_member(group_id, member_id):
                    self.on_member_gone(member_id)

    def catch_up(self) -> None:
        """Tell what was not told yet: before anybody looks."""
        if self._is_telling or not self._untold:
            return
        self._is_telling = True
        try:
            while self._untold:
                self._tell_step(self._untold.popleft())
        finally:
            self._is_telling = False
        self.waiting.wake()

    def _later(self) -> None:
        self._timer, self._is_due = None, False
        self.catch_up()

    def _tell_step(self, step: _Step) -> None:
        watch = self._shards[step.shard.number]
        assert watch.view.follower is not None
        follow = watch.view.follower.follow
        self._guarded(follow, step.event, step.outcome, step.failure, step.now_ms)
        if step.outcome is not NOTHING:
            self._at(step.due_ms)
            self._told(watch, step.event, step.outcome)

    def _told(self, watch: _ShardWatch, event: Event, outcome: Outcome) -> None:
        host = host_of(watch.view.shard.node_id)
        steady = _is_steady(outcome)
        watch.view.now_us = self.now_us
        hook = "on_steady_step" if steady else "on_coordinator_step"
        self._guarded(self._tell, watch.hooks[hook], host, event, outcome)
        for group_id, part in _by_group(event, outcome):
            group = watch.groups.get(group_id)
            if group is None:
                group = watch.groups[group_id] = _GroupWatch(watch.view, group_id, self)
            self._guarded(group.keep_up, event, part)
            self._guarded(group.step, host, event, part, steady)

    def _tell(self, methods: Iterable[Callable[..., None]], *arguments: object) -> None:
        for method in methods:
            method(*arguments, self.now_us)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        """An observer that fails must not fail the server, nor the other ones; `check` raises it."""
        try:
            call(*arguments)
        except Exception as error:
            self.failure = self.failure or error

    # -- time, rows, findings ---------------------------------------------------------------------------

    def _now_ms(self) -> int:
        assert self._brokers is not None
        return 0 if self._brokers.clock is None else self._brokers.clock.now_ms()

    def _at(self, now_ms: int) -> None:
        if self._start_ms is None:
            self._start_ms = now_ms
        self.now_us = (now_ms - self._start_ms) * 1_000

    def keep(self, group: str, event: TraceEvent) -> None:
        """Take a row down. Time in the trace never goes back, though a late timer is told of its own time."""
        self._seq += 1
        t_us = max(event[0], self._rows[-1].t_us) if self._rows else event[0]
        row = Row(self._seq, t_us, WORLD, group, *event[1:])
        self._rows.append(row)
        self.on_row(row)

    def hear(self, event: Event, outcome: Outcome) -> None:
        """A step in which members may tell what they are called."""
        self._names.hear(event, outcome)

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the trace up to now, the newest `KEPT_ROWS` of them."""
        self.catch_up()
        return self._rows

    @property
    def seq(self) -> int:
        """The number of the newest row."""
        self.catch_up()
        return self._seq

    @property
    def names(self) -> Mapping[MemberId, str]:
        """What members are called, by member id."""
        self.catch_up()
        return self._names.names

    def report(self, group: str, invariant: str, message: str) -> None:
        """Take a finding down."""
        self._violations.append(
            Violation(invariant=invariant, seq=self._seq, t_us=self.now_us, message=message)
        )
        self.keep(group, (self.now_us, "", RowKind.VIOLATION.value, "", "", -1, -1, (), invariant, message))

    def check(self) -> list[Violation]:
        """All findings up to now, after a look at everything as it is."""
        self.catch_up()
        self._at(self._now_ms())
        for watch in self._shards.values():
            self._guarded(self._tell, watch.hooks["on_end"])
            self._guarded(self._same, watch)
            self._guarded(self._covered, watch)
        if self.failure is not None:
            raise self.failure
        return list(self._violations)

    def _same(self, watch: _ShardWatch) -> None:
        answers, follows = watch.view.shard.coordinator, watch.view.active
        if answers is not None and follows is not None:
            for invariant, message in compare_coordinators(follows, answers, "the coordinator that follows"):
                self.report("", invariant, message)

    def _covered(self, watch: _ShardWatch) -> None:
        coordinator = watch.view.active
        if coordinator is None:
            return
        default = watch.view.config.group_consumer_assignors[0]
        consumer = coordinator.consumer
        for group_id, group in consumer.groups.items():
            stable = group.members and group.state == "Stable"
            if stable and consumer.knows_its_topics(group, coordinator.image):
                for invariant, message in uncovered(group, coordinator.image, default):
                    self.report(group_id, invariant, message)

    # -- what members said -----------------------------------------------------------------------------

    def owned(self, shard: Shard, group_id: str) -> Mapping[MemberId, Partitions]:
        """What each member of a group said last that it owns."""
        self.catch_up()
        group = self._shards[shard.number].groups.get(group_id)
        return {} if group is None else group.told.owned

    def heard(self, shard: Shard, group_id: str) -> Set[MemberId]:
        """Members of a group of whom its coordinator has accepted a request since it was loaded."""
        self.catch_up()
        group = self._shards[shard.number].groups.get(group_id)
        return frozenset() if group is None else group.heard


def _is_steady(outcome: Outcome) -> bool:
    reply = outcome.reply
    return (
        not outcome.records
        and not outcome.effects
        and type(reply) is ConsumerGroupHeartbeatResponse
        and reply.error_code is ErrorCode.NONE
    )


def _removed(view: ShardView, outcome: Outcome) -> Iterator[MemberId]:
    """The members that a step removed; one of them may have come back in it under the same id."""
    for record in outcome.records:
        if record.value is None and isinstance(record.key, view.member_keys):
            yield record.key.member_id  # type: ignore[union-attr]  # those that are looked for have one


def _by_group(event: Event, outcome: Outcome) -> Iterable[tuple[str, Outcome]]:
    """The groups that a step is about, each with its share of the records."""
    group_id = getattr(event, "group_id", None)
    if group_id is not None:
        yield group_id, outcome
        return
    touched = dict.fromkeys(record.key.group_id for record in outcome.records)
    touched.update((each.group_id, None) for each in outcome.effects if hasattr(each, "group_id"))
    for each in touched:
        mine = tuple(record for record in outcome.records if record.key.group_id == each)
        yield each, msgspec.structs.replace(outcome, records=mine)
