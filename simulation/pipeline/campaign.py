"""Campaigns: many runs fanned out by Spark, then the analyses and the report."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.analyses.catalogue import has_mutant
from fencepost.simulation.pipeline.analyze import AnalysisResults, analyze_files
from fencepost.simulation.pipeline.arguments import path_of
from fencepost.simulation.pipeline.failed import KeptFailure, keep_failures
from fencepost.simulation.pipeline.jobs import OutOfTime, run_job
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.progress import Progress, Shares, time_left
from fencepost.simulation.pipeline.session import (
    LOCAL,
    SessionWhenNeeded,
    check_can_start,
    error_text,
    is_local,
    is_of_spark,
    local_cores,
    session_runs,
    wall_clock,
)
from fencepost.simulation.pipeline.shipping import check_shared
from fencepost.simulation.pipeline.spec import CampaignSpec, Traces
from fencepost.simulation.pipeline.tasks import (
    Task,
    dealt,
    tasks_of,
)
from fencepost.simulation.pipeline.traces import NOTE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.simulation.pipeline.early_runs import EarlyRuns
    from fencepost.simulation.pipeline.runs import JobSpec


CANCEL_S = 2.0
"""Time that workers have to end by themselves once the time for runs is over, in seconds."""


class LostExecutor(msgspec.Struct, frozen=True, kw_only=True):
    """One executor that was lost."""

    executor: str
    """Spark's number of the executor."""
    host: str
    reason: str
    """The reason that Spark's driver reports."""


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """The executors that were lost on the way, and the number of repeated runs."""

    executors: list[LostExecutor] = []
    runs_again: int = 0
    """Number of runs that a second attempt did, because the executor or the Python process of the first was
    lost."""

    @property
    def lines(self) -> list[str]:
        """The losses as lines for people; empty if nothing was lost."""
        lines = [
            f"Executor {each.executor} on {each.host} was lost: {each.reason}" for each in self.executors
        ]
        if self.runs_again:
            process = "its executor" if self.executors else "its process"
            lines.append(f"{self.runs_again:,} runs were done again: each had lost {process}.")
        elif lines:
            lines.append("No run had to be done again.")
        return lines


class Losses:
    """Watches a session for executors that it loses from now on. Without one, nothing is lost."""

    def __init__(self, spark: SparkSession | None) -> None:
        self._spark = spark
        self._before = _lost(spark).keys()
        self.runs_again = 0

    def found(self) -> Lost:
        """Return the losses since then, with executors in the order of their numbers."""
        lost = _lost(self._spark)
        names = sorted(lost.keys() - self._before, key=lambda name: (len(name), name))
        return Lost(executors=[lost[name] for name in names], runs_again=self.runs_again)


def _lost(spark: SparkSession | None) -> dict[str, LostExecutor]:
    """Return all lost executors of the session, by their numbers."""
    context: Any = None if spark is None else spark.sparkContext
    if context is None or is_local(context.master):
        return {}
    found = {}
    listed = context._jsc.sc().statusStore().executorList(False)
    for index in range(listed.size()):
        each = listed.apply(index)
        if not each.isActive():
            reason = each.removeReason()
            first = reason.get().strip().splitlines() if reason.isDefined() else []
            host = str(each.hostPort()).rpartition(":")[0]
            found[str(each.id())] = LostExecutor(
                executor=str(each.id()), host=host, reason=first[0] if first else "no reason is known"
            )
    return found


REPORT = "report.html"
SAMPLE = 200
"""Total number of traces that `sample` keeps, shared among the cells of the grid; at least one for each."""

MOST_EARLY = 16
"""The limit on processes that do runs before Spark: the driver takes the results of all of them."""

_PARTITIONS_A_CORE = 16
_RUNS_A_PARTITION = 200
_NAMED = 3


class CampaignResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a campaign, including the runs from before a restart."""

    runs: int
    failed: int
    """Number of runs that ended with an error, without those of mutants."""
    violations: int
    """Number of violations, without those of mutants."""
    wall_seconds: float
    out: str
    report: str
    lost: Lost = Lost()
    """Executors of the cluster that were lost on the way, and how many runs were done again."""
    failures: list[KeptFailure] = []
    """The shrunk failures: the first of each kind."""
    tables: dict[str, list[dict[str, Any]]] = {}
    """The rows of the analyses by table."""


def carry_out(
    spec: CampaignSpec,
    *,
    master: str = LOCAL,
    out_dir: str | Path,
    report: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> CampaignResult:
    """Run a campaign, analyse it, and write the report.

    Summaries and traces are written to `out_dir`, and the report to `report`, by default report.html in
    `out_dir`. A run that raises, hangs, or ends its process is only a failed run. With `resume`, runs that
    are finished in `out_dir` are not repeated.

    :raises FencepostError: before anything runs, if the input is wrong or `out_dir` cannot be used.
    :raises EnvironmentLacks: if Spark cannot run here, or stops on the way.
    """
    from fencepost.simulation.report.render import check_writable

    began = wall_clock()
    shown = progress or Progress()
    out = path_of("out_dir", out_dir)
    target = out / REPORT if report is None else check_writable(path_of("report", report))
    cells, seeds = spec.cells, spec.seeds
    with opened(
        spec,
        master=master,
        out_dir=out,
        resume=resume,
        progress=shown,
        if_stopped="; finished runs are kept, continue with --resume",
    ) as (running, finished):
        traced = _always_traced(spec.traces, len(cells), len(seeds))
        running.do(list(tasks_of(cells, seeds, finished, traced)), shown)
        directory = running.directory
        analysis = running.analysis(shown)
        lost = running.losses.found()
    kept = keep_failures(directory, [cell for cell in spec.cells if not cell.mutant], shown)
    _write_report(spec.title, directory, analysis, target, wall_clock() - began)
    rows = analysis.tables["runs"]
    sound = [row for row in rows if not has_mutant(row)]
    return CampaignResult(
        runs=sum(row["runs"] for row in rows),
        failed=sum(row["failed"] for row in sound),
        violations=sum(row["violations"] for row in sound),
        wall_seconds=wall_clock() - began,
        out=str(out_dir),
        report=str(target),
        lost=lost,
        failures=kept,
        tables=analysis.tables,
    )


SPARK_PAYS_S = 120.0
"""Time from which on the rest of the runs is worth Spark's start on this machine, in seconds. A session that
has started takes over even if only a quarter of that is left."""


class OpenCampaign:
    """A campaign that can do runs, and whose directory can be read.

    Without a cluster and without a running session, the first runs need no Spark. If they show that the rest
    takes more than `SPARK_PAYS_S`, a session starts meanwhile, and takes over.
    """

    def __init__(
        self,
        spec: CampaignSpec,
        session: SessionWhenNeeded,
        directory: CampaignDirectory,
        if_stopped: str,
        *,
        early: EarlyRuns | None,
        cores: int,
    ) -> None:
        self.session = session
        self.directory = directory
        self.losses = Losses(session.get() if early is None else None)
        self.cores = cores
        """Number of runs at the same time."""
        self._spec = spec
        self._if_stopped = if_stopped
        self._early = early
        self.on_cluster = early is None and not is_local(session.get().sparkContext.master)

    def analysis(self, progress: Progress, *, since_us: int = 0) -> AnalysisResults:
        """Return all tables over the runs that are done; `since_us` is as for `analyze_files`."""
        files = self.directory.files()
        return analyze_files(self.session.get, files, progress, since_us=since_us, on_cluster=self.on_cluster)

    def do(
        self,
        tasks: list[Task],
        progress: Progress,
        seconds: float | None = None,
        expected: Mapping[int, float] | None = None,
    ) -> None:
        """Do these runs, for at most that many `seconds`. Earlier runs of this campaign may be done already.

        `expected` has the expected time of a run by its cell.

        Runs that are not finished in that time leave nothing. Workers end them; if a worker does not, as on a
        machine that is too busy to start it, Spark cancels it after `CANCEL_S` more.

        :raises EnvironmentLacks: if Spark stops on the way; finished runs stay.
        """
        if not tasks:
            return
        until = None if seconds is None else time.time() + seconds
        shares = Shares([task.cell for task in tasks], expected)
        began = wall_clock()
        with progress.step("running", len(tasks)) as advance:
            done = 0
            left = tasks

            def ended(task: Task, took_s: float) -> None:
                nonlocal done
                done += 1
                shares.learn(task.cell, took_s)
                advance(1, shares.of(done, self.cores - 1))  # one core has its run ahead

            def leave() -> bool:
                advance(0, share := shares.of(done, self.cores))
                if until is not None or not done:
                    return False
                left_s = time_left(wall_clock() - began, share)
                if left_s > SPARK_PAYS_S:
                    self.session.begin()
                return self.session.is_up and left_s > SPARK_PAYS_S / 4

            if self._early is not None:
                left = self._early.do(tasks, ended, until=until, leave=leave)
            if not left:
                return
            cancel = None if seconds is None else wall_clock() + seconds + CANCEL_S
            spark = self.session.get()
            job, slices = _job(self._spec, left, self.directory, self.cores, until)
            shares.order([task.cell for task in (*tasks[: len(tasks) - len(left)], *job.tasks)])
            on_spark = 0

            def watch(runs: int, begun: int) -> None:
                nonlocal done, on_spark
                if self._early is not None:
                    self._early.collect(ended)
                more, on_spark = runs - on_spark, runs
                done += more
                advance(more, shares.of(done, begun - runs))

            with contextlib.suppress(OutOfTime):
                self.losses.runs_again += fan_out(spark, job, slices, watch, self._if_stopped, cancel=cancel)
            if self._early is not None:
                self._early.finish(ended)


@contextlib.contextmanager
def opened(
    spec: CampaignSpec,
    *,
    master: str,
    out_dir: str | Path,
    resume: bool = False,
    progress: Progress,
    if_stopped: str = "",
) -> Iterator[tuple[OpenCampaign, frozenset[str]]]:
    """Open a campaign, and yield it with the ids of its finished runs.

    `if_stopped` is added to the reason if Spark stops on the way.

    :raises FencepostError: as `carry_out` does.
    :raises EnvironmentLacks: as `carry_out` does.
    """
    check_can_start(master)
    directory = CampaignDirectory(Path(out_dir).absolute())
    try:
        finished = directory.prepare(spec.cells, resume=resume, seeds=spec.seeds)
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(SessionWhenNeeded(master, None, progress.say))
            early = None
            if is_local(master) and not session_runs():
                from fencepost.simulation.pipeline.early_runs import EarlyRuns

                cores = local_cores(master)
                early = stack.enter_context(EarlyRuns(_job_of(spec, (), directory), min(cores, MOST_EARLY)))
            else:
                context = session.get().sparkContext
                cores = context.defaultParallelism
                if not is_local(context.master):
                    check_shared(session.get(), directory.root / NOTE)
            yield OpenCampaign(spec, session, directory, if_stopped, early=early, cores=cores), finished
    except BaseException:
        directory.release()
        raise


def _job(
    spec: CampaignSpec,
    tasks: list[Task],
    directory: CampaignDirectory,
    cores: int,
    until: float | None = None,
) -> tuple[JobSpec, int]:
    """Return the job for Spark's workers, and the number of slices of the tasks."""
    slices = _partitions(len(tasks), cores)
    return _job_of(spec, tuple(dealt(tasks, slices)), directory, until), slices


def _job_of(
    spec: CampaignSpec, tasks: tuple[Task, ...], directory: CampaignDirectory, until: float | None = None
) -> JobSpec:
    from fencepost.simulation.pipeline.runs import JobSpec

    return JobSpec(
        cells=spec.cells,
        tasks=tasks,
        root=str(directory.root),
        generation=directory.generation,
        time_limit_s=spec.time_limit_s,
        trace_violations=spec.traces != "none",
        until=until,
        only_ownership=spec.only_ownership,
    )


def fan_out(
    spark: SparkSession,
    job: JobSpec,
    partitions: int,
    watch: Callable[[int, int], None] = lambda done, begun: None,
    if_stopped: str = "",
    *,
    cancel: float | None = None,
) -> int:
    """Carry out the job on Spark, in partitions of equal size.

    Return the number of runs that a second attempt at their partition did, because the first was lost.
    `watch` is called from time to time with the numbers of runs that are done and that have begun, about.

    :raises EnvironmentLacks: if a worker process dies or cannot reach the directory; finished runs stay. The
        text ends with `if_stopped`.
    :raises OutOfTime: if the job has not ended by the time `cancel`.
    """
    from fencepost.simulation.pipeline.worker import DONE, work

    count, cores = len(job.tasks), spark.sparkContext.defaultParallelism
    reported = 0

    def watch_tasks(done: int, total: int) -> None:
        nonlocal reported
        if not job.is_over:  # once its time is over tasks end that did nothing
            reported = max(reported, count * done // (total or 1))
        watch(reported, min(count, reported + cores * count // partitions))

    def action() -> Any:
        rows = spark.range(0, count, 1, partitions)
        return rows.mapInArrow(functools.partial(work, job), DONE).collect()

    try:
        done = run_job(spark, "campaign", action, watch_tasks, until=cancel)
    except Exception as error:
        if is_of_spark(error):
            raise EnvironmentLacks(f"the runs stopped: {error_text(error)}{if_stopped}") from error
        raise
    if not job.is_over:
        watch(count, count)
    return sum(row.runs for row in done if row.attempt)


def _write_report(
    title: str, directory: CampaignDirectory, analysis: AnalysisResults, target: Path, seconds: float
) -> None:
    from fencepost.simulation.pipeline.reporting import report_input
    from fencepost.simulation.report.render import render_campaign_report

    names = list(dict.fromkeys(row["scenario"] for row in analysis.tables["runs"]))
    listed = f": {', '.join(names)}" if len(names) <= _NAMED else f" of {len(names)} scenarios"
    data = report_input(
        title or f"Simulated campaign{listed}", str(directory.root), directory.files(), analysis, seconds
    )
    render_campaign_report(data, target)


def _always_traced(traces: Traces, cells: int, seeds: int) -> int:
    """Return the number of seeds of each cell whose traces are always kept."""
    if traces == "all":
        return seeds
    if traces == "sample":
        return max(1, SAMPLE // cells)
    return 0


def _partitions(runs: int, cores: int) -> int:
    """Return a number of partitions that is large enough for an even load, and small enough that each is
    worth its start."""
    return min(runs, max(_PARTITIONS_A_CORE * cores, -(-runs // _RUNS_A_PARTITION)))
