"""The queries of tables, as they are declared: files of Spark's SQL, in which `{NAME}` stands for a view."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Final

import msgspec

from fencepost.simulation.analyses import situations

_NEARLY: Final = 1e-12
"""A share that is less by this much has the same rank among any number of values. Spark and DuckDB round
other products of shares and numbers differently."""

CURVE: Final = [max(0.0, point / 100 - _NEARLY) for point in range(101)]
"""The shares at which a distribution is drawn: its percentiles 0, 1, … 100, for any number of values."""

_BEGINS: Final[Mapping[str, str]] = {
    "rebalance": "begin_us",
    "handover": "from_us",
    "move": "begin_us",
    "recovery": "from_us",
}
"""By view, the column with the begin of a row's event, for tables that count from a given time."""

_OF_WHOLE_RUNS: Final = frozenset({"initial_assignment", "two_owners"})
"""Tables that always count everything: they are about the time before an event, or about violations."""

_TEXTS: Final[Mapping[str, Callable[[], str]]] = {
    "situation_invariants": situations.tested,
    "curve": lambda: f"array({', '.join(f'{share:.15e}' for share in CURVE)})",
}
"""Texts that a query may name in braces, in addition to views."""

_OF_SUMMARIES: Final = frozenset({"mutants", "run", "runs"})
"""Views with a different query if a campaign wrote summaries."""


class Queries(msgspec.Struct, frozen=True):
    """The queries for one set of files."""

    with_summaries: bool = False
    with_files: bool = False
    """True if only their files distinguish some runs."""
    since_us: int = 0
    """The time since which rebalances, handovers, moves and recoveries count."""

    def counts(self, table: str, view: str) -> str | None:
        """Return the condition for rows of a view that a table counts; None for all."""
        if not self.since_us or view not in _BEGINS or table in _OF_WHOLE_RUNS:
            return None
        return f"{_BEGINS[view]} >= {self.since_us}"

    def views(self, name: str) -> frozenset[str]:
        """Return the names of the views that a query reads."""
        fields = {field for _, field, _, _ in string.Formatter().parse(_text(self._variant(name))) if field}
        return frozenset(fields - _TEXTS.keys())

    def text(self, name: str, view: Callable[[str], str]) -> str:
        """Return a query in Spark's SQL; `view` gives the name under which it finds a view."""
        names = {each: view(each) for each in self.views(name)}
        return _text(self._variant(name)).format(**names, **{each: text() for each, text in _TEXTS.items()})

    def _variant(self, name: str) -> str:
        if self.with_summaries and name in _OF_SUMMARIES:
            return f"{name}_of_summaries"
        return f"{name}_of_files" if self.with_files and name == "run" else name


@functools.cache
def _text(name: str) -> str:
    return resources.files(__package__).joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
