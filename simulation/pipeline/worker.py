"""What a Spark worker does: a run for each task row; summaries and traces into files, come what may."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fencepost.simulation.pipeline.output import NOTE, run_schema, whole_file
from fencepost.simulation.pipeline.plan import Cell, Task
from fencepost.simulation.pipeline.traces import RUNS, TRACES
from fencepost.simulation.trace.parquet import SCHEMA, record_batch
from fencepost.simulation.trace.schema import Row

if TYPE_CHECKING:
    from fencepost.simulation.run import RunResult

FLUSH_SECONDS = 10.0
"""A worker writes its runs out at least this often: an interrupted campaign loses no more."""

FLUSH_BYTES = 64 << 20
"""Traces that a worker holds in memory at most, give or take a run."""

DONE = "runs long, failed long, violations long"
"""The columns that a partition answers with, as Spark's schema; they match by position."""


class Orders(msgspec.Struct, frozen=True):
    """Everything that workers need to know; it travels to them with the code."""

    cells: tuple[Cell, ...]
    tasks: tuple[Task, ...]
    root: str
    generation: int
    time_limit_s: float
    trace_violations: bool
    """Whether the trace of a run that broke an invariant is kept, if it would not be anyway."""


class TimeLimitReached(KeyboardInterrupt):
    """A run took too long. An event loop lets only interrupts through its callbacks."""


def work(orders: Orders, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Carry out the tasks whose numbers come in, for `DataFrame.mapInArrow`."""
    _settle()
    root = Path(orders.root)
    if not (root / NOTE).is_file():
        raise FileNotFoundError(
            f"--out {root} is not there on a worker: it must be on a file system that all share"
        )
    part = _Part(root, _part_prefix(orders.generation))
    counts = [0, 0, 0]
    for batch in batches:
        for number in batch.column(0).to_pylist():
            task = orders.tasks[number]
            cell = orders.cells[task.cell]
            if cell.run_id(task.seed) in part.finished:
                continue
            row, trace = run_one(orders, cell, task)
            part.add(row, trace)
            counts[0] += 1
            counts[1] += row["error"] is not None
            counts[2] += row["violations"]
    part.flush()
    yield pa.RecordBatch.from_arrays(
        [pa.array([count], pa.int64()) for count in counts], names=["runs", "failed", "violations"]
    )


@functools.cache
def _settle() -> None:
    """Once a worker process: what is imported by now stays, so collections need not look at it again."""
    import pandas  # noqa: F401

    import fencepost.simulation.run  # noqa: F401

    gc.collect()
    gc.freeze()


def _part_prefix(generation: int) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"part-{generation:03d}-{context.partitionId() if context is not None else 0:06d}"


class _Part:
    """Gathers runs and writes them out as numbered parts, traces first.

    A task that Spark tries again finds the parts of the attempt before, and goes on after them.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        self._rows: list[dict[str, Any]] = []
        self._traces: list[pa.RecordBatch] = []
        self._held = 0
        self._since = time.monotonic()
        before = sorted((root / RUNS).glob(f"{prefix}-*.parquet"))
        self._number = len(before)
        self.finished: frozenset[str] = frozenset(
            run_id
            for path in before
            for run_id in pq.read_table(path, columns=["run_id"]).column(0).to_pylist()
        )

    def add(self, row: dict[str, Any], trace: Sequence[pa.RecordBatch]) -> None:
        self._rows.append(row)
        self._traces.extend(trace)
        self._held += sum(batch.nbytes for batch in trace)
        if time.monotonic() - self._since >= FLUSH_SECONDS or self._held >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        name = f"{self._prefix}-{self._number:04d}.parquet"
        if self._traces:
            with whole_file(self._root / TRACES / name) as path:
                pq.write_table(pa.Table.from_batches(self._traces, SCHEMA), path, compression="zstd")
        with whole_file(self._root / RUNS / name) as path:
            pq.write_table(pa.Table.from_pylist(self._rows, run_schema()), path, compression="zstd")
        self._number += 1
        self._rows, self._traces, self._held = [], [], 0
        self._since = time.monotonic()


class _Kept:
    """A trace in memory, as Arrow: a tenth of its size as rows."""

    def __init__(self, run_id: str) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._run_id = run_id

    def write(self, rows: Sequence[Row], /) -> None:
        """Take a batch."""
        self.batches.append(record_batch(rows, self._run_id))


def run_one(orders: Orders, cell: Cell, task: Task) -> tuple[dict[str, Any], list[pa.RecordBatch]]:
    """One run: the row for its summary, and its trace if that is kept. Whatever it raises is in the row."""
    from fencepost.simulation.run import run

    run_id = cell.run_id(task.seed)
    row: dict[str, Any] = {
        "run_id": run_id,
        "scenario": cell.name,
        "parameters": json.dumps(cell.parameters, sort_keys=True),
        "seed": task.seed,
        "violations": 0,
        "traced": False,
        "error": None,
    }
    kept = _Kept(run_id)
    began = time.perf_counter()
    try:
        with time_limit(orders.time_limit_s):
            result = run(cell.scenario, task.seed, trace=kept if task.traced else None)
            if result.violations and orders.trace_violations and not task.traced:
                # The same seed gives the same run: recording it now is cheaper than recording all.
                run(cell.scenario, task.seed, trace=kept)
    except TimeLimitReached:
        row["error"] = f"took longer than {orders.time_limit_s:g} s"
    except Exception:
        row["error"] = traceback.format_exc()
    else:
        row |= _summary(result) | {"traced": bool(kept.batches)}
    row["wall_seconds"] = time.perf_counter() - began
    return row, kept.batches if row["traced"] else []


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


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitReached in the block once it has taken that long, again and again until it is left."""

    def ring(number: int, frame: object) -> None:
        raise TimeLimitReached

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
