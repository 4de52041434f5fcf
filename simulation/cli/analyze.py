"""`fencepost analyze`: the analyses over traces in files, or over rows that arrive in a topic."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from rich.text import Text

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.catalogue import TABLES
from fencepost.simulation.analyses.declaration import CELL, Column, Unit
from fencepost.simulation.cli.arguments import Json, given_options, writable_files
from fencepost.simulation.cli.live import FollowOptions, follow_topic
from fencepost.simulation.cli.logs import configure_logs
from fencepost.simulation.cli.output import print_result
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.interrupts import STOPPING, told_at_once
from fencepost.simulation.pipeline.analyze import Place, Tables, kind_of
from fencepost.simulation.pipeline.progress import progress_for
from fencepost.simulation.pipeline.session import LOCAL
from fencepost.simulation.report.model import label, shown

if TYPE_CHECKING:
    from fencepost.simulation.report.model import Table

SHOWN = 10
"""Rows of a table that the terminal shows; JSON and the report have them all."""

_BLANK = (None, "", "{}")
"""A column in which every value is one of these is not printed."""


_NAMING = (Unit.TEXT, Unit.PARAMETERS)


class Analyzed(msgspec.Struct, frozen=True):
    """The document of `--json`."""

    tables: Tables
    report: str | None = None
    source: str | None = None
    """Kind of the input that was analysed: a plan, a campaign, a folder of traces or a trace."""


def analyze(
    traces: Annotated[
        Path | None, Parameter(help="The folder of a plan or a campaign, a folder of traces, or one trace.")
    ] = None,
    /,
    *,
    following: FollowOptions = FollowOptions(),
    master: Annotated[
        str, Parameter(help="Spark's master: local[N], spark://HOST:PORT, yarn, k8s://…")
    ] = LOCAL,
    report: Annotated[Path | None, Parameter(help="Write the report to this HTML file.")] = None,
    tables: Annotated[
        Place,
        Parameter(
            help="driver computes the tables in this process, spark on Spark. auto: on Spark if there are"
            " many rows; if nothing has changed, show the tables of the last analysis."
        ),
    ] = "auto",
    run: Annotated[
        list[str] | None,
        Parameter(help="Write a page with this run's timeline and no analyses. Repeatable."),
    ] = None,
    json: Json = False,
) -> int:
    """Analyse traces of any world: rebalances, downtime, time in each state and more, as distributions.

    With --kafka, follow a topic and analyse its rows as they arrive. Each row counts once, even after a
    crash: a restart with the same --out continues where the last one stopped. Ctrl-C ends it and prints the
    tables.
    """
    from fencepost.simulation.pipeline.analyze import analyze as run_analyses

    writable_files({"--report": report}, read=traces)
    if following.kafka is not None:
        if traces is not None or run:
            raise FencepostError("--kafka: reads a topic, expected no files and no --run")
        return follow_topic(following, master=master, report=report, json=json)
    if [*given_options(following)]:
        raise FencepostError(
            "--topic, --kafka-config, --out, --until-idle, --available-now, --window: needs --kafka"
        )
    if traces is None:
        raise FencepostError("expected a directory of traces, one trace, or --kafka HOST:PORT --topic NAME")
    configure_logs()
    if run:
        return _show(traces, run, report, json=json)
    kind = [kind_of(traces)]
    with told_at_once(STOPPING):
        found = run_analyses(
            traces,
            master=master,
            report=report,
            tables=tables,
            progress=progress_for(json=json),
            say=kind.append,
        )
    result = Analyzed(found, None if report is None else str(report), "; ".join(kind))
    print_result(result, _print, traces, json=json)
    return 0


def _print(result: Analyzed, traces: Path) -> None:
    terminal = Terminal()
    if result.source is not None:
        terminal.say(f"{traces}: {result.source}\n")
    print_tables(terminal, result.tables)
    if result.report is not None:
        terminal.say(f"Report: {result.report}")


def _show(traces: Path, runs: list[str], report: Path | None, *, json: bool) -> int:
    from fencepost.simulation.pipeline.reporting import report_runs

    if report is None:
        raise FencepostError("--run: writes timelines to a page, expected --report F.html")
    report_runs(traces, runs, report)
    print_result(Analyzed({}, str(report)), _print, traces, json=json)
    return 0


def print_tables(out: Terminal, tables: Tables) -> None:
    """Print the first rows of each table that has any, under the table's title."""
    for name, rows in tables.items():
        if not rows:
            continue
        table = TABLES[name]
        out.say(Text(table.title, style="bold"))
        columns = [each for each in table.columns if any(row.get(each.name) not in _BLANK for row in rows)]
        _print_rows(out, columns, rows[:SHOWN])
        if len(rows) > SHOWN:
            out.say(f"… and {len(rows) - SHOWN:,} more")
        out.say()


def _print_rows(out: Terminal, columns: Sequence[Column], rows: Table) -> None:
    """Print the rows in one table, or in one for each scenario if that is too wide."""
    headings = [each.heading for each in columns]
    lines = [[_cell(each, row) for each in columns] for row in rows]
    names, cell = _names(columns), len([each for each in columns if each in CELL])
    if names <= cell or out.has_room(headings, lines):
        out.table(headings, lines, names=names)
        return
    lines_of = itertools.groupby(zip(rows, lines, strict=True), lambda each: label(each[0]))
    for number, (scenario, group) in enumerate(lines_of):
        if number:
            out.say()
        out.say(scenario)
        out.table(headings[cell:], [line[cell:] for _, line in group], names=names - cell)


def _names(columns: Sequence[Column]) -> int:
    """Return how many of the first columns identify a row: a run's id, or all texts before the
    first number."""
    if columns[0].unit is Unit.RUN:
        return 1
    return len(list(itertools.takewhile(lambda each: each.unit in _NAMING, columns)))


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    return "" if row[column.name] is None else shown(column.unit, row, column.name)
