"""The grid of a campaign as the heat map shows it: what each choice of parameters cost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fencepost.simulation.report.model import Table
from fencepost.simulation.report.tables import label

SCENARIO = "scenario"
"""Scenarios are an axis like any parameter, where there are several."""


class GridMeasure(NamedTuple):
    """A figure of each cell; the unit is s for seconds, or empty for a count."""

    key: str
    title: str
    unit: str
    table: str
    column: str


MEASURES = (
    GridMeasure("rebalance_median", "rebalance, median", "s", "rebalances", "median"),
    GridMeasure("rebalance_p99", "rebalance, 99 %", "s", "rebalances", "p99"),
    GridMeasure("rebalance_max", "rebalance, longest", "s", "rebalances", "max"),
    GridMeasure("downtime_median", "partition down, median", "s", "downtime", "median"),
    GridMeasure("downtime_p99", "partition down, 99 %", "s", "downtime", "p99"),
    GridMeasure("downtime_run", "all partitions down, per run", "s", "downtime", "run_seconds_mean"),
    GridMeasure("heartbeats", "heartbeats per rebalance", "", "heartbeats", "mean"),
    GridMeasure("violations", "violations", "", "runs", "violations"),
    GridMeasure("failed", "failed runs", "", "runs", "failed"),
    GridMeasure("unconverged", "runs that did not settle", "", "runs", "unconverged"),
)


class GridCell(NamedTuple):
    """One choice of parameters: where it is on each axis, and its figures."""

    label: str
    at: dict[str, str]
    values: dict[str, float | None]


class ParameterGrid(NamedTuple):
    """The axes with their values in order, and a cell for each choice."""

    axes: dict[str, list[str]]
    cells: list[GridCell]


def grid_of(tables: Mapping[str, Table]) -> ParameterGrid:
    """What the tables say about each choice of parameters; an axis has at least two values."""
    found = {name: _by_label(tables.get(name, ())) for name in dict.fromkeys(each.table for each in MEASURES)}
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
    """The grid as the page's script reads it."""
    return {
        "axes": grid.axes,
        "measures": [{"key": each.key, "title": each.title, "unit": each.unit} for each in MEASURES],
        "cells": [cell._asdict() for cell in grid.cells],
    }


def in_order(values: Sequence[str]) -> list[str]:
    """Values that begin with a number by its size, in one unit; anything else as the tables have it."""
    if len({re.sub(r"^[\d.]+", "", value) for value in values}) == 1:
        return sorted(values, key=natural)
    return list(values)


def natural(text: str) -> list[tuple[int, float, str]]:
    """A key that sorts texts with numbers in them as people do: members=2 before members=10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return [(0, float(part), "") if number % 2 else (1, 0.0, part) for number, part in enumerate(parts)]


def _by_label(rows: Table) -> dict[str, Mapping[str, Any]]:
    return {label(row): row for row in rows if row.get("cause", "all") == "all"}


def _cell(row: Mapping[str, Any], found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> GridCell:
    name = label(row)
    values = {each.key: found[each.table].get(name, {}).get(each.column) for each in MEASURES}
    return GridCell(name, {SCENARIO: row["scenario"], **json.loads(row["parameters"])}, values)
