"""Tables about partitions and who may read them."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.analyses.declaration import CELL, Analysis, Column, Unit, spread

DOWNTIME: Final = Analysis(
    name="downtime",
    title="Partition downtime",
    summary="How long partitions had no owner: from the moment one let go until another member may read.",
    columns=(
        *CELL,
        Column(
            "cause",
            Unit.TEXT,
            "Why the owner let go: revoked, lost, crash, fenced, stepped down (of a single active consumer) "
            "or assigned again; null for all of them together.",
        ),
        *spread(Unit.SECONDS, "times a partition went from one owner to the next"),
        Column("run_seconds_mean", Unit.SECONDS, "All partitions of a run added up, on average."),
        Column("curve", Unit.CURVE, "The whole distribution."),
    ),
)

INITIAL_ASSIGNMENT: Final = Analysis(
    name="initial_assignment",
    title="First assignment",
    summary="How long partitions waited for their first owner: since the run's start, or since they exist.",
    columns=(*CELL, *spread(Unit.SECONDS, "partitions got an owner")),
)

TWO_OWNERS: Final = Analysis(
    name="two_owners",
    title="Two owners at once",
    summary="Partitions that two members could read at the same time, neither of them fenced: must be 0.",
    columns=(
        *CELL,
        Column("count", Unit.COUNT, "How often."),
        Column("seconds", Unit.SECONDS, "How long in all."),
    ),
)
