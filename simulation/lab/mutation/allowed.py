"""Changes that the protocol allows: a checker that objected to one would object to correct software.

A change is told by its function and its text, which outlive the numbers of mutants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fencepost.simulation.mutants.automatic import AutomaticMutant

ALLOWED: Final[Mapping[tuple[str, str, str], str]] = {
    (
        "member.sac.consumer:SingleActiveConsumer.__init__",
        "False",
        "True",
    ): "Whether a closed consumer may be closed again is asked of its API only; unit tests judge it.",
    (
        "member.sac.consumer:SingleActiveConsumer._clock",
        "self._chosen_clock is None",
        "self._chosen_clock is not None",
    ): "The clock of a simulated consumer is the loop's, which is the one that it would choose itself.",
    (
        "coordinator.assign.java_order:string_hash",
        "2 ** 31",
        "2",
    ): "The hash only decides the order in which equal tasks are dealt out; any order is allowed.",
}
"""The reason by function, what stood there, and what stands there instead."""


def allowed_because(mutant: AutomaticMutant) -> str:
    """Return why the protocol allows this change; empty if it does not."""
    return ALLOWED.get((f"{mutant.module}:{mutant.function}", mutant.before, mutant.after), "")
