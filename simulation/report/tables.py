"""The tables of a campaign's page: which columns, in which words, in which format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fencepost.simulation.analyses.catalogue import TABLES
from fencepost.simulation.analyses.declaration import CELL, Declared, Unit
from fencepost.simulation.analyses.measures import MEASURES
from fencepost.simulation.report.model import ReportInput, Table


class TableHeading(msgspec.Struct, frozen=True):
    """A heading; numbers are aligned to the right."""

    title: str
    number: bool = False


class TableCell(msgspec.Struct, frozen=True):
    """A text, with a style of the page; `run` makes it open that run's timeline."""

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
"""What stands for no value."""


def duration(seconds: float | None) -> str:
    """`420 ms`, `3.21 s`, `1 min 40 s`; a dash for none."""
    if seconds is None:
        return NONE
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def whole(value: float | None) -> str:
    """A count with its thousands apart."""
    return NONE if value is None else f"{value:,.0f}"


def _one_decimal(value: float | None) -> str:
    return NONE if value is None else f"{value:,.1f}"


def size(count: float | None) -> str:
    """`420 B`, `3.2 kB`, `1.5 MB`; a dash for none."""
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
    """A row's scenario and parameters in one: `rolling-deploy, members=10`."""
    return ", ".join(filter(None, (row["scenario"], parameters_text(row["parameters"]))))


def parameters_text(parameters: str) -> str:
    """`{"members": "10"}` as `members=10`; "" for none."""
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
"""How values are shown, by unit; all others are texts."""


def shown(unit: Unit, row: Mapping[str, Any], name: str) -> str:
    """A value of a row for people, in a fitting unit."""
    if unit is Unit.MEASURED:
        unit = MEASURES[row["measure"]].unit
    return _SHOWN.get(unit, _text)(row.get(name))


def grid(table: Declared, rows: Table) -> TableGrid:
    """A table as it was declared; scenario and parameters come first, in one. Curves are for drawing."""
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
    """One line a scenario and its parameters: what ran, what broke, what it cost."""
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
                TableCell(whole(moved.get("count", 0)), "number"),
                TableCell(duration(moved.get("median")), "number"),
                TableCell(duration(moved.get("p99")), "number"),
                TableCell(duration(down.get("median")), "number"),
                TableCell(duration(down.get("p99")), "number"),
                TableCell(duration(down.get("run_seconds_mean")), "number"),
                TableCell(_one_decimal(beat.get("mean")), "number"),
            ]
        )
    columns = (TableHeading("scenario"), *(TableHeading(title, number=True) for title in titles))
    return TableGrid("What was run", "", columns, lines)


def violation_grid(data: ReportInput) -> TableGrid:
    """Broken invariants; an example opens its timeline where that is in the page."""
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
    """Runs that ended with an error of their own."""
    lines = [
        [TableCell(row["run_id"]), TableCell(str(row["error"]).strip().splitlines()[-1], "bad")]
        for row in data.failures
    ]
    note = "These runs ended with an error and count in no figure."
    return TableGrid("Failed runs", note, (TableHeading("run"), TableHeading("error")), lines)


def detail_grids(data: ReportInput) -> list[TableGrid]:
    """All figures behind the page, a table each, without empty ones and those that it shows elsewhere."""
    return [
        grid(table, data.tables[name])
        for name, table in TABLES.items()
        if name not in _ELSEWHERE and data.tables.get(name)
    ]
