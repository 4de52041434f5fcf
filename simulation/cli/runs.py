"""What commands that run a scenario have in common: rows for a page, progress, violations for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencepost.simulation.cli.terminal import Terminal
    from fencepost.simulation.trace.recorder import TraceWriter
    from fencepost.simulation.trace.schema import Row
    from fencepost.simulation.world.observers import Violation

SHOWN = 10
"""Violations that people see; JSON has them all."""


class Rows:
    """Keeps the rows of a run for its page, and hands them on."""

    def __init__(self, onward: TraceWriter | None) -> None:
        self.rows: list[Row] = []
        self._onward = onward

    def write(self, rows: Sequence[Row], /) -> None:
        """Take a batch."""
        self.rows.extend(rows)
        if self._onward is not None:
            self._onward.write(rows)


def whole_percents(advance: Callable[[int], None]) -> Callable[[float], None]:
    """Shares of a run as steps of a bar with a hundred of them."""
    told = 0

    def tell(share: float) -> None:
        nonlocal told
        percents = int(share * 100)
        if percents > told:
            advance(percents - told)
            told = percents

    return tell


def say_violations(out: Terminal, violations: Sequence[Violation]) -> None:
    """A table of the first of them."""
    if not violations:
        return
    out.say()
    rows = [(v.invariant, f"{v.seq:,}", f"{v.t_us / 1e6:,.3f} s", v.message) for v in violations[:SHOWN]]
    out.table(("invariant", "after row", "at", "what was seen"), rows)
    if len(violations) > SHOWN:
        out.say(f"… and {len(violations) - SHOWN:,} more: --json has them all")


def length(seconds: float) -> str:
    """Seconds for people: 1 h 02 min, 3 min 20 s, 4.2 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
