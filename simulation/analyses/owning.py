"""Tables about partitions and who may read them."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.analyses.declaration import CELL, Analysis, Column, Unit, quantiles, spread

DOWNTIME: Final = Analysis(
    name="downtime",
    title="Partition downtime",
    summary="How long no member could read a partition: since one owner stopped until another may read.",
    columns=(
        *CELL,
        Column(
            "cause",
            Unit.TEXT,
            "Why the owner stopped: revoked, lost, crash, stopped, fenced, stepped down (of a single active "
            "consumer) or assigned again; all for all of them together.",
        ),
        *spread(Unit.SECONDS, "times a partition went from one owner to the next"),
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
    summary="How long partitions waited for their first owner: since the run's start, or since they exist.",
    columns=(*CELL, *spread(Unit.SECONDS, "partitions got an owner")),
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
        "How long partitions had no owner, one, or several, since each had its first one. A member that "
        "gives up a partition owns it until its callback has ended. The coordinator's eyes are those of "
        "consumer groups and single active consumers."
    ),
    columns=(
        *CELL,
        _AS_SEEN_BY,
        Column(
            "owners",
            Unit.COUNT,
            "So many at a time. Two must not be, but of members that are fenced, and in windows of single "
            "active consumers.",
        ),
        Column("count", Unit.COUNT, "How often that began."),
        Column("seconds", Unit.SECONDS, "How long that was, all partitions together.", "time"),
        Column("share", Unit.SHARE, "That time as a part of all."),
        Column("max", Unit.SECONDS, "The longest time without a change.", "longest"),
    ),
)

MOVED_PARTITIONS: Final = Analysis(
    name="moved_partitions",
    title="Moved partitions",
    summary=(
        "How many partitions a rebalance that ended moved from one host to another, against the least that "
        "leaves each member with as many as it had afterwards."
    ),
    columns=(
        *CELL,
        *spread(Unit.NUMBER, "rebalances ended"),
        Column("moved", Unit.COUNT, "Partitions that moved in all of them."),
        Column("least", Unit.COUNT, "The least that had to."),
        Column("excess", Unit.RATIO, "Moved by least: 1 is the best; null if none had to.", "moved by least"),
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
        Column("cause", Unit.TEXT, "Why the owner before had let go; all for all of them together."),
        Column("count", Unit.COUNT, "How many such handovers."),
        *quantiles(Unit.NUMBER, "lag", "null if the log's end is unknown"),
        *quantiles(Unit.SECONDS),
        Column("behind", Unit.COUNT, "How many never caught up before the next handover, or the end."),
        Column("again", Unit.COUNT, "Records that were processed a second time, in all."),
        Column("again_max", Unit.COUNT, "The most after one handover.", "again, most"),
        Column("run_again_mean", Unit.NUMBER, "Of a run, on average of all: causes add up.", "again per run"),
    ),
)

SAC_GAPS: Final = Analysis(
    name="sac_gaps",
    title="Gaps of single active consumers",
    summary=(
        "How long no active consumer read a partition, between one and the next. A consumer that steps down "
        "reads nothing."
    ),
    columns=(
        *CELL,
        _AS_SEEN_BY,
        *spread(Unit.SECONDS, "gaps there were"),
        Column(
            "run_seconds_mean", Unit.SECONDS, "All gaps of a run, on average of the runs with any.", "per run"
        ),
        Column("unfinished", Unit.COUNT, "How many the trace cuts off; the time per run has them."),
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
            "count must be 0.",
            "window",
        ),
        Column("count", Unit.COUNT, "How often."),
        Column("seconds", Unit.SECONDS, "How long in all.", "time"),
    ),
)
