"""Progress for people: bars on a terminal; elsewhere nothing, or lines on request."""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Protocol, TextIO

from fencepost.coordinator.protocol.errors import FencepostError


class Advance(Protocol):
    """Reports newly finished parts of a step."""

    def __call__(self, count: int, share: float | None = None, /) -> None:
        """Count parts; `share` is the finished share of the work, if parts differ."""


class Progress:
    """The progress display of long work; this one shows nothing."""

    def say(self, line: str) -> None:
        """Print a line at once, such as the next step or an estimate of its time."""

    def step(self, name: str, total: int) -> AbstractContextManager[Advance]:
        """Begin a step of at most `total` parts.

        Call the yielded function with the number of newly finished parts. Also call it with 0 from time to
        time, so that long work shows a sign of life.
        """
        return contextlib.nullcontext(lambda count, share=None, /: None)


class Bars(Progress):
    """One bar for each step, drawn by rich on `stream`. The bars stay, so that they show the time of each
    step."""

    def __init__(self, stream: TextIO | None = None) -> None:
        from rich.console import Console

        self._console = Console(file=stream or sys.stderr, highlight=False, markup=False)

    def say(self, line: str) -> None:
        """See `Progress.say`."""
        self._console.print(line, soft_wrap=True)

    @contextlib.contextmanager
    def step(self, name: str, total: int) -> Iterator[Advance]:
        """See `Progress.step`."""
        from rich import progress

        columns = (
            progress.TextColumn("{task.description:<12}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.fields[left]}"),
        )
        began = time.monotonic()
        with progress.Progress(*columns, console=self._console) as bars:
            bar = bars.add_task(name, total=total, left="")
            done = 0

            def advance(count: int, share: float | None = None, /) -> None:
                nonlocal done
                done += count
                left = _left(time.monotonic() - began, done, total, share)
                bars.update(bar, advance=count, left=left)

            yield advance
            bars.update(bar, total=done, completed=done, left="")  # there were fewer parts than `total`


class ProgressLines(Progress):
    """Prints a line for each tenth of a step, and at least one every half a minute, for logs that people
    follow."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock

    def say(self, line: str) -> None:
        """See `Progress.say`."""
        self._stream.write(f"{line}\n")
        self._stream.flush()

    @contextlib.contextmanager
    def step(self, name: str, total: int) -> Iterator[Advance]:
        """See `Progress.step`."""
        done = shown = 0
        began = said = self._clock()

        def advance(count: int, share: float | None = None, /) -> None:
            nonlocal done, shown, said
            done += count
            now = self._clock()
            tenth = done * 10 // total if total else 0
            if tenth > shown or now - said >= SILENT_SECONDS:
                shown, said = tenth, now
                left = _left(now - began, done, total, share)
                self.say(f"{name} {done}/{total}{left and f', {left}'}")

        yield advance


SILENT_SECONDS: Final = 30.0
"""The longest time without a sign of life, in seconds."""


def _left(seconds: float, done: int, total: int, share: float | None) -> str:
    """Return an estimate of the remaining time once there is one; before that, a sign that the work
    goes on."""
    if seconds < SILENT_SECONDS or done >= total:
        return ""
    if not done:
        return f"{rough_time(seconds)} so far"
    return f"about {rough_time(time_left(seconds, done / total if share is None else share))} left"


def time_left(seconds: float, share: float) -> float:
    """Return the time that is left for some work, in seconds, given those that a share of it took."""
    return seconds / share * (1 - share)


class Shares:
    """The finished share of parts of several kinds, which begin in a known order.

    A part weighs as much as the finished ones of its kind took on average. Before one of its kind has
    finished, it weighs its expected time, which may be wrong by the same factor as the others.
    """

    def __init__(self, kinds: Sequence[int], expected: Mapping[int, float] | None = None) -> None:
        self._expected = dict.fromkeys(kinds, 1.0) if expected is None else expected
        self._taken: dict[int, list[float]] = {}
        self.order(kinds)

    def order(self, kinds: Sequence[int]) -> None:
        """Set the order in which parts begin."""
        self._kinds = kinds
        self._upto: list[float] = []

    def learn(self, kind: int, seconds: float) -> None:
        """Take note of the time of a finished part."""
        self._taken.setdefault(kind, []).append(max(seconds, 0.001))  # a lost process has taken none
        self._upto = []

    def of(self, done: int, under_way: int) -> float:
        """Return the share of the work after `done` parts. Those that are under way count half."""
        upto = self._upto = self._upto or self._weighed()
        last = len(self._kinds)
        return (upto[min(done, last)] + upto[min(done + under_way, last)]) / 2 / (upto[-1] or 1.0)

    def _weighed(self) -> list[float]:
        taken = sum(map(sum, self._taken.values()))
        expected = sum(self._expected[kind] * len(times) for kind, times in self._taken.items())
        factor = taken / expected if taken and expected else 1.0
        weights = {
            kind: statistics.fmean(self._taken[kind]) if kind in self._taken else factor * seconds
            for kind, seconds in self._expected.items()
        }
        return [0.0, *itertools.accumulate(weights[kind] for kind in self._kinds)]


def rough_time(seconds: float) -> str:
    """Format an estimate with low precision: `40 s`, `3 min`, `1 h 20 min`."""
    if seconds < 55:
        return f"{max(10, round(seconds, -1)):.0f} s"
    minutes = max(1, round(seconds / 60))
    if minutes < 60:
        return f"{minutes} min"
    minutes = round(minutes, -1)
    return f"{minutes // 60} h {minutes % 60} min" if minutes % 60 else f"{minutes // 60} h"


def progress_for(*, json: bool = False, lines: bool = False, stream: TextIO | None = None) -> Progress:
    """Return bars if standard error is a terminal, otherwise lines or silence.

    Without a terminal, FENCEPOST_PROGRESS decides: `lines` or `none`. If it is not set, the caller decides:
    `lines` is for work that takes minutes. With `--json`, other work is always silent, because a program
    waits for it.

    :raises FencepostError: if FENCEPOST_PROGRESS is neither.
    """
    target = stream or sys.stderr
    if json and not lines:
        return Progress()
    if target.isatty():
        return Bars(target)
    wanted = os.environ.get("FENCEPOST_PROGRESS") or ("lines" if lines else "none")
    if wanted not in ("lines", "none"):
        raise FencepostError(f"FENCEPOST_PROGRESS={wanted}: expected lines or none")
    return ProgressLines(target) if wanted == "lines" else Progress()
