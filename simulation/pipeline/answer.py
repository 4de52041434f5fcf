"""The answer to an operator's question: the cost of each option, from as many runs as needed."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import Sample
from fencepost.simulation.analyses.driver import tables_here
from fencepost.simulation.analyses.outages import OutageCost, outage_cost
from fencepost.simulation.pipeline.analyze import AnalysisResults
from fencepost.simulation.pipeline.campaign import Lost, OpenCampaign, opened
from fencepost.simulation.pipeline.jobs import OutOfTime
from fencepost.simulation.pipeline.plan_note import PlanNote, write_plan_note
from fencepost.simulation.pipeline.progress import Progress, rough_time
from fencepost.simulation.pipeline.question import (
    BEGIN,
    Choice,
    Question,
    choices,
    options,
    scenario_text,
)
from fencepost.simulation.pipeline.rounds import (
    ALIKE,
    RunTimes,
    TimeLimit,
    estimate,
    look_sizes,
    machine_speed,
    next_look,
    undecided,
)
from fencepost.simulation.pipeline.run_files import found_views
from fencepost.simulation.pipeline.session import LOCAL, check_can_start, error_text, is_of_spark, wall_clock
from fencepost.simulation.pipeline.spec import CampaignSpec
from fencepost.simulation.pipeline.tasks import OPTION, CampaignCell, Task, cells_of, seeds_of
from fencepost.simulation.pipeline.traces import TraceFiles, footer
from fencepost.simulation.report.model import duration
from fencepost.simulation.trace.schema import TRACE_DDL

if TYPE_CHECKING:
    import pyarrow as pa

RUNS: Final = 24
"""Default limit on the runs of each option."""
COMPARED_RUNS: Final = 8
"""Default number of runs of each of two plans that are compared."""
_TIME_LIMIT_S: Final = 3_600.0
"""Limit on the wall time of one run, in seconds: large groups of the classic protocol take minutes on a busy
machine."""
REBALANCE: Final = "rebalance"
DOWNTIME: Final = "downtime"
DOWNTIME_OF_RUN: Final = "run_downtime"


_MEANS: Final = ("event_s", "capacity_lost", "most_down", "lag_peak", "lag_gone_s")
"""The costs of an event that are the mean over the runs."""
_VIEWS: Final = ("traced", "rebalance", "handover")
"""The views of runs that the costs are computed from."""

_NOTHING: Final = Sample((), {REBALANCE: {}, DOWNTIME: {}, DOWNTIME_OF_RUN: {}})


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds, over all runs of an option; null if there are none."""

    count: int
    p50: float | None
    p99: float | None
    total_per_run: float
    """The total of a run; the mean over the runs."""


class OptionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one option. A value that is counted once a run is the mean over the runs."""

    name: str
    parameters: dict[str, str | bool]
    runs: int
    failed: int
    """Number of runs that ended with an error, broke an invariant, or never settled."""
    event_s: float
    """Time from the begin of the event until its last rebalance is over and its last partition has an
    owner."""
    capacity_lost: float
    """The time that partitions had no owner, as a share of the time of all partitions in the event."""
    most_down: float
    """Largest number of partitions without an owner at the same time."""
    lag_peak: float
    """Largest number of records that waited in all partitions together."""
    lag_gone_s: float
    """Time from that peak until no record waited."""
    rebalance_s: Spread
    """Time from the first raise of the group's epoch until the group is Stable again."""
    downtime_s: Spread
    """Time from one owner of a partition to the next; the total is over all partitions."""
    command: str
    """The command that shows one of its runs; empty if its scenario is not kept."""

    @property
    def is_sound(self) -> bool:
        """True if it had runs and none of them failed. Otherwise its cost is unknown."""
        return bool(self.runs and not self.failed)

    @property
    def cost(self) -> tuple[float, float]:
        """The values by which options are ranked: the time without an owner, then the time that rebalances
        took."""
        return self.downtime_s.total_per_run, self.rebalance_s.total_per_run


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All options, the cheapest first, with the measurements of their runs."""

    options: list[OptionAnswer]
    samples: dict[str, Sample]
    wall_seconds: float
    stopped: str = ""
    """The reason for which the runs ended, in a sentence."""
    lost: Lost = Lost()
    """Executors of the cluster that were lost on the way, and the number of runs that were repeated."""
    analysis: AnalysisResults | None = None
    """All tables, counted since the event began, if a report needs them."""
    files: TraceFiles = TraceFiles(())
    """The runs and their traces; they are deleted if the plan is not kept."""


def answer(
    asked: Mapping[str, tuple[Question, Mapping[str, str]]],
    *,
    runs: int = RUNS,
    master: str = LOCAL,
    out_dir: Path,
    progress: Progress | None = None,
    one: bool = False,
    kept: bool = True,
    report: Callable[[PlanAnswer], None] | None = None,
    limit: TimeLimit | None = None,
) -> PlanAnswer:
    """Run the options of every question with the same seeds, and measure the effects of the event.

    `asked` has, by name, the question and the places where its values were given. Options get runs until it
    is clear which one costs least, at most `runs` each. Scenarios, runs and traces are written to `out_dir`.
    With `one`, each question has one option, which gets all runs. Unless the directory is `kept`, no command
    shows a run. `report` is called with the answer and its tables while the traces exist. With a time
    `limit`, the plan ends at about that time: runs that are not finished then are given up.

    :raises FencepostError: before anything runs, if a value is wrong or `out_dir` cannot be used.
    :raises EnvironmentLacks: if Spark cannot run here, or stops on the way.
    """
    began = wall_clock()
    shown = progress or Progress()
    check_can_start(master)
    cells: list[CampaignCell] = []
    chosen: dict[str, Choice] = {}
    for name, (question, places) in asked.items():
        found = choices(question, one=one)
        if one and len(found) > 1:
            raise FencepostError(f"{name}: expected one value for each key of a plan that is compared")
        path = _written(out_dir, name, scenario_text(question, found))
        own = {name: next(iter(found.values()))} if one else found
        cells += cells_of([], {}, options=options(own, places, str(path)))
        chosen |= own
    write_plan_note(out_dir, PlanNote(begin_us=BEGIN.us, questions={n: q for n, (q, _) in asked.items()}))
    spec = CampaignSpec(
        cells=tuple(cells),
        seeds=seeds_of(runs),
        traces="all",
        time_limit_s=_TIME_LIMIT_S,
        only_ownership=not kept and report is None,
    )
    questions = {cell.parameters[OPTION]: asked[Path(cell.source).stem][0] for cell in cells}
    with opened(spec, master=master, out_dir=out_dir / "runs", progress=shown) as (running, _):
        measured = _Measured(running, questions, chosen)
        stopped = _run_rounds(measured, cells, questions, runs, shown, limit=limit, all_at_once=one)
        answers = [measured.answer(cell, kept) for cell in cells]
        answered = PlanAnswer(
            options=answers if one else sorted(answers, key=lambda each: (not each.is_sound, each.cost)),
            samples=dict.fromkeys(chosen, _NOTHING) | measured.samples,
            wall_seconds=wall_clock() - began,
            stopped=stopped,
            lost=running.losses.found(),
        )
        if report is not None:
            files = running.directory.files()
            analysis = running.analysis(shown, since_us=BEGIN.us)
            report(msgspec.structs.replace(answered, analysis=analysis, files=files))
    return answered


def run_costs(sample: Sample) -> dict[str, float]:
    """Return the time without an owner by run, added up over all partitions."""
    return {run: sum(values) for run, values in sample.values.get(DOWNTIME_OF_RUN, {}).items()}


def _run_rounds(
    measured: _Measured,
    cells: Sequence[CampaignCell],
    questions: Mapping[str, Question],
    runs: int,
    progress: Progress,
    *,
    limit: TimeLimit | None,
    all_at_once: bool,
) -> str:
    """Do runs until it is clear which option costs least, or each had its `runs`, or the time is over.

    Return why they ended.
    """
    names = [cell.parameters[OPTION] for cell in cells]
    cores = measured.running.cores
    sizes = [runs] if all_at_once else look_sizes(runs)
    speed = machine_speed() if limit is None else machine_speed(tries=1)
    times = RunTimes.estimated(questions, measured.chosen, cores, speed)
    limit = None if limit is None else limit.started
    progress.say(estimate(times, sizes[0], runs, limit))
    wanted, done, upto = list(names), 0, sizes[0]
    shown = False
    while True:
        tasks = [
            Task(number, seed, True)
            for seed in range(done, upto)
            for number, name in enumerate(names)
            if name in wanted
        ]
        expected = {number: times.seconds[name] for number, name in enumerate(names)}
        if limit is None or limit.left_s >= times.of(wanted, upto - done):
            # One run of each option shows its time. Then the longest: no core waits for long at the end.
            tasks.sort(key=lambda task: (task.seed != done, -expected[task.cell]))
        else:
            # In this order the time is enough for as many options as possible.
            tasks.sort(key=lambda task: (task.seed, expected[task.cell]))
        for some in [tasks] if limit is None else _in_parts(tasks, names, times, limit):
            seconds = None if limit is None else limit.left_s
            if seconds != 0:
                measured.running.do(list(some), progress, seconds, expected)
            if not measured.look(progress, None if limit is None else limit.ends) or seconds == 0:
                break
        done = upto
        costs = {name: run_costs(measured.samples[name]) for name in names if name in measured.samples}
        open_ = [] if all_at_once else undecided(costs, measured.failed)
        ran = {name: measured.ran(name) for name in names}
        if limit is not None and any(ran[name] < upto for name in wanted):
            unmeasured = measured.unmeasured
            return limit.reason(ran, open_, all_at_once=all_at_once, unmeasured=unmeasured)
        if done >= runs or not open_:
            return _reason(costs, done, open_, all_at_once=all_at_once)
        wanted, upto = open_, next_look(costs, open_, sizes, done)
        times = RunTimes(measured.seconds, cores)
        takes = rough_time(times.of(wanted, upto - done))
        if not shown:
            progress.say(_so_far(costs, done))
            shown = True
        progress.say(
            f"{done} runs each leave it open: {' or '.join(open_)}; {upto - done} more of each, about {takes}"
        )


def _so_far(costs: Mapping[str, Mapping[str, float]], done: int) -> str:
    """Return a table of the mean cost of each option, the cheapest first."""
    means = sorted((statistics.fmean(each.values()), name) for name, each in costs.items() if each)
    width = max(len(name) for _, name in means)
    rows = [f"  {name:<{width}}  {duration(mean) if mean else '0 s'}" for mean, name in means]
    return "\n".join([f"so far, after {done} runs of each, partitions stand still:", *rows])


_PART: Final = 0.2
"""The share of a time limit after which runs are measured: then its end finds little that is not measured."""


def _in_parts(
    tasks: Sequence[Task], names: Sequence[str], times: RunTimes, limit: TimeLimit
) -> list[Sequence[Task]]:
    """Cut the runs into parts that are measured one after the other, each at least a run for every core."""
    parts: list[list[Task]] = []
    seconds = 0.0
    for task in tasks:
        if not parts or (len(parts[-1]) >= times.cores and seconds >= _PART * limit.seconds * times.cores):
            parts.append([])
            seconds = 0.0
        parts[-1].append(task)
        seconds += times.seconds[names[task.cell]]
    return list(parts)


def _reason(
    costs: Mapping[str, Mapping[str, float]], done: int, open_: list[str], *, all_at_once: bool
) -> str:
    """Return the reason for the end of the runs."""
    if all_at_once or len(costs) < 2:
        return f"All {done} runs of each were done, as requested."
    if open_:
        return f"{done} runs each, the limit, leave it open: {' or '.join(open_)}."
    near = f"{ALIKE * 100:.0f} %"
    return f"No more runs were needed: each other option costs more, or within {near} of the cheapest."


class _Measured:
    """The measurements of the runs that are done."""

    def __init__(
        self, running: OpenCampaign, questions: Mapping[str, Question], chosen: Mapping[str, Choice]
    ) -> None:
        self.running = running
        self.chosen = chosen
        self.samples: dict[str, Sample] = {}
        self.outages: dict[str, dict[str, OutageCost]] = {}
        """The cost of the event by option and run."""
        self.failed: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        """The average wall time of a run by option, in seconds."""
        self.unmeasured = 0
        """Number of finished runs that could not be measured in time."""
        self._wall: dict[str, list[float]] = {}
        self._questions = questions
        self._seen: set[str] = set()

    def ran(self, name: str) -> int:
        """Return how many runs of an option ended, also with an error."""
        return len(self._wall.get(name, ()))

    def look(self, progress: Progress, until: float | None = None) -> bool:
        """Measure the new runs. Return false if that was not finished by then, on the clock of `wall_clock`.

        :raises FencepostError: if Spark cannot analyse their traces.
        """
        found = self.running.directory.files()
        files = TraceFiles(
            tuple(each for each in found.traces if each not in self._seen),
            tuple(each for each in found.runs if each not in self._seen),
        )
        self._seen |= {*files.traces, *files.runs}
        try:
            rows = self._rows(files, progress, until)
        except OutOfTime:
            self.unmeasured = sum(footer(Path(path)).num_rows for path in files.runs)
            return False
        except Exception as error:
            if is_of_spark(error):
                raise FencepostError(f"Spark could not analyse the traces: {error_text(error)}") from error
            raise
        for row in rows:
            self._take(row)
        for name, seconds, is_bad in _ended(files.runs):
            self._wall.setdefault(name, []).append(seconds)
            if is_bad:
                self.failed[name] = self.failed.get(name, 0) + 1
        self.seconds = {name: sum(found) / len(found) for name, found in self._wall.items()}
        return True

    def _rows(self, files: TraceFiles, progress: Progress, until: float | None) -> list[_RunCost]:
        if not files.traces:
            return []
        with found_views(files) as views:
            packed = views.table(
                self.running.session.get,
                lambda session: session.read.schema(TRACE_DDL).parquet(*files.traces),
                progress,
                on_cluster=self.running.on_cluster,
                only=_VIEWS,
                until=until,
            )
        with tables_here(packed, summaries=files.runs, since_us=BEGIN.us) as tables:
            return [*_costs(tables.select(_STRETCHES, *_VIEWS[1:], "run"), self._questions)]

    def _take(self, found: _RunCost) -> None:
        before = self.samples.get(found.option, _NOTHING)
        values = {measure: dict(of_runs) for measure, of_runs in before.values.items()}
        values[REBALANCE][found.run] = found.rebalances
        values[DOWNTIME][found.run] = found.gaps
        values[DOWNTIME_OF_RUN][found.run] = [found.cost.down_s]
        self.samples[found.option] = Sample(tuple(sorted({*before.runs, found.run})), values)
        self.outages.setdefault(found.option, {})[found.run] = found.cost

    def answer(self, cell: CampaignCell, kept: bool) -> OptionAnswer:
        """Return the results of an option so far."""
        name = cell.parameters[OPTION]
        sample, costs = self.samples.get(name, _NOTHING), [*self.outages.get(name, {}).values()]

        return OptionAnswer(
            name=name,
            parameters=self.chosen[name].parameters,
            runs=len(sample.runs),
            failed=self.failed.get(name, 0),
            **{key: sum(getattr(each, key) for each in costs) / max(len(costs), 1) for key in _MEANS},
            rebalance_s=_spread(sample, REBALANCE),
            downtime_s=_spread(sample, DOWNTIME),
            command=cell.command(0) if kept else "",
        )


def _written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FencepostError(
            f"--out {folder}: cannot be written: {(error.strerror or str(error)).lower()}"
        ) from error
    return path


class _RunCost(NamedTuple):
    """The cost of the event in one run, and the values of the measures in order, in seconds."""

    option: str
    run: str
    cost: OutageCost
    rebalances: list[float]
    gaps: list[float]


_STRETCHES: Final = """
SELECT run_id, parameters, partition, begin_us, end_us
FROM {run} LEFT JOIN (
  SELECT run_id, -1 AS partition, begin_us, end_us FROM {rebalance} WHERE settled = 'Stable' AND NOT forms
  UNION ALL
  SELECT run_id, partition, from_us - gap_us, from_us FROM {handover} WHERE apart
) USING (run_id)
ORDER BY run_id
"""
"""Rebalances, as stretches of the partition -1, and the times of partitions without an owner; a run without
any has a row with null."""


def _costs(stretches: pa.Table, questions: Mapping[str, Question]) -> Iterator[_RunCost]:
    import numpy as np
    from pyarrow import compute

    if not len(stretches):
        return
    runs, parameters = (stretches[name].to_pylist() for name in ("run_id", "parameters"))
    partition, begin, end = (
        compute.fill_null(stretches[name], _NO_STRETCH).to_numpy().astype(np.int64)
        for name in ("partition", "begin_us", "end_us")
    )
    firsts = [number for number, run in enumerate(runs) if not number or run != runs[number - 1]]
    for first, past in itertools.pairwise([*firsts, len(runs)]):
        of_run = slice(first, past)
        option = _option_of(parameters[first])
        moves, gaps = partition[of_run] == -1, partition[of_run] >= 0
        begins, ends = begin[of_run], end[of_run]
        cost = outage_cost(
            begins[gaps],
            ends[gaps],
            partition[of_run][gaps],
            begin_us=BEGIN.us,
            end_us=int(ends[moves].max(initial=BEGIN.us)),
            partitions=questions[option].partitions,
            traffic=questions[option].traffic,
        )
        rebalances, waits = (np.sort((ends - begins)[chosen] / 1e6).tolist() for chosen in (moves, gaps))
        yield _RunCost(option, runs[first].rpartition("-")[2], cost, rebalances, waits)


_NO_STRETCH: Final = -2


def _ended(summaries: Iterable[str]) -> Iterator[tuple[str, float, bool]]:
    """Yield each run's option, its wall time, and whether it failed.

    A run failed if it had an error, broke an invariant, or left the group unsettled.
    """
    from pyarrow import parquet

    for path in summaries:
        for row in parquet.read_table(path).to_pylist():
            is_bad = row["error"] is not None or row["violations"] > 0 or not row["converged"]
            yield _option_of(row["parameters"]), row["wall_seconds"], is_bad


def _option_of(parameters: str) -> str:
    return str(json.loads(parameters)[OPTION])


def _spread(sample: Sample, measure: str) -> Spread:
    import numpy as np

    found = [np.asarray(values, float) for values in sample.values.get(measure, {}).values()]
    values = np.concatenate(found) if found else np.zeros(0)
    p50, p99 = (
        np.quantile(values, (0.5, 0.99), method="inverted_cdf").tolist() if len(values) else (None, None)
    )
    return Spread(
        count=len(values), p50=p50, p99=p99, total_per_run=float(values.sum()) / max(len(sample.runs), 1)
    )
