"""Cuts a trace of many groups into runs of one group each, as analyses and timelines need them."""

from __future__ import annotations

import datetime
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from fencepost.simulation.trace.schema import Row, RowKind

KEPT_ROWS: Final = 10_000
"""Limit of the rows about no group with which the run of a later group begins."""

Send = Callable[[str, list[Row]], None]
"""Receives the id of a run and rows of it."""


class GroupRuns:
    """Hands each row to the run of its group, `RUN/GROUP`, and a row about no group to all runs.

    A run begins with `run.start`, which has the group's name, and with the earlier rows about no group, such
    as topics. Rows are numbered within their run. `left_out` returns true for groups that are not traced; it
    is called for each row, until it returns true for a group.
    """

    def __init__(self, run_id: str, send: Send, left_out: Callable[[str, Row], bool]) -> None:
        self._run_id = run_id
        self._send = send
        self._left_out = left_out
        self._ignored: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._of_all: deque[Row] = deque(maxlen=KEPT_ROWS)

    def take(self, row: Row) -> None:
        """Take one more row."""
        group = row.group
        if not group:
            self._of_all.append(row)
            for each in self._numbers:
                self._pass_on(each, (row,))
            return
        if group in self._ignored:
            return
        if self._left_out(group, row):
            self._ignored.add(group)
            return
        if group not in self._numbers:
            self._numbers[group] = 0
            self._pass_on(group, (start_row(row.world, group), *self._of_all))
        self._pass_on(group, (row,))

    def _pass_on(self, group: str, rows: Iterable[Row]) -> None:
        numbered = []
        for row in rows:
            self._numbers[group] += 1
            numbered.append(row._replace(seq=self._numbers[group], group=group))
        self._send(f"{self._run_id}/{group}", numbered)


def start_row(world: str, group: str, began_ms: int | None = None) -> Row:
    """Return the first row of a group's run; its scenario is the group's name, as one word.

    `began_ms` is the time of the clock at its begin, in milliseconds since 1970, if it is known.
    """
    name = "_".join(group.split()) or group
    if began_ms is not None:
        at = datetime.datetime.fromtimestamp(began_ms / 1_000, datetime.UTC)
        name += f" - - {at.isoformat(timespec='milliseconds').replace('+00:00', 'Z')}"
    return Row(1, 0, world, group, "", RowKind.RUN_START.value, "", "", -1, -1, (), "", name)
