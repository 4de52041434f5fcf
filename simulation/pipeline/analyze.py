"""All analyses over files of traces, in a Spark session."""

from __future__ import annotations

import contextlib
import functools
import json
import os.path
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses import declaration
from fencepost.simulation.analyses.catalogue import ANALYSES, TABLES
from fencepost.simulation.analyses.comparison import COMPARISONS, comparison_rows, samples
from fencepost.simulation.analyses.driver import tables_here
from fencepost.simulation.analyses.measures import VALUES
from fencepost.simulation.analyses.views import Views
from fencepost.simulation.pipeline.arguments import check_one_of, hint, path_of
from fencepost.simulation.pipeline.jobs import run_job, run_jobs, session_settings, settings_for
from fencepost.simulation.pipeline.kept_tables import KeptTables
from fencepost.simulation.pipeline.plan_note import begin_of_plan
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.run_files import FoundViews, found_views
from fencepost.simulation.pipeline.session import (
    LOCAL,
    check_master,
    error_text,
    is_local,
    is_of_spark,
    spark_session,
)
from fencepost.simulation.pipeline.traces import NOTE, TraceFiles, check_rows, find_traces
from fencepost.simulation.report.model import Curve, TableGrid, label
from fencepost.simulation.trace.schema import TRACE_DDL

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Tables: TypeAlias = dict[str, list[dict[str, Any]]]
"""Rows by table; a row maps each column to a number, a text or None."""

Place: TypeAlias = Literal["auto", "driver", "spark"]
"""The place where tables are computed from the views of runs."""

DRIVER_ROWS: Final = 20_000_000
"""Number of trace rows up to which the driver computes the tables: the views have a tenth as many rows."""

AT_ONCE: Final = 2
"""Number of analyses that run on Spark at the same time: while one is planned, the tasks of the other use the
cores."""


class AnalysisResults(msgspec.Struct, frozen=True):
    """The results of the analyses. Durations are in seconds."""

    tables: Tables
    rebalance_curves: tuple[Curve, ...] = ()
    downtime_curves: tuple[Curve, ...] = ()
    traced_runs: int = 0


KEPT_SAID: Final = "nothing has changed since the last analysis: these are its tables"


def analyze(
    path: str | Path,
    *,
    master: str = LOCAL,
    report: str | Path | None = None,
    title: str = "",
    only: Collection[str] | None = None,
    tables: Place = "auto",
    answer: Sequence[TableGrid] = (),
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Tables:
    """Analyse the traces at `path`: the folder of a plan or a campaign, a folder of traces, or one file.

    For a plan, only rows since the begin of its event count, as in its table.

    If several files have a run with the same id, each is a separate run. Its file, or its folder if that is
    enough, is one of its parameters.

    Return the rows of each table that `fencepost.simulation.analyses.catalogue` declares; with `report`, also
    write the HTML page. `only` names the needed tables: these are ready sooner, and others have no rows.
    `answer` has tables that the report shows first.

    Spark computes the views of runs that are new. `tables` says where the tables are computed from them:
    with `auto`, in this process unless the traces have many rows. If nothing has changed since the last
    analysis, `auto` returns its tables, and `say` is called with a line that says so.

    :raises FencepostError: if there is no trace or row, a column is missing, the report cannot be written,
        `only` names an unknown table, or `only` is given with a report.
    :raises EnvironmentLacks: if Spark is needed and cannot run here.
    """
    if only is not None:
        if isinstance(only, str | bytes) or not isinstance(only, Collection):
            raise FencepostError(f"only={only!r}: expected a list of tables, such as ['runs', 'downtime']")
        for name in only:
            if name not in TABLES:
                raise FencepostError(f"only: there is no table {name}; {hint(name, TABLES, 'there are')}")
        if report is not None:
            raise FencepostError("only: a report has all tables")
    check_one_of("tables", tables, get_args(Place))
    check_master(master)
    path = path_of("path", path)
    target = None
    if report is not None:
        from fencepost.simulation.report.render import check_writable

        target = check_writable(path_of("report", report))
    files = find_traces(path)
    if not files.rows:
        raise FencepostError(f"{path}: has no rows to analyse")
    shown = progress or Progress()
    wanted = session_settings(files.rows) if is_local(master) else {}
    with contextlib.ExitStack() as stack:

        def start() -> SparkSession:
            return stack.enter_context(spark_session(master, wanted, say=shown.say))

        result = analyze_files(
            start,
            files,
            shown,
            only,
            since_us=begin_of_plan(path) or 0,
            tables=tables,
            on_cluster=not is_local(master),
            say=say,
        )
    if target is not None:
        from fencepost.simulation.pipeline.reporting import report_input
        from fencepost.simulation.report.render import render_campaign_report

        shown_input = report_input(title or _title_of(result), str(path), files, result)
        render_campaign_report(msgspec.structs.replace(shown_input, answer=tuple(answer)), target)
    return result.tables


def kind_of(path: Path) -> str:
    """Return the kind of a path in words: a plan, a campaign, a folder of traces or a single trace."""
    if (begin_us := begin_of_plan(path)) is not None:
        return f"a plan; rows before its event, in the first {begin_us / 1e6:g} s, do not count"
    if (path / NOTE).is_file():
        return "a campaign"
    return "a folder of traces" if path.is_dir() else "a trace"


def _title_of(result: AnalysisResults) -> str:
    names = list(dict.fromkeys(row["scenario"] for row in result.tables["runs"]))
    runs = sum(row["runs"] for row in result.tables["runs"])
    about = names[0] if len(names) == 1 else f"{len(names)} scenarios"
    return f"Analysis of {about}, {runs:,} run{'' if runs == 1 else 's'}"


def analyze_files(
    start: Callable[[], SparkSession],
    files: TraceFiles,
    progress: Progress,
    only: Collection[str] | None = None,
    *,
    since_us: int = 0,
    tables: Place = "auto",
    on_cluster: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> AnalysisResults:
    """Run all analyses, or those of the tables in `only`. `start` is called if a session is needed.

    With `on_cluster`, its tasks compute the views of runs, however few.

    Without traces, only tables of runs have rows. `since_us` is as for `Views`.

    :raises FencepostError: if a file is damaged, or Spark cannot read it.
    """
    names = set(TABLES if only is None else only)
    wanted = {*names, "runs"} if COMPARISONS.name in names else names
    import duckdb
    import pyarrow as pa

    with found_views(files) as views:
        kept = KeptTables(files, views.sources, since_us)
        if tables == "auto" and (before := kept.read(AnalysisResults)) is not None:
            rows = {name: rows if name in wanted else [] for name, rows in before.tables.items()}
            say(KEPT_SAID)
            return msgspec.structs.replace(before, tables=rows)
        possible = ANALYSES if files.traces else ("runs", "mutants")
        listed = [name for name in possible if name in wanted]
        here = tables == "driver" or (tables == "auto" and files.rows <= DRIVER_ROWS)
        try:
            if here:
                packed = views.table(
                    start, lambda spark: _read(spark, files), progress, on_cluster=on_cluster
                )
                found = _here(packed, files, listed, progress=progress, since_us=since_us)
            else:
                found = _on_spark(start(), files, views, listed, progress=progress, since_us=since_us)
        except Exception as error:
            if is_of_spark(error) or isinstance(error, pa.ArrowException | OSError | duckdb.Error):
                check_rows(files)  # names the file, and needs no stack
            if is_of_spark(error):
                text = f"Spark could not analyse the traces: {error_text(error)}"
                raise FencepostError(text) from error
            raise
        if COMPARISONS.name in names and _several_cells(found["runs"]):
            found[COMPARISONS.name] = comparison_rows(samples(found[VALUES.name]))
        found = {name: found.get(name, []) for name in TABLES}
        rebalance_curves, downtime_curves = (_take_curves(found[name]) for name in ("rebalances", "downtime"))
        traced = sum(row["traced"] for row in found["runs"])
        result = AnalysisResults(found, rebalance_curves, downtime_curves, traced)
        if only is None:
            kept.write(result)
        return result


def _here(
    packed: pa.Table,
    files: TraceFiles,
    names: Sequence[str],
    *,
    progress: Progress,
    since_us: int,
) -> Tables:
    """Compute the tables in this process, with the measures if runs can be compared."""
    runs = {run_id: json.dumps(run.name) for run_id, run in files.renamed.items()}
    tables: Tables = {}
    with (
        tables_here(packed, summaries=files.runs, files=runs, since_us=since_us) as found,
        progress.step("analysing", len(names)) as advance,
    ):
        for name in names:
            tables[name] = found.rows(name)
            advance(1)
        if _several_cells(tables.get("runs", [])):
            tables[VALUES.name] = found.rows(VALUES.name)
    return tables


def _on_spark(
    spark: SparkSession,
    files: TraceFiles,
    found: FoundViews,
    names: Sequence[str],
    *,
    progress: Progress,
    since_us: int,
) -> Tables:
    """Compute the tables on Spark, with the measures if runs can be compared."""
    summaries = spark.read.parquet(*files.runs) if files.runs else None
    trace = _read(spark, files) if files.traces else spark.createDataFrame([], TRACE_DDL)
    views = Views(
        trace,
        summaries,
        files=_file_of_runs(spark, files),
        cached=True,
        since_us=since_us,
        packed=found.frame(spark, lambda: trace) if files.traces else None,
    )
    try:
        with progress.step("analysing", len(names)) as advance, settings_for(spark, files.rows):
            jobs = {name: functools.partial(_collect, ANALYSES[name], views) for name in names}
            tables = run_jobs(spark, jobs, advance=advance, at_once=AT_ONCE)
            if _several_cells(tables.get("runs", [])):
                tables[VALUES.name] = run_job(spark, "measures", lambda: _collect(VALUES, views))
            return tables
    finally:
        views.release()


def _read(spark: SparkSession, files: TraceFiles) -> DataFrame:
    """Return the rows of all traces; runs with the same id in several files get new ids."""
    trace = spark.read.schema(TRACE_DDL).parquet(*files.traces)
    names = {os.path.abspath(path): name for path, name in files.names.items()}
    if not names:
        return trace
    from pyspark.sql import functions

    # Spark writes a file's URI in two ways, with one slash or three: only its path is the same in both.
    encoded = {urlsplit(uri).path for uri in trace.inputFiles()}
    named = {path: names[unquote(path)] for path in encoded if unquote(path) in names}
    words = [functions.lit(word) for pair in named.items() for word in pair]
    path = functions.regexp_replace("_metadata.file_path", "^file:/+", "/")
    name = functions.try_element_at(functions.create_map(*words), path)
    return trace.withColumn("run_id", functions.concat_ws("@", "run_id", name))


def _file_of_runs(spark: SparkSession, files: TraceFiles) -> DataFrame | None:
    """Return the parameter that distinguishes runs with the same id, by run."""
    if not files.renamed:
        return None
    rows = [(run_id, json.dumps(run.name)) for run_id, run in files.renamed.items()]
    return spark.createDataFrame(rows, "run_id string, file string")


def _collect(analysis: declaration.Analysis, views: Views) -> list[dict[str, Any]]:
    return [row.asDict() for row in analysis.over(views).collect()]


def _several_cells(runs: list[dict[str, Any]]) -> bool:
    """Return true if some scenario has runs with different parameters."""
    return any(count > 1 for count in Counter(row["scenario"] for row in runs if row["traced"]).values())


def _take_curves(rows: list[dict[str, Any]]) -> tuple[Curve, ...]:
    """Move the percentiles out of the rows: they are for charts."""
    curves = []
    for row in rows:
        seconds = row.pop("curve")
        if seconds is not None and row.get("cause", "all") == "all":
            curves.append(Curve(label(row), row["count"], tuple(seconds)))
    return tuple(curves)
