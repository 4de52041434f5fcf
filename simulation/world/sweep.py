"""The seeds of a test while they run: progress for people, and what has passed when it is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Final, TextIO

from fencepost.simulation.pipeline.progress import SILENT_SECONDS, rough_time

_QUIET_S: Final = 10.0
"""A sweep that takes no longer says nothing."""
_PLUGIN: Final = "fencepost.simulation.embedded.pytest_plugin"
_OWN_LINE: Final = "\r\x1b[2K"
_NEW_LINE: Final = "\n"


def tell(text: str) -> None:
    """Tell something about a test that has passed: in the summary of pytest, or on standard error."""
    plugin = sys.modules.get(_PLUGIN)
    if plugin is None or not plugin.add_to_summary(text):
        sys.stderr.write(f"{text}\n")


@contextlib.contextmanager
def _uncaptured() -> Iterator[TextIO]:
    """Yield the standard error that a person sees: pytest captures that of a test."""
    plugin = sys.modules.get(_PLUGIN)
    with contextlib.nullcontext() if plugin is None else plugin.uncaptured():
        yield sys.stderr


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and "PYTEST_XDIST_WORKER" not in os.environ


class Sweep:
    """Counts the seeds that have passed. `show` writes progress, when it is time to.

    It is a context: an exception that interrupts it, and SIGTERM, say how many seeds have passed. `on_end`
    is called when SIGTERM ends the process.
    """

    def __init__(self, name: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._total = total
        self._clock = clock
        self._began = clock()
        self._shown = self._began - SILENT_SECONDS + _QUIET_S
        self._has_shown = False
        self._has_line = False
        """True if the last line on a terminal is that of this sweep."""
        self.passed = 0
        self.on_end: Callable[[], object] = lambda: None
        self._handles_sigterm = False

    def __enter__(self) -> Sweep:
        if threading.current_thread() is threading.main_thread():
            self._handles_sigterm = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        if self._handles_sigterm:
            signal.signal(signal.SIGTERM, self._terminated)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if self._handles_sigterm:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if error is not None and not isinstance(error, Exception):
            error.add_note(self._interrupted())
            self._say(self._interrupted())
        elif self._has_line:
            self._say("")

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        self.on_end()
        self._say(self._interrupted())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _interrupted(self) -> str:
        return (
            f"{self._name} was interrupted: {self.passed} of {self._total} seeds had passed, none had failed"
        )

    def show(self) -> None:
        """Write the progress if it is time to: a line, or the same line of a terminal again."""
        line = self.due()
        if line is None:
            return
        with _uncaptured() as stream:
            begin = "" if self._has_shown else _NEW_LINE
            self._has_shown = True
            if _is_terminal(stream):
                begin = _OWN_LINE if self._has_line else begin
                self._has_line = True
            stream.write(f"{begin}{line}{'' if self._has_line else _NEW_LINE}")
            stream.flush()

    def due(self) -> str | None:
        """Return the line about the progress; None if it is not time for it."""
        now = self._clock()
        with _uncaptured() as stream:
            each_s = 1.0 if _is_terminal(stream) else SILENT_SECONDS
        if self._total == 1 or now - self._began < _QUIET_S or now - self._shown < each_s:
            return None
        self._shown = now
        line = f"{self._name}: {self.passed} of {self._total} seeds passed"
        if not self.passed:
            return line
        left_s = (now - self._began) / self.passed * (self._total - self.passed)
        return f"{line}, about {rough_time(left_s)} left"

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError), _uncaptured() as stream:
            begin = _OWN_LINE if self._has_line else "" if self._has_shown else _NEW_LINE
            stream.write(f"{begin}{line}{_NEW_LINE if line else ''}")
            stream.flush()
