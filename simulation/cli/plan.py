"""`fencepost plan`: the cost of a deploy, a crash or scaling, with each protocol and settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.comparison import MeasureComparison
from fencepost.simulation.cli.arguments import Count, Json, new_folder, writable_file
from fencepost.simulation.cli.entry import COMMAND_BEGAN
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.interrupts import STOPPING, told_at_once
from fencepost.simulation.pipeline.advice import (
    Recommendation,
    best,
    difference_in_words,
    differences,
    recommend,
    share,
)
from fencepost.simulation.pipeline.answer import COMPARED_RUNS, RUNS, OptionAnswer, PlanAnswer, answer
from fencepost.simulation.pipeline.campaign import Lost
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.question import Question, ask, read_question
from fencepost.simulation.pipeline.rounds import TimeLimit
from fencepost.simulation.pipeline.session import LOCAL, check_can_start
from fencepost.simulation.pipeline.spec import seconds_of
from fencepost.simulation.report.model import NONE, duration

_NUMBERS = ("members", "partitions", "at_once", "rate", "headroom")


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`."""

    event: str
    members: int
    partitions: int
    options: list[OptionAnswer]
    recommendation: Recommendation
    stopped: str
    """The reason for which the runs ended, in a sentence."""
    wall_seconds: float
    lost: Lost
    """Executors of the cluster that were lost on the way, and the number of runs that were repeated."""
    out: str | None
    """The directory of `--out`."""
    report: str | None


class ComparedPlans(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json` with `--compare`."""

    options: list[OptionAnswer]
    comparisons: Sequence[MeasureComparison]
    text: list[str]
    """The comparisons in words."""
    wall_seconds: float
    lost: Lost


@Parameter(name="*")
@dataclass(frozen=True)
class PlanOptions:
    """The question, and the settings to compare. Without an option, the file's value counts."""

    event: Annotated[str | None, Parameter(help="deploy, crash or scale. Default: deploy.")] = None
    members: Annotated[Count | None, Parameter(help="Members of the group. Default: 20.")] = None
    partitions: Annotated[Count | None, Parameter(help="Partitions of the group. Default: 60.")] = None
    start_up: str | None = None
    """Time from the end of a process to the next one's consumer. Default: 10s."""
    zone_latency: str | None = None
    """Median latency from members to brokers, one way. Default: 1ms."""
    batch: str | None = None
    """Time that an application takes for the records of a poll. Default: 500ms."""
    poll: str | None = None
    """Time that records gather before a poll returns them. Default: 5s."""
    rate: float | None = None
    """Records per second written to all partitions, for the lag. Default: 1000."""
    headroom: float | None = None
    """Read rate of the consumers as a multiple of --rate; above 1. Default: 2."""
    at_once: Annotated[
        Count | None, Parameter(help="Members that a deploy restarts at the same time. Default: 1.")
    ] = None
    surge: bool | None = None
    """A deploy starts each new member before it stops the old one."""
    kill: bool | None = None
    """A deploy kills members: they do not leave the group."""
    config: list[str] | None = None
    """A setting of the brokers, as NAME=VALUE under Kafka's name. Repeatable."""
    protocol: str | None = None
    """consumer (KIP-848), classic, or both. Default: consumer,classic."""
    assignor: str | None = None
    """uniform or range; for classic: range, roundrobin, sticky, cooperative-sticky."""
    session_timeout: str | None = None
    """One or several, such as 10s,45s. Default: 45s."""
    heartbeat_interval: str | None = None
    """One or several. Default: 5s; for classic: 3s."""
    static: Annotated[bool | None, Parameter(negative="--no-static")] = None
    """Members with or without instance ids. Default: both."""


def plan(
    file: Annotated[
        Path | None, Parameter(help="A TOML file with the same keys as the options; options override it.")
    ] = None,
    /,
    *,
    asked: PlanOptions = PlanOptions(),
    compare: Annotated[
        tuple[Path, Path] | None,
        Parameter(
            help="Two TOML files, each a plan with one option: report how they differ, with intervals."
        ),
    ] = None,
    runs: Annotated[
        Count | None,
        Parameter(
            help=f"The limit on runs of each option; they end once the cheapest option is clear. Default: "
            f"{RUNS}."
            f" With --compare, all of them run; default: {COMPARED_RUNS}."
        ),
    ] = None,
    within: Annotated[
        str | None,
        Parameter(
            help="End after about this time, such as 5m, with what is known by then. Default: no limit."
        ),
    ] = None,
    master: Annotated[
        str, Parameter(help="Spark's master: local[N], spark://HOST:PORT, yarn, k8s://…")
    ] = LOCAL,
    out: Annotated[
        Path | None,
        Parameter(help="A new directory for the scenario, runs and traces. Default: keep nothing."),
    ] = None,
    report: Annotated[
        Path | None,
        Parameter(help="Write an HTML page with the table, the reasons, and all analyses of the event."),
    ] = None,
    json: Json = False,
) -> int:
    """Simulate each option many times, show what each option costs, and recommend one.

    An option is one choice of settings: give several values, separated by commas, to compare them. Exit code
    1: a run failed, or broke an invariant.
    """
    flags = {key: value for key, value in asdict(asked).items() if value is not None}
    configure_logs()
    questions: dict[str, tuple[Question, dict[str, str]]] = {}
    if compare is None:
        question, places = _question(file, flags)
        questions[question.event] = question, places
    else:
        if file is not None:
            raise FencepostError(f"{file}: expected no third file with --compare FILE FILE")
        for each in compare:
            if each.stem in questions:
                raise FencepostError(f"--compare {each}: expected two files with different names")
            questions[each.stem] = _question(each, flags)
    if compare is not None and report is not None:
        raise FencepostError(f"--report {report}: has no effect with --compare")
    check_can_start(master)  # before a folder is created
    writable_file(report, "--report")
    within_s = None if within is None else seconds_of(within, "--within")
    with told_at_once(STOPPING), ExitStack() as stack:
        folder = (
            Path(stack.enter_context(TemporaryDirectory(prefix="fencepost-plan-")))
            if out is None
            else new_folder(out, "--out")
        )
        found = answer(
            questions,
            runs=runs or (RUNS if compare is None else COMPARED_RUNS),
            master=master,
            out_dir=folder,
            progress=progress_for(json=json, lines=True),
            one=compare is not None,
            kept=out is not None,
            report=None if report is None else lambda found: _write_report(question, found, report),
            limit=None if within_s is None else TimeLimit(within_s, COMMAND_BEGAN.get()),
        )
    if compare is None:
        advice = recommend(question, found)
        result = PlanResult(
            event=question.event,
            members=question.members,
            partitions=question.partitions,
            options=found.options,
            recommendation=advice,
            stopped=found.stopped,
            wall_seconds=found.wall_seconds,
            lost=found.lost,
            out=None if out is None else str(out),
            report=None if report is None else str(report),
        )
        print_result(result, _print_plan, question, found, json=json)
    else:
        first, second = (each.stem for each in compare)
        compared = differences(found, first, second)
        difference = ComparedPlans(
            options=found.options,
            comparisons=compared,
            text=difference_in_words(first, second, compared, found.options[0].runs),
            wall_seconds=found.wall_seconds,
            lost=found.lost,
        )
        print_result(difference, _print_difference, found, json=json)
    return 1 if any(each.failed for each in found.options) else 0


def _question(file: Path | None, flags: dict[str, Any]) -> tuple[Question, dict[str, str]]:
    raw, places = ({}, {}) if file is None else read_question(file)
    for key, value in flags.items():
        option = f"--{key.replace('_', '-')}"
        if key == "config":
            raw[key] = raw.get(key, {}) | dict(_setting(each) for each in value)
            places[key] = option
        elif isinstance(value, bool):
            raw[key], places[key] = value, option if value else f"--no-{key}"
        else:
            listed = [part.strip() for part in str(value).split(",")]
            single = value if key in _NUMBERS else listed[0]
            raw[key], places[key] = listed if len(listed) > 1 else single, f"{option} {value}"
    return ask(raw, places), places


def _setting(text: str) -> tuple[str, bool | int | str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise FencepostError(f"--config {text}: expected NAME=VALUE under Kafka's name of the setting")
    if value in ("true", "false"):
        return name, value == "true"
    return name, int(value) if value.lstrip("-").isdecimal() else value


_HEADINGS = (
    "option",
    *("runs", "stands still", "deploy", "capacity lost", "most at once"),
    *("lag, peak", "lag gone after", "rebalances", "median"),
)
_CUT = 6
_MARK = "→"


def _rows(found: PlanAnswer, marked: str | None) -> list[tuple[str, ...]]:
    """Return a row for each option, the cheapest first; the recommended one is marked."""
    return [
        (
            *(() if marked is None else (_MARK if each.name == marked else "",)),
            each.name,
            f"{each.runs:,}",
            *(_figures(each) if each.runs else (NONE,) * (len(_HEADINGS) - 2)),
        )
        for each in found.options
    ]


def _figures(each: OptionAnswer) -> Iterator[str]:
    """The cells after the number of runs."""
    yield duration(each.downtime_s.total_per_run)
    yield duration(each.event_s)
    yield share(each.capacity_lost)
    yield f"{each.most_down:,.0f}"
    yield f"{each.lag_peak:,.0f}"
    yield duration(each.lag_gone_s)
    yield f"{each.rebalance_s.count / each.runs:,.1f}"
    yield duration(each.rebalance_s.p50)


def _headings(event: str) -> tuple[str, ...]:
    return tuple(event if each == "deploy" else each for each in _HEADINGS)


def _print_table(found: PlanAnswer, event: str, marked: str | None = None) -> None:
    more = 0 if marked is None else 1
    headings = ("",) * more + _headings(event)
    Terminal().table(headings, _rows(found, marked), names=1 + more, cuts={_CUT + more})


def _title(question: Question, found: PlanAnswer) -> str:
    runs = sum(each.runs for each in found.options)
    ways = [("new members first", question.surge), ("killed", question.kill)]
    how = "".join(f", {words}" for words, is_so in ways if is_so)
    return (
        f"A {question.event} of {question.members:,} members and {question.partitions:,} partitions{how},"
        f" start-up {question.start_up}: {runs:,} runs"
    )


def _print_plan(result: PlanResult, question: Question, found: PlanAnswer) -> None:
    out, advice = Terminal(), result.recommendation
    out.say(f"{_title(question, found)}\n")
    _print_table(found, question.event, advice.option)
    out.say(f"\n{advice.text}")
    for line in (*advice.why, *advice.basis, found.stopped):
        out.say(f"  {line}")
    _print_failed(found)
    if result.out is not None:
        chosen = best(found) or found.options[0]
        out.say(f"\nLook at a run:  {chosen.command}")
    if result.report is not None:
        out.say(f"Report: {result.report}")


def _write_report(question: Question, found: PlanAnswer, report: Path) -> None:
    from fencepost.simulation.pipeline.reporting import report_input
    from fencepost.simulation.report.model import TableCell, TableGrid, TableHeading
    from fencepost.simulation.report.render import render_campaign_report

    assert found.analysis is not None
    advice = recommend(question, found)
    columns = [TableHeading(each, number=bool(place)) for place, each in enumerate(_headings(question.event))]
    rows = [
        [TableCell(cell, "number" if place else "") for place, cell in enumerate(row)]
        for row in _rows(found, None)
    ]
    source = str(found.files.runs[0]).rpartition("/runs/")[0] if found.files.runs else ""
    data = report_input(_title(question, found), source, found.files, found.analysis, found.wall_seconds)
    note = " ".join([advice.text, *advice.why, *advice.basis, found.stopped])
    table = TableGrid("What each option costs", note, columns, rows)
    render_campaign_report(msgspec.structs.replace(data, answer=(table,)), report)


def _print_failed(found: PlanAnswer) -> None:
    out = Terminal()
    for each in found.options:
        if each.failed:
            out.say(f"{each.name}: {each.failed} runs failed, broke an invariant, or never settled")
    for line in found.lost.lines:
        out.say(line)


def _print_difference(result: ComparedPlans, found: PlanAnswer) -> None:
    _print_table(found, "event")
    out = Terminal()
    out.say("")
    for line in result.text:
        out.say(line)
    _print_failed(found)
