"""Text for people, through rich: colours on a terminal only, tables that read as well in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table

FILE_WIDTH = 160
"""Columns of files and pipes, so that a row stays one line. Terminals know theirs."""

_GAP = 2
_UNBROKEN = 16
"""A cell up to so long stays one line: 1 min 20 s."""


def _widths(
    headings: Sequence[str], rows: Sequence[Sequence[RenderableType]], width: int
) -> list[int | None]:
    """What each column gets of the width; None leaves it to rich, where not even words have room."""
    found: list[int] = []
    wanted: list[int] = []
    for index, heading in enumerate(headings):
        cells = [str(row[index]) for row in rows]
        parts = (part for cell in cells for part in ([cell] if len(cell) <= _UNBROKEN else cell.split()))
        found.append(max(map(len, [*heading.split(), *parts]), default=0))
        wanted.append(max(map(len, [heading, *cells])) - found[-1])
    spare = width - sum(found) - _GAP * len(found)
    if spare < 0:
        return [None] * len(found)
    while spare and any(wanted):  # the narrowest that wants more gets it
        index = min((each for each, more in enumerate(wanted) if more), key=found.__getitem__)
        found[index] += 1
        wanted[index] -= 1
        spare -= 1
    return [*found]


class Terminal(Console):
    """Standard output. No colours with NO_COLOR; emoji, markup and highlighting are off."""

    def __init__(self, file_width: int = FILE_WIDTH) -> None:
        width = None if sys.stdout.isatty() else file_width
        super().__init__(highlight=False, emoji=False, markup=False, width=width)

    def say(self, *parts: RenderableType) -> None:
        """Print parts on one line, which is never broken: it may hold a path, or a command to copy."""
        self.print(*parts, soft_wrap=True)

    def table(
        self, headings: Sequence[str], rows: Iterable[Sequence[RenderableType]], *, headed: bool = True
    ) -> None:
        """Print a table without frames; no word is broken where there is room for all of them."""
        kept = list(rows)
        grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        grid.show_header = headed
        for heading, width in zip(headings, _widths(headings, kept, self.width), strict=True):
            grid.add_column(heading, overflow="fold", width=width)
        for row in kept:
            grid.add_row(*row)
        if self.is_terminal:
            self.print(grid)
            return
        with self.capture() as captured:
            self.print(grid)
        self.say("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def has_room(self, headings: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> bool:
        """Whether such a table can be printed without a break in a word."""
        return None not in _widths(headings, list(rows), self.width)

    def on_broken_pipe(self) -> None:
        """Leave a reader that went away to `main`, which knows the exit code for it."""
        raise BrokenPipeError
