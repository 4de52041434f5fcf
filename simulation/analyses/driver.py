"""The tables of few rows, in the driver: DuckDB runs the queries that are declared for Spark.

sqlglot translates each query. Both engines give the same rows in the same order. Percentiles are exact here;
Spark's may be approximate if a group has more than ten thousand values.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.analyses.catalogue import ANALYSES
from fencepost.simulation.analyses.measures import VALUES
from fencepost.simulation.analyses.queries import Queries
from fencepost.simulation.analyses.run_pass import unpacked
from fencepost.simulation.analyses.run_views import MEMORY, RUN_VIEWS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_DECLARED: Final = {**ANALYSES, VALUES.name: VALUES}


class DriverTables:
    """Tables over the views of runs; each view becomes a table of DuckDB on first use."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, packed: pa.Table, queries: Queries, made: set[str]
    ) -> None:
        """`made` names the views that the connection has already."""
        self._connection = connection
        self._packed = packed
        self._queries = queries
        self._made = made

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        declared = {each.name: each.unit.typed for each in _DECLARED[name].columns}
        text = self._queries.text(name, functools.partial(self._counted, name))
        found = self._connection.execute(_translated(text))
        columns = [(each[0], declared[each[0]]) for each in found.description or ()]
        return [
            {name: take(value) for (name, take), value in zip(columns, row, strict=True)}
            for row in found.fetchall()
        ]

    def select(self, text: str, *views: str) -> pa.Table:
        """Return the rows of a query of DuckDB over these views, each as far as tables count it."""
        names = {view: self._counted("", view) for view in views}
        return self._connection.sql(text.format(**names)).to_arrow_table()

    def _counted(self, table: str, view: str) -> str:
        """Return the name of the part of a view that a table counts."""
        whole = self._view(view)
        if (condition := self._queries.counts(table, view)) is None:
            return whole
        self._create(f"{view}_counted", f"SELECT * FROM {whole} WHERE {condition}", kind="VIEW")
        return f"{view}_counted"

    def _view(self, name: str) -> str:
        """Return the name of a view, with the scenario and the parameters of each run (except for
        `traced`)."""
        if name in self._made:
            return name
        if name not in RUN_VIEWS:
            self._create(name, _translated(self._queries.text(name, self._view)))
        elif name == "traced":
            self._take(name)
        else:
            self._take(f"{name}_of_runs", name)
            self._view("run")
            runs = "SELECT run_id, scenario, parameters FROM run"
            self._create(name, f"SELECT * FROM {name}_of_runs JOIN ({runs}) USING (run_id)", kind="VIEW")
        return name

    def _take(self, table: str, view: str = "") -> None:
        view = view or table
        self._connection.register("arrived", unpacked(self._packed, view))
        self._create(table, "FROM arrived")
        self._connection.unregister("arrived")

    def _create(self, name: str, query: str, kind: str = "TABLE") -> None:
        if name not in self._made:
            self._connection.execute(f'CREATE TEMP {kind} "{name}" AS {query}')
            self._made.add(name)


@contextlib.contextmanager
def tables_here(
    packed: pa.Table,
    *,
    summaries: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    since_us: int = 0,
) -> Iterator[DriverTables]:
    """Yield the tables over packed views of runs. DuckDB writes what exceeds its memory to disk.

    `summaries` are a campaign's files. `files` has, by run, the parameter that distinguishes runs with the
    same id, as JSON. `since_us` is as for `Views`.

    :raises EnvironmentLacks: if the disk is full, or the memory is not enough.
    """
    import duckdb
    import pyarrow as pa
    from pyarrow import parquet

    with tempfile.TemporaryDirectory(prefix="fencepost-tables-") as scratch:
        settings = {"memory_limit": MEMORY, "temp_directory": scratch}
        with duckdb.connect(config=dict(settings)) as connection:
            given = {}
            if summaries:
                given["summary"] = pa.concat_tables(
                    map(parquet.read_table, summaries), promote_options="default"
                )
            if files:
                given["file"] = pa.table({"run_id": list(files), "file": list(files.values())})
            for name, rows in given.items():
                connection.register(name, rows)
            queries = Queries(bool(summaries), bool(files), since_us)
            try:
                yield DriverTables(connection, packed, queries, set(given))
            except duckdb.OperationalError as error:
                raise EnvironmentLacks(
                    f"the tables can't be computed in this process ({str(error).splitlines()[0]}): make room "
                    f"in {Path(scratch).parent}, or compute them on Spark with --tables spark"
                ) from error


@functools.cache
def _translated(text: str) -> str:
    """Return a query of Spark's in DuckDB's SQL."""
    from sqlglot import exp, parse_one

    def same(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.ApproxQuantile):
            return exp.Anonymous(this="quantile_disc", expressions=[node.this, node.args["quantile"]])
        if isinstance(node, exp.CountIf):  # DuckDB's is null if all conditions are, Spark's is 0
            return exp.Count(this=exp.case().when(node.this, exp.Literal.number(1)))
        return node

    return parse_one(text, read="spark").transform(same).sql("duckdb", comments=False)
