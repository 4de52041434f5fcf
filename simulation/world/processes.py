"""Hosts of a world and the processes on them: which may run now, and what ends with a dead process."""

from __future__ import annotations

import asyncio
import contextvars
from asyncio import events
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fencepost.simulation.kernel.host import Host

if TYPE_CHECKING:
    from fencepost.simulation.world.loop import WorldLoop
    from fencepost.simulation.world.sockets import VirtualSocket

FIRST_PORT: Final = 32_768
"""The first of the ports that a host gives to sockets that did not ask for one."""


class WorldHost(Host):
    """A machine with a name and an address. Its sockets belong to it; at most one process runs on it.

    A host is held while its process is frozen, and while a callback computes or sleeps. What arrives
    meanwhile waits. The operating system goes on: it accepts connections and buffers bytes.
    """

    loop: WorldLoop

    def __init__(self, name: str, address: str, loop: WorldLoop) -> None:
        super().__init__(name, loop)
        self.address = address
        self.callback_us = 0
        """The computing time of each callback of the process; above 0 while the host is slow."""
        self.hindered_us = 0
        """The virtual time in microseconds until which it was last frozen, slow, or cut off."""
        self.sockets: dict[VirtualSocket, None] = {}
        self.process: WorldProcess | None = None
        """The process that runs here now."""
        self.is_down = False
        """True if the host refuses connections, because its broker is dead."""
        self._holds = 0
        self._port = FIRST_PORT

    def free_port(self) -> int:
        """Return a port that no other socket of this host was given."""
        self._port += 1
        return self._port

    def slow(self, callback_us: int) -> None:
        """Let each callback of the process compute for that long."""
        if self.callback_us:
            self.hindered_us = self.loop.now_us
        self.callback_us = callback_us

    def freeze(self) -> None:
        """Hold the host once more."""
        self._holds += 1
        super().freeze()

    def thaw(self) -> None:
        """Release it once; after the last hold it resumes, with all that has arrived meanwhile."""
        if self._holds == 0:
            return
        self._holds -= 1
        if self._holds == 0:
            super().thaw()

    def compute(self, us: int) -> None:
        """Let the process be busy for that long: nothing else of it runs meanwhile."""
        self.freeze()
        self.loop.schedule(self.loop.now_us + us, self._computed, self.generation)

    def _computed(self, generation: int) -> None:
        if generation == self.generation:
            self.thaw()

    def end(self) -> None:
        """End the process: its timers and callbacks never run, and the system closes its sockets."""
        self._holds = 0
        super().end()
        self.process = None
        for each in tuple(self.sockets):
            each.close()


class WorldProcess:
    """One run of the user's program on a host, from its start to its end."""

    def __init__(self, host: WorldHost, number: int) -> None:
        self.host = host
        self.number = number
        """Number of the process in its world; also its process id."""
        self.ended = False
        self.main: asyncio.Task[Any] | None = None
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Its tasks that are not done."""
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        self.transactional_ids: dict[str, None] = {}
        """Transactional ids of its producers."""
        self.group_ids: dict[str, None] = {}
        """Those of its consumers."""
        self.busy_until_us = 0
        """Time until which it works before its next poll, in microseconds; 0 if nothing keeps it."""
        self.callback_takes_us = 0
        """Additional time of its next rebalance callback, in microseconds."""
        self.callback_fails = False
        """True if its next rebalance callback raises."""

    @property
    def callback_is_disturbed(self) -> bool:
        """True if its next rebalance callback takes longer or raises."""
        return self.callback_fails or self.callback_takes_us > 0

    def __repr__(self) -> str:
        return f"<process {self.number} of {self.host.name}>"


PROCESS: contextvars.ContextVar[WorldProcess | None] = contextvars.ContextVar("PROCESS", default=None)
"""The process that runs; None in the test itself and in brokers."""


def _run_in_process(self: ProcessHandle | ProcessTimer) -> None:
    """Run the callback, unless its process has ended; a host that is held runs it later."""
    process = self.process
    if process.ended or self._cancelled:
        return
    host = process.host
    if host.frozen:
        host.run(_run_in_process, self)
        return
    loop = host.loop
    events.Handle._run(self)
    used_us = loop.ahead_us + host.callback_us
    if used_us:
        loop.ahead_us = 0
        if not process.ended:
            host.compute(used_us)


class ProcessHandle(events.Handle):
    """A callback of a process."""

    __slots__ = ("process",)
    process: WorldProcess
    _run = _run_in_process


class ProcessTimer(events.TimerHandle):
    """A timer of a process."""

    __slots__ = ("process",)
    process: WorldProcess
    _run = _run_in_process
