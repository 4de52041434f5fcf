"""Options and output shared by commands that run a scenario."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from cyclopts import Parameter

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.arguments import Count, TraceConfig
from fencepost.simulation.cli.completion import mutant_names, scenario_names
from fencepost.simulation.cli.terminal import Terminal
from fencepost.simulation.kernel.observers import RAISED
from fencepost.simulation.trace.outputs import TraceOutputs, trace_outputs

if TYPE_CHECKING:
    from fencepost.simulation.kernel.observers import Violation
    from fencepost.simulation.trace.topic import TraceTopic

SHOWN = 10
"""Violations that the terminal shows; JSON has them all."""


ScenarioName: TypeAlias = Annotated[
    str, Parameter(help="A scenario of the library, or a TOML file.", completer=scenario_names)
]
Settings: TypeAlias = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set", show_default=False, help="Override a scenario key: group.static=true. Repeatable."
    ),
]
MutantName: TypeAlias = Annotated[
    str,
    Parameter(help="Put a known bug back: one of `fencepost mutants --list`.", completer=mutant_names),
]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class GroupSize:
    """Options that replace numbers of a scenario."""

    members: Annotated[Count | None, Parameter(help="Members at the start.")] = None
    partitions: Annotated[
        Count | None, Parameter(help="Total number of partitions, shared among the topics.")
    ] = None


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class RunOutputs:
    """The files, and the topic, that a run writes."""

    trace: Annotated[Path | None, Parameter(help="Write the trace to this Parquet file.")] = None
    trace_topic: str | None = None
    """Also write the trace to a Kafka topic: HOST:PORT/TOPIC."""
    trace_config: TraceConfig = None
    report: Annotated[Path | None, Parameter(help="Write an HTML page with the run's timeline.")] = None

    def open(self, run_id: str) -> AbstractContextManager[TraceOutputs]:
        """Open the outputs of the run's rows.

        :raises FencepostError: if --trace-topic is not HOST:PORT/TOPIC, or --trace-config no settings.
        """
        return trace_outputs(run_id, self.trace, self._place(), keep=self.report is not None)

    def _place(self) -> TraceTopic | None:
        if self.trace_topic is None:
            if self.trace_config is not None:
                raise FencepostError("--trace-config: needs --trace-topic HOST:PORT/TOPIC")
            return None
        from fencepost.simulation.brokers.client_config import client_security
        from fencepost.simulation.trace.topic import TraceTopic

        return TraceTopic.parse(self.trace_topic, client_security(self.trace_config, "--trace-config"))

    @property
    def lines(self) -> list[str]:
        """A line for people about each file."""
        found = {"Trace: ": self.trace, "Report:": self.report}
        return [f"{name} {path}" for name, path in found.items() if path is not None]


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class RunFiles(RunOutputs):
    """The files that a run writes."""

    trace_topic: Annotated[None, Parameter(parse=False)] = None
    trace_config: Annotated[None, Parameter(parse=False)] = None


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
