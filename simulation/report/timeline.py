"""A run's rows in the compact form that the page's script draws.

It has columns instead of rows, each text only once, and differences instead of running numbers. So a hundred
thousand events compress to well under a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, Final

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.reading import visible
from fencepost.simulation.report.model import TracedRun
from fencepost.simulation.trace import schema
from fencepost.simulation.trace.schema import CLOCK_ADVANCED, COLUMNS, Row, RowKind, is_steady

EVENTS_MAX = 100_000
"""The limit on events. More events are thinned out: people can't read them all, and the file stays small."""

_JOINS = ("join", "full")

_DISPENSABLE: tuple[tuple[str, Callable[[Row], bool]], ...] = (
    ("steady heartbeats", is_steady),
    ("processed records", lambda row: row.kind == RowKind.RECORDS),
    ("accepted commits", lambda row: row.kind == RowKind.COMMIT and not row.error),
    (
        "heartbeats",  # except joins, which show that a member is no longer fenced
        lambda row: row.kind == RowKind.HEARTBEAT and not row.error and not row.detail.startswith(_JOINS),
    ),
    ("assignments as the coordinator wrote them", lambda row: row.kind == RowKind.ASSIGNMENT),
)
"""Rows to leave out first if a run has too many events."""


def encode_run(run: TracedRun) -> dict[str, Any]:
    """Return the run as JSON values: numbered texts and sets of partitions, and columns that refer to
    them."""
    rows, left_out = thin([Row._make(row) for row in run.rows])
    strings = _Numbers()
    sets = _Numbers()
    columns: dict[str, list[int]] = {}
    for at, name in enumerate(Row._fields):
        if name == "world":
            continue  # the page does not use it
        values: list[Any] = [row[at] for row in rows]
        match COLUMNS[name].type:
            case schema.TEXT:
                numbers = [strings[text] for text in values]
            case schema.PARTITIONS:
                numbers = [sets[partitions_text(partitions)] for partitions in values]
            case schema.LONG:
                numbers = [value - before for before, value in pairwise((0, *values))]
            case _:
                numbers = list(values)
        columns[_SHORT.get(name, name)] = numbers
    return {
        "id": run.run_id,
        "title": visible(run.title),
        "why": visible(run.why),
        "command": run.command,
        "facts": [[visible(text) for text in fact] for fact in run.facts],
        "left_out": left_out,
        "world": rows[0].world if rows else "",
        "cuts": clock_cuts(rows),
        "names": {visible(actor): visible(name) for actor, name in run.names.items() if actor in strings},
        "strings": list(map(visible, strings.values)),
        "sets": sets.values,
        "columns": columns,
    }


_CUT_FROM_US: Final = 2_000_000
"""A shorter stretch without events is drawn even if the clock jumped."""


def clock_cuts(rows: Iterable[Row]) -> list[tuple[int, int]]:
    """Return the stretches without events within the jumps of a test's clock, in microseconds.

    The page cuts them out: an hour that passed at once would leave no room for the seconds of the test.
    """
    cuts = []
    jump_ends = before = 0
    for row in rows:
        if before < jump_ends and row.t_us - before >= _CUT_FROM_US:
            cuts.append((before, row.t_us))
        if row.kind == RowKind.FAULT and row.actor == CLOCK_ADVANCED:
            jump_ends = max(jump_ends, row.t_us + round(float(row.detail.split()[0]) * 1e6))
        before = row.t_us
    return cuts


_SHORT: Final = {"t_us": "t", "state_from": "from", "state_to": "to"}
"""The names of columns in the page's script, if they differ."""


class _Numbers:
    """Numbers for texts in the order of their first use; "" is 0."""

    def __init__(self) -> None:
        self.values = [""]
        self._numbers = {"": 0}

    def __contains__(self, text: object) -> bool:
        return text in self._numbers

    def __getitem__(self, text: str) -> int:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.values)
            self.values.append(str(text))
        return number


def thin(rows: Sequence[Row], limit: int = EVENTS_MAX) -> tuple[Sequence[Row], list[str]]:
    """Return at most `limit` rows, and a description of what was left out."""
    left_out: list[str] = []
    for name, dispensable in _DISPENSABLE:
        if len(rows) <= limit:
            return rows, left_out
        kept = _without(rows, dispensable, len(rows) - limit)
        if len(kept) < len(rows):
            left_out.append(f"{len(rows) - len(kept):,} {name}")
            rows = kept
    if len(rows) > limit:
        whole = max(0, limit - sum(row.kind == RowKind.VIOLATION for row in rows))
        late = [row for row in rows[whole:] if row.kind == RowKind.VIOLATION][:limit]
        left_out.append(f"the last {len(rows) - whole - len(late):,} events except violations")
        rows = [*rows[:whole], *late]
    return rows, left_out


def _without(rows: Sequence[Row], dispensable: Callable[[Row], bool], count: int) -> list[Row]:
    """Return the rows without `count` of the dispensable ones, removed evenly, or without all of them."""
    all_of_them = sum(map(dispensable, rows))
    kept = []
    passed = 0
    for row in rows:
        if dispensable(row):
            passed += 1
            if all_of_them <= count or passed * count // all_of_them > (passed - 1) * count // all_of_them:
                continue
        kept.append(row)
    return kept


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """Format a set of partitions as `orders:0-3,7 returns:1`; "" if it is empty."""
    texts = []
    for topic, held in groupby(sorted(partitions), key=lambda partition: partition[0]):
        texts.append(f"{topic}:{','.join(_ranges([partition[1] for partition in held]))}")
    return " ".join(texts)


def _ranges(numbers: list[int]) -> Iterable[str]:
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield str(first) if first == last else f"{first}-{last}"
            first = number
        last = number
    yield str(first) if first == last else f"{first}-{last}"
