"""The content of a report as values: its input, its tables, and the grid of its heat map."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec

from fencepost.simulation.analyses.catalogue import TABLES
from fencepost.simulation.analyses.declaration import CELL, Declared, Unit
from fencepost.simulation.analyses.measures import MEASURES
from fencepost.simulation.trace.schema import Row

Table: TypeAlias = Sequence[Mapping[str, Any]]


class TracedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run with a timeline: its label, and its rows in order."""

    run_id: str
    title: str
    why: str = ""
    """The reason for choosing this run, for people."""
    command: str = ""
    """A command that repeats it."""
    facts: tuple[tuple[str, str], ...] = ()
    rows: Sequence[Row] = ()
    """The rows; plain tuples in the order of `Row` are enough."""
    names: Mapping[str, str] = {}
    """The names that people use for actors, if the rows have ids."""


class Curve(msgspec.Struct, frozen=True):
    """A distribution of durations: its percentiles 0 to 100, in seconds."""

    label: str
    count: int
    seconds: tuple[float, ...]


class ReportInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page of a campaign, or of analysed traces, shows."""

    title: str
    source: str
    """The directory that was analysed."""
    tables: Mapping[str, Table]
    rebalance_curves: tuple[Curve, ...] = ()
    downtime_curves: tuple[Curve, ...] = ()
    traced_runs: int = 0
    wall_seconds: float | None = None
    failures: Table = ()
    """Runs that raised an exception: run_id and error."""
    runs: tuple[TracedRun, ...] = ()
    """Runs whose timelines are in the page."""
    answer: tuple[TableGrid, ...] = ()
    """Tables at the top: those of a plan."""
    all_runs: Table = ()
    """All runs, or as many as fit on a page: run_id, label, rebalances, heartbeats, outcome, `fine` (true if
    the outcome is), the command that shows its trace (`show`), if there is one, and the command that runs it
    `again`."""


class TableHeading(msgspec.Struct, frozen=True):
    """A heading; columns of numbers are aligned to the right."""

    title: str
    number: bool = False


class TableCell(msgspec.Struct, frozen=True):
    """A text with a style of the page; with `run`, it opens that run's timeline."""

    text: str
    style: str = ""
    run: str = ""


class TableGrid(msgspec.Struct, frozen=True):
    """A table as the page shows it."""

    title: str
    note: str
    columns: Sequence[TableHeading]
    rows: Sequence[Sequence[TableCell]]


_ELSEWHERE = frozenset({"runs", "violations"})

NONE = "\N{EN DASH}"
"""The sign for a missing value."""


def duration(seconds: float | None) -> str:
    """Format a duration: `420 ms`, `3.21 s`, `1 min 40 s`, `8 h 5 min`; a dash for None."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    if seconds < 7_200:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{int(seconds) // 3_600:,} h {int(seconds) % 3_600 // 60} min"


def whole(value: float | None) -> str:
    """Format a count with separated thousands."""
    return NONE if value is None else f"{value:,.0f}"


def _one_decimal(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}"


def size(count: float | None) -> str:
    """Format a size: `420 B`, `3.2 kB`, `1.5 MB`; a dash for None."""
    if count is None:
        return NONE
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def _ratio(value: float | None) -> str:
    return NONE if value is None else f"{value:,.2f}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{value:.2%}"


def _text(value: Any) -> str:
    return NONE if value is None else str(value)


def label(row: Mapping[str, Any]) -> str:
    """Return a row's scenario and parameters as one text: `rolling-deploy, members=10`."""
    return ", ".join(filter(None, (row["scenario"], parameters_text(row["parameters"]))))


def parameters_text(parameters: str) -> str:
    """Return `{"members": "10"}` as `members=10`; "" for no parameters."""
    return ", ".join(f"{key}={value}" for key, value in json.loads(parameters).items())


_SHOWN: Mapping[Unit, Callable[[Any], str]] = {
    Unit.PARAMETERS: lambda value: NONE if value is None else parameters_text(value),
    Unit.COUNT: whole,
    Unit.NUMBER: _one_decimal,
    Unit.SECONDS: duration,
    Unit.BYTES: size,
    Unit.RATIO: _ratio,
    Unit.SHARE: _percent,
}
"""Functions that format values, by unit; all other values are texts."""


def shown(unit: Unit, row: Mapping[str, Any], name: str) -> str:
    """Format a value of a row for people, in a suitable unit."""
    if unit is Unit.MEASURED:
        unit = MEASURES[row["measure"]].unit
    return _SHOWN.get(unit, _text)(row.get(name))


def grid(table: Declared, rows: Table) -> TableGrid:
    """Return a table as it was declared, except that scenario and parameters come first as one text, and
    curves are left out."""
    columns = [each for each in table.columns if each.unit is not Unit.CURVE and each not in CELL]
    headings = [
        TableHeading(each.heading, number=each.unit in _SHOWN and each.unit is not Unit.PARAMETERS)
        for each in columns
    ]
    lines = []
    for row in rows:
        line = [TableCell(label(row))]
        for each, heading in zip(columns, headings, strict=True):
            line.append(TableCell(shown(each.unit, row, each.name), "number" if heading.number else ""))
        lines.append(line)
    return TableGrid(table.title, table.summary, [TableHeading("scenario"), *headings], lines)


def scenario_grid(data: ReportInput) -> TableGrid:
    """Return a table with one line for each scenario and its parameters: its runs, violations and costs.

    A column is left out if no line has a value in it: a Streams application has no downtime of partitions.
    """
    rebalances = {label(row): row for row in data.tables.get("rebalances", ())}
    downtime = {label(row): row for row in data.tables.get("downtime", ()) if row["cause"] == "all"}
    beats = {label(row): row for row in data.tables.get("heartbeats", ())}
    titles = (
        "runs",
        "failed",
        "violations",
        "rebalances",
        "rebalance, median",
        "rebalance, 99 %",
        "partition down, median",
        "partition down, 99 %",
        "all partitions down, per run",
        "heartbeats per rebalance",
    )
    lines = []
    for row in data.tables["runs"]:
        name = label(row)
        moved, down, beat = rebalances.get(name, {}), downtime.get(name, {}), beats.get(name, {})
        bad = {"failed": row["failed"], "violations": row["violations"]}
        lines.append(
            [
                TableCell(name),
                TableCell(whole(row["runs"]), "number"),
                *(TableCell(whole(count), "number bad" if count else "number") for count in bad.values()),
                TableCell(whole(moved.get("count")), "number"),
                TableCell(duration(moved.get("median")), "number"),
                TableCell(duration(moved.get("p99")), "number"),
                TableCell(duration(down.get("median")), "number"),
                TableCell(duration(down.get("p99")), "number"),
                TableCell(duration(down.get("run_seconds_mean")), "number"),
                TableCell(_one_decimal(beat.get("mean")), "number"),
            ]
        )
    columns = (TableHeading("scenario"), *(TableHeading(title, number=True) for title in titles))
    kept = [place for place in range(len(columns)) if any(line[place].text != NONE for line in lines)]
    return TableGrid(
        "What was run",
        "",
        [columns[place] for place in kept],
        [[line[place] for place in kept] for line in lines],
    )


def violation_grid(data: ReportInput) -> TableGrid:
    """Return the table of violated invariants; an example opens its timeline if the page has it."""
    embedded = {run.run_id: f"run-{number}" for number, run in enumerate(data.runs)}
    columns = (
        TableHeading("invariant"),
        TableHeading("scenario"),
        TableHeading("violations", number=True),
        TableHeading("runs", number=True),
        TableHeading("example"),
    )
    lines = [
        [
            TableCell(_text(row["invariant"]), "bad"),
            TableCell(label(row)),
            TableCell(whole(row["count"]), "number"),
            TableCell(whole(row["runs"]), "number"),
            TableCell(row["example"], run=embedded.get(row["example"], "")),
        ]
        for row in data.tables["violations"]
    ]
    return TableGrid("Violations", "Each of these must never happen.", columns, lines)


def failure_grid(data: ReportInput) -> TableGrid:
    """Return the table of runs that ended with an error."""
    lines = [
        [TableCell(row["run_id"]), TableCell(str(row["error"]).strip().splitlines()[-1], "bad")]
        for row in data.failures
    ]
    note = "These runs ended with an error. No figure includes them."
    return TableGrid("Failed runs", note, (TableHeading("run"), TableHeading("error")), lines)


def detail_grids(data: ReportInput) -> list[TableGrid]:
    """Return all tables behind the page, except empty ones and those that it shows elsewhere."""
    return [
        grid(table, data.tables[name])
        for name, table in TABLES.items()
        if name not in _ELSEWHERE and data.tables.get(name)
    ]


SCENARIO = "scenario"
"""The name of the axis of scenarios, which are an axis like any parameter if there are several."""


class GridMeasure(NamedTuple):
    """A figure of each cell; the unit is s for seconds, or empty for a count."""

    key: str
    title: str
    unit: str
    table: str
    column: str


GRID_MEASURES = (
    GridMeasure("downtime_run", "all partitions down, per run", "s", "downtime", "run_seconds_mean"),
    GridMeasure("downtime_median", "partition down, median", "s", "downtime", "median"),
    GridMeasure("downtime_p99", "partition down, 99 %", "s", "downtime", "p99"),
    GridMeasure("rebalance_median", "rebalance, median", "s", "rebalances", "median"),
    GridMeasure("rebalance_p99", "rebalance, 99 %", "s", "rebalances", "p99"),
    GridMeasure("rebalance_max", "rebalance, longest", "s", "rebalances", "max"),
    GridMeasure("heartbeats", "heartbeats per rebalance", "", "heartbeats", "mean"),
    GridMeasure("violations", "violations", "", "runs", "violations"),
    GridMeasure("failed", "failed runs", "", "runs", "failed"),
    GridMeasure("unconverged", "runs that did not settle", "", "runs", "unconverged"),
)
"""Figures of the heat map; the first is shown first. It is a sum, which hides nothing: a median is low if
there are many short values."""

GRID_COUNTS = {
    "rebalances": ("count", "rebalances"),
    "downtime": ("count", "handovers"),
    "heartbeats": ("rebalances", "rebalances"),
    "runs": ("runs", "runs"),
}
"""By table, the column with the number of values behind a figure, and the word for them."""


class GridCell(NamedTuple):
    """One choice of parameters: its position on each axis, and its figures."""

    label: str
    at: dict[str, str]
    values: dict[str, float | None]
    counts: dict[str, int | None]
    """By table, the number of values behind the figures."""


class ParameterGrid(NamedTuple):
    """The axes with their values in order, and a cell for each choice of parameters."""

    axes: dict[str, list[str]]
    cells: list[GridCell]


def grid_of(tables: Mapping[str, Table]) -> ParameterGrid:
    """Return the figures of the tables for each choice of parameters; an axis has at least two values."""
    found = {
        name: _by_label(tables.get(name, ())) for name in dict.fromkeys(each.table for each in GRID_MEASURES)
    }
    cells = [_cell(row, found) for row in tables["runs"]]
    axes: dict[str, list[str]] = {}
    for cell in cells:
        for name, value in cell.at.items():
            values = axes.setdefault(name, [])
            if value not in values:
                values.append(value)
    varied = {name: in_order(values) for name, values in axes.items() if len(values) > 1}
    return ParameterGrid(varied, cells)


def as_json(grid: ParameterGrid) -> dict[str, Any]:
    """Return the grid as the page's script reads it."""
    return {
        "axes": grid.axes,
        "measures": [
            {
                "key": each.key,
                "title": each.title,
                "unit": each.unit,
                "table": each.table,
                "of": GRID_COUNTS[each.table][1],
            }
            for each in GRID_MEASURES
        ],
        "cells": [cell._asdict() for cell in grid.cells],
    }


def in_order(values: Sequence[str]) -> list[str]:
    """Sort values that begin with a number by that number, in one unit; keep any other values in the order of
    the tables."""
    if len({re.sub(r"^[\d.]+", "", value) for value in values}) == 1:
        return sorted(values, key=natural)
    return list(values)


def natural(text: str) -> list[tuple[int, float, str]]:
    """Return a sort key for texts with numbers in natural order: members=2 before members=10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(0, float(part), "") if number % 2 else (1, 0.0, part) for number, part in enumerate(parts)]


def _by_label(rows: Table) -> dict[str, Mapping[str, Any]]:
    return {label(row): row for row in rows if row.get("cause", "all") == "all"}


def _cell(row: Mapping[str, Any], found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> GridCell:
    name = label(row)
    values = {each.key: found[each.table].get(name, {}).get(each.column) for each in GRID_MEASURES}
    counts = {table: found[table].get(name, {}).get(column) for table, (column, _) in GRID_COUNTS.items()}
    return GridCell(name, {SCENARIO: row["scenario"], **json.loads(row["parameters"])}, values, counts)
