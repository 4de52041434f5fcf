"""What a Spark worker does: a run for each task row, in a process beside it, and files of what came of it."""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from fencepost.simulation.pipeline.child_process import ChildProcess, hand_for
from fencepost.simulation.pipeline.output import NOTE, writing
from fencepost.simulation.pipeline.part_files import PartFiles

if TYPE_CHECKING:
    from fencepost.simulation.pipeline.runs import JobSpec

DONE: Final = "runs long, failed long, violations long, attempt long"
"""The columns that a partition answers with, as Spark's schema; they match by position."""


def work(orders: JobSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Carry out the tasks whose numbers come in, for `DataFrame.mapInArrow`."""
    _settle()
    root = Path(orders.root)
    if not (root / NOTE).is_file():
        raise FileNotFoundError(
            f"--out {root} is not there on a worker: it must be on a file system that all share"
        )
    counts = [0, 0, 0]
    with writing(root, orders.generation) as allowed:
        if allowed:
            hand = _hand(orders)
            with PartFiles(root, _prefix(orders.generation)) as parts:
                numbers = (number for batch in batches for number in batch.column(0).to_pylist())
                for row in _rows(orders, numbers, parts, hand):
                    counts[0] += 1
                    counts[1] += row["error"] is not None
                    counts[2] += row["violations"]
    yield pa.RecordBatch.from_arrays(
        [pa.array([count], pa.int64()) for count in (*counts, _attempt())],
        names=["runs", "failed", "violations", "attempt"],
    )


def _rows(
    orders: JobSpec, numbers: Iterable[int], parts: PartFiles, hand: ChildProcess
) -> Iterator[dict[str, Any]]:
    for number in numbers:
        task = orders.tasks[number]
        if orders.cells[task.cell].run_id(task.seed) not in parts.finished:
            row, trace = hand.run(task)
            parts.add(row, trace)
            yield row


_hands = contextlib.ExitStack()
_standing: dict[tuple[str, int], ChildProcess] = {}
"""The hand of this worker process, by its campaign: Spark uses a worker for many partitions."""


def _hand(orders: JobSpec) -> ChildProcess:
    """One that has done runs of this campaign, if there is one: it is warm."""
    campaign = (orders.root, orders.generation)
    if campaign not in _standing:
        _standing.clear()
        _hands.close()
        _standing[campaign] = _hands.enter_context(hand_for(orders))
    return _standing[campaign]


@functools.cache
def _settle() -> None:
    """Once a worker process: what is imported by now stays, so collections need not look at it again."""
    with contextlib.suppress(ImportError):  # Arrow looks for it, again and again where it is not imported
        import pandas  # noqa: F401

    import fencepost.simulation.checkers
    import fencepost.simulation.run  # noqa: F401

    gc.collect()
    gc.freeze()


def _attempt() -> int:
    """How many attempts at this partition there were before."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def _prefix(generation: int) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"part-{generation:03d}-{context.partitionId() if context is not None else 0:06d}"
