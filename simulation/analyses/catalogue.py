"""All tables over traces, with their names and columns.

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
    analysis,
    quantiles,
    spread,
)

_AS_SEEN_BY = Column(
    "as_seen_by",
    Unit.TEXT,
    "The observer: the coordinator; the members that it has not fenced; or all members, including fenced "
    "ones that have not noticed yet.",
    "as seen by",
)


_COUNTED = (
    Column("count", Unit.COUNT, "Number of times."),
    Column("runs", Unit.COUNT, "Number of runs with it."),
    Column("example", Unit.RUN, "One of these runs."),
)


NO_MUTANT: Final = "none"
"""The value of the parameter `mutant` for unchanged code."""


def has_mutant(row: Mapping[str, Any]) -> bool:
    """Return true if a row of a table is about runs with a known bug put back: such runs are meant to break
    something."""
    return bool(json.loads(row["parameters"]).get("mutant", NO_MUTANT) != NO_MUTANT)


_IN_ORDER: Final = (
    analysis(
        "runs",
        "What was run",
        "Runs and their results.",
        Column("runs", Unit.COUNT, "Number of runs."),
        Column("failed", Unit.COUNT, "Runs that ended with an error. No other table includes them."),
        Column("violating", Unit.COUNT, "Runs that violated an invariant; null if nothing checked them."),
        Column("violations", Unit.COUNT, "Number of violations; null if nothing checked them."),
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
    analysis(
        "rebalances",
        "Rebalances",
        "Durations of rebalances, from the first raise of the group epoch until the group is Stable again. "
        "While a group forms, nothing counts as a rebalance: until its first members have joined, or if it"
        " was not Stable before. If a log does not tell a duration, all figures of durations are null.",
        *spread(Unit.SECONDS, "rebalances that ended"),
        Column(
            "formed_median",
            Unit.SECONDS,
            "Time from the run's start until its first members were STABLE at the group's epoch. The "
            "median of the runs; null if no trace has the number of members.",
        ),
        Column("epochs_mean", Unit.NUMBER, "Mean number of epoch raises in one rebalance."),
        Column("unfinished", Unit.COUNT, "Rebalances that the trace cuts off. No other column has them."),
        Column("curve", Unit.CURVE, "The whole distribution."),
    ),
    Analysis(
        name="longest_rebalances",
        title="Longest rebalances",
        summary="The ten longest rebalances.",
        columns=(
            Column("run_id", Unit.RUN, "The run."),
            *CELL,
            Column("begin_s", Unit.SECONDS, "Its start, since the start of the run."),
            Column("begin_at", Unit.TEXT, "Its start by the clock, in UTC; null if time is virtual.", "at"),
            Column("seconds", Unit.SECONDS, "Its duration; null if a log does not tell it."),
            Column(
                "cause",
                Unit.TEXT,
                "The first cause of an epoch raise: a kind of heartbeat, a timeout, topics.",
            ),
            Column("epochs", Unit.COUNT, "Raises of the group epoch in it."),
            Column("heartbeats", Unit.COUNT, "Heartbeats answered in it; null if the trace has none."),
        ),
    ),
    analysis(
        "heartbeats",
        "Heartbeats a rebalance",
        "Heartbeats that the coordinator answered during each rebalance that ended, and "
        "the bytes of these requests and responses.",
        Column("rebalances", Unit.COUNT, "Number of rebalances that ended."),
        Column("mean", Unit.NUMBER, "Mean number of heartbeats in one rebalance."),
        *quantiles(Unit.NUMBER)[:-1],
        Column("max", Unit.COUNT, "The largest.", "most"),
        Column("bytes_mean", Unit.BYTES, "Mean number of bytes in one rebalance."),
        *quantiles(Unit.BYTES, "bytes"),
    ),
    analysis(
        "downtime",
        "Partition downtime",
        "Times in which no member could read a partition: from one owner's stop until another may read.",
        Column(
            "cause",
            Unit.TEXT,
            "Why the owner stopped: revoked, lost, crash, stopped, fenced, stepped down (single active "
            "consumers) or assigned again. From a log, gone or taken: it does not say when. `all` is for all "
            "causes together.",
        ),
        Column("count", Unit.COUNT, "Number of changes from one owner to the next."),
        Column("unknown", Unit.COUNT, "Those whose time is not known. If there are any, all times are null."),
        *quantiles(Unit.SECONDS),
        Column(
            "run_seconds_mean",
            Unit.SECONDS,
            "Time of all partitions of a run; the mean over all runs, including those without any. Causes "
            "add up.",
            "all partitions, per run",
        ),
        Column("curve", Unit.CURVE, "The whole distribution."),
    ),
    analysis(
        "initial_assignment",
        "First assignment",
        "Times until partitions got their first owner, since the run's start or the partition's creation.",
        *spread(Unit.SECONDS, "partitions that got an owner"),
    ),
    analysis(
        "owners",
        "Owners over time",
        "Time that partitions had no owner, one, or several, after their first one. A member that releases a "
        "partition owns it until its callback ends. The coordinator's view exists for consumer groups and "
        "single active consumers.",
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
    analysis(
        "two_owners",
        "Two owners at once",
        "Partitions that two members held at the same time, neither of them fenced. A member holds a "
        "partition until its callback for releasing it has ended. This must never happen, except in the "
        "windows that RabbitMQ's protocol of single active consumers allows.",
        Column(
            "sac_window",
            Unit.TEXT,
            "The cause of the window: forgotten, abandoned, demoted, early, returned, twice lost or removed; "
            "or closed, if the client had not noticed that its connection was closed. Null outside windows: "
            "the count must be 0 there, except in classic groups with static members. Kafka keeps such a "
            "member in its group when it misses a round, and may give its partitions to others before it "
            "learns of that.",
            "window",
        ),
        Column("count", Unit.COUNT, "Number of times."),
        Column("seconds", Unit.SECONDS, "Total time.", "time"),
    ),
    analysis(
        "moved_partitions",
        "Moved partitions",
        "Partitions that each ended rebalance moved from one host to another, compared with the smallest "
        "number that leaves each member with as many as it had afterwards.",
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
    analysis(
        "recoveries",
        "Lag and duplicates after a handover",
        "The records that owners had to catch up with, and those that were processed again, for each time "
        "that a partition was assigned to a member that then processed records of it. Lag is the records "
        "that waited, including those of the first batch. Times are from the handover until a batch left no "
        "more records than it had.",
        Column(
            "cause",
            Unit.TEXT,
            "Why the previous owner released the partition. `all` is for all causes together.",
        ),
        Column("count", Unit.COUNT, "Number of such handovers."),
        *quantiles(Unit.NUMBER, "lag", "null if the log's end is unknown"),
        *quantiles(Unit.SECONDS),
        Column("behind", Unit.COUNT, "Owners that never caught up before the next handover or the end."),
        Column("again", Unit.COUNT, "Total number of records that were processed again."),
        Column("again_max", Unit.COUNT, "The largest number after one handover.", "again, most"),
        Column("run_again_mean", Unit.NUMBER, "The mean over all runs. Causes add up.", "again per run"),
    ),
    analysis(
        "sac_gaps",
        "Gaps of single active consumers",
        "Times in which no active consumer read a partition, between one and the next. A "
        "consumer that steps down reads nothing.",
        _AS_SEEN_BY,
        *spread(Unit.SECONDS, "gaps"),
        Column(
            "run_seconds_mean",
            Unit.SECONDS,
            "Time of all gaps of a run; the mean over the runs with any.",
            "per run",
        ),
        Column("unfinished", Unit.COUNT, "Gaps that the trace cuts off. The time per run includes them."),
    ),
    analysis(
        "residency",
        "Time in each state",
        "Time that members spent in each state. A crash and the end of the run end a state.",
        Column("state", Unit.TEXT, "The state."),
        Column("visits", Unit.COUNT, "Number of times that it was entered.", "times entered"),
        Column("seconds", Unit.SECONDS, "Total time of all members in it.", "time"),
        Column("share", Unit.SHARE, "Share of the total time; null if the total is 0."),
        Column("mean", Unit.SECONDS, "Mean duration of a stay."),
        Column("max", Unit.SECONDS, "The longest stay.", "longest"),
    ),
    # The quantiles are the time in the previous state; null if all were first moves of a process.
    analysis(
        "transitions",
        "Moves of state machines",
        "Transitions of state machines: their number, and the time in the previous state.",
        Column(
            "machine",
            Unit.TEXT,
            "The machine: member, group, sac-member, sac-consumer (as the coordinator sees it), "
            "stream-client or stream-thread.",
        ),
        Column("state_from", Unit.TEXT, "The state that was left.", "from"),
        Column("state_to", Unit.TEXT, "The state that was entered.", "to"),
        Column("count", Unit.COUNT, "Number of times."),
        Column("share", Unit.SHARE, "Share of the transitions that leave that state."),
        Column("runs", Unit.COUNT, "Number of runs with it."),
        *quantiles(Unit.SECONDS),
    ),
    analysis(
        "escalations",
        "Escalations",
        "Time until clients of an application were in ERROR, after a handler of uncaught exceptions "
        "returned a shutdown.",
        Column("answer", Unit.TEXT, "SHUTDOWN_CLIENT, of one client, or SHUTDOWN_APPLICATION, of all."),
        Column("requests", Unit.COUNT, "Number of such results that ended any client."),
        *spread(Unit.SECONDS, "clients that reached ERROR"),
        Column("last_median", Unit.SECONDS, "Until the last client was; the median of the requests."),
        Column("last_max", Unit.SECONDS, "Until the last client was; the longest.", "last, longest"),
        Column("unfinished", Unit.COUNT, "Clients not in ERROR at the end of the trace."),
    ),
    analysis(
        "fencings",
        "Fencings",
        "Members that were removed or fenced, by cause.",
        Column(
            "cause",
            Unit.TEXT,
            "Why the coordinator removed the member (session, rebalance or replaced), or the error in its "
            "response to a heartbeat. gone: a log does not say whether it was removed or left.",
        ),
        *_COUNTED,
        Column(
            "recovered",
            Unit.COUNT,
            "Number of times after which the host had a STABLE member again. The next columns are the times "
            "until then. A host that has already restarted may have one at once: that counts as 0 s.",
        ),
        *quantiles(Unit.SECONDS),
    ),
    analysis(
        "commits_refused",
        "Commits refused",
        "Offset commits that the coordinator refused or did not respond to, by error.",
        Column("error", Unit.TEXT, "The error."),
        *_COUNTED,
    ),
    analysis(
        "violations",
        "Violations",
        "Violated invariants. Each of these must never happen.",
        Column("invariant", Unit.TEXT, "The invariant's name."),
        *_COUNTED,
    ),
    analysis(
        "invariants",
        "Invariants reached",
        "Situations of runs that test an invariant, and its violations. Invariants without such rows are "
        "listed only if they were violated.",
        Column("invariant", Unit.TEXT, "The invariant's name."),
        Column("situations", Unit.TEXT, "The situations that test it."),
        Column("reached", Unit.COUNT, "Number of such situations."),
        Column("runs", Unit.COUNT, "Number of runs with it."),
        Column("broken", Unit.COUNT, "Number of violations."),
        Column("runs_broken", Unit.COUNT, "Number of runs with a violation.", "runs that broke it"),
    ),
    analysis(
        "mutants",
        "Mutants killed",
        "Runs of code with a known bug that was put back, and the number in which a judge saw it. Only "
        "campaigns have such runs; no total of violations includes them.",
        Column("mutant", Unit.TEXT, "The bug: a name that `fencepost mutants` lists."),
        Column("runs", Unit.COUNT, "Number of runs with it."),
        Column("killed", Unit.COUNT, "Number of runs with a violation."),
        Column("share", Unit.SHARE, "Share of all runs with it."),
        Column("failed", Unit.COUNT, "Runs that it ended with an error."),
        Column("invariants", Unit.TEXT, "The invariants that were violated first in one of these runs."),
        Column("example", Unit.RUN, "One of the runs that killed it; null if no run did."),
    ),
)

ANALYSES: Final[Mapping[str, Analysis]] = {each.name: each for each in _IN_ORDER}
TABLES: Final[Mapping[str, Declared]] = {**ANALYSES, COMPARISONS.name: COMPARISONS}
"""Every table of `fencepost analyze`."""
