"""One pass over the rows of runs, in Spark's tasks: DuckDB computes the views of each task's runs.

A task returns its views packed: one row for each view, with the view's rows as an Arrow stream. So one frame
has all views, whatever their columns. It can be cached, kept as Parquet, or sent to another task.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from fencepost.simulation.analyses.run_views import MEMORY, RUN_VIEWS, RunViews, ddl_of_view, empty_view
from fencepost.simulation.trace.schema import COLUMNS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame

PACKED: Final = "view string, data binary"
"""The columns of a packed frame, as Spark declares them."""

_ROWS_A_STREAM: Final = 50_000
"""The limit on a view's rows in one value of `data`: Spark holds many values at once."""

_WORKED: Final = ", ".join(f'"{name}"' for name in COLUMNS)


def pack(trace: DataFrame) -> DataFrame:
    """Return the views of all runs of a trace, packed. All rows of a run go to one task."""
    rows = trace.select(*COLUMNS).repartition("run_id")
    return rows.mapInArrow(_pack_rows, PACKED)


def unpack(packed: DataFrame, name: str) -> DataFrame:
    """The rows of a view."""
    chosen = packed.where(f"view = '{name}'").select("data")
    return chosen.mapInArrow(_unpack, ddl_of_view(name))


def unpacked(packed: pa.Table, name: str) -> pa.RecordBatchReader:
    """Return the rows of a view from packed rows in this process; without any, they have its columns."""
    import pyarrow as pa
    from pyarrow import compute

    data = packed.filter(compute.equal(packed["view"], name))["data"]
    streams = (pa.ipc.open_stream(each.as_buffer()) for each in data)
    first = next(streams, None)
    if first is None:
        return empty_view(name).to_reader()
    rest = (batch for stream in streams for batch in stream)
    return pa.RecordBatchReader.from_batches(first.schema, itertools.chain(first, rest))


@contextlib.contextmanager
def rows_of_task() -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a DuckDB connection with an empty table `trace`, for the rows of one task. It uses one core, like
    a task."""
    import duckdb

    from fencepost.simulation.trace.parquet import SCHEMA

    with tempfile.TemporaryDirectory(prefix="fencepost-views-") as scratch:
        settings = {
            "threads": "1",
            "memory_limit": MEMORY,
            "temp_directory": scratch,
            "preserve_insertion_order": "false",
        }
        with duckdb.connect(config=dict(settings)) as connection:
            connection.register("blank", SCHEMA.empty_table())
            connection.execute("CREATE TABLE trace AS FROM blank")
            yield connection


def take_rows(connection: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader, name: str = "") -> None:
    """Add rows to the table `trace`; with `name`, their run ids get that suffix."""
    connection.register("arrived", rows)
    columns = _WORKED if not name else _WORKED.replace('"run_id"', "concat(run_id, '@', $name)", 1)
    connection.execute(f"INSERT INTO trace SELECT {columns} FROM arrived", {"name": name} if name else None)
    connection.unregister("arrived")


def packed_views(
    connection: duckdb.DuckDBPyConnection, names: Iterable[str] = tuple(RUN_VIEWS)
) -> Iterator[pa.RecordBatch]:
    """Yield the named views over the table `trace`, packed."""
    import pyarrow as pa

    views = RunViews(connection)
    for name in names:
        table = views.view(name)
        for begin in range(0, len(table), _ROWS_A_STREAM):
            sink = pa.BufferOutputStream()
            options = pa.ipc.IpcWriteOptions(compression="zstd")
            with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
                writer.write_table(table.slice(begin, _ROWS_A_STREAM))
            yield pa.RecordBatch.from_arrays(
                [pa.array([name]), pa.array([sink.getvalue().to_pybytes()])], names=["view", "data"]
            )


def _pack_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        return
    with rows_of_task() as connection:
        for batch in (first, *batches):
            take_rows(connection, pa.RecordBatchReader.from_batches(batch.schema, [batch]))
        yield from packed_views(connection)


def _unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        for stream in batch.column(0).to_pylist():
            yield from pa.ipc.open_stream(stream)
