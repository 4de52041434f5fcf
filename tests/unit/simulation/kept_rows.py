"""The trace of a run, kept for a test."""

from __future__ import annotations

from collections.abc import Iterable

from fencepost.simulation.trace.schema import Row


class KeptRows(list[Row]):
    """All rows of the run whose trace this is."""

    def write(self, rows: Iterable[Row], /) -> None:
        self.extend(rows)

    def of(self, kind: str) -> list[Row]:
        return [row for row in self if row.kind == kind]
