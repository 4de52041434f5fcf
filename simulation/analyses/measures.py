"""What runs are compared by: measures, each with its values in every run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fencepost.simulation.analyses.declaration import CELL, Analysis, Column, Unit


class Measure(msgspec.Struct, frozen=True):
    """Something that is measured several times in a run, or once."""

    name: str
    title: str
    unit: Unit
    text: str
    """What one value is, in a sentence."""


MEASURES: Final[Mapping[str, Measure]] = {
    each.name: each
    for each in (
        Measure("rebalance", "rebalance", Unit.SECONDS, "How long a rebalance took that ended."),
        Measure(
            "rebalance_heartbeats",
            "heartbeats a rebalance",
            Unit.NUMBER,
            "Heartbeats that were answered in a rebalance.",
        ),
        Measure(
            "formation",
            "first members stable",
            Unit.SECONDS,
            "When all members of the start were STABLE at the group's epoch; once a run.",
        ),
        Measure(
            "downtime",
            "partition down",
            Unit.SECONDS,
            "How long a partition had no owner between two owners.",
        ),
        Measure(
            "downtime_run",
            "all partitions down, per run",
            Unit.SECONDS,
            "How long partitions had no owner between two owners, added up over a run.",
        ),
    )
}

VALUES: Final = Analysis(
    name="measures",
    title="Measured values",
    summary="Every value of every measure: what comparisons are computed from.",
    columns=(
        Column("run_id", Unit.RUN, "The run."),
        *CELL,
        Column("measure", Unit.TEXT, "The measure's name; null for a run in which nothing was measured."),
        Column("value", Unit.NUMBER, "The value, in the measure's unit."),
    ),
)
"""The values as a table, a row each."""
