"""The nemesis of any world: it does what a plan says, each entry at its time, and ends all that lasts.

Its verbs are crash, freeze, slow, restart, move, cut and lose, and `instant` for what lasts no time. A kind
of world says in `_actions` which of them an entry is.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

from fencepost.simulation.faults.draw import Draw, DrawnEvent, FaultKind
from fencepost.simulation.faults.stage import (
    AnyStage,
    DisturbedHost,
    DisturbedProcess,
    DisturbedWorld,
    HasProcess,
)
from fencepost.simulation.kernel.rules import Direction, Matching, cutting

W = TypeVar("W", bound=DisturbedWorld)
K = TypeVar("K", bound=AnyStage)
H = TypeVar("H")


class Nemesis(abc.ABC, Generic[W]):
    """What disturbs a world. Nothing that it does reaches into the quiet phase."""

    _actions: Mapping[FaultKind, Callable[[DrawnEvent], None]]
    _tells_first: ClassVar[bool] = True
    """Whether observers are told of a fault that lasts no time before it happens, and not after it."""

    def __init__(self, world: W, plan: Draw) -> None:
        self._world = world
        self._schedule = world.loop
        self._plan = plan
        self._rng = world.streams.random("nemesis")
        self._ongoing: dict[int, tuple[FaultKind, Callable[[], None]]] = {}
        self._number = 0

    def _tell(self, fault: str, phase: str, detail: str) -> None:
        self._world.tell("on_fault", fault, phase, detail)

    def begin(self) -> None:
        """Put the whole plan on the loop."""
        for entry in self._plan.entries:
            self._schedule.schedule(entry.at_us, self._act, entry)
        self._schedule.schedule(self._plan.faults_end_us, self._heal, None)

    def _act(self, entry: DrawnEvent) -> None:
        self._actions[entry.kind](entry)

    def _lasting(self, entry: DrawnEvent, detail: str, end: Callable[[], None]) -> None:
        """A fault has begun; `end` undoes it when its time is over, or when the quiet phase begins."""
        self._tell(entry.kind, "begin", detail)
        self._number += 1
        self._ongoing[self._number] = (entry.kind, end)
        self._schedule.schedule(self._schedule.now_us + entry.lasts_us, self._over, self._number)

    def _befallen(self, entry: DrawnEvent, host: HasProcess, end: Callable[[], None]) -> None:
        """As `_lasting`, of what a host's process has suffered; a later process does not suffer its end.

        Whom a deploy has started may be down for another time, or stand still, when the first is over.
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

    def _before_quiet(self, entry: DrawnEvent, lasts_us: int) -> int:
        """Return that length, or less if the quiet phase begins sooner."""
        return min(lasts_us, self._plan.faults_end_us - entry.at_us)

    def _some(self, share: float, names: list[str]) -> list[str]:
        """Draw that share of the names, at least one."""
        return self._rng.sample(names, max(1, round(share * len(names))))

    @staticmethod
    def _chosen(entry: DrawnEvent, hosts: Iterable[H]) -> H | None:
        """Return the host that an entry means; None if there is none."""
        found = list(hosts)
        return found[entry.member % len(found)] if found else None

    @staticmethod
    def _upon(
        find: Callable[[DrawnEvent], H | None], verb: Callable[[DrawnEvent, H], None]
    ) -> Callable[[DrawnEvent], None]:
        """Return the action that does something to the host that an entry means, if there is one."""

        def act(entry: DrawnEvent) -> None:
            if (host := find(entry)) is not None:
                verb(entry, host)

        return act

    # -- verbs --------------------------------------------------------------------------------------------

    def instant(self, entry: DrawnEvent, detail: str, action: Callable[[], object]) -> None:
        """Do something that lasts no time."""
        if self._tells_first:
            self._tell(entry.kind, "begin", detail)
        action()
        if not self._tells_first:
            self._tell(entry.kind, "begin", detail)

    def crash(self, entry: DrawnEvent, host: DisturbedProcess) -> None:
        """End a process without a word; it is started again when the entry is over, if it is to return."""

        def back() -> None:
            if entry.returns and host.wanted:
                host.start()

        host.wanted = host.wanted and entry.returns
        host.crash()
        self._befallen(entry, host, back)

    def freeze(self, entry: DrawnEvent, host: DisturbedHost) -> None:
        """Let a process stand still until the entry is over."""
        host.freeze_process()
        self._befallen(entry, host, host.thaw_process)

    def slow(self, entry: DrawnEvent, host: DisturbedProcess) -> None:
        """Let a process's next callback take longer."""
        lasts_us = self._before_quiet(entry, entry.lasts_us)
        self.instant(entry, host.name, lambda: host.slow_callback(lasts_us))

    def restart(self, entry: DrawnEvent, host: DisturbedProcess, *, runs: bool, detail: str) -> None:
        """Restart a process: in good order if it runs and the entry says so."""
        self._tell(entry.kind, "begin", detail)
        if entry.graceful and runs:
            host.stop(come_back=True)
        else:
            host.crash()
            host.restart_later()

    def move(self, entry: DrawnEvent) -> None:
        """Move the coordinator to another broker or node in good order."""
        self.instant(entry, "", self._world.cluster.move)


class KafkaNemesis(Nemesis[K]):
    """What disturbs a world with Kafka brokers: also what is between them and their clients."""

    def cut(self, entry: DrawnEvent, host: HasProcess) -> None:
        """Break all connections of a process."""
        self.instant(entry, host.name, lambda: self._world.network.cut_all(host.name))

    def lose(self, entry: DrawnEvent, host: HasProcess) -> None:
        """Lose a process's next request, or the next response to it, with its connection."""
        direction = Direction.REQUEST if entry.kind is FaultKind.LOST_REQUEST else Direction.RESPONSE
        rule = Matching(cutting, members=(host.name,), direction=direction, limit=1)
        self._once(entry, host.name, rule)

    def _once(self, entry: DrawnEvent, detail: str, rule: Matching) -> None:
        """A rule for one message; rules that are used up go when the next one comes."""
        rules = self._world.network.rules
        rules[:] = [other for other in rules if not (isinstance(other, Matching) and other.spent)]
        rules.append(rule)
        self._tell(entry.kind, "begin", detail)
