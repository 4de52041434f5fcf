"""The views of single runs from files of traces: each file is read once, in the task that needs it.

The views of a task are kept in a hidden folder next to the traces. The next analysis reads them instead of
the traces, as long as neither the traces nor the queries have changed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.simulation.analyses.run_pass import PACKED, pack, packed_views, rows_of_task, take_rows
from fencepost.simulation.analyses.run_views import version
from fencepost.simulation.pipeline.output import whole_file
from fencepost.simulation.pipeline.traces import TraceFiles, footer
from fencepost.simulation.trace.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_TASK: Final = 500_000
"""Minimum number of rows of a task's files; a group of files is never split."""

MOST_ROWS: Final = 3_000_000
"""The limit on rows of a group of files that one task can read; the runs of a larger group go to several
tasks."""

_SOURCES: Final = b"fencepost.sources"
"""The metadata key for the fingerprints of the groups that a file of views was made from."""


class Source(msgspec.Struct, frozen=True):
    """Files with some runs; no other file has rows of these runs."""

    files: tuple[str, ...]
    rows: int
    fingerprint: str


class FilesPass(msgspec.Struct, frozen=True):
    """The settings of tasks that compute the views of files."""

    names: dict[str, str]
    """Suffixes of run ids by file, for files that share run ids."""
    keep: str
    """The folder that keeps the views; empty if they are not kept."""


def run_views(spark: SparkSession, files: TraceFiles, trace: DataFrame) -> DataFrame:
    """Return the views of all runs, packed: kept ones are read, and the others are computed.

    `trace` has the rows of all files.
    """
    sources = sources_of(files)
    kept = taken(Path(files.keep), sources) if files.keep else {}
    known = {fingerprint for each in kept.values() for fingerprint in each}
    left = [each for each in sources if each.fingerprint not in known]
    small = [each for each in left if each.rows <= MOST_ROWS]
    frames = []
    if kept:
        frames.append(spark.read.schema(PACKED).parquet(*kept))
    if small:
        tasks = [json.dumps([[each.files, each.fingerprint] for each in task]) for task in dealt(small)]
        rows = spark.sparkContext.parallelize([(each,) for each in tasks], len(tasks))
        names = {os.path.abspath(path): name for path, name in files.names.items()}
        work = functools.partial(_work, FilesPass(names, os.path.abspath(files.keep) if files.keep else ""))
        frames.append(spark.createDataFrame(rows, "sources string").mapInArrow(work, PACKED))
    if large := [path for each in left if each.rows > MOST_ROWS for path in each.files]:
        from pyspark.sql import functions as f

        paths = [Path(os.path.abspath(path)).as_uri() for path in large]
        path = f.regexp_replace("_metadata.file_path", "^file:/+", "file:///")
        frames.append(pack(trace.where(path.isin(paths))))
    if not frames:
        return spark.createDataFrame([], PACKED)
    return functools.reduce(lambda one, other: one.unionAll(other), frames)


def sources_of(files: TraceFiles) -> list[Source]:
    """Return the groups of files with their fingerprints, which show whether they have changed."""
    found = []
    for group in files.groups or tuple((path,) for path in files.traces):
        digest = hashlib.sha256(version().encode())
        rows = 0
        for path in group:
            state = os.stat(path)
            place = os.path.relpath(path, files.keep or "/")
            about = [place, state.st_size, state.st_mtime_ns, files.names.get(path, "")]
            digest.update(json.dumps(about).encode())
            rows += footer(Path(path)).num_rows
        paths = tuple(map(os.path.abspath, group))
        found.append(Source(paths, rows, digest.hexdigest()))
    return found


def taken(folder: Path, sources: Iterable[Source]) -> dict[str, list[str]]:
    """Return the useful kept files, each with its fingerprints; delete the others.

    A file is useful if all its sources exist unchanged, and no other file was made from any of them.
    """
    import pyarrow as pa
    from pyarrow import parquet

    current = {each.fingerprint for each in sources}
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.parquet")):
        try:
            stands_for = json.loads((parquet.read_metadata(path).metadata or {})[_SOURCES])
            _check_whole(path)
        except (pa.ArrowException, OSError, KeyError, ValueError):
            stands_for = []
        if stands_for and current.issuperset(stands_for):
            current -= set(stands_for)
            found[str(path)] = stands_for
        else:
            with contextlib.suppress(OSError):  # a read-only folder keeps useless files
                path.unlink()
    return found


def _check_whole(path: Path) -> None:
    from pyarrow import parquet

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for _ in file.iter_batches(batch_size=16):
            pass


def dealt(sources: Sequence[Source]) -> list[list[Source]]:
    """Return the sources of each task: neighbours, with enough rows that the task is worth its start."""
    tasks: list[list[Source]] = []
    rows = ROWS_A_TASK
    for each in sources:
        if rows >= ROWS_A_TASK:
            tasks.append([])
            rows = 0
        tasks[-1].append(each)
        rows += each.rows
    return tasks


def _work(task: FilesPass, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute the views of the sources in the batches, for `DataFrame.mapInArrow`."""
    for batch in batches:
        for text in batch.column(0).to_pylist():
            sources = json.loads(text)
            with rows_of_task() as connection:
                for paths, _ in sources:
                    for path in paths:
                        take_rows(connection, _reader(path), task.names.get(path, ""))
                found = list(packed_views(connection))
            if task.keep:
                _keep(Path(task.keep), found, [fingerprint for _, fingerprint in sources])
            yield from found


def _reader(path: str) -> pa.RecordBatchReader:
    import pyarrow as pa
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    schema = pa.schema([file.schema_arrow.field(name) for name in COLUMNS])
    batches = (batch.select(list(COLUMNS)) for batch in file.iter_batches(columns=list(COLUMNS)))
    return pa.RecordBatchReader.from_batches(schema, batches)


def _keep(folder: Path, found: Sequence[pa.RecordBatch], fingerprints: Sequence[str]) -> None:
    """Keep the views, unless the folder is read-only."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_batches(found).replace_schema_metadata({_SOURCES: json.dumps(fingerprints)})
    name = hashlib.sha256("".join(fingerprints).encode()).hexdigest()[:32]
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        with whole_file(folder / f"{name}.parquet") as path:
            parquet.write_table(table, path, compression="none", write_page_checksum=True)
