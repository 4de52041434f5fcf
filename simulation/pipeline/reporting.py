"""Turns an analysis into the values of the report: the runs that are worth a look, and their rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.pipeline.analyze import AnalysisResults
from fencepost.simulation.pipeline.traces import TraceFiles, find_traces
from fencepost.simulation.report.model import ReportInput, TracedRun, duration, label
from fencepost.simulation.trace.schema import COLUMNS, Row, RowKind

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_RUNS = 3
SHOWN_FAILURES = 50
LISTED_RUNS = 20_000
"""The limit on runs in a page's list: a longer list would make it slow."""


def report_input(
    title: str, source: str, files: TraceFiles, analysis: AnalysisResults, wall_seconds: float | None = None
) -> ReportInput:
    """Return the page's values. It reads the rows of the few runs with a timeline."""
    summaries, failures = _summaries(files)
    runs = []
    for run_id, why in interesting_runs(analysis, [*summaries.values()]):
        rows = list(_rows(files, run_id))
        if rows:
            runs.append(_traced_run(run_id, why, rows, summaries.get(run_id)))
    listed = listed_runs([*failures, *summaries.values()], source)
    return ReportInput(
        title=title,
        source=source,
        tables=analysis.tables,
        rebalance_curves=analysis.rebalance_curves,
        downtime_curves=analysis.downtime_curves,
        traced_runs=analysis.traced_runs,
        wall_seconds=wall_seconds,
        failures=failures,
        runs=tuple(runs),
        all_runs=listed,
    )


def report_runs(path: str | Path, run_ids: Sequence[str], report: str | Path) -> None:
    """Write a page with the timelines of these runs. It needs no Spark.

    :raises FencepostError: if there is no such run in the traces, or the report cannot be written.
    """
    from fencepost.simulation.report.render import check_writable, kind_of_run, render_timelines

    target = check_writable(Path(report))
    files = find_traces(Path(path))
    summaries, _ = _summaries(files)
    runs = []
    for run_id in dict.fromkeys(run_ids):
        rows = list(_rows(files, run_id))
        if not rows:
            raise FencepostError(_absent(path, run_id, summaries.get(run_id), files))
        runs.append(_traced_run(run_id, "", rows, summaries.get(run_id)))
    count = sum(row.kind == RowKind.VIOLATION for run in runs for row in run.rows)
    verdict = f"{count:,} violation{'' if count == 1 else 's'}" if count else "No invariant was violated"
    title = (
        f"{kind_of_run(runs[0].rows)}: {runs[0].title}" if len(runs) == 1 else f"{len(runs)} runs of {path}"
    )
    render_timelines(runs, target, title=title, verdict=verdict, fine=count == 0)


def _absent(path: str | Path, run_id: str, summary: Mapping[str, Any] | None, files: TraceFiles) -> str:
    if summary is not None:
        return (
            f"{path}: the trace of {run_id} was not kept; run it again: {summary['command']} --report F.html"
        )
    from pyarrow import compute, dataset

    known = set(files.renamed)
    plain, _ = files.place(run_id)
    for batch in (
        dataset.dataset(list(plain), format="parquet").to_batches(columns=["run_id"]) if plain else ()
    ):
        known.update(compute.unique(batch.column("run_id")).to_pylist())
    few = ", ".join(sorted(known)[:3])
    return f"{path}: no run {run_id} among its {len(known):,} traces: expected a name such as {few}"


def listed_runs(summaries: Sequence[Mapping[str, Any]], source: str) -> list[dict[str, Any]]:
    """Return the runs for the page's list, with the commands that show each; failed runs come first."""
    listed = []
    for row in summaries:
        outcome, fine = _outcome(row)
        show = ["fencepost", "analyze", source, "--run", row["run_id"], "--report", f"{row['run_id']}.html"]
        listed.append(
            {
                "run_id": row["run_id"],
                "label": label(row),
                "rebalances": row["rebalances"],
                "heartbeats": row["heartbeats"],
                "outcome": outcome,
                "fine": fine,
                "show": shlex.join(show) if row["traced"] else "",
                "again": row["command"],
            }
        )
    return sorted(listed, key=lambda run: (run["fine"], run["run_id"]))[:LISTED_RUNS]


def _outcome(row: Mapping[str, Any]) -> tuple[str, bool]:
    if row["error"] is not None:
        return f"failed: {str(row['error']).strip().splitlines()[-1]}", False
    if row["violations"]:
        return f"{row['violations']:,} violation{'' if row['violations'] == 1 else 's'}", False
    return ("fine", True) if row["converged"] else ("did not settle", False)


def interesting_runs(
    analysis: AnalysisResults, summaries: Sequence[Mapping[str, Any]] = ()
) -> list[tuple[str, str]]:
    """Return the runs that are worth a look, each with the reason.

    These are one for each broken invariant, the one with the longest rebalance, and for every other scenario
    the traced one with the most events.
    """
    chosen: dict[str, str] = {}
    for row in analysis.tables["violations"]:
        chosen.setdefault(row["example"], f"violates {row['invariant']}")
    for row in analysis.tables["longest_rebalances"][:1]:
        chosen.setdefault(row["run_id"], f"the longest rebalance, {duration(row['seconds'])}")
    covered = {run["scenario"] for run in summaries if run["run_id"] in chosen}
    for run in sorted(summaries, key=lambda run: -run["events"]):
        if run["traced"] and run["scenario"] not in covered:
            covered.add(run["scenario"])
            chosen.setdefault(run["run_id"], f"the most events of {run['scenario']}")
    return list(chosen.items())[:SHOWN_RUNS]


def _summaries(files: TraceFiles) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Return the summaries of all runs by id, without failed runs, and the first failed runs."""
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


def _rows(files: TraceFiles, run_id: str) -> Iterator[Row]:
    """Yield the rows of one run in order. Parquet's statistics skip the row groups of all other runs."""
    from pyarrow import dataset

    paths, written = files.place(run_id)
    if not paths:
        return
    table = dataset.dataset(list(paths), format="parquet").to_table(
        columns=list(COLUMNS), filter=dataset.field("run_id") == written
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
