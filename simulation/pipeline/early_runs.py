"""Runs in processes next to the driver. They need no Spark, whose session may start at the same time."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fencepost.simulation.pipeline.runs import child_for
from fencepost.simulation.pipeline.tasks import Task
from fencepost.simulation.pipeline.worker import PartFiles

if TYPE_CHECKING:
    from fencepost.simulation.pipeline.runs import JobSpec

_LOOK_S: Final = 0.25
"""Longest time between two looks at what else has happened, in seconds."""


class EarlyRuns(contextlib.ExitStack):
    """Processes that do runs of one job, each with parts of its own."""

    def __init__(self, job: JobSpec, processes: int) -> None:
        import fencepost.simulation.judge
        import fencepost.simulation.run  # noqa: F401  # once, before processes are forked

        super().__init__()
        root, prefix = Path(job.root), f"part-{job.generation:03d}-early"
        self._lanes = [
            (self.enter_context(child_for(job)), PartFiles(root, f"{prefix}{number:03d}"))
            for number in range(processes)
        ]
        for _, parts in self._lanes:
            self.callback(parts.flush)  # after an interrupt, too

    def do(
        self,
        tasks: Sequence[Task],
        ended: Callable[[Task, float], None],
        *,
        until: float | None = None,
        leave: Callable[[], bool] = lambda: False,
    ) -> list[Task]:
        """Do runs in this order until `leave` returns true, and return those that have not begun.

        `ended` is called with each run and its wall time in seconds. Runs that are under way at the end go
        on: `finish` waits for them. Those that have not ended by `until`, in seconds since 1970, are given
        up.
        """
        waiting = deque(tasks)
        while waiting and not leave():
            for child, _ in self._lanes:
                if waiting and child.task is None:
                    child.begin(waiting.popleft())
            self.collect(ended, _LOOK_S if until is None else min(_LOOK_S, max(0.0, until - time.time())))
            if until is not None and time.time() >= until:
                waiting.clear()
        if not waiting:
            self.finish(ended, until=until)
        return list(waiting)

    def collect(self, ended: Callable[[Task, float], None], wait_s: float = 0.0) -> None:
        """Take the runs that end within that time."""
        busy = [(child, parts) for child, parts in self._lanes if child.task is not None]
        wait([child.fileno() for child, _ in busy], wait_s)
        for child, parts in busy:
            task = child.task
            if task is not None and (found := child.ended(0.0)) is not None:
                parts.add(*found)
                ended(task, found[0]["wall_seconds"])

    def finish(self, ended: Callable[[Task, float], None], *, until: float | None = None) -> None:
        """Wait for the runs that are under way, and write the parts."""
        while any(child.task is not None for child, _ in self._lanes):
            if until is not None and time.time() >= until:
                for child, _ in self._lanes:
                    if child.task is not None:
                        child.give_up()
            else:
                left = _LOOK_S if until is None else min(_LOOK_S, until - time.time())
                self.collect(ended, max(0.0, left))
        for _, parts in self._lanes:
            parts.flush()
