"""What a report shows, as values. Nothing here knows where they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from fencepost.simulation.trace.schema import Row

Cell: TypeAlias = str | int | float | bool | None
Table: TypeAlias = Sequence[Mapping[str, Any]]


class BrokenInvariant(Protocol):
    """A violation, as a run's result lists it."""

    @property
    def invariant(self) -> str:
        """The invariant's name."""

    @property
    def message(self) -> str:
        """What was wrong."""

    @property
    def t_us(self) -> int:
        """When, in virtual microseconds."""


class RunOutcome(Protocol):
    """The result of one run, as far as its page shows it."""

    @property
    def scenario(self) -> str:
        """The scenario's name."""

    @property
    def seed(self) -> int:
        """What the run was drawn from."""

    @property
    def members(self) -> int:
        """How many members began."""

    @property
    def partitions(self) -> int:
        """How many partitions there were."""

    @property
    def virtual_seconds(self) -> float:
        """How long the run lasted in its own time."""

    @property
    def wall_seconds(self) -> float:
        """How long it took to compute."""

    @property
    def events(self) -> int:
        """Steps of its event loop."""

    @property
    def heartbeats(self) -> int:
        """Heartbeats answered."""

    @property
    def rebalances(self) -> int:
        """Rebalances that ended."""

    @property
    def converged(self) -> bool:
        """Whether the group settled once faults were over."""

    @property
    def violations(self) -> Sequence[BrokenInvariant]:
        """Every invariant that broke."""

    @property
    def digest(self) -> str:
        """The hash of its trace."""


class TracedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run to look into: its label, and its rows in their order."""

    run_id: str
    title: str
    why: str = ""
    """Why this one was chosen, for people."""
    command: str = ""
    """A command that repeats it."""
    facts: tuple[tuple[str, str], ...] = ()
    rows: Sequence[Row] = ()
    """Plain tuples in the order of `Row` will do."""
    names: Mapping[str, str] = {}
    """What actors are called by people, where rows have ids."""


class Curve(msgspec.Struct, frozen=True):
    """A distribution of durations: its percentiles 0 to 100, in seconds."""

    label: str
    count: int
    seconds: tuple[float, ...]


class ReportInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the page of a campaign, or of analysed traces, shows."""

    title: str
    source: str
    """The directory that was analysed."""
    tables: Mapping[str, Table]
    rebalance_curves: tuple[Curve, ...] = ()
    downtime_curves: tuple[Curve, ...] = ()
    traced_runs: int = 0
    wall_seconds: float | None = None
    failures: Table = ()
    """Runs that raised: run_id and error."""
    runs: tuple[TracedRun, ...] = ()
    """Runs whose timelines are in the page."""
    all_runs: Table = ()
    """All runs, or as many as a page bears: run_id, label, rebalances, heartbeats, outcome, whether
    that is `fine`, and the commands that `show` its trace, where there is one, and run it `again`."""
