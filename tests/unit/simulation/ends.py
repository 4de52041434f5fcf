"""Ends of simulated runs."""

from __future__ import annotations

from collections.abc import Iterable


class All:
    """A value for `until` of a run, which then ends when each of these invariants is reported."""

    def __init__(self, names: Iterable[str]) -> None:
        self._missing = set(names)

    def __contains__(self, name: object) -> bool:
        self._missing.discard(str(name))
        return not self._missing
