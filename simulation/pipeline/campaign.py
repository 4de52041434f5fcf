"""Campaigns: many runs fanned out by Spark, then the analyses and the report."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.pipeline.analyze import Analysis, analyze_files
from fencepost.simulation.pipeline.failed import KeptFailure, keep_failures
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.plan import cells_of, dealt, parse_grid, tasks_of
from fencepost.simulation.pipeline.progress import Progress, Silent
from fencepost.simulation.pipeline.session import LOCAL, run_job, spark_session, told, wall_clock
from fencepost.simulation.scenarios.load import library

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.simulation.pipeline.worker import Orders

Traces: TypeAlias = Literal["all", "sample", "failed", "none"]
"""Whose traces are kept: all, a sample and those of runs that broke an invariant, only these, or none."""

SAMPLE = 200
"""Traces that `sample` keeps in all, shared among the cells of the grid; at least one of each."""

TIME_LIMIT_S = 600.0

_PARTITIONS_A_CORE = 16
_RUNS_A_PARTITION = 200
_NAMED = 3


class CampaignResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a campaign did; runs of an earlier start of it count as well."""

    runs: int
    failed: int
    """Runs that ended with an error of their own."""
    violations: int
    wall_seconds: float
    out: str
    report: str
    failures: list[KeptFailure] = []
    """Runs that failed, made small: the first of each kind."""
    tables: dict[str, list[dict[str, Any]]] = {}
    """The analyses, by table."""


def campaign(
    scenarios: Sequence[str] = (),
    *,
    seeds: int | Iterable[int] = 100,
    grid: Mapping[str, Sequence[str]] | Iterable[str] = (),
    master: str = LOCAL,
    out_dir: str | Path,
    report: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    traces: Traces = "sample",
    time_limit_s: float = TIME_LIMIT_S,
) -> CampaignResult:
    """Run every scenario under every choice of parameters with every seed, analyse, and write the report.

    No `scenarios` means all of the library. `seeds` is how many (from 0 on) or which ones; `grid` maps a
    parameter to its values, or holds words such as `members=10,50`. Summaries and traces go to `out_dir`, the
    report to `report`, by default report.html there. A run that raises, or takes longer than `time_limit_s`,
    is a failed run and no more. With `resume` runs that are finished in `out_dir` are not repeated.

    :raises FencepostError: before anything runs, if the input is wrong or `out_dir` cannot be used.
    :raises EnvironmentLacks: if Spark cannot run here, or stops on the way.
    """
    from fencepost.simulation.report.render import check_writable

    began = wall_clock()
    chosen = _seeds(seeds)
    names = list(scenarios) or [entry.name for entry in library()]
    cells = cells_of(names, grid if isinstance(grid, Mapping) else parse_grid(grid))
    if time_limit_s <= 0:
        raise FencepostError(f"a run's time limit of {time_limit_s:g} s: expected more than 0")
    _check_pyarrow()
    shown = progress or Silent()
    if report is not None:
        check_writable(Path(report))
    directory = CampaignDirectory(Path(out_dir).absolute())
    finished = directory.prepare(cells, resume=resume)
    target = directory.root / "report.html" if report is None else Path(report)
    tasks = list(tasks_of(cells, chosen, finished, _always_traced(traces, len(cells), len(chosen))))
    with spark_session(master) as spark:
        if tasks:
            from fencepost.simulation.pipeline.worker import Orders

            hands = _partitions(len(tasks), spark.sparkContext.defaultParallelism)
            orders = Orders(
                cells=cells,
                tasks=tuple(dealt(tasks, hands)),
                root=str(directory.root),
                generation=directory.generation(),
                time_limit_s=time_limit_s,
                trace_violations=traces != "none",
            )
            fan_out(spark, orders, hands, shown)
        files = directory.files()
        analysis = analyze_files(spark, files, shown)
    kept = keep_failures(directory, cells, shown)
    _write_report(directory, analysis, target, wall_clock() - began)
    totals = {
        name: sum(row[name] for row in analysis.tables["runs"]) for name in ("runs", "failed", "violations")
    }
    return CampaignResult(
        **totals,
        wall_seconds=wall_clock() - began,
        out=str(out_dir),
        report=str(target if report is None else report),
        failures=kept,
        tables=analysis.tables,
    )


def fan_out(spark: SparkSession, orders: Orders, partitions: int, progress: Progress) -> None:
    """Carry out the orders on Spark, in so many partitions of equal size.

    :raises EnvironmentLacks: if a worker process dies or cannot reach the directory; finished runs stay.
    """
    from fencepost.simulation.pipeline.worker import DONE, work

    count = len(orders.tasks)
    with progress.step("running", count) as advance:
        told_runs = 0

        def watch(done: int, total: int) -> None:
            nonlocal told_runs
            runs = count * done // total if total else 0
            advance(max(0, runs - told_runs))
            told_runs = max(told_runs, runs)

        def action() -> Any:
            rows = spark.range(0, count, 1, partitions)
            return rows.mapInArrow(functools.partial(work, orders), DONE).collect()

        try:
            run_job(spark, "campaign", action, watch)
        except Exception as error:
            if type(error).__module__.startswith(("pyspark", "py4j")):
                raise EnvironmentLacks(
                    f"the campaign stopped: {told(error)}; finished runs are kept, go on with --resume"
                ) from error
            raise
        advance(count - told_runs)


def _write_report(directory: CampaignDirectory, analysis: Analysis, target: Path, seconds: float) -> None:
    from fencepost.simulation.pipeline.reporting import report_input
    from fencepost.simulation.report.render import render_campaign_report

    names = list(dict.fromkeys(row["scenario"] for row in analysis.tables["runs"]))
    title = f"Campaign: {', '.join(names)}" if len(names) <= _NAMED else f"Campaign of {len(names)} scenarios"
    data = report_input(title, str(directory.root), directory.files(), analysis, seconds)
    render_campaign_report(data, target)


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, int):
        if seeds < 1:
            raise FencepostError(f"--seeds {seeds}: expected a number from 1")
        return list(range(seeds))
    chosen = list(dict.fromkeys(seeds))
    if not chosen or min(chosen) < 0:
        raise FencepostError("a campaign needs at least one seed, none below 0")
    return chosen


def _always_traced(traces: Traces, cells: int, seeds: int) -> int:
    """For how many seeds of each cell the trace is kept in any case."""
    if traces == "all":
        return seeds
    if traces == "sample":
        return max(1, SAMPLE // cells)
    if traces in ("failed", "none"):
        return 0
    raise FencepostError(f"--traces {traces}: expected all, sample, failed or none")


def _partitions(runs: int, cores: int) -> int:
    """Enough for an even load, few enough that a partition is worth its start."""
    return min(runs, max(_PARTITIONS_A_CORE * cores, -(-runs // _RUNS_A_PARTITION)))


def _check_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise EnvironmentLacks("campaigns need pyarrow: pip install 'fencepost[spark]'") from error
