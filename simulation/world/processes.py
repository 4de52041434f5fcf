"""Hosts of a world and the processes on them: which may run now, and what ends with a dead process."""

from __future__ import annotations

import asyncio
import contextvars
import signal
import weakref
from asyncio import events
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.simulation.kernel.host import Host

if TYPE_CHECKING:
    from fencepost.simulation.world.loop import WorldLoop
    from fencepost.simulation.world.sockets import VirtualSocket

_FIRST_PID: Final = 100
_IGNORED: Final = frozenset({signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH})
"""Signals that do nothing to a process without a handler."""
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


class SignalHandler(NamedTuple):
    """The handler of one signal in a process."""

    given: Any
    """The function that the program gave, or `SIG_IGN`."""
    call: Callable[[], object]


class WorldProcess:
    """One run of the user's program on a host, from its start to its end.

    `leave` makes the program leave its event loop with that exception, as `sys.exit` in a callback does.
    `kill` ends it as `kill -9` does.
    """

    def __init__(
        self,
        host: WorldHost,
        number: int,
        leave: Callable[[BaseException], object],
        kill: Callable[[], object],
    ) -> None:
        self.host = host
        self.leave = leave
        self._kill = kill
        self.number = number
        """Number of the process in its world."""
        self.ended = False
        self.main: asyncio.Task[Any] | None = None
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """Its tasks that are not done."""
        self.left: BaseException | None = None
        """The exception with which it has left its event loop, if it did."""
        self.is_ending = False
        """True once its coroutine is over, and the tasks that it has left are cancelled."""
        self.signal_handlers: dict[int, SignalHandler] = {}
        self.exception_handler: Callable[[Any, dict[str, Any]], object] | None = None
        """The handler that the program gave to `loop.set_exception_handler`."""
        self.generators: weakref.WeakValueDictionary[int, AsyncGenerator[Any, Any]] = (
            weakref.WeakValueDictionary()
        )
        """Its asynchronous generators that were started, in their order."""
        self.transactional_ids: dict[str, None] = {}
        """Transactional ids of its producers."""
        self.group_ids: dict[str, None] = {}
        """Those of its consumers."""
        self.at_end: list[Callable[[], object]] = []
        """Called when it has ended, or the run."""
        self.commit_place = ""
        """The line that last called a consumer's `commit`."""
        self.busy_until_us = 0
        """Time until which it works before its next poll, in microseconds; 0 if nothing keeps it."""
        self.callback_takes_us = 0
        """Additional time of its next rebalance callback, in microseconds."""
        self.callback_fails = False
        """True if its next rebalance callback raises."""

    @property
    def pid(self) -> int:
        """The process id that the program sees."""
        return _FIRST_PID + self.number

    def end(self) -> None:
        """End it: nothing of it runs any more."""
        self.ended = True
        for each in self.at_end:
            each()

    @property
    def callback_is_disturbed(self) -> bool:
        """True if its next rebalance callback takes longer or raises."""
        return self.callback_fails or self.callback_takes_us > 0

    def get_signal(self, number: int) -> None:
        """Take a signal: call its handler, or end as the system would."""
        sig = signal.Signals(number)
        handler = self.signal_handlers.get(sig)
        if sig is signal.SIGKILL:
            self._kill()
        elif handler is not None:
            handler.call()
        elif sig not in _IGNORED:
            self.leave(SystemExit(f"ended by {sig.name}"))

    def __repr__(self) -> str:
        return f"<process {self.number} of {self.host.name}>"


PROCESS: contextvars.ContextVar[WorldProcess | None] = contextvars.ContextVar("PROCESS", default=None)
"""The process that runs; None in the test itself and in brokers."""


def outside() -> contextvars.Context:
    """Return a new context of no process, for what does not end with the process that asks for it."""
    context = contextvars.Context()
    context.run(PROCESS.set, None)
    return context


def run_callback(handle: events.Handle, process: WorldProcess | None) -> None:
    """Run a callback. `sys.exit` in a callback of a process ends that process instead of the run."""
    if process is None:
        events.Handle._run(handle)
        return
    try:
        events.Handle._run(handle)
    except (SystemExit, KeyboardInterrupt) as raised:
        process.leave(raised)


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
    run_callback(self, process)
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
