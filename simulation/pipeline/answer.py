"""The answer to an operator's question: what each option costs, from many runs, and which one to take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import (
    CONFIDENCE,
    FEWEST_RUNS,
    MeasureComparison,
    Sample,
    compare,
    samples,
)
from fencepost.simulation.analyses.measures import MEASURES
from fencepost.simulation.analyses.views import Views
from fencepost.simulation.pipeline.campaign import Lost, ran
from fencepost.simulation.pipeline.jobs import run_job, settings_for
from fencepost.simulation.pipeline.progress import Progress, Silent
from fencepost.simulation.pipeline.question import (
    BEGIN,
    CRASHES,
    Choice,
    Question,
    choices,
    options,
    scenario_text,
)
from fencepost.simulation.pipeline.session import LOCAL, check_can_start, error_text, is_of_spark, wall_clock
from fencepost.simulation.pipeline.spec import CampaignSpec
from fencepost.simulation.pipeline.tasks import OPTION, CampaignCell, cells_of, seeds_of
from fencepost.simulation.scenarios.values import Duration
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
    spec = CampaignSpec(cells=tuple(cells), seeds=seeds_of(runs), traces="all")
    with ran(spec, master=master, out_dir=out_dir / "runs", progress=shown) as (
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
                    raise FencepostError(
                        f"Spark could not analyse the traces: {error_text(error)}"
                    ) from error
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


_EVENTS: Final = {
    "deploy": "in a deploy",
    "crash": f"in {CRASHES} crashes",
    "scale": "when the group grows and shrinks again",
}
_SLOWER: Final = 1.1
"""A start-up may take so much longer than its mean."""


class Recommendation(msgspec.Struct, frozen=True):
    """Which option to take."""

    option: str | None
    """Its name; None where no option can be told to be fit."""
    text: str
    why: list[str]


def recommend(question: Question, found: PlanAnswer) -> Recommendation:
    """The option with the least downtime in all, what the others cost, and what makes the difference."""
    chosen = best(found)
    if chosen is None:
        text = "Take none of these as they are: of each, runs failed, broke an invariant, or never settled."
        return Recommendation(None, text, [])
    total = chosen.downtime_s.total_per_run
    others = [each for each in found.options if each.name != chosen.name and not each.failed]
    lasts = seconds_in_words(total)
    text = f"Take {chosen.name}: {_EVENTS[question.event]} partitions stand still for {lasts} in all"
    text += f", the least of {len(others) + 1} options." if others else "."
    alike = as_good(found, chosen)
    if others and len(found.samples[chosen.name].runs) < FEWEST_RUNS:
        text += f" How sure that is, fewer than {FEWEST_RUNS} runs can't tell."
    elif alike:
        text += f" These runs can't tell it from {' and '.join(alike)}."
    return Recommendation(chosen.name, text, [*_why(question, chosen, others)])


def _why(question: Question, chosen: OptionAnswer, others: Sequence[OptionAnswer]) -> Iterator[str]:
    everyone = [chosen, *others]
    if question.event == "crash":
        yield (
            "A process that dies is noticed when its session timeout is over, whatever the protocol: nobody"
            " else has its partitions before. A shorter one helps most, as long as no pause outlasts it."
        )
    static = [each for each in everyone if each.parameters["static"]]
    if static and question.event == "deploy":
        yield from _of_static(question, static)
    if static and question.event == "crash":
        yield from _of_dead_static(question, static)
    protocols = {each.parameters["protocol"] for each in everyone}
    if "consumer" in protocols and len(everyone) > 1:
        yield (
            "consumer: members are told one by one, with their heartbeats, and all others go on; so a"
            " rebalance takes a heartbeat interval or two, and few partitions stand still in it."
        )
    eager = [each for each in everyone if _is_eager(each)]
    if eager and len(eager) < len(everyone):
        most = max(eager, key=lambda each: each.downtime_s.count)
        least = min(everyone, key=lambda each: each.downtime_s.count)
        yield (
            f"{most.name}: eager, so each rebalance takes all partitions from all members:"
            f" {most.downtime_s.count / max(most.runs, 1):,.0f} interruptions a run, against"
            f" {least.downtime_s.count / max(least.runs, 1):,.0f} with {least.name}. Each lasts until the"
            " slowest member is done with its batch and its callbacks."
        )
    if any(each.parameters["assignor"] == "cooperative-sticky" for each in everyone) and eager:
        yield "cooperative-sticky: only partitions that move are given up, and handed out in a second round."
    for each in others:
        if chosen.downtime_s.total_per_run > 0:
            seconds = each.downtime_s.total_per_run
            times = seconds / chosen.downtime_s.total_per_run
            yield f"{each.name} costs {seconds_in_words(seconds)}, {times:.1f} times as much."


def _of_static(question: Question, static: Sequence[OptionAnswer]) -> Iterator[str]:
    slowest_us = question.start_up.us * _SLOWER
    late = [each for each in static if Duration.parse(each.parameters["session_timeout"]).us <= slowest_us]
    if late:
        yield (
            f"static: a start-up of {question.start_up} may outlast a session timeout of"
            f" {late[0].parameters['session_timeout']}. Then the group rebalances twice for each restart; a"
            " longer session timeout would spare that."
        )
    else:
        yield (
            "static: a member that is back within its session timeout keeps its partitions, and nothing"
            f" rebalances. They wait for its start-up, {question.start_up}; others would have them sooner if"
            " that is longer than a rebalance."
        )


def _of_dead_static(question: Question, static: Sequence[OptionAnswer]) -> Iterator[str]:
    """Of those whose process may be back before its session is over."""
    soonest_us = question.start_up.us / _SLOWER
    back = [each for each in static if Duration.parse(each.parameters["session_timeout"]).us > soonest_us]
    protocols = {each.parameters["protocol"] for each in back}
    if "classic" in protocols:
        yield (
            "classic static: a process that is back within its session timeout takes its member's place by"
            " its instance id, and nothing rebalances. Its partitions wait for its start-up,"
            f" {question.start_up}, and not for the session."
        )
    if "consumer" in protocols:
        yield (
            "consumer static: who died has not left, and its instance id is taken until the session timeout"
            " is over. A process that is back before is refused (UNRELEASED_INSTANCE_ID) and has to start"
            " again; so its partitions wait as long as others', and the group rebalances twice: without the"
            " member, and with it."
        )


def _is_eager(option: OptionAnswer) -> bool:
    name, protocol = option.parameters["assignor"], option.parameters["protocol"]
    return protocol == "classic" and name != "cooperative-sticky" and not option.parameters["static"]


def seconds_in_words(seconds: float | None) -> str:
    """`52 ms`, `3.2 s`, `4 min 10 s`; `nothing` for none."""
    if not seconds:
        return "no time"
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def difference_in_words(
    first: str, second: str, comparisons: Sequence[MeasureComparison], runs: int
) -> list[str]:
    """What changes from the first plan to the second; what chance alone may do is called so."""
    lines = []
    for each in comparisons:
        measure = MEASURES[each.measure]
        what = f"{measure.title}, {each.quantile}"
        if each.differs is None:
            lines.append(f"{what}: too few runs to tell.")
        elif not each.differs:
            lines.append(f"{what}: no difference that {runs} runs can tell.")
        else:
            more = "longer" if each.difference > 0 else "shorter"
            lines.append(
                f"{what}: {more} in {second} than in {first}, by {seconds_in_words(abs(each.difference))}"
                f" ({CONFIDENCE:.0%} interval: {_signed(each.difference_low)} to"
                f" {_signed(each.difference_high)})."
            )
    return lines


def _signed(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{'-' if seconds < 0 else '+'}{seconds_in_words(abs(seconds)) if seconds else '0 s'}"
