"""Tables about rebalances: how long they take, and what they cost."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.analyses.declaration import CELL, Analysis, Column, Unit, quantiles, spread

REBALANCES: Final = Analysis(
    name="rebalances",
    title="Rebalances",
    summary="How long rebalances took: from the first raise of the group epoch until the group is stable.",
    columns=(
        *CELL,
        *spread(Unit.SECONDS, "rebalances that ended"),
        Column(
            "formed_median",
            Unit.SECONDS,
            "Since the run's start, until all members of the start were STABLE at the group's epoch; the "
            "median of the runs, null if no trace says how many there were.",
        ),
        Column("epochs_mean", Unit.NUMBER, "Raises of the group epoch in one."),
        Column("unfinished", Unit.COUNT, "How many the trace cuts off; no other column has them."),
        Column("curve", Unit.CURVE, "The whole distribution."),
    ),
)

LONGEST_REBALANCES: Final = Analysis(
    name="longest_rebalances",
    title="Longest rebalances",
    summary="The ten rebalances that took longest, to look into.",
    columns=(
        Column("run_id", Unit.RUN, "The run."),
        *CELL,
        Column("begin_s", Unit.SECONDS, "When it began, since the start of the run."),
        Column("seconds", Unit.SECONDS, "How long it took."),
        Column("cause", Unit.TEXT, "What raised the epoch first: a kind of heartbeat, a timeout, topics."),
        Column("epochs", Unit.COUNT, "Raises of the group epoch in it."),
        Column("heartbeats", Unit.COUNT, "Heartbeats answered in it."),
    ),
)

HEARTBEATS: Final = Analysis(
    name="heartbeats",
    title="Heartbeats a rebalance",
    summary=(
        "Heartbeats that the coordinator answered while a rebalance was under way, for those that ended, and "
        "the bytes of these requests and answers."
    ),
    columns=(
        *CELL,
        Column("rebalances", Unit.COUNT, "How many rebalances ended."),
        Column("mean", Unit.NUMBER, "Heartbeats in one, on average."),
        *quantiles(Unit.NUMBER)[:-1],
        Column("max", Unit.COUNT, "The largest.", "most"),
        Column("bytes_mean", Unit.BYTES, "Bytes in one, on average."),
        *quantiles(Unit.BYTES, "bytes"),
    ),
)
