"""The analyses: distributions over traces, in Spark SQL.

The queries lie beside this file, one a table or view, each with what it means in its first lines. They need
nothing but rows of the trace's schema, so they run on traces of any world.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.progress import Progress, Silent
from fencepost.simulation.pipeline.session import LOCAL, run_job, spark_session, told
from fencepost.simulation.pipeline.traces import TraceFiles, find_traces

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Tables: TypeAlias = dict[str, list[dict[str, Any]]]
"""Rows by table; a row maps a column to a number, a text or None."""

CURVE_POINTS = 101
"""A distribution is drawn from its percentiles 0, 1, … 100, however many values it has."""

_VIEWS = ("rebalance", "formation", "ownership", "handover")
_CACHED = frozenset({"rebalance", "handover"})
_TABLES = (
    "rebalances",
    "longest_rebalances",
    "downtime",
    "initial_assignment",
    "two_owners",
    "residency",
)
_INCIDENTS = {"fencing": "fencings", "commit": "commits_refused", "violation": "violations"}
_INCIDENT_COLUMN = {"fencing": "cause", "commit": "error", "violation": "invariant"}


class Curve(msgspec.Struct, frozen=True):
    """A distribution: its percentiles 0 to 100, in seconds."""

    scenario: str
    parameters: str
    count: int
    seconds: tuple[float, ...]


class Analysis(msgspec.Struct, frozen=True):
    """What the analyses found. Durations are in seconds."""

    tables: Tables
    rebalance_curves: tuple[Curve, ...] = ()
    downtime_curves: tuple[Curve, ...] = ()
    traced_runs: int = 0


def analyze(
    path: str | Path,
    *,
    master: str = LOCAL,
    report: str | Path | None = None,
    progress: Progress | None = None,
) -> Tables:
    """Analyse the traces behind `path`: a campaign's directory, a directory of traces, or one file.

    Answers the tables rebalances, longest_rebalances, downtime, initial_assignment, two_owners, residency,
    heartbeats, fencings, commits_refused, violations and runs; with `report`, writes the HTML page as well.

    :raises FencepostError: if there is no trace, a column is missing, or the report cannot be written.
    :raises EnvironmentLacks: if Spark cannot run here.
    """
    from fencepost.simulation.report.render import check_writable, render_campaign_report

    path = Path(path)
    target = None if report is None else check_writable(Path(report))
    files = find_traces(path)
    with spark_session(master) as spark:
        result = analyze_files(spark, files, progress or Silent())
    if target is not None:
        from fencepost.simulation.pipeline.reporting import report_input

        render_campaign_report(report_input("Traces analysed by fencepost", str(path), files, result), target)
    return result.tables


def analyze_files(spark: SparkSession, files: TraceFiles, progress: Progress) -> Analysis:
    """Run all analyses in a session that is there already; without traces only the table of runs has rows."""
    wanted = _TABLES if files.traces else ()
    tables: Tables = {name: [] for name in (*_TABLES, *_INCIDENTS.values())}
    incidents: list[dict[str, Any]] = []
    with progress.step("analysing", len(wanted) + 2) as advance:
        try:
            _declare_views(spark, files)
            tables["runs"] = run_job(spark, "runs", functools.partial(_runs, spark, files))
            advance(1)
            for name in wanted:
                tables[name] = run_job(spark, name, functools.partial(_collect, spark, name))
                advance(1)
            if files.traces:
                incidents = run_job(spark, "incidents", functools.partial(_collect, spark, "incidents"))
            advance(1)
        except Exception as error:
            if type(error).__module__.startswith(("pyspark", "py4j")):
                raise FencepostError(f"Spark could not analyse the traces: {told(error)}") from error
            raise
        finally:
            spark.catalog.clearCache()
    for kind, table in _INCIDENTS.items():
        tables[table] = [_incident(row, kind) for row in incidents if row["incident"] == kind]
    rebalance_curves = _take_curves(tables["rebalances"])
    downtime_curves = _take_curves(tables["downtime"])
    tables["heartbeats"] = [_heartbeats(row) for row in tables["rebalances"]]
    for row in tables["downtime"]:
        row["cause"] = row["cause"] or "all"
    return Analysis(tables, rebalance_curves, downtime_curves, sum(row["traced"] for row in tables["runs"]))


def _declare_views(spark: SparkSession, files: TraceFiles) -> None:
    if files.runs:
        spark.read.parquet(*files.runs).createOrReplaceTempView("summary")
    if not files.traces:
        return
    spark.read.parquet(*files.traces).createOrReplaceTempView("trace")
    _query(spark, "traced").createOrReplaceTempView("traced")
    run = _query(spark, "labelled") if files.runs else spark.table("traced")
    run.cache().createOrReplaceTempView("run")
    for name in _VIEWS:
        view = _query(spark, name)
        (view.cache() if name in _CACHED else view).createOrReplaceTempView(name)


def _query(spark: SparkSession, name: str) -> DataFrame:
    text = resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    if ":curve" in text:
        return spark.sql(text, args={"curve": [point / (CURVE_POINTS - 1) for point in range(CURVE_POINTS)]})
    return spark.sql(text)


def _runs(spark: SparkSession, files: TraceFiles) -> list[dict[str, Any]]:
    return _collect(spark, "runs" if files.runs else "traced_runs")


def _collect(spark: SparkSession, name: str) -> list[dict[str, Any]]:
    rows = _query(spark, name).collect()
    return [{column: _plain(value) for column, value in row.asDict().items()} for row in rows]


def _plain(value: Any) -> Any:
    """Decimals as floats, everything else as it is: rows go into JSON."""
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, Sequence):
        return [_plain(part) for part in value]
    return float(value)


def _incident(row: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "scenario": row["scenario"],
        "parameters": row["parameters"],
        _INCIDENT_COLUMN[kind]: row["name"],
        "count": row["count"],
        "runs": row["runs"],
        "example": row["example"],
    }


def _take_curves(rows: list[dict[str, Any]]) -> tuple[Curve, ...]:
    """Move the percentiles out of the rows: they are for drawing."""
    curves = []
    for row in rows:
        seconds = row.pop("curve")
        if seconds is not None and row.get("cause") is None:
            curves.append(Curve(row["scenario"], row["parameters"], row["count"], tuple(seconds)))
    return tuple(curves)


def _heartbeats(row: dict[str, Any]) -> dict[str, Any]:
    """The heartbeats' columns of a row of rebalances, which leave it."""
    names = {"heartbeats_mean": "mean", "heartbeats_median": "median", "heartbeats_max": "max"}
    labels = {"scenario": row["scenario"], "parameters": row["parameters"], "rebalances": row["count"]}
    return labels | {name: row.pop(column) for column, name in names.items()}
