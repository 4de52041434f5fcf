"""The nemesis of any world: it carries out each entry of a plan at its time, and ends lasting disturbances.

Its verbs are crash, freeze, slow, restart, move, cut and lose, and `instant` for a disturbance without a
duration. Each kind of world maps entries to verbs in `_actions`.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.faults.stage import (
    AnyStage,
    Disturbed,
    DisturbedHost,
    DisturbedProcess,
    HasProcess,
)
from fencepost.simulation.kernel.rules import Direction, Matching, cutting

W = TypeVar("W", bound=Disturbed)
K = TypeVar("K", bound=AnyStage)
H = TypeVar("H")


class Nemesis(abc.ABC, Generic[W]):
    """The base of all nemeses: it disturbs a world. None of its disturbances reaches into the quiet phase."""

    _actions: Mapping[FaultKind, Callable[[PlannedEvent], None]]
    _tells_first: ClassVar[bool] = True
    """True if observers are notified of a fault without a duration before it happens, and not after it."""

    def __init__(self, world: W, plan: FaultPlan) -> None:
        self._world = world
        self._schedule = world.loop
        self._plan = plan
        self._rng = world.draws.random("nemesis")
        self._ongoing: dict[int, tuple[FaultKind, Callable[[], None]]] = {}
        self._number = 0

    def _tell(self, fault: str, phase: str, detail: str) -> None:
        self._world.tell("on_fault", fault, phase, detail)

    def begin(self) -> None:
        """Put the whole plan on the loop."""
        for entry in self._plan.entries:
            self._schedule.schedule(entry.at_us, self._act, entry)
        self._schedule.schedule(self._plan.faults_end_us, self._heal, None)

    def _act(self, entry: PlannedEvent) -> None:
        self._actions[entry.kind](entry)

    def _lasting(self, entry: PlannedEvent, detail: str, end: Callable[[], None]) -> None:
        """Report the begin of a fault; `end` undoes it when its time is over, or when the quiet phase
        begins."""
        self._tell(entry.kind, "begin", detail)
        self._number += 1
        self._ongoing[self._number] = (entry.kind, end)
        self._schedule.schedule(self._schedule.now_us + entry.lasts_us, self._over, self._number)

    def _befallen(self, entry: PlannedEvent, host: HasProcess, end: Callable[[], None]) -> None:
        """Do the same as `_lasting` for a fault of a host's process; its end does not affect a later process.

        A process that a deploy has started may be down or frozen again when the first fault is over.
        """
        generation = host.generation

        def undo() -> None:
            if host.generation == generation:
                end()

        self._lasting(entry, host.name, undo)

    def _over(self, number: int) -> None:
        if (ongoing := self._ongoing.pop(number, None)) is not None:
            kind, end = ongoing
            end()
            self._tell(kind, "end", "")

    def _heal(self, _: object) -> None:
        for number in list(self._ongoing):
            self._over(number)
        self._world.calm()

    def _before_quiet(self, entry: PlannedEvent, lasts_us: int) -> int:
        """Return that length, or less if the quiet phase begins sooner."""
        return min(lasts_us, self._plan.faults_end_us - entry.at_us)

    def _some(self, share: float, names: list[str]) -> list[str]:
        """Draw that share of the names, at least one."""
        return self._rng.sample(names, max(1, round(share * len(names))))

    @staticmethod
    def _chosen(entry: PlannedEvent, hosts: Iterable[H]) -> H | None:
        """Return the host that an entry selects; None if there is no host."""
        found = list(hosts)
        return found[entry.member % len(found)] if found else None

    @staticmethod
    def _upon(
        find: Callable[[PlannedEvent], H | None], verb: Callable[[PlannedEvent, H], None]
    ) -> Callable[[PlannedEvent], None]:
        """Return the action that applies to the host that an entry selects, if there is one."""

        def act(entry: PlannedEvent) -> None:
            if (host := find(entry)) is not None:
                verb(entry, host)

        return act

    # -- verbs --------------------------------------------------------------------------------------------

    def instant(self, entry: PlannedEvent, detail: str, action: Callable[[], object]) -> None:
        """Carry out a disturbance without a duration."""
        if self._tells_first:
            self._tell(entry.kind, "begin", detail)
        action()
        if not self._tells_first:
            self._tell(entry.kind, "begin", detail)

    def crash(self, entry: PlannedEvent, host: DisturbedProcess) -> None:
        """Kill a process; it is started again when the entry is over, if it is to return."""

        def back() -> None:
            if entry.returns and host.wanted:
                host.start()

        host.wanted = host.wanted and entry.returns
        host.crash()
        self._befallen(entry, host, back)

    def freeze(self, entry: PlannedEvent, host: DisturbedHost) -> None:
        """Freeze a process until the entry is over."""
        host.freeze_process()
        self._befallen(entry, host, host.thaw_process)

    def slow(self, entry: PlannedEvent, host: DisturbedProcess) -> None:
        """Make a process's next callback take longer."""
        lasts_us = self._before_quiet(entry, entry.lasts_us)
        self.instant(entry, host.name, lambda: host.slow_callback(lasts_us))

    def restart(self, entry: PlannedEvent, host: DisturbedProcess, *, runs: bool, detail: str) -> None:
        """Restart a process: cleanly if it runs and the entry says so."""
        self._tell(entry.kind, "begin", detail)
        if entry.graceful and runs:
            host.stop(come_back=True)
        else:
            host.crash()
            host.restart_later()

    def move(self, entry: PlannedEvent) -> None:
        """Move the coordinator to another broker or node cleanly."""
        self.instant(entry, "", self._world.cluster.move)


class KafkaNemesis(Nemesis[K]):
    """The nemesis of a world with Kafka brokers; it also disturbs the network between them and
    their clients."""

    def cut(self, entry: PlannedEvent, host: HasProcess) -> None:
        """Break all connections of a process."""
        self.instant(entry, host.name, lambda: self._world.network.cut_all(host.name))

    def fail_appends(self, entry: PlannedEvent) -> None:
        """Make the coordinator's log refuse records until the entry is over."""
        cluster = self._world.cluster
        cluster.fail_appends()
        self._lasting(entry, "", cluster.mend_appends)

    def lose(self, entry: PlannedEvent, host: HasProcess) -> None:
        """Lose a process's next request, or the next response to it, with its connection."""
        direction = Direction.REQUEST if entry.kind is FaultKind.LOST_REQUEST else Direction.RESPONSE
        rule = Matching(cutting, members=(host.name,), direction=direction, limit=1)
        self._once(entry, host.name, rule)

    def _once(self, entry: PlannedEvent, detail: str, rule: Matching) -> None:
        """Add a rule for one message; used-up rules are removed when the next rule is added."""
        rules = self._world.network.rules
        rules[:] = [other for other in rules if not (isinstance(other, Matching) and other.spent)]
        rules.append(rule)
        self._tell(entry.kind, "begin", detail)
