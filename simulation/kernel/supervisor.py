"""The processes of a world: their status, and the supervisor that starts them, and starts them again."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from fencepost.simulation.kernel.rng import Draws, Quantiles


class RunSchedule(Protocol):
    """The time of a run, in microseconds since its start, and its scheduled actions."""

    @property
    def now_us(self) -> int:
        """The time now."""

    def schedule(self, when_us: int, action: Callable[[Any], Any], argument: object) -> None:
        """Call `action(argument)` at that time."""


class ProcessStatus(enum.StrEnum):
    """The status of a host: that of its process, or of its last one."""

    STOPPED = "stopped"
    RUNNING = "running"
    STOPPING = "stopping"
    FROZEN = "frozen"
    CRASHED = "crashed"


ALIVE = (ProcessStatus.RUNNING, ProcessStatus.STOPPING, ProcessStatus.FROZEN)


class Supervised(Protocol):
    """A host whose processes the supervisor starts."""

    wanted: bool
    """True if it is meant to run."""

    @property
    def generation(self) -> int:
        """Number of its processes that have ended."""

    def start(self) -> None:
        """Start a new process, if none runs."""


class Supervisor:
    """Starts processes at random times, unless they are no longer wanted by then.

    `goes_on` returns true while processes are to be started at all.
    """

    def __init__(
        self,
        time: RunSchedule,
        draws: Draws,
        *,
        start: Quantiles,
        restart: Quantiles,
        goes_on: Callable[[], bool] = lambda: True,
    ) -> None:
        self._time = time
        self._goes_on = goes_on
        self._restarts = draws.samples("restarts", restart)
        self._starts = draws.samples("starts", start)

    def start_soon(self, hosts: Iterable[Supervised]) -> None:
        """Start the first process of each."""
        for host in hosts:
            host.wanted = True
            self._time.schedule(self._time.now_us + self._starts.draw(), self._start, host)

    def _start(self, host: Supervised) -> None:
        if host.wanted and self._goes_on():
            host.start()

    def restart_later(self, host: Supervised) -> None:
        """Start a host's next process after the restart time, unless another one ran in between."""
        if not self._goes_on():
            return
        host.wanted = True
        due = (host, host.generation)
        self._time.schedule(self._time.now_us + self._restarts.draw(), self._restart, due)

    def _restart(self, due: tuple[Supervised, int]) -> None:
        host, generation = due
        if host.generation == generation:
            self._start(host)
