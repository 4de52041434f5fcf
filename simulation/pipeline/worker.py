"""The work of a Spark worker: it carries out tasks, and writes part files with their results.

A journal keeps the runs of a part that is not written yet.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fencepost.coordinator.reading import read_file
from fencepost.simulation.pipeline.output import writing
from fencepost.simulation.pipeline.runs import ChildProcess, RunGivenUp, child_for
from fencepost.simulation.pipeline.traces import NOTE, RUNS, TRACES, run_schema
from fencepost.simulation.pipeline.whole_files import whole_file
from fencepost.simulation.trace.parquet import SCHEMA

if TYPE_CHECKING:
    from fencepost.simulation.pipeline.runs import JobSpec

FLUSH_SECONDS: Final = 20.0
"""Longest time between two parts, in seconds: `fencepost analyze` sees parts while the campaign runs."""

FLUSH_BYTES: Final = 64 << 20
"""Approximate limit on traces that a worker holds in memory, in bytes."""

_SUFFIX: Final = ".journal"
_LENGTH: Final = 8


class PartFiles:
    """Collects runs, and writes them as numbered parts whose names begin with `prefix`.

    If an earlier attempt at the same work left parts, this one continues after them.
    """

    def __init__(self, root: Path, prefix: str) -> None:
        self._root = root
        self._prefix = prefix
        recover(root, prefix)
        before = sorted((root / RUNS).glob(f"{prefix}-*.parquet"))
        self._number = len(before)
        self.finished: frozenset[str] = frozenset(
            run_id
            for path in before
            for run_id in pq.read_table(path, columns=["run_id"]).column(0).to_pylist()
        )
        """Ids of the runs that exist already."""
        self._begin()

    def _begin(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._traces: list[pa.RecordBatch] = []
        self._held = 0
        self._since = time.monotonic()
        self._journal: BinaryIO | None = None

    @property
    def _name(self) -> str:
        return f"{self._prefix}-{self._number:04d}.parquet"

    def add(self, row: dict[str, Any], trace: Sequence[pa.RecordBatch]) -> None:
        """Keep a finished run."""
        if self._journal is None:
            self._journal = _journal_of(self._root, self._name).open("wb", buffering=0)
        _write_whole(self._journal, _frame(row, trace))
        self._rows.append(row)
        self._traces.extend(trace)
        self._held += sum(batch.nbytes for batch in trace)
        if time.monotonic() - self._since >= FLUSH_SECONDS or self._held >= FLUSH_BYTES:
            self.flush()

    def __enter__(self) -> PartFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def flush(self) -> None:
        """Write the runs that were added since the last part."""
        if self._journal is not None:
            self._journal.close()
            _write(self._root, self._name, self._rows, self._traces)
            self._number += 1
        self._begin()


def _write_whole(file: BinaryIO, frame: bytes) -> None:
    """Write all of a frame. An unbuffered file may accept only a part if a disk is nearly full; the next
    write raises."""
    left = memoryview(frame)
    while left:
        left = left[file.write(left) :]


def recover(root: Path, prefix: str = "") -> None:
    """Turn the journals whose names begin with `prefix` into parts, up to the point where each breaks off."""
    for path in sorted((root / RUNS).glob(f".{prefix}*{_SUFFIX}")):
        name = path.name.removeprefix(".").removesuffix(_SUFFIX)
        rows: list[dict[str, Any]] = []
        traces: list[pa.RecordBatch] = []
        if not (root / RUNS / name).exists():
            for row, trace in _frames(read_file(path, max_bytes=None)):
                rows.append(row)
                traces.extend(trace)
        if rows:
            _write(root, name, rows, traces)
        path.unlink(missing_ok=True)


def _write(root: Path, name: str, rows: list[dict[str, Any]], traces: list[pa.RecordBatch]) -> None:
    """Write a part, traces first. It counts once its file in runs/ exists; until then the journal takes its
    place."""
    if traces:
        with whole_file(root / TRACES / name) as path:
            pq.write_table(pa.Table.from_batches(traces, SCHEMA), path, compression="zstd")
    with whole_file(root / RUNS / name) as path:
        pq.write_table(pa.Table.from_pylist(rows, run_schema()), path, compression="zstd")
    _journal_of(root, name).unlink(missing_ok=True)


def _journal_of(root: Path, name: str) -> Path:
    return root / RUNS / f".{name}{_SUFFIX}"


def _frame(row: dict[str, Any], trace: Sequence[pa.RecordBatch]) -> bytes:
    streamed = b""
    if trace:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            for batch in trace:
                writer.write_batch(batch)
        streamed = sink.getvalue().to_pybytes()
    frame = msgspec.msgpack.encode((row, streamed))
    return len(frame).to_bytes(_LENGTH) + frame


def _frames(data: bytes) -> Iterator[tuple[dict[str, Any], list[pa.RecordBatch]]]:
    at = 0
    while len(data) - at >= _LENGTH:
        length = int.from_bytes(data[at : at + _LENGTH])
        at += _LENGTH + length
        if at > len(data):
            return
        try:
            row, streamed = msgspec.msgpack.decode(data[at - length : at])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # bytes that were written over a frame that a full disk cut off
        yield row, list(pa.ipc.open_stream(streamed)) if streamed else []


DONE: Final = "runs long, failed long, violations long, attempt long"
"""The columns of a partition's result, as Spark's schema; they match by position."""


def work(job: JobSpec, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Carry out the tasks whose numbers are in the batches, for `DataFrame.mapInArrow`."""
    if job.is_over:  # before anything is imported
        yield _done([0, 0, 0])
        return
    _settle()
    root = Path(job.root)
    if not (root / NOTE).is_file():
        raise FileNotFoundError(
            f"--out {root} does not exist on a worker: it must be on a file system that all workers share"
        )
    counts = [0, 0, 0]
    with writing(root, job.generation) as allowed:
        if allowed:
            child = _child_of(job)
            with PartFiles(root, _prefix(job.generation)) as parts:
                numbers = (number for batch in batches for number in batch.column(0).to_pylist())
                for row in _rows(job, numbers, parts, child):
                    counts[0] += 1
                    counts[1] += row["error"] is not None
                    counts[2] += row["violations"]
    yield _done(counts)


def _done(counts: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([count], pa.int64()) for count in (*counts, _attempt())],
        names=["runs", "failed", "violations", "attempt"],
    )


def _rows(
    job: JobSpec, numbers: Iterable[int], parts: PartFiles, child: ChildProcess
) -> Iterator[dict[str, Any]]:
    for number in numbers:
        task = job.tasks[number]
        if job.cells[task.cell].run_id(task.seed) not in parts.finished:
            if job.is_over:
                return
            try:
                row, trace = child.run(task, job.until)
            except RunGivenUp:
                return
            parts.add(row, trace)
            yield row


_children = contextlib.ExitStack()
_running: dict[tuple[str, int], ChildProcess] = {}
"""The child of this worker process by campaign: Spark uses a worker for many partitions."""


def _child_of(job: JobSpec) -> ChildProcess:
    """Return the child that has done runs of this campaign, if there is one: it is warm."""
    campaign = (job.root, job.generation)
    if campaign not in _running:
        _running.clear()
        _children.close()
        _running[campaign] = _children.enter_context(child_for(job))
    return _running[campaign]


@functools.cache
def _settle() -> None:
    """Freeze the imported objects, once for each worker process, so that garbage collections skip them."""
    with contextlib.suppress(ImportError):  # Arrow looks for it, repeatedly if it is not imported
        import pandas  # noqa: F401

    import fencepost.simulation.judge
    import fencepost.simulation.run  # noqa: F401

    gc.collect()
    gc.freeze()


def _attempt() -> int:
    """Return the number of earlier attempts at this partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.attemptNumber() if context is not None else 0


def _prefix(generation: int) -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return f"part-{generation:03d}-{context.partitionId() if context is not None else 0:06d}"
