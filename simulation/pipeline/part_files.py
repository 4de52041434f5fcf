"""How a worker writes its runs out: each at once into a journal, many at a time into Parquet.

The journal has the name of the part that will replace it, and a frame for each run: its summary, its trace.
So whatever kills a worker, the runs that it had finished are on disk, and `recover` makes parts of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from fencepost.coordinator.reading import read_file
from fencepost.simulation.pipeline.output import whole_file
from fencepost.simulation.pipeline.traces import RUNS, TRACES, run_schema
from fencepost.simulation.trace.parquet import SCHEMA

FLUSH_SECONDS: Final = 20.0
"""Parts are written at least this often: `fencepost analyze` sees them while the campaign goes on."""

FLUSH_BYTES: Final = 64 << 20
"""Traces that a worker holds in memory at most, give or take a run."""

_SUFFIX: Final = ".journal"
_LENGTH: Final = 8


class PartFiles:
    """Takes runs, and writes numbered parts of them whose names begin with `prefix`.

    Where an earlier attempt at the same work left something, this one goes on after it.
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
        """Ids of the runs that are there already."""
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
        """Write what was added since the last part."""
        if self._journal is not None:
            self._journal.close()
            _write(self._root, self._name, self._rows, self._traces)
            self._number += 1
        self._begin()


def _write_whole(file: BinaryIO, frame: bytes) -> None:
    """A file without a buffer may take a part only, where a disk is nearly full; the next time it raises."""
    left = memoryview(frame)
    while left:
        left = left[file.write(left) :]


def recover(root: Path, prefix: str = "") -> None:
    """Make parts of the journals whose names begin so, up to where each of them breaks off."""
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
    """A part, traces first; what counts is that of runs/, and the journal is in its place until then."""
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
            return  # what was written over a frame that a full disk broke off
        yield row, list(pa.ipc.open_stream(streamed)) if streamed else []
