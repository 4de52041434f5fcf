"""A campaign in Python: run it, read its tables as DataFrames, and look into a run."""

from __future__ import annotations

import atexit
import contextlib
import html
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.arguments import (
    grid_values,
    hint,
    option_settings,
    path_of,
    scenario_names,
)
from fencepost.simulation.pipeline.campaign import CampaignResult, carry_out
from fencepost.simulation.pipeline.progress import Progress, progress_for
from fencepost.simulation.pipeline.session import LOCAL, check_master, spark_session
from fencepost.simulation.pipeline.spec import (
    SEEDS,
    TIME_LIMIT,
    CampaignSpec,
    Traces,
    Value,
    read_campaign,
    seconds_of,
    value_text,
)
from fencepost.simulation.pipeline.tasks import CampaignCell, Option, cells_of, seeds_of
from fencepost.simulation.pipeline.traces import RUNS, TRACES, TraceFiles, find_traces
from fencepost.simulation.scenarios.load import library_names

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_SUMMARY = ("runs", "failed", "violating", "traced", "heartbeats")
"""Columns of the table of runs that a notebook shows first."""

_OF_RUNS = ("runs", "mutants")
"""Tables that need no trace."""

_kept = contextlib.ExitStack()
"""The session that this module started."""


class Campaign:
    """Scenarios times parameters times seeds, and their results.

    `scenarios` are names of the library or TOML files, by default the whole library. `seeds` is a number of
    seeds, or the seeds themselves. Every combination of the values in `grid` runs; its keys are those of
    `simulate --set`, or members, partitions and duration. `options` are named choices, each a mapping of
    settings. `out` is the directory for runs and traces: finished runs in it are not repeated. Without it,
    the campaign's files are deleted with the object.

    A running Spark session is used. A session that is started here stays, as PySpark's own do in notebooks.

    :raises FencepostError: if the input is wrong.
    """

    def __init__(
        self,
        scenarios: str | Sequence[str] = (),
        *,
        seeds: int | str | Iterable[int] = SEEDS,
        grid: Mapping[str, Sequence[Value]] | None = None,
        options: Mapping[str, Mapping[str, Value]] | None = None,
        out: str | Path | None = None,
        master: str = LOCAL,
        traces: Traces = "sample",
        time_limit: str = str(TIME_LIMIT),
    ) -> None:
        names = scenario_names(scenarios)
        values = {} if grid is None else grid_values(grid)
        named = {} if options is None else option_settings(options)
        self._begin(
            CampaignSpec(
                cells=cells_of(
                    names or library_names(),
                    {key: tuple(map(value_text, each)) for key, each in values.items()},
                    options=[
                        Option(name, _texts(settings), places=dict.fromkeys(settings, f"options: {name}:"))
                        for name, settings in named.items()
                    ],
                    places=dict.fromkeys(values, "grid:"),
                ),
                seeds=seeds_of(seeds),
                traces=traces,
                time_limit_s=seconds_of(time_limit, "time_limit"),
            ),
            out,
            master,
        )

    @classmethod
    def from_file(cls, path: str | Path, *, out: str | Path | None = None, master: str = LOCAL) -> Campaign:
        """Return the campaign of a TOML file.

        :raises FencepostError: if something in it is wrong.
        """
        made = cls.__new__(cls)
        made._begin(read_campaign(path_of("path", path)), out, master)
        return made

    def _begin(self, spec: CampaignSpec, out: str | Path | None, master: str) -> None:
        check_master(master, "master=")
        self._spec = spec
        self._master = master
        self._result: CampaignResult | None = None
        if out is None:
            out = tempfile.mkdtemp(prefix="fencepost-campaign-")
            weakref.finalize(self, shutil.rmtree, out, ignore_errors=True)
        self.out = path_of("out", out).absolute()
        """The directory with runs, traces and the report."""

    def run(self, *, progress: bool = True) -> Campaign:
        """Do the runs that `out` does not have yet, analyse, and write the report; `progress` goes to
        standard error.

        :raises FencepostError: if `out` can't be used, or holds something else.
        :raises EnvironmentLacks: if Spark cannot run here, or stops on the way.
        """
        _session(self._master)
        self._result = carry_out(
            self._spec,
            master=self._master,
            out_dir=self.out,
            resume=True,
            progress=progress_for(lines=True) if progress else Progress(),
        )
        return self

    @property
    def result(self) -> CampaignResult:
        """The totals, and the shrunk failures.

        :raises FencepostError: if it has not run.
        """
        self._check_has_run()
        assert self._result is not None
        return self._result

    def _check_has_run(self) -> None:
        if self._result is None:
            raise FencepostError("this campaign has not run: call run()")

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tables."""
        return tuple(self.result.tables)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of the analyses; it has its columns even without rows.

        :raises FencepostError: if there is no such table, or the campaign has not run.
        """
        import pandas as pd

        from fencepost.simulation.analyses.catalogue import TABLES

        if name not in self.tables:
            raise FencepostError(f"there is no table {name!r}; {hint(name, self.tables, 'there are')}")
        columns = [column.name for column in TABLES[name].columns]
        rows = self.result.tables[name]
        return pd.DataFrame(rows, columns=[each for each in columns if not rows or each in rows[0]])

    @property
    def runs(self) -> pd.DataFrame:
        """Return a row for each run, by its id; `command` repeats the run.

        :raises FencepostError: if the campaign has not run.
        """
        return self._summaries().to_pandas().set_index("run_id").sort_index()

    def trace(self, run_id: str) -> pd.DataFrame:
        """Return the rows of a run, event by event. A run whose trace was not kept is simulated again.

        :raises FencepostError: if there is no such run.
        """
        from pyarrow import dataset

        names = self._summaries().column("run_id").to_pylist()
        if run_id not in names:
            raise FencepostError(f"there is no run {run_id!r}; there are {names[0]} to {names[-1]}")
        parts = [str(path) for path in sorted((self.out / TRACES).glob("*.parquet"))]
        if parts:
            rows = dataset.dataset(parts, format="parquet").to_table(filter=dataset.field("run_id") == run_id)
            if rows.num_rows:
                return rows.sort_by("seq").to_pandas()
        return self._again(run_id).to_pandas()

    def dataframe(self, name: str) -> DataFrame:
        """Return a newly computed table as a Spark DataFrame; or `trace`, all rows of the kept traces.

        :raises FencepostError: if there is no such table, no trace was kept, or the campaign has not run.
        """
        from fencepost.simulation.analyses.catalogue import ANALYSES
        from fencepost.simulation.analyses.views import Views
        from fencepost.simulation.trace.schema import TRACE_DDL

        if name != "trace" and name not in ANALYSES:
            raise FencepostError(
                f"there is no table {name!r}; {hint(name, ('trace', *ANALYSES), 'there are')}"
            )
        self._check_has_run()
        spark = _session(self._master)
        if any((self.out / TRACES).glob("*.parquet")):
            files = find_traces(self.out)
            trace = spark.read.parquet(*files.traces)
        elif name in _OF_RUNS:
            files = TraceFiles((), tuple(map(str, sorted((self.out / RUNS).glob("*.parquet")))))
            trace = spark.createDataFrame([], TRACE_DDL)
        else:
            raise FencepostError(
                f"{name}: no trace was kept with traces={self._spec.traces!r}; "
                "expected a campaign with traces='sample' or traces='all'"
            )
        if name == "trace":
            return trace
        return ANALYSES[name].over(Views(trace, spark.read.parquet(*files.runs)))

    @property
    def report(self) -> Path:
        """The path of the report, an HTML page."""
        return Path(self.result.report)

    def __repr__(self) -> str:
        size = f"{len(self._spec.cells):,} cells, {len(self._spec.seeds):,} seeds each"
        return f"<Campaign: {size}; {self._summary()}>"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        if self._result is None:
            return f"<p>{html.escape(repr(self))}</p>"
        runs = self.table("runs")
        shown = ["scenario", "parameters", *(each for each in _SUMMARY if each in runs.columns)]
        page = f'<a href="{html.escape(self.report.as_uri())}">Report</a>'
        return f"<p>{html.escape(self._summary())}. {page}</p>{runs[shown].to_html(index=False)}"

    def _summary(self) -> str:
        if self._result is None:
            return "not run yet"
        done = self._result
        return f"{done.runs:,} runs, {done.failed:,} failed, {done.violations:,} violations"

    def _summaries(self) -> pa.Table:
        from pyarrow import parquet

        return parquet.read_table(Path(self.result.out) / RUNS)

    def _again(self, run_id: str) -> pa.Table:
        import pyarrow as pa

        from fencepost.simulation.mutants.registry import with_mutant
        from fencepost.simulation.run import run
        from fencepost.simulation.trace.parquet import SCHEMA, ArrowTrace

        cell, seed = self._cell(run_id)
        trace = ArrowTrace(run_id)
        with with_mutant(cell.mutant):
            run(cell.scenario, seed, trace=trace)
        return pa.Table.from_batches(trace.batches, SCHEMA)

    def _cell(self, run_id: str) -> tuple[CampaignCell, int]:
        prefix, _, seed = run_id.rpartition("-")
        for cell in self._spec.cells:
            if cell.prefix == prefix:
                return cell, int(seed)
        raise FencepostError(f"{run_id}: belongs to another campaign in {self.out}")


def _texts(settings: Mapping[str, Value]) -> dict[str, str]:
    return {key: value_text(value) for key, value in settings.items()}


def _session(master: str) -> SparkSession:
    """Return the running session, or start one that stays until the end of the process."""
    with contextlib.suppress(ImportError):
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        if SparkContext._active_spark_context is not None:
            return SparkSession.builder.getOrCreate()
    _kept.close()
    atexit.register(_kept.close)
    return _kept.enter_context(spark_session(master))
