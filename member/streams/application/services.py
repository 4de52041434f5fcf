"""The services that run next to the threads of a client: the cleaner of the state directory, and the recorder
of metrics.

Both run from the start of the threads to the start of the client's end, whatever happens to threads. Their
errors are logged, and go to no handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from fencepost.member.base.log import log
from fencepost.member.streams.application.runtime import Runtime


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and states of a client at a moment."""

    at_s: float
    """Seconds of the loop's clock."""
    live_threads: int
    records: int
    """Processed, duplicates included."""
    commits: int
    failures: int
    """Uncaught exceptions of threads."""
    replaced: int
    """Threads that took the place of one that failed."""
    store_bytes: int
    """Of the stores that are open."""


class Service:
    """A task that does something again and again."""

    def __init__(self, name: str, every_s: float, action: Callable[[], None], *, at_once: bool) -> None:
        self.name = name
        self.runs = 0
        """Number of runs of the action."""
        self._every_s = every_s
        self._action = action
        self._at_once = at_once
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """True if it was started, and not stopped."""
        return self._task is not None

    def start(self, runtime: Runtime) -> None:
        """Start the task."""
        self._task = runtime.spawn(self._run(runtime), self.name)

    def stop(self) -> None:
        """Stop the task: no action runs after this."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self, runtime: Runtime) -> None:
        if not self._at_once:
            await runtime.sleep(self._every_s)
        while True:
            try:
                self._action()
            except Exception as error:
                log(logging.ERROR, f"{self.name} failed", exc_info=error)
            self.runs += 1
            await runtime.sleep(self._every_s)
