"""What the traces of classic and of streams groups have in common: where rows go, and the group's state."""

from __future__ import annotations

from fencepost.simulation.kernel.observers import Observer, Report, WorldView
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind


class GroupRows(Observer):
    """Writes the rows of one group of an embedded cluster."""

    world: WorldView

    def __init__(self, recorder: TraceRows) -> None:
        self._add = recorder.add
        self._state = ""

    def attach(self, world: WorldView, report: Report) -> None:
        """Remember the world."""
        self.world = world

    def _tell_state(self, host: str, state: str, epoch: int, now_us: int) -> None:
        if state != self._state:
            before, self._state = self._state, state
            self._add(
                now_us, host, RowKind.GROUP_STATE.value, state_from=before, state_to=state, group_epoch=epoch
            )
