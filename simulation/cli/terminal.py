"""Text for people, through rich: colours on a terminal only, tables that read as well in a log."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table

FILE_WIDTH = 160
"""Columns of files and pipes, so that a row stays one line. Terminals know theirs."""


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
        """Print a table without frames."""
        grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=headed)
        for heading in headings:
            grid.add_column(heading, overflow="fold")
        for row in rows:
            grid.add_row(*row)
        if self.is_terminal:
            self.print(grid)
            return
        with self.capture() as captured:
            self.print(grid)
        self.say("\n".join(line.rstrip() for line in captured.get().splitlines()))

    def on_broken_pipe(self) -> None:
        """Leave a reader that went away to `main`, which knows the exit code for it."""
        raise BrokenPipeError
