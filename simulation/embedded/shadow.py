"""A second coordinator, for those who observe: it takes the same steps, behind the one that answers."""

from __future__ import annotations

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.host import AppendFailed, CoordinatorHost
from fencepost.coordinator.protocol.outcome import Event, Outcome
from fencepost.coordinator.protocol.records import Record


class ShadowDiverged(Exception):
    """The same step led to something else."""


class _Again:
    """A journal that fails where the other one did."""

    failure: AppendFailed | None = None

    def append(self, records: tuple[Record, ...]) -> None:
        if self.failure is not None:
            raise self.failure


class ShadowCoordinator:
    """Coordinators are pure: the same events at the same times lead to the same outcomes."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self.coordinator = coordinator
        """As it was after the last step that was taken here, which may be some steps ago."""
        self._journal = _Again()
        self._host = CoordinatorHost(coordinator, self._journal)

    def follow(self, event: Event, outcome: Outcome, failure: AppendFailed | None, now_ms: int) -> None:
        """Take a step that had this outcome, or whose records could not be appended.

        :raises ShadowDiverged: if it leads to another one.
        """
        self._journal.failure = failure
        mine = self._host.step(event, now_ms)
        if mine != outcome:
            raise ShadowDiverged(f"{event} led to {outcome}, and to {mine} when it was taken again")
