"""Tables about what went wrong, and what was run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.simulation.analyses.declaration import CELL, Analysis, Column, Unit, quantiles, spread

_COUNTED = (
    Column("count", Unit.COUNT, "How often it happened."),
    Column("runs", Unit.COUNT, "In how many runs."),
    Column("example", Unit.RUN, "One of these runs."),
)

FENCINGS: Final = Analysis(
    name="fencings",
    title="Fencings",
    summary="Members that were removed or fenced, by cause.",
    columns=(
        *CELL,
        Column(
            "cause",
            Unit.TEXT,
            "Why the coordinator removed the member (session, rebalance or replaced), or the error that it "
            "answered to a heartbeat.",
        ),
        *_COUNTED,
        Column(
            "recovered",
            Unit.COUNT,
            "After how many the host had a STABLE member again; the times that follow are until then. A host "
            "that has restarted by then may have one already: that counts with 0 s.",
        ),
        *quantiles(Unit.SECONDS),
    ),
)

COMMITS_REFUSED: Final = Analysis(
    name="commits_refused",
    title="Commits refused",
    summary="Offset commits that the coordinator refused, or never answered, by error.",
    columns=(*CELL, Column("error", Unit.TEXT, "The error."), *_COUNTED),
)

VIOLATIONS: Final = Analysis(
    name="violations",
    title="Violations",
    summary="Broken invariants: each of these must never happen.",
    columns=(*CELL, Column("invariant", Unit.TEXT, "The invariant's name."), *_COUNTED),
)

INVARIANTS: Final = Analysis(
    name="invariants",
    title="Invariants reached",
    summary=(
        "How often runs came to what puts an invariant to the test, and how often it was broken. Invariants "
        "that no row tells of are not here unless they were broken."
    ),
    columns=(
        *CELL,
        Column("invariant", Unit.TEXT, "The invariant's name."),
        Column("situations", Unit.TEXT, "What put it to the test."),
        Column("reached", Unit.COUNT, "How often that was."),
        Column("runs", Unit.COUNT, "In how many runs."),
        Column("broken", Unit.COUNT, "How often it was broken."),
        Column("runs_broken", Unit.COUNT, "In how many runs it was.", "runs that broke it"),
    ),
)

ESCALATIONS: Final = Analysis(
    name="escalations",
    title="Escalations",
    summary=(
        "How long it took until clients of an application were in ERROR, after a handler of uncaught "
        "exceptions had answered that they shall shut down."
    ),
    columns=(
        *CELL,
        Column("answer", Unit.TEXT, "SHUTDOWN_CLIENT, of one client, or SHUTDOWN_APPLICATION, of all."),
        Column("requests", Unit.COUNT, "How many such answers there were that ended any client."),
        *spread(Unit.SECONDS, "clients came into ERROR"),
        Column("last_median", Unit.SECONDS, "Until the last client was; the median of the requests."),
        Column("last_max", Unit.SECONDS, "Until the last client was; the longest.", "last, longest"),
        Column("unfinished", Unit.COUNT, "How many clients were not in ERROR when the trace ended."),
    ),
)

MUTANTS: Final = Analysis(
    name="mutants",
    title="Mutants killed",
    summary=(
        "Runs of code with a known bug, put back on purpose, and in how many of them a checker saw it. Only "
        "campaigns know of such runs; they count in no total of violations."
    ),
    columns=(
        *CELL,
        Column("mutant", Unit.TEXT, "The bug: a name that `fencepost mutants` lists."),
        Column("runs", Unit.COUNT, "How many runs had it."),
        Column("killed", Unit.COUNT, "In how many an invariant was broken."),
        Column("share", Unit.SHARE, "Of all runs that had it."),
        Column("failed", Unit.COUNT, "How many it brought to an end of their own, with an error."),
        Column("invariants", Unit.TEXT, "Those that were broken first in one of them."),
        Column("example", Unit.RUN, "One of the runs that killed it; null if none did."),
    ),
)

NO_MUTANT: Final = "none"
"""The value of the parameter `mutant` for code as it is."""


def has_mutant(row: Mapping[str, Any]) -> bool:
    """Whether a row of a table is about runs with a bug that was put there: they are to break something."""
    return bool(json.loads(row["parameters"]).get("mutant", NO_MUTANT) != NO_MUTANT)


RUNS: Final = Analysis(
    name="runs",
    title="What was run",
    summary="Runs, and what became of them.",
    columns=(
        *CELL,
        Column("runs", Unit.COUNT, "How many."),
        Column("failed", Unit.COUNT, "How many ended with an error of their own; no other table has them."),
        Column("violating", Unit.COUNT, "How many broke an invariant."),
        Column("violations", Unit.COUNT, "How often invariants were broken."),
        Column("unconverged", Unit.COUNT, "How many did not settle; null where no campaign left summaries."),
        Column("traced", Unit.COUNT, "How many have a trace: all other tables are of those."),
        Column(
            "wall_seconds_mean",
            Unit.SECONDS,
            "How long one took to compute; null where no campaign left summaries.",
        ),
        Column(
            "heartbeats",
            Unit.COUNT,
            "Heartbeats answered in all of them; null where no campaign left summaries.",
        ),
    ),
)
