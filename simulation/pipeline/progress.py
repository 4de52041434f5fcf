"""Progress for people: bars on a terminal; elsewhere nothing, or lines for those who ask for them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TextIO

from fencepost.coordinator.protocol.errors import FencepostError


class Progress(Protocol):
    """Where long work tells how far it is."""

    def step(self, name: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a piece of work of `total` parts; call what this answers with how many more are done."""


class Silent:
    """Tells nobody."""

    @contextlib.contextmanager
    def step(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """See `Progress.step`."""
        yield lambda count: None


class Bars:
    """One bar a step, drawn by rich on `stream`; they stay, so that one sees what took how long."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=stream or sys.stderr)

    @contextlib.contextmanager
    def step(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """See `Progress.step`."""
        from rich import progress

        columns = (
            progress.TextColumn("{task.description:<12}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
        )
        with progress.Progress(*columns, console=self._console) as bars:
            bar = bars.add_task(name, total=total)
            yield lambda count: bars.advance(bar, count)


class ProgressLines:
    """A line for each tenth of a step: for logs that somebody follows."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    @contextlib.contextmanager
    def step(self, name: str, total: int) -> Iterator[Callable[[int], None]]:
        """See `Progress.step`."""
        done = shown = 0

        def advance(count: int) -> None:
            nonlocal done, shown
            done += count
            if total and done * 10 // total > shown:
                shown = done * 10 // total
                self._stream.write(f"{name} {done}/{total}\n")
                self._stream.flush()

        yield advance


def progress_for(*, json: bool = False, lines: bool = False, stream: TextIO | None = None) -> Progress:
    """Bars if a person watches, silence with `--json`; where standard error is no terminal, lines or silence.

    There FENCEPOST_PROGRESS decides, `lines` or `none`; if it is not set, the caller.

    :raises FencepostError: if it is neither.
    """
    target = stream or sys.stderr
    if json:
        return Silent()
    if target.isatty():
        return Bars(target)
    wanted = os.environ.get("FENCEPOST_PROGRESS") or ("lines" if lines else "none")
    if wanted not in ("lines", "none"):
        raise FencepostError(f"FENCEPOST_PROGRESS={wanted}: expected lines or none")
    return ProgressLines(target) if wanted == "lines" else Silent()
