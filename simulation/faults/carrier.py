"""What every nemesis does, whatever it disturbs: entries at their times, and an end to all that lasts."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping

from fencepost.simulation.faults.draw import Draw, DrawnEvent, FaultKind
from fencepost.simulation.faults.stage import HasProcess
from fencepost.simulation.kernel.supervisor import RunSchedule


class PlanCarrier(abc.ABC):
    """Carries a plan out. A nemesis says in `_actions` how an entry of each kind is done."""

    _actions: Mapping[FaultKind, Callable[[DrawnEvent], None]]

    def __init__(self, schedule: RunSchedule, plan: Draw) -> None:
        self._schedule = schedule
        self._plan = plan
        self._ongoing: dict[int, tuple[FaultKind, Callable[[], None]]] = {}
        self._number = 0

    @abc.abstractmethod
    def _tell(self, fault: str, phase: str, detail: str) -> None:
        """Tell the world's observers of a fault."""

    @abc.abstractmethod
    def _calm(self) -> None:
        """The quiet phase begins; all that lasted has ended."""

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
        self._calm()
