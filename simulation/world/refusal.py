"""The error of a call that has no place in a simulated world."""

from __future__ import annotations

import sys
from typing import Final

from fencepost.simulation.kernel.loop import OutsideWorld
from fencepost.simulation.world.places import place_in, stack_of

BLOCKS: Final = "it would block the only thread there is"


def refusal(call: str, reason: str, instead: str) -> OutsideWorld:
    """Return the error of a call that has no place in a run. It names the line that made the call."""
    place = place_in(stack_of(sys._getframe(1)))
    called = f" (called at {place})" if place else ""
    return OutsideWorld(f"{call} can't run in a simulated world: {reason}{called}. Use {instead}")
