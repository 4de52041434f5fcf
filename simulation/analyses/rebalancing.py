"""Tables about rebalances, what they cost, and the states of members and groups meanwhile."""

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


TRANSITIONS: Final = Analysis(
    name="transitions",
    title="Moves of state machines",
    summary="Which moves machines made, how often, and how long they had been in the state that they left.",
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
        Column("count", Unit.COUNT, "How often."),
        Column("share", Unit.SHARE, "Of the moves that leave that state."),
        Column("runs", Unit.COUNT, "In how many runs."),
        *quantiles(Unit.SECONDS),
    ),
)
"""`median` and its like are the time in the state before; null if all were first moves of a process."""

RESIDENCY: Final = Analysis(
    name="residency",
    title="Time in each state",
    summary="How long members were in each state. A crash ends a state, and so does the end of the run.",
    columns=(
        *CELL,
        Column("state", Unit.TEXT, "The state."),
        Column("visits", Unit.COUNT, "How often it was entered.", "times entered"),
        Column("seconds", Unit.SECONDS, "How long members were in it, all together.", "time"),
        Column("share", Unit.SHARE, "That time as a part of all; null if all took none."),
        Column("mean", Unit.SECONDS, "How long a stay was on average."),
        Column("max", Unit.SECONDS, "The longest stay.", "longest"),
    ),
)
