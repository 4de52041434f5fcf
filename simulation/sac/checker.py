"""What the checkers of single active consumers share: a reporter that does not repeat itself for ever."""

from __future__ import annotations

from fencepost.simulation.checkers.base import REPORTS_PER_INVARIANT
from fencepost.simulation.checkers.catalogue import INVARIANTS
from fencepost.simulation.sac.observers import SacObserver


class SacChecker(SacObserver):
    """An observer that reports findings, each invariant a few times at most."""

    def __init__(self) -> None:
        self._reported: dict[str, int] = {}

    def report(self, invariant: str, message: str) -> None:
        """Pass one finding on, unless there were enough of its kind.

        :raises KeyError: if the catalogue has no such invariant.
        """
        INVARIANTS[invariant]
        count = self._reported.get(invariant, 0)
        if count < REPORTS_PER_INVARIANT:
            self._reported[invariant] = count + 1
            self.world.report(invariant, message)
