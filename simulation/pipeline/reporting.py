"""From an analysis to what the report shows: which runs are worth a look, and their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.pipeline.analyze import Analysis
from fencepost.simulation.pipeline.traces import TraceFiles
from fencepost.simulation.report.model import Curve, ReportInput, TracedRun
from fencepost.simulation.report.tables import duration, label
from fencepost.simulation.trace.schema import COLUMNS, Row

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_RUNS = 3
SHOWN_FAILURES = 50


def report_input(
    title: str, source: str, files: TraceFiles, analysis: Analysis, wall_seconds: float | None = None
) -> ReportInput:
    """The page's values. Reads the rows of the few runs that are shown whole."""
    summaries, failures = _summaries(files)
    runs = []
    for run_id, why in interesting_runs(analysis):
        rows = list(_rows(files.traces, run_id))
        if rows:
            runs.append(_traced_run(run_id, why, rows, summaries.get(run_id)))
    return ReportInput(
        title=title,
        source=source,
        tables=analysis.tables,
        rebalance_curves=_labelled(analysis.rebalance_curves),
        downtime_curves=_labelled(analysis.downtime_curves),
        traced_runs=analysis.traced_runs,
        wall_seconds=wall_seconds,
        failures=failures,
        runs=tuple(runs),
    )


def interesting_runs(analysis: Analysis) -> list[tuple[str, str]]:
    """Runs worth a look, each with the reason: one for each broken invariant, and the longest rebalance."""
    chosen: dict[str, str] = {}
    for row in analysis.tables["violations"]:
        chosen.setdefault(row["example"], f"violates {row['invariant']}")
    for row in analysis.tables["longest_rebalances"][:1]:
        chosen.setdefault(row["run_id"], f"the longest rebalance, {duration(row['seconds'])}")
    return list(chosen.items())[:SHOWN_RUNS]


def _labelled(curves: Sequence[Any]) -> tuple[Curve, ...]:
    return tuple(
        Curve(label({"scenario": c.scenario, "parameters": c.parameters}), c.count, c.seconds) for c in curves
    )


def _summaries(files: TraceFiles) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """The summaries of all runs by id without those that failed, and the first of those."""
    from pyarrow import parquet

    done: dict[str, dict[str, Any]] = {}
    failures: list[dict[str, Any]] = []
    for path in files.runs:
        for row in parquet.read_table(path).to_pylist():
            if row["error"] is None:
                done[row["run_id"]] = row
            elif len(failures) < SHOWN_FAILURES:
                failures.append(row)
    return done, failures


def _rows(paths: Sequence[str], run_id: str) -> Iterator[Row]:
    """The rows of one run in their order. Parquet's statistics skip the row groups of all others."""
    from pyarrow import dataset

    table = dataset.dataset(list(paths), format="parquet").to_table(
        columns=list(COLUMNS), filter=dataset.field("run_id") == run_id
    )
    for batch in table.sort_by("seq").to_batches():
        yield from _plain_rows(batch)


def _plain_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = [batch.column(name).to_pylist() for name in Row._fields]
    at = Row._fields.index("partitions")
    columns[at] = [
        tuple(TopicPartition(held["topic"], held["partition"]) for held in partitions)
        for partitions in columns[at]
    ]
    return (Row(*values) for values in zip(*columns, strict=True))


def _traced_run(run_id: str, why: str, rows: Sequence[Row], summary: dict[str, Any] | None) -> TracedRun:
    if summary is None:
        facts: tuple[tuple[str, str], ...] = (
            ("events", f"{len(rows):,}"),
            ("time", duration(rows[-1].t_us / 1e6)),
            ("world", rows[0].world),
        )
        return TracedRun(run_id=run_id, title=run_id, why=why, facts=facts, rows=rows)
    facts = (
        ("scenario", label(summary)),
        ("seed", str(summary["seed"])),
        ("members", f"{summary['members']:,}"),
        ("partitions", f"{summary['partitions']:,}"),
        ("virtual time", duration(summary["virtual_seconds"])),
        ("events", f"{summary['events']:,}"),
        ("rebalances", f"{summary['rebalances']:,}"),
        ("settled", "yes" if summary["converged"] else "no"),
        ("digest", summary["digest"][:12]),
    )
    return TracedRun(run_id=run_id, title=run_id, why=why, command=summary["command"], facts=facts, rows=rows)
