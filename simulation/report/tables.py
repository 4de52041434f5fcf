"""The tables of a campaign's page: which columns, in which words, in which format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fencepost.simulation.report.model import ReportInput, Table


class Column(msgspec.Struct, frozen=True):
    """A heading; numbers are aligned to the right."""

    title: str
    number: bool = False


class Cell(msgspec.Struct, frozen=True):
    """A text, with a style of the page; `run` makes it open that run's timeline."""

    text: str
    style: str = ""
    run: str = ""


class Grid(msgspec.Struct, frozen=True):
    """A table as the page shows it."""

    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


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


_FORMATS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "count": ("count", whole),
    "rebalances": ("rebalances", whole),
    "unfinished": ("unfinished", whole),
    "median": ("median", duration),
    "p90": ("90 %", duration),
    "p99": ("99 %", duration),
    "max": ("longest", duration),
    "formed_median": ("first members stable", duration),
    "epochs_mean": ("epochs each", _one_decimal),
    "run_seconds_mean": ("all partitions, per run", duration),
    "begin_s": ("began at", duration),
    "seconds": ("time", duration),
    "epochs": ("epochs", whole),
    "heartbeats": ("heartbeats", whole),
    "visits": ("times entered", whole),
    "share": ("share", _percent),
    "mean": ("mean", duration),
    "runs": ("runs", whole),
}
"""Numbers: heading and format by column. All other columns are texts."""

_HEADINGS = {"run_id": "run", "cause": "cause", "example": "example"}


def grid(title: str, note: str, rows: Table, columns: Sequence[str], **formats: Callable[[Any], str]) -> Grid:
    """A table of these columns; scenario and parameters come first, in one."""
    headings = [Column("scenario")]
    for name in columns:
        if name in _FORMATS:
            headings.append(Column(_FORMATS[name][0], number=True))
        else:
            headings.append(Column(_HEADINGS.get(name, name.replace("_", " "))))
    lines = []
    for row in rows:
        line = [Cell(label(row))]
        for name in columns:
            if name in _FORMATS:
                line.append(Cell(formats.get(name, _FORMATS[name][1])(row[name]), "number"))
            else:
                line.append(Cell(_text(row[name])))
        lines.append(line)
    return Grid(title, note, headings, lines)


def scenario_grid(data: ReportInput) -> Grid:
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
                Cell(name),
                Cell(whole(row["runs"]), "number"),
                *(Cell(whole(count), "number bad" if count else "number") for count in bad.values()),
                Cell(whole(moved.get("count", 0)), "number"),
                Cell(duration(moved.get("median")), "number"),
                Cell(duration(moved.get("p99")), "number"),
                Cell(duration(down.get("median")), "number"),
                Cell(duration(down.get("p99")), "number"),
                Cell(duration(down.get("run_seconds_mean")), "number"),
                Cell(_one_decimal(beat.get("mean")), "number"),
            ]
        )
    columns = (Column("scenario"), *(Column(title, number=True) for title in titles))
    return Grid("What was run", "", columns, lines)


def violation_grid(data: ReportInput) -> Grid:
    """Broken invariants; an example opens its timeline where that is in the page."""
    embedded = {run.run_id: f"run-{number}" for number, run in enumerate(data.runs)}
    columns = (
        Column("invariant"),
        Column("scenario"),
        Column("violations", number=True),
        Column("runs", number=True),
        Column("example"),
    )
    lines = [
        [
            Cell(_text(row["invariant"]), "bad"),
            Cell(label(row)),
            Cell(whole(row["count"]), "number"),
            Cell(whole(row["runs"]), "number"),
            Cell(row["example"], run=embedded.get(row["example"], "")),
        ]
        for row in data.tables["violations"]
    ]
    return Grid("Violations", "Each of these must never happen.", columns, lines)


def failure_grid(data: ReportInput) -> Grid:
    """Runs that ended with an error of their own."""
    lines = [
        [Cell(row["run_id"]), Cell(str(row["error"]).strip().splitlines()[-1], "bad")]
        for row in data.failures
    ]
    note = "These runs ended with an error and count in no figure."
    return Grid("Failed runs", note, (Column("run"), Column("error")), lines)


def detail_grids(data: ReportInput) -> list[Grid]:
    """All figures behind the page, a table each; empty ones are left out."""
    tables = data.tables
    quantiles = ("count", "median", "p90", "p99", "max")
    grids = [
        grid(
            "Rebalances",
            "From the first raise of the group epoch until the group is stable. First members stable: since"
            " the run's start, until all members of the start were STABLE at the group's epoch; median.",
            tables["rebalances"],
            (*quantiles, "formed_median", "epochs_mean", "unfinished"),
        ),
        grid(
            "Longest rebalances",
            "Times since the start of the run.",
            tables["longest_rebalances"],
            ("run_id", "begin_s", "seconds", "cause", "epochs", "heartbeats"),
        ),
        grid(
            "Partition downtime",
            "From the moment an owner let go until another member may read, by the reason for letting go.",
            tables["downtime"],
            ("cause", *quantiles, "run_seconds_mean"),
        ),
        grid(
            "First assignment",
            "From the start of the run, or the creation of the partition, to its first owner.",
            tables["initial_assignment"],
            quantiles,
        ),
        grid(
            "Heartbeats a rebalance",
            "Heartbeats that the coordinator answered while a rebalance was under way.",
            tables["heartbeats"],
            ("rebalances", "mean", "median", "max"),
            mean=_one_decimal,
            median=_one_decimal,
            max=whole,
        ),
        grid(
            "Time in each state",
            "Over all members; a crash ends a state.",
            tables["residency"],
            ("state", "visits", "seconds", "share", "mean", "max"),
        ),
        grid(
            "Fencings",
            "Members that were removed or fenced, by cause.",
            tables["fencings"],
            ("cause", "count", "runs", "example"),
        ),
        grid(
            "Commits refused",
            "Offset commits that the coordinator refused, by error.",
            tables["commits_refused"],
            ("error", "count", "runs", "example"),
        ),
        grid(
            "Two owners at once",
            "Partitions that two members could read at the same time, neither of them fenced: must be 0.",
            tables["two_owners"],
            ("count", "seconds"),
        ),
    ]
    return [made for made in grids if made.rows]
