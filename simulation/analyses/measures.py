"""The measures by which runs are compared, each with its values in every run."""

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
    """The meaning of one value, in a sentence."""


MEASURES: Final[Mapping[str, Measure]] = {
    each.name: each
    for each in (
        Measure("rebalance", "rebalance", Unit.SECONDS, "Duration of a rebalance that ended."),
        Measure(
            "rebalance_heartbeats",
            "heartbeats a rebalance",
            Unit.NUMBER,
            "Heartbeats answered in a rebalance.",
        ),
        Measure(
            "rebalance_bytes",
            "bytes a rebalance",
            Unit.BYTES,
            "Bytes of a rebalance's heartbeat requests and responses.",
        ),
        Measure(
            "formation",
            "first members stable",
            Unit.SECONDS,
            "Time until all first members were STABLE at the group's epoch; one value per run.",
        ),
        Measure(
            "moved", "moved partitions", Unit.NUMBER, "Partitions that a rebalance moved to another host."
        ),
        Measure("downtime", "partition down", Unit.SECONDS, "Time of a partition between two owners."),
        Measure(
            "run_downtime",
            "all partitions down",
            Unit.SECONDS,
            "Time of partitions between two owners, in total over a run.",
        ),
        Measure(
            "run_again",
            "records processed again",
            Unit.NUMBER,
            "Records of a run that were processed again after a handover.",
        ),
        Measure(
            "run_fencings", "fencings", Unit.NUMBER, "Number of members that were removed or fenced in a run."
        ),
        Measure(
            "escalation",
            "escalation",
            Unit.SECONDS,
            "Time from SHUTDOWN_APPLICATION until the last client was in ERROR, if all were.",
        ),
        Measure(
            "sac_gap",
            "no active consumer",
            Unit.SECONDS,
            "Time of a partition between two active consumers, as consumers see it.",
        ),
    )
}

VALUES: Final = Analysis(
    name="measures",
    title="Measured values",
    summary="Every value of every measure, as input of the comparisons.",
    columns=(
        Column("run_id", Unit.RUN, "The run."),
        *CELL,
        Column("measure", Unit.TEXT, "The measure's name; null for a run in which nothing was measured."),
        Column("value", Unit.NUMBER, "The value, in the measure's unit."),
    ),
)
"""The values as a table, one per row."""
