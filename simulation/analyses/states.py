"""Tables about state machines: where they stay, and where they go."""

from __future__ import annotations

from typing import Final

from fencepost.simulation.analyses.declaration import CELL, Analysis, Column, Unit

RESIDENCY: Final = Analysis(
    name="residency",
    title="Time in each state",
    summary="How long members were in each state. A crash ends a state, and so does the end of the run.",
    columns=(
        *CELL,
        Column("state", Unit.TEXT, "The state."),
        Column("visits", Unit.COUNT, "How often it was entered."),
        Column("seconds", Unit.SECONDS, "How long members were in it, all together."),
        Column("share", Unit.SHARE, "That time as a part of all."),
        Column("mean", Unit.SECONDS, "How long a stay was on average."),
        Column("max", Unit.SECONDS, "The longest stay."),
    ),
)
