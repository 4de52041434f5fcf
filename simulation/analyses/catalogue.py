"""All tables over traces: what each is called, and what its columns hold.

The query of a table is a file of SQL with the table's name, in the folder next to this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from fencepost.simulation.analyses.comparison import COMPARISONS
from fencepost.simulation.analyses.declaration import (
    CELL,
    Analysis,
    Column,
    Declared,
    Unit,
    quantiles,
    spread,
)

REBALANCES: Final = Analysis(
    name="rebalances",
    title="Rebalances",
    summary=("Durations of rebalances, from the first raise of the group epoch until the group is stable."),
    columns=(
        *CELL,
        *spread(Unit.SECONDS, "rebalances that ended"),
        Column(
            "formed_median",
            Unit.SECONDS,
            "Since the run's start, until all members of the start were STABLE at the group's epoch; the "
            "median of the runs, null if no trace says how many there were.",
        ),
        Column("epochs_mean", Unit.NUMBER, "Mean number of epoch raises in one rebalance."),
        Column("unfinished", Unit.COUNT, "Rebalances that the trace cuts off. No other column has them."),
        Column("curve", Unit.CURVE, "The whole distribution."),
    ),
)

LONGEST_REBALANCES: Final = Analysis(
    name="longest_rebalances",
    title="Longest rebalances",
    summary="The ten longest rebalances.",
    columns=(
        Column("run_id", Unit.RUN, "The run."),
        *CELL,
        Column("begin_s", Unit.SECONDS, "Its start, since the start of the run."),
        Column("seconds", Unit.SECONDS, "Its duration."),
        Column("cause", Unit.TEXT, "What raised the epoch first: a kind of heartbeat, a timeout, topics."),
        Column("epochs", Unit.COUNT, "Raises of the group epoch in it."),
        Column("heartbeats", Unit.COUNT, "Heartbeats answered in it."),
    ),
)

HEARTBEATS: Final = Analysis(
    name="heartbeats",
    title="Heartbeats a rebalance",
    summary=(
        "Heartbeats that the coordinator answered during each rebalance that ended, and "
        "the bytes of these requests and responses."
    ),
    columns=(
        *CELL,
        Column("rebalances", Unit.COUNT, "Number of rebalances that ended."),
        Column("mean", Unit.NUMBER, "Mean number of heartbeats in one rebalance."),
        *quantiles(Unit.NUMBER)[:-1],
        Column("max", Unit.COUNT, "The largest.", "most"),
        Column("bytes_mean", Unit.BYTES, "Mean number of bytes in one rebalance."),
        *quantiles(Unit.BYTES, "bytes"),
    ),
)


DOWNTIME: Final = Analysis(
    name="downtime",
    title="Partition downtime",
    summary=(
        "Times in which no member could read a partition: from one owner's stop until another may read."
    ),
    columns=(
        *CELL,
        Column(
            "cause",
            Unit.TEXT,
            "Why the owner stopped: revoked, lost, crash, stopped, fenced, stepped down (of a single active "
            "consumer) or assigned again; all for all causes together.",
        ),
        *spread(Unit.SECONDS, "changes from one owner to the next"),
        Column(
            "run_seconds_mean",
            Unit.SECONDS,
            "All partitions of a run, on average of all runs, also those that had none: causes add up.",
            "all partitions, per run",
        ),
        Column("curve", Unit.CURVE, "The whole distribution."),
    ),
)

INITIAL_ASSIGNMENT: Final = Analysis(
    name="initial_assignment",
    title="First assignment",
    summary=(
        "Times until partitions got their first owner, since the run's start or the partition's creation."
    ),
    columns=(*CELL, *spread(Unit.SECONDS, "partitions that got an owner")),
)

_AS_SEEN_BY = Column(
    "as_seen_by",
    Unit.TEXT,
    "By whose eyes: the coordinator; the members that it has not fenced; or all members, those included that "
    "do not know it yet.",
    "as seen by",
)

OWNERS: Final = Analysis(
    name="owners",
    title="Owners over time",
    summary=(
        "Time that partitions had no owner, one, or several, after their first one. A member that releases a "
        "partition owns it until its callback ends. The coordinator's view exists for consumer groups and "
        "single active consumers."
    ),
    columns=(
        *CELL,
        _AS_SEEN_BY,
        Column(
            "owners",
            Unit.COUNT,
            "Number of owners at the same time. Two are allowed only with fenced members, and in windows of "
            "single active consumers.",
        ),
        Column("count", Unit.COUNT, "Number of times that this began."),
        Column("seconds", Unit.SECONDS, "Total time over all partitions.", "time"),
        Column("share", Unit.SHARE, "Share of the total time."),
        Column("max", Unit.SECONDS, "The longest time without a change.", "longest"),
    ),
)

MOVED_PARTITIONS: Final = Analysis(
    name="moved_partitions",
    title="Moved partitions",
    summary=(
        "Partitions that each ended rebalance moved from one host to another, compared with the smallest "
        "number that leaves each member with as many as it had afterwards."
    ),
    columns=(
        *CELL,
        *spread(Unit.NUMBER, "rebalances that ended"),
        Column("moved", Unit.COUNT, "Partitions that moved in all of them."),
        Column("least", Unit.COUNT, "The smallest number that had to move."),
        Column(
            "excess",
            Unit.RATIO,
            "Moved divided by least; 1 is the best. Null if no partition had to move.",
            "moved by least",
        ),
        Column(
            "run_moved_mean",
            Unit.NUMBER,
            "Partitions that moved in a run, on average of all.",
            "moved per run",
        ),
    ),
)

RECOVERIES: Final = Analysis(
    name="recoveries",
    title="Lag and duplicates after a handover",
    summary=(
        "What owners of partitions had to catch up with, and what was processed a second time, for each time "
        "that a partition was given to a member that then processed records of it. Lag is the records that "
        "waited, with those of the first batch; the times are since the handover, until a batch left no more "
        "records than it had."
    ),
    columns=(
        *CELL,
        Column(
            "cause", Unit.TEXT, "Why the previous owner released the partition; all for all causes together."
        ),
        Column("count", Unit.COUNT, "Number of such handovers."),
        *quantiles(Unit.NUMBER, "lag", "null if the log's end is unknown"),
        *quantiles(Unit.SECONDS),
        Column("behind", Unit.COUNT, "Owners that never caught up before the next handover or the end."),
        Column("again", Unit.COUNT, "Records that were processed a second time, in all."),
        Column("again_max", Unit.COUNT, "The most after one handover.", "again, most"),
        Column("run_again_mean", Unit.NUMBER, "Of a run, on average of all: causes add up.", "again per run"),
    ),
)

SAC_GAPS: Final = Analysis(
    name="sac_gaps",
    title="Gaps of single active consumers",
    summary=(
        "Times in which no active consumer read a partition, between one and the next. A "
        "consumer that steps down reads nothing."
    ),
    columns=(
        *CELL,
        _AS_SEEN_BY,
        *spread(Unit.SECONDS, "gaps"),
        Column(
            "run_seconds_mean", Unit.SECONDS, "All gaps of a run, on average of the runs with any.", "per run"
        ),
        Column("unfinished", Unit.COUNT, "Gaps that the trace cuts off. The time per run includes them."),
    ),
)

TWO_OWNERS: Final = Analysis(
    name="two_owners",
    title="Two owners at once",
    summary=(
        "Partitions that two members held at the same time, neither of them fenced. A member holds a "
        "partition until its callback for giving it up has ended. Two holders must never be, except in the "
        "windows that RabbitMQ's protocol of single active consumers has."
    ),
    columns=(
        *CELL,
        Column(
            "sac_window",
            Unit.TEXT,
            "What opened the window: forgotten, abandoned, demoted, early, returned, twice lost or removed; "
            "or closed, if the connection was and the client had not noticed. Null for what was in none: the "
            "count must be 0, except in classic groups with static members. Kafka keeps such a member in its "
            "group when it misses a round, and may give its partitions to others before it hears of that.",
            "window",
        ),
        Column("count", Unit.COUNT, "Number of times."),
        Column("seconds", Unit.SECONDS, "Total time.", "time"),
    ),
)


TRANSITIONS: Final = Analysis(
    name="transitions",
    title="Moves of state machines",
    summary="Moves of machines: how often, and the time in the state before.",
    columns=(
        *CELL,
        Column(
            "machine",
            Unit.TEXT,
            "What moved: member, group, sac-member, sac-consumer (in the coordinator's eyes), stream-client "
            "or stream-thread.",
        ),
        Column("state_from", Unit.TEXT, "The state that was left.", "from"),
        Column("state_to", Unit.TEXT, "The state that was entered.", "to"),
        Column("count", Unit.COUNT, "Number of times."),
        Column("share", Unit.SHARE, "Of the moves that leave that state."),
        Column("runs", Unit.COUNT, "Number of runs with it."),
        *quantiles(Unit.SECONDS),
    ),
)
"""`median` and its like are the time in the state before; null if all were first moves of a process."""

RESIDENCY: Final = Analysis(
    name="residency",
    title="Time in each state",
    summary=("Time that members spent in each state. A crash and the end of the run end a state."),
    columns=(
        *CELL,
        Column("state", Unit.TEXT, "The state."),
        Column("visits", Unit.COUNT, "Number of times that it was entered.", "times entered"),
        Column("seconds", Unit.SECONDS, "Total time of all members in it.", "time"),
        Column("share", Unit.SHARE, "That time as a part of all; null if all took none."),
        Column("mean", Unit.SECONDS, "Mean duration of a stay."),
        Column("max", Unit.SECONDS, "The longest stay.", "longest"),
    ),
)


_COUNTED = (
    Column("count", Unit.COUNT, "Number of times."),
    Column("runs", Unit.COUNT, "Number of runs with it."),
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
    summary="Offset commits that the coordinator refused or did not answer, by error.",
    columns=(*CELL, Column("error", Unit.TEXT, "The error."), *_COUNTED),
)

VIOLATIONS: Final = Analysis(
    name="violations",
    title="Violations",
    summary="Violated invariants. Each of these must never happen.",
    columns=(*CELL, Column("invariant", Unit.TEXT, "The invariant's name."), *_COUNTED),
)

INVARIANTS: Final = Analysis(
    name="invariants",
    title="Invariants reached",
    summary=(
        "Situations of runs that test an invariant, and its violations. Invariants without such rows are "
        "listed only if they were violated."
    ),
    columns=(
        *CELL,
        Column("invariant", Unit.TEXT, "The invariant's name."),
        Column("situations", Unit.TEXT, "The situations that test it."),
        Column("reached", Unit.COUNT, "Number of such situations."),
        Column("runs", Unit.COUNT, "Number of runs with it."),
        Column("broken", Unit.COUNT, "Number of violations."),
        Column("runs_broken", Unit.COUNT, "Number of runs with a violation.", "runs that broke it"),
    ),
)

ESCALATIONS: Final = Analysis(
    name="escalations",
    title="Escalations",
    summary=(
        "Time until clients of an application were in ERROR, after a handler of uncaught exceptions "
        "returned a shutdown."
    ),
    columns=(
        *CELL,
        Column("answer", Unit.TEXT, "SHUTDOWN_CLIENT, of one client, or SHUTDOWN_APPLICATION, of all."),
        Column("requests", Unit.COUNT, "Number of such results that ended any client."),
        *spread(Unit.SECONDS, "clients that reached ERROR"),
        Column("last_median", Unit.SECONDS, "Until the last client was; the median of the requests."),
        Column("last_max", Unit.SECONDS, "Until the last client was; the longest.", "last, longest"),
        Column("unfinished", Unit.COUNT, "Clients not in ERROR at the end of the trace."),
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
        Column("runs", Unit.COUNT, "Number of runs with it."),
        Column("killed", Unit.COUNT, "Number of runs with a violation."),
        Column("share", Unit.SHARE, "Of all runs that had it."),
        Column("failed", Unit.COUNT, "Runs that it ended with an error."),
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
    summary="Runs and their results.",
    columns=(
        *CELL,
        Column("runs", Unit.COUNT, "Number of runs."),
        Column("failed", Unit.COUNT, "Runs that ended with an error. No other table has them."),
        Column("violating", Unit.COUNT, "Runs that violated an invariant."),
        Column("violations", Unit.COUNT, "Number of violations."),
        Column("unconverged", Unit.COUNT, "Runs that did not settle. Null without a campaign's summaries."),
        Column("traced", Unit.COUNT, "Runs with a trace. All other tables use only these."),
        Column(
            "wall_seconds_mean",
            Unit.SECONDS,
            "Mean computing time of a run. Null without a campaign's summaries.",
        ),
        Column(
            "heartbeats",
            Unit.COUNT,
            "Heartbeats answered in all runs. Null without a campaign's summaries.",
        ),
    ),
)


ANALYSES: Final[Mapping[str, Analysis]] = {
    each.name: each
    for each in (
        RUNS,
        REBALANCES,
        LONGEST_REBALANCES,
        HEARTBEATS,
        DOWNTIME,
        INITIAL_ASSIGNMENT,
        OWNERS,
        TWO_OWNERS,
        MOVED_PARTITIONS,
        RECOVERIES,
        SAC_GAPS,
        RESIDENCY,
        TRANSITIONS,
        ESCALATIONS,
        FENCINGS,
        COMMITS_REFUSED,
        VIOLATIONS,
        INVARIANTS,
        MUTANTS,
    )
}

TABLES: Final[Mapping[str, Declared]] = {**ANALYSES, COMPARISONS.name: COMPARISONS}
"""Every table of `fencepost analyze`."""
