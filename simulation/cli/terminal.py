"""Text for people, through rich: colours on a terminal only, and tables that are readable in a log."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.table import Table

from fencepost.coordinator.reading import visible

FILE_WIDTH = 160
"""Width of files and pipes in columns, so that a row stays one line. A terminal knows its own width."""

_GAP = 2
_UNBROKEN = 16
"""The limit on characters of a cell that is never broken, such as `1 min 20 s`."""


_Rows: TypeAlias = Sequence[Sequence[RenderableType]]


def _least(headings: Sequence[str], rows: _Rows) -> list[int]:
    """Return the width that each column needs so that no word in it is broken."""
    least = []
    for index, heading in enumerate(headings):
        cells = [str(row[index]) for row in rows]
        parts = (part for cell in cells for part in ([cell] if len(cell) <= _UNBROKEN else cell.split()))
        least.append(max(map(len, [*heading.split(), *parts]), default=0))
    return least


def _widths(headings: Sequence[str], rows: _Rows, width: int) -> list[int]:
    """Return each column's share of the width."""
    found = _least(headings, rows)
    wanted = [
        max(map(len, [heading, *(str(row[index]) for row in rows)])) - found[index]
        for index, heading in enumerate(headings)
    ]
    spare = width - sum(found) - _GAP * len(found)
    while spare > 0 and any(wanted):  # the narrowest column that wants more gets it
        index = min((each for each, more in enumerate(wanted) if more), key=found.__getitem__)
        found[index] += 1
        wanted[index] -= 1
        spare -= 1
    while spare < 0 and max(found) > 1:  # the widest columns break words
        found[found.index(max(found))] -= 1
        spare += 1
    return found


def _parts(least: Sequence[int], width: int, names: int, cuts: Collection[int] | None) -> list[list[int]]:
    """Return the columns of each table that a wide one becomes. All begin with those that name the row."""
    parts = [list(range(names))]
    room = width - sum(least[:names]) - _GAP * names
    left = room
    for index in range(names, len(least)):
        needed = least[index] + _GAP
        if len(parts[-1]) > names and (index in cuts if cuts is not None else needed > left):
            parts.append(list(range(names)))
            left = room
        parts[-1].append(index)
        left -= needed
    return parts


class Terminal(Console):
    """Standard output. No colours with NO_COLOR; emoji, markup and highlighting are off."""

    def __init__(self, file_width: int = FILE_WIDTH) -> None:
        width = None if sys.stdout.isatty() else file_width
        super().__init__(highlight=False, emoji=False, markup=False, width=width)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Return what is written; all text passes through here, before colours are added."""
        return super()._render_buffer(
            each if each.control else Segment(visible(each.text), each.style) for each in buffer
        )

    def say(self, *parts: RenderableType) -> None:
        """Print parts on one line, which is never broken: it may hold a path, or a command to copy."""
        self.print(*parts, soft_wrap=True)

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[RenderableType]],
        *,
        headed: bool = True,
        names: int = 1,
        cuts: Collection[int] | None = None,
    ) -> None:
        """Print a table without frames or broken words; split one that is too wide into several.

        The first `names` columns identify rows, and each part begins with them. The table is split where the
        width ends, or before the columns in `cuts`.
        """
        kept = list(rows)
        if self.has_room(headings, kept):
            cuts = ()
        for number, columns in enumerate(_parts(_least(headings, kept), self.width, names, cuts)):
            if number:
                self.say()
            shown = [[row[index] for index in columns] for row in kept]
            self._table([headings[index] for index in columns], shown, headed)

    def has_room(self, headings: Sequence[str], rows: _Rows) -> bool:
        """Return true if such a table fits into the width without breaking a word."""
        return sum(_least(headings, rows)) + _GAP * len(headings) <= self.width

    def _table(self, headings: Sequence[str], rows: _Rows, headed: bool) -> None:
        grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        grid.show_header = headed
        for heading, width in zip(headings, _widths(headings, rows, self.width), strict=True):
            grid.add_column(heading, overflow="fold", width=width)
        for row in rows:
            grid.add_row(*row)
        if self.is_terminal:
            self.print(grid)
            return
        with self.capture() as captured:
            self.print(grid)
        self.say("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def on_broken_pipe(self) -> None:
        """Raise for a reader that closed the pipe: `main` knows the exit code for it."""
        raise BrokenPipeError
