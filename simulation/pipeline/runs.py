"""One run of a campaign: a row of its summary, and its trace, whatever the run does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.pipeline.tasks import CampaignCell, Task
from fencepost.simulation.trace.parquet import record_batch
from fencepost.simulation.trace.schema import Row

if TYPE_CHECKING:
    from types import FrameType

    from fencepost.simulation.run import RunResult


class JobSpec(msgspec.Struct, frozen=True):
    """Everything that workers need to know; it travels to them with the code."""

    cells: tuple[CampaignCell, ...]
    tasks: tuple[Task, ...]
    root: str
    generation: int
    time_limit_s: float
    trace_violations: bool
    """Whether the trace of a run that broke an invariant is kept, if it would not be anyway."""


class TimeLimitReached(KeyboardInterrupt):
    """A run took too long. An event loop lets only interrupts through its callbacks."""


class Limit:
    """Bounds the wall time of a block."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.place = ""
        """Where the run was when its time was over; empty as long as it is not."""
        self._left = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Raise TimeLimitReached in the block once it has taken so long, again and again until it is left."""
        before = signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)
        self._left = False
        try:
            try:
                yield
            finally:
                self._left = True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._left:
            return  # just now: what follows is no part of the run
        if not self.place:
            self.place = "somewhere" if frame is None else _place(frame)
        raise TimeLimitReached

    def told(self) -> str:
        """What its row says."""
        return f"took longer than {self.seconds:g} s; then it was at {self.place}"


def _place(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno}, in {code.co_qualname}"


class _Kept:
    """A trace in memory, as Arrow: a tenth of its size as rows."""

    def __init__(self, run_id: str) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._run_id = run_id

    def write(self, rows: Sequence[Row], /) -> None:
        """Take a batch."""
        self.batches.append(record_batch(rows, self._run_id))


def begun_row(cell: CampaignCell, task: Task) -> dict[str, Any]:
    """The row of a run of which nothing is known yet."""
    return {
        "run_id": cell.run_id(task.seed),
        "scenario": cell.name,
        "parameters": json.dumps(cell.parameters, sort_keys=True),
        "seed": task.seed,
        "command": cell.command(task.seed),
        "violations": 0,
        "traced": False,
        "error": None,
    }


def run_one(
    orders: JobSpec, cell: CampaignCell, task: Task, again: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], list[pa.RecordBatch]]:
    """One run: the row for its summary, and its trace if that is kept. Whatever it raises is in the row.

    `again` is called before a run is repeated for its trace: the time limit is that of each.
    """
    row = begun_row(cell, task)
    kept = _Kept(row["run_id"])
    began = time.perf_counter()
    result = _run(orders, cell, task.seed, kept if task.traced else None)
    if isinstance(result, str):
        row["error"] = result
        kept.batches.clear()
    else:
        row |= _summary(result)
        if result.violations and orders.trace_violations and not task.traced:
            # The same seed gives the same run: recording it now is cheaper than recording all.
            again()
            if isinstance(_run(orders, cell, task.seed, kept), str):
                kept.batches.clear()
    row["traced"] = bool(kept.batches)
    row["wall_seconds"] = time.perf_counter() - began
    return row, kept.batches


def _run(orders: JobSpec, cell: CampaignCell, seed: int, trace: _Kept | None) -> RunResult | str:
    """The result, or what went wrong."""
    from fencepost.simulation.failures.failure import with_mutant
    from fencepost.simulation.run import run

    limit = Limit(orders.time_limit_s)
    result: RunResult | str
    try:
        with limit(), with_mutant(cell.mutant):
            result = run(cell.scenario, seed, trace=trace, raises=False)
            if result.violations and result.violations[0].invariant.startswith(RAISED):
                run(cell.scenario, seed)  # nothing else is known of it, and this tells where it comes from
    except TimeLimitReached:
        return limit.told()
    except Exception:
        result = traceback.format_exc()
    # A run that swallowed the interrupt, or made another exception of it, went on as it never would have.
    return limit.told() if limit.place else result


def _summary(result: RunResult) -> dict[str, Any]:
    first = result.violations[0] if result.violations else None
    return {
        "members": result.members,
        "partitions": result.partitions,
        "virtual_seconds": result.virtual_seconds,
        "events": result.events,
        "heartbeats": result.heartbeats,
        "rebalances": result.rebalances,
        "converged": result.converged,
        "violations": len(result.violations),
        "invariant": first.invariant if first is not None else None,
        "message": first.message if first is not None else None,
        "digest": result.digest,
    }
