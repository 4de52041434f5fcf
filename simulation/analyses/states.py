"""Tables about state machines: where they stay, and where they go."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.analyses.declaration import CELL, Analysis, Column, Unit, quantiles

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
