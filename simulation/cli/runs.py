"""Options and output shared by commands that run a scenario: where rows are written, progress, and
violations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.kernel.observers import RAISED

if TYPE_CHECKING:
    from fencepost.simulation.cli.terminal import Terminal
    from fencepost.simulation.kernel.observers import Violation
    from fencepost.simulation.trace.topic import TraceTopic

SHOWN = 10
"""Violations that the terminal shows; JSON has them all."""


TraceTo: TypeAlias = Annotated[
    str | None, Parameter(help="Also write the trace to a Kafka topic: HOST:PORT/TOPIC.")
]


TraceConfig: TypeAlias = Annotated[
    Path | None,
    Parameter(help="With --trace-topic: a file of Kafka's client settings, for brokers with TLS or a login."),
]


def trace_place(text: str | None, config: Path | None) -> TraceTopic | None:
    """Return the topic that --trace-topic and --trace-config give.

    :raises FencepostError: if the first is not HOST:PORT/TOPIC, or the second is not a file of settings.
    """
    if text is None:
        if config is not None:
            raise FencepostError("--trace-config: needs --trace-topic HOST:PORT/TOPIC")
        return None
    from fencepost.simulation.brokers.client_config import client_security
    from fencepost.simulation.trace.topic import TraceTopic

    return TraceTopic.parse(text, client_security(config, "--trace-config"))


def whole_percents(advance: Callable[[int], None]) -> Callable[[float], None]:
    """Return a function that turns shares of a run into steps of a bar with a hundred steps."""
    reported = 0

    def report(share: float) -> None:
        nonlocal reported
        percents = int(share * 100)
        if percents > reported:
            advance(percents - reported)
            reported = percents

    return report


def say_violations(out: Terminal, violations: Sequence[Violation]) -> None:
    """Print a table of the first violations, and of the last one if it is an exception that ended the run."""
    if not violations:
        return
    out.say()
    first, last = violations[:SHOWN], violations[-1]
    if last not in first and last.invariant.startswith(RAISED):
        first = [*first[:-1], last]
    rows = [(v.invariant, f"{v.seq:,}", f"{v.t_us / 1e6:,.3f} s", v.message) for v in first]
    out.table(("invariant", "after row", "at", "what was seen"), rows)
    if len(violations) > SHOWN:
        out.say(f"… and {len(violations) - SHOWN:,} more: --json has them all")


def length(seconds: float) -> str:
    """Format seconds for people: 1 h 02 min, 3 min 20 s, 4.2 s."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
