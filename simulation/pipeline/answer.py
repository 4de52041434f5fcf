"""The answer to an operator's question: what each option costs, from many runs, and which one to take."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import MeasureComparison, Sample, compare, samples
from fencepost.simulation.analyses.views import Views
from fencepost.simulation.pipeline.campaign import ran
from fencepost.simulation.pipeline.losses import Lost
from fencepost.simulation.pipeline.outline import Outline
from fencepost.simulation.pipeline.progress import Progress, Silent
from fencepost.simulation.pipeline.question import BEGIN, Choice, Question, choices, options, scenario_text
from fencepost.simulation.pipeline.scale import settings_for
from fencepost.simulation.pipeline.session import (
    LOCAL,
    check_can_start,
    is_of_spark,
    run_job,
    told,
    wall_clock,
)
from fencepost.simulation.pipeline.tasks import OPTION, CampaignCell, cells_of, seeds_of
from fencepost.simulation.trace.schema import TRACE_DDL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RUNS: Final = 8
"""Of each option, if nobody says how many."""
REBALANCE: Final = "rebalance"
DOWNTIME: Final = "downtime"
DOWNTIME_OF_RUN: Final = "run_downtime"


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds, over all runs of an option; null where there are none."""

    count: int
    p50: float | None
    p99: float | None
    total_per_run: float
    """All of a run added up; the mean over the runs."""


class OptionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one option costs."""

    name: str
    parameters: dict[str, str | bool]
    runs: int
    failed: int
    """Runs that ended with an error of their own, broke an invariant, or never settled."""
    rebalance_s: Spread
    """From the first raise of the group's epoch until the group is Stable again."""
    downtime_s: Spread
    """From one owner of a partition to the next; the total is over all partitions."""
    command: str
    """What shows one of its runs; empty where its scenario is not kept."""


class PlanAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All options, and what was measured in the runs of each."""

    options: list[OptionAnswer]
    samples: dict[str, Sample]
    wall_seconds: float
    lost: Lost = Lost()
    """Executors of the cluster that were lost on the way, and how many runs were done again."""


def answer(
    asked: Mapping[str, tuple[Question, Mapping[str, str]]],
    *,
    runs: int = RUNS,
    master: str = LOCAL,
    out_dir: Path,
    progress: Progress | None = None,
    one: bool = False,
    kept: bool = True,
) -> PlanAnswer:
    """Run every option of every question with the same seeds, and measure what comes of the event.

    `asked` is by name: the question, and where its values were given. Scenarios are written to `out_dir`,
    where runs and traces are kept. With `one` each question has one option: the rest is as usual. Unless
    the directory is `kept`, no command shows a run.

    :raises FencepostError: before anything runs, if a value is wrong or `out_dir` cannot be used.
    :raises EnvironmentLacks: if Spark cannot run here, or stops on the way.
    """
    began = wall_clock()
    shown = progress or Silent()
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
    outline = Outline(cells=tuple(cells), seeds=seeds_of(runs), traces="all")
    with ran(outline, master=master, out_dir=out_dir / "runs", progress=shown) as (
        spark,
        directory,
        losses,
    ):
        files = directory.files()
        with shown.step("measuring", 1) as advance, settings_for(spark, files.rows):
            try:
                summaries = spark.read.parquet(*files.runs)
                views = Views(spark.read.schema(TRACE_DDL).parquet(*files.traces), summaries, cached=True)
                measured = run_job(spark, "measures", lambda: samples(_measured(views)))
                failed = run_job(spark, "runs", lambda: _failed(summaries))
                views.release()
            except Exception as error:
                if is_of_spark(error):
                    raise FencepostError(f"Spark could not analyse the traces: {told(error)}") from error
                raise
            advance(1)
        lost = losses.found()
    found_by_name = {_option_of(parameters): sample for (_, parameters), sample in measured.items()}
    complete = {name: _with_totals(found_by_name.get(name)) for name in chosen}
    answers = [
        _answer(cell, chosen[cell.parameters[OPTION]], complete[cell.parameters[OPTION]], failed, kept)
        for cell in cells
    ]
    return PlanAnswer(options=answers, samples=complete, wall_seconds=wall_clock() - began, lost=lost)


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


def _measured(views: Views) -> DataFrame:
    """What happened since the event began, a row a value, as `samples` takes it."""
    from pyspark.sql import functions as f

    rebalances = views.view("rebalance").where(f"settled = 'Stable' AND begin_us >= {BEGIN.us}")
    gaps = views.view("handover").where(f"apart AND from_us >= {BEGIN.us}")
    values = rebalances.select(
        "run_id", f.lit(REBALANCE).alias("measure"), f.col("seconds").alias("value")
    ).unionAll(gaps.select("run_id", f.lit(DOWNTIME), f.col("gap_us") / 1e6))
    run = views.view("run").select("run_id", "scenario", "parameters")
    return run.join(values, "run_id", "left").select("run_id", "scenario", "parameters", "measure", "value")


def _failed(summaries: DataFrame) -> dict[str, int]:
    """By option, how many runs failed, broke an invariant, or left the group unsettled to their end."""
    bad = (
        summaries.where("error IS NOT NULL OR violations > 0 OR NOT converged").groupBy("parameters").count()
    )
    return {_option_of(row["parameters"]): row["count"] for row in bad.collect()}


def _option_of(parameters: str) -> str:
    return str(json.loads(parameters)[OPTION])


def _with_totals(sample: Sample | None) -> Sample:
    """With the downtime of all partitions together, which every run has."""
    if sample is None:
        return Sample((), {REBALANCE: {}, DOWNTIME: {}, DOWNTIME_OF_RUN: {}})
    gaps = sample.values.get(DOWNTIME, {})
    totals = {run: [float(sum(gaps.get(run, ())))] for run in sample.runs}
    return Sample(sample.runs, {**sample.values, DOWNTIME_OF_RUN: totals})


def _answer(
    cell: CampaignCell, choice: Choice, sample: Sample, failed: Mapping[str, int], kept: bool
) -> OptionAnswer:
    name = cell.parameters[OPTION]
    return OptionAnswer(
        name=name,
        parameters=choice.parameters,
        runs=len(sample.runs),
        failed=failed.get(name, 0),
        rebalance_s=_spread(sample, REBALANCE),
        downtime_s=_spread(sample, DOWNTIME),
        command=cell.command(0) if kept else "",
    )


def _spread(sample: Sample, measure: str) -> Spread:
    import numpy as np

    values = [value for of_run in sample.values.get(measure, {}).values() for value in of_run]
    p50, p99 = np.quantile(values, (0.5, 0.99), method="inverted_cdf").tolist() if values else (None, None)
    return Spread(count=len(values), p50=p50, p99=p99, total_per_run=sum(values) / max(len(sample.runs), 1))


def best(found: PlanAnswer) -> OptionAnswer | None:
    """The option that lets partitions stand still for the shortest time, all of a run added up.

    One with runs that failed is none: what they would have cost is not known. None if all are like that.
    """
    return min(
        (each for each in found.options if each.runs and not each.failed),
        key=lambda each: (each.downtime_s.total_per_run, each.rebalance_s.total_per_run),
        default=None,
    )


def differences(found: PlanAnswer, first: str, second: str) -> list[MeasureComparison]:
    """How the second option differs from the first, with intervals from resampling whole runs."""
    return compare(found.samples[first], found.samples[second])


def as_good(found: PlanAnswer, chosen: OptionAnswer) -> Sequence[str]:
    """Options of which these runs cannot tell that they cost more than the chosen one: it may be chance."""
    alike = []
    for each in found.options:
        if each.name == chosen.name or each.failed:
            continue
        of_runs = [
            one
            for one in differences(found, chosen.name, each.name)
            if one.measure == DOWNTIME_OF_RUN and one.quantile == "median"
        ]
        if of_runs and not (of_runs[0].difference_low or 0) > 0:
            alike.append(each.name)
    return alike
