"""The observer of an embedded cluster: it lets shadow coordinators and all other observers follow each step.

Observers lag some milliseconds behind the coordinators that serve clients, and catch up before a test reads
them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import islice
from typing import Any, Final

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import NOTHING
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.groups import ServedHooks, Shard
from fencepost.simulation.embedded.group_observers import (
    GroupObservers,
    ShardObservers,
    by_group,
    is_steady,
    removed_members,
)
from fencepost.simulation.embedded.kept_trace import KeptTrace
from fencepost.simulation.embedded.replayed import ReplayedShard, host_of
from fencepost.simulation.embedded.shadow import ObservedHooks, ObservedStep, ShadowCoordinator
from fencepost.simulation.embedded.waiting import Waiting
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.trace.schema import Row, RowKind

_LAG_S: Final = 0.005
"""Time that a step may stay unobserved, in seconds: a client that joins has its partitions by then."""
_MAX_LAG: Final = 64
"""The limit on unobserved steps: busy clients leave no idle turn of the loop."""


class EmbeddedObserver:
    """Follows all coordinators of a cluster. It is made before the brokers start."""

    def __init__(self) -> None:
        self.trace = KeptTrace()
        self.failure: Exception | None = None
        """The first exception of an observer."""
        self.on_member_gone: Callable[[MemberId], None] = lambda member_id: None
        """Called within the step that removes a member, before its response is sent."""
        self.on_step: Callable[[ObservedStep], None] = lambda step: None
        """Called with each step of a coordinator once its records are applied."""
        self.waiting = Waiting()
        """Tests that wait; they check their condition again after each step of a coordinator."""
        self._brokers: Brokers | None = None
        self._shards: dict[int, ShardObservers] = {}
        self._steps: deque[ObservedStep] = deque()
        self._is_catching_up = False
        self._timer: asyncio.Handle | None = None
        self._is_due = False
        """True if steps are to be observed in the next turn of the loop."""

    def attach(self, brokers: Brokers) -> None:
        """Observe these brokers, which have not started yet."""
        self._brokers = brokers
        for shard in brokers.groups.shards:
            replayed = ReplayedShard(brokers, shard)
            self._shards[shard.number] = ShardObservers(replayed, self.trace, self._guarded)

    # -- steps ------------------------------------------------------------------------------------------

    def make_hooks(self, shard: Shard, load: Callable[[], GroupCoordinator]) -> ServedHooks:
        """Return the hooks for a shard's host, and make the coordinator that shadows it."""
        assert self._brokers is not None
        shadow = ShadowCoordinator(load())
        self._shards[shard.number].replayed.shadowed_by(shadow)
        return ObservedHooks(self._brokers.groups.internal_topics, shard, shadow, self._step, self.catch_up)

    def _step(self, step: ObservedStep) -> None:
        """Queue a step. It is observed after its response is sent, or in the next turn of the loop if a test
        waits."""
        if not is_steady(step.outcome):
            self._note_removed(step)
        self._steps.append(step)
        self.on_step(step)
        if len(self._steps) > _MAX_LAG or type(step.event) is OffsetCommitRequest:
            # Committed offsets are compared with the ends of logs, which grow.
            self.catch_up()
        elif self.waiting and not self._is_due:
            if self._timer is not None:
                self._timer.cancel()
            self._is_due = True
            self._timer = asyncio.get_running_loop().call_soon(self._due)
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LAG_S, self._due)

    def _note_removed(self, step: ObservedStep) -> None:
        """Find removed members by tombstones. Groups whose members leave none are compared."""
        coordinator = step.shard.coordinator
        if coordinator is None:
            return
        shard = self._shards[step.shard.number]
        member_keys = shard.replayed.member_keys
        for group_id, part in by_group(step.event, step.outcome):
            found = coordinator.kinds.find(group_id)
            now: Set[MemberId] = frozenset()
            if found is not None and found[0].member_key is None:
                now = frozenset(found[0].member_ids(found[1]))
            gone = (shard.compared.pop(group_id, frozenset()) - now) | set(removed_members(part, member_keys))
            if now:
                shard.compared[group_id] = now
            for member_id in gone:
                if not coordinator.kinds.is_member(group_id, member_id):
                    self.on_member_gone(member_id)

    def catch_up(self) -> None:
        """Observe all steps that were not observed yet."""
        if self._is_catching_up or not self._steps:
            return
        self._is_catching_up = True
        try:
            while self._steps:
                self._observe(self._steps.popleft())
        finally:
            self._is_catching_up = False
        self.waiting.wake()

    def _due(self) -> None:
        self._timer, self._is_due = None, False
        self.catch_up()

    def _observe(self, step: ObservedStep) -> None:
        shard = self._shards[step.shard.number]
        assert shard.replayed.shadow is not None
        self._guarded(shard.replayed.shadow.repeat, step)
        if step.outcome is not NOTHING:
            self.trace.set_time(step.due_ms)
        shard.step(step.event, step.outcome, step.now_ms)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        """Keep the first failure of an observer, which must not fail the server; `check` raises it."""
        try:
            call(*arguments)
        except Exception as error:
            self.failure = self.failure or error

    # -- everything else that happens -------------------------------------------------------------------

    def coordinator_state(self, shard: Shard, what: str) -> None:
        """Observe that a broker loads a shard, becomes its leader, or resigns."""
        self.catch_up()
        observers = self._shards[shard.number]
        observers.repeated.clear()
        for group in observers.groups.values():
            group.confirmed.clear()
            group.trace_writer.drop_waiting(host_of(shard.node_id))
        self.note(host_of(shard.node_id), RowKind.COORDINATOR, detail=what)
        observers.notify("on_coordinator_state", host_of(shard.node_id), what)
        self.waiting.wake()

    def note(
        self,
        actor: str,
        kind: RowKind,
        *,
        state_to: str = "",
        group: str = "",
        error: str = "",
        detail: str = "",
    ) -> None:
        """Write a row of the trace that belongs to no step of a coordinator."""
        self.catch_up()
        self._set_time()
        self.trace.note(actor, kind, state_to, group, detail, error=error)

    def called(self, method: str, detail: str = "", *, group: str = "", state_to: str = "begin") -> None:
        """Write that a test called a method, under the method's name."""
        self.note(method, RowKind.FAULT, state_to=state_to, group=group, detail=detail)

    def topic(self, name: str, what: str, partitions: int) -> None:
        """Observe that a topic was created, got more partitions, or was deleted."""
        self.note(name, RowKind.TOPIC, detail=f"{what} {partitions}")
        for shard in self._shards.values():
            shard.repeated.clear()
            for group in shard.groups.values():
                group.topic(name, what, partitions, self._guarded)

    def _set_time(self) -> None:
        assert self._brokers is not None
        self.trace.set_time(0 if self._brokers.clock is None else self._brokers.clock.now_ms())

    # -- what a test reads ------------------------------------------------------------------------------

    @property
    def rows(self) -> Sequence[Row]:
        """The rows of the trace up to now."""
        self.catch_up()
        return self.trace.rows

    def rows_since(self, seq: int, most: int | None = None) -> list[Row]:
        """Return the oldest rows after the one with that number, `most` at most."""
        rows = self.rows
        number = max(0, min(len(rows), self.trace.seq - seq))
        if 2 * number < len(rows):  # the middle of a deque is far from its begin
            newest = list(islice(reversed(rows), number))
            return newest[: -most - 1 : -1] if most is not None else newest[::-1]
        first = len(rows) - number
        return list(islice(rows, first, None if most is None else first + most))

    @property
    def seq(self) -> int:
        """The number of the newest row."""
        self.catch_up()
        return self.trace.seq

    @property
    def names(self) -> Mapping[MemberId, str]:
        """The names of members, by member id."""
        self.catch_up()
        return self.trace.names.names

    def check(self, prefix: str = "") -> list[Violation]:
        """Check the current state of everything, and return all violations up to now.

        With a prefix, they are those of a group whose id begins so, or that were seen in a step of one.
        """
        self.catch_up()
        self._set_time()
        for shard in self._shards.values():
            shard.check()
        if self.failure is not None:
            raise self.failure
        trace = self.trace
        return [
            each
            for each, group in zip(trace.violations, trace.violated_by, strict=True)
            if group.startswith(prefix)
        ]

    def _group(self, shard: Shard, group_id: str) -> GroupObservers | None:
        self.catch_up()
        return self._shards[shard.number].groups.get(group_id)

    def owned(self, shard: Shard, group_id: str) -> Mapping[MemberId, Partitions]:
        """Return the partitions that each member of a group last reported as owned."""
        group = self._group(shard, group_id)
        return {} if group is None else group.members.owned

    def confirmed(self, shard: Shard, group_id: str) -> Set[MemberId]:
        """Return the members of a group with an accepted request since its coordinator was loaded."""
        group = self._group(shard, group_id)
        return frozenset() if group is None else group.confirmed
