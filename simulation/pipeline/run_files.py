"""The views of single runs from files of traces: each file is read once, in the task that needs it.

The views of a task are kept in a hidden folder next to the traces. The next analysis reads them instead of
the traces, as long as neither the traces nor the queries have changed.

Several analyses may use one folder at the same time. Each holds a shared lock until it has read its views.
Only an analysis that has the lock alone deletes files of no use. New files appear whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.simulation.analyses.run_pass import PACKED, pack, packed_views, rows_of_task, take_rows
from fencepost.simulation.analyses.run_views import RUN_VIEWS, version
from fencepost.simulation.pipeline.jobs import OutOfTime, run_job, settings_for
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.session import wall_clock
from fencepost.simulation.pipeline.traces import LOCK, TraceFiles, footer
from fencepost.simulation.pipeline.whole_files import whole_file
from fencepost.simulation.trace.schema import COLUMNS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS_A_TASK: Final = 500_000
"""Minimum number of rows of a task's files; a group of files is never split."""

MOST_ROWS: Final = 3_000_000
"""The limit on rows of a group of files that one task can read; the runs of a larger group go to several
tasks."""

DRIVER_ROWS: Final = 2_000_000
"""Number of rows up to which the driver computes the views itself, in less time than Spark takes to start."""

ROWS_A_THREAD: Final = 50_000
"""Minimum number of rows of a task in the driver."""

_THREADS: Final = 2
"""Number of tasks that the driver computes at the same time; DuckDB keeps other threads free."""

_LOOK_S: Final = 0.25
"""Longest time between two looks at the deadline, in seconds."""

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
    views: tuple[str, ...]
    """The names of the views."""


class FoundViews:
    """The views of all runs: those that are kept, and those that must be computed from their sources."""

    def __init__(
        self, files: TraceFiles, sources: Sequence[Source], kept: Mapping[str, Sequence[str]]
    ) -> None:
        self.sources = sources
        self._files = files
        self._kept = kept
        known = {fingerprint for each in kept.values() for fingerprint in each}
        self._left = [each for each in sources if each.fingerprint not in known]
        self._large = [each for each in self._left if each.rows > MOST_ROWS]

    def frame(self, spark: SparkSession, trace: Callable[[], DataFrame]) -> DataFrame:
        """Return all views, packed. `trace` has the rows of all files."""
        frames = self._computed(spark, trace, tuple(RUN_VIEWS))
        if self._kept:
            frames.append(spark.read.schema(PACKED).parquet(*self._kept))
        if not frames:
            return spark.createDataFrame([], PACKED)
        return functools.reduce(lambda one, other: one.unionAll(other), frames)

    def table(
        self,
        start: Callable[[], SparkSession],
        trace: Callable[[SparkSession], DataFrame],
        progress: Progress,
        *,
        on_cluster: bool,
        only: Sequence[str] = tuple(RUN_VIEWS),
        until: float | None = None,
    ) -> pa.Table:
        """Return the views in this process, packed. A session starts if those of many rows must be computed,
        or any and it is `on_cluster`.

        With `only`, these views are enough, and others may be missing; `files` must keep none then.

        :raises OutOfTime: if they are not computed by `until`, on the clock of `wall_clock`.
        """
        import pyarrow as pa
        from pyarrow import parquet

        schema = pa.schema([("view", pa.string()), ("data", pa.binary())])
        found = [parquet.read_table(path, schema=schema) for path in self._kept]
        rows = sum(each.rows for each in self._left)
        if self._left and not on_cluster and rows <= DRIVER_ROWS and not self._large:
            tasks = dealt(self._left, max(rows // _THREADS + 1, ROWS_A_THREAD))
            with progress.step("measuring", len(tasks)) as advance:
                for batches in computed_here(tasks, self._pass(only), until):
                    found.append(pa.Table.from_batches(batches, schema))
                    advance(1)
        elif self._left:
            spark = start()
            with progress.step("measuring", len(self._left)) as advance, settings_for(spark, rows):
                done = 0

                def watch(tasks: int, total: int) -> None:
                    nonlocal done
                    now = len(self._left) * tasks // total if total else 0
                    advance(max(0, now - done))
                    done = max(now, done)

                for frame in self._computed(spark, lambda: trace(spark), only):
                    computed: pa.Table = run_job(spark, "views", frame.toArrow, watch, until=until)
                    found.append(computed.cast(schema))
        return pa.concat_tables(found) if found else schema.empty_table()

    def _computed(
        self, spark: SparkSession, trace: Callable[[], DataFrame], views: Sequence[str]
    ) -> list[DataFrame]:
        frames = []
        if small := [each for each in self._left if each not in self._large]:
            tasks = [(json.dumps(_listed(task)),) for task in dealt(small, ROWS_A_TASK)]
            rows = spark.sparkContext.parallelize(tasks, len(tasks))
            work = functools.partial(_work, self._pass(views))
            frames.append(spark.createDataFrame(rows, "sources string").mapInArrow(work, PACKED))
        if large := [path for each in self._large for path in each.files]:
            from pyspark.sql import functions as f

            paths = [Path(os.path.abspath(path)).as_uri() for path in large]
            path = f.regexp_replace("_metadata.file_path", "^file:/+", "file:///")
            frames.append(pack(trace().where(path.isin(paths))))
        return frames

    def _pass(self, views: Sequence[str]) -> FilesPass:
        names = {os.path.abspath(path): name for path, name in self._files.names.items()}
        return FilesPass(names, os.path.abspath(self._files.keep) if self._files.keep else "", tuple(views))


def computed_here(
    tasks: Sequence[Sequence[Source]], files: FilesPass, until: float | None
) -> Iterator[list[pa.RecordBatch]]:
    """Yield the packed views of each task, computed in this process.

    :raises OutOfTime: if they are not computed by `until`, on the clock of `wall_clock`.
    """
    connections: list[duckdb.DuckDBPyConnection] = []
    with ThreadPoolExecutor(_THREADS) as threads:
        waiting = {threads.submit(_views_of, files, _listed(task), connections.append) for task in tasks}
        try:
            while waiting:
                ended, waiting = wait(waiting, _LOOK_S, FIRST_COMPLETED)
                yield from (each.result() for each in ended)
                if waiting and until is not None and wall_clock() >= until:
                    raise OutOfTime
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            if waiting:
                for each in connections:
                    each.interrupt()


@contextlib.contextmanager
def found_views(files: TraceFiles) -> Iterator[FoundViews]:
    """Find the kept views of runs, and the runs without. The views can be read within the block."""
    if not files.keep or not files.traces:
        yield FoundViews(files, sources_of(files), {})
        return
    with sharing(Path(files.keep)) as folder:
        sources = sources_of(files)
        yield FoundViews(files, sources, folder.taken(sources))


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


class KeptViews:
    """The folder of kept views, while this process shares its lock with other analyses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._useless: list[Path] = []

    def taken(self, sources: Iterable[Source]) -> dict[str, list[str]]:
        """Return the useful kept files, each with its fingerprints.

        A file is useful if all its sources exist unchanged, and no other file was made from any of them.
        """
        import pyarrow as pa
        from pyarrow import parquet

        current = {each.fingerprint for each in sources}
        found: dict[str, list[str]] = {}
        for path in sorted(self._folder.glob("*.parquet*")):
            try:
                stands_for = json.loads((parquet.read_metadata(path).metadata or {})[_SOURCES])
                _check_whole(path)
            except (pa.ArrowException, OSError, KeyError, ValueError):
                stands_for = []
            # A file whose name begins with a dot is being written, or was never finished.
            if stands_for and not path.name.startswith(".") and current.issuperset(stands_for):
                current -= set(stands_for)
                found[str(path)] = stands_for
            else:
                self._useless.append(path)
        return found

    def clean(self) -> None:
        """Delete the files that `taken` found useless. No name is used twice, so none of them is new."""
        for path in self._useless:
            with contextlib.suppress(OSError):  # a read-only folder keeps useless files
                path.unlink()


@contextlib.contextmanager
def sharing(folder: Path) -> Iterator[KeptViews]:
    """Hold the shared lock of a folder of views; at the end clean the folder if no other analysis holds it.

    If there are no locks, as on some network file systems, no file is deleted.
    """
    kept = KeptViews(folder)
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
    lock = _opened(folder / LOCK)
    if lock is None:
        yield kept
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_SH)
        yield kept
        with contextlib.suppress(OSError):  # another analysis holds it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept.clean()
    finally:
        os.close(lock)


def _opened(lock: Path) -> int | None:
    """Open the lock; to read only, if the folder may not be written."""
    for how in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        with contextlib.suppress(OSError):
            return os.open(lock, how, 0o666)
    return None


def _check_whole(path: Path) -> None:
    from pyarrow import parquet

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        for _ in file.iter_batches(batch_size=16):
            pass


def dealt(sources: Sequence[Source], rows_a_task: int) -> list[list[Source]]:
    """Return the sources of each task: neighbours, with enough rows that the task is worth its start."""
    tasks: list[list[Source]] = []
    rows = rows_a_task
    for each in sources:
        if rows >= rows_a_task:
            tasks.append([])
            rows = 0
        tasks[-1].append(each)
        rows += each.rows
    return tasks


def _work(task: FilesPass, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Compute the views of the sources in the batches, for `DataFrame.mapInArrow`."""
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield from _views_of(task, json.loads(text))


def _listed(sources: Iterable[Source]) -> list[tuple[tuple[str, ...], str]]:
    return [(each.files, each.fingerprint) for each in sources]


def _views_of(
    task: FilesPass,
    sources: Sequence[tuple[Sequence[str], str]],
    began: Callable[[duckdb.DuckDBPyConnection], None] = lambda connection: None,
) -> list[pa.RecordBatch]:
    """Return the packed views of these files, and keep them. `began` is called with the connection."""
    with rows_of_task() as connection:
        began(connection)
        for paths, _ in sources:
            for path in paths:
                take_rows(connection, _reader(path), task.names.get(path, ""))
        found = list(packed_views(connection, task.views))
    if task.keep:
        _keep(Path(task.keep), found, [fingerprint for _, fingerprint in sources])
    return found


def _reader(path: str) -> pa.RecordBatchReader:
    import pyarrow as pa
    from pyarrow import parquet

    file = parquet.ParquetFile(path, page_checksum_verification=True)
    schema = pa.schema([file.schema_arrow.field(name) for name in COLUMNS])
    batches = (batch.select(list(COLUMNS)) for batch in file.iter_batches(columns=list(COLUMNS)))
    return pa.RecordBatchReader.from_batches(schema, batches)


def _keep(folder: Path, found: Sequence[pa.RecordBatch], fingerprints: Sequence[str]) -> None:
    """Keep the views, unless the folder is read-only."""
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_batches(found).replace_schema_metadata({_SOURCES: json.dumps(fingerprints)})
    name = uuid.uuid4().hex  # no other analysis replaces a file that this one is about to read
    with contextlib.suppress(OSError), whole_file(folder / f"{name}.parquet") as path:
        parquet.write_table(table, path, compression="none", write_page_checksum=True)
