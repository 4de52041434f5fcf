"""A user's program on a host of its own: it is started, killed, stopped, frozen, slowed and restarted."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.embedded.settings import duration
from fencepost.simulation.kernel.supervisor import ProcessStatus
from fencepost.simulation.world.processes import PROCESS, WorldHost, WorldProcess

if TYPE_CHECKING:
    from fencepost.simulation.world.world import SimulatedWorld

GRACE_S: Final = 30.0
"""The time that a program has to stop after SIGTERM, as in Kubernetes."""
SLOW_CALLBACK_US: Final = 20_000
"""The default computing time of each callback of a slow program."""


class NotAProgram(FencepostError):
    """Raised if the function of a program returns no coroutine."""


class Program:
    """One program, as a test handles it. `name` is that of its host, which other programs may connect to."""

    # Attributes that a nemesis of groups may ask of members whose application is simulated.
    protocol = ""
    topics: tuple[str, ...] | None = None
    pattern: str | None = None

    def __init__(
        self,
        world: SimulatedWorld,
        host: WorldHost,
        function: Callable[[], Coroutine[Any, Any, object]],
    ) -> None:
        self._world = world
        self._loop = world.loop
        self._function = function
        self.host = host
        self.name = host.name
        self.wanted = True
        self.status = ProcessStatus.STOPPED
        self.error: BaseException | None = None
        """The exception that ended its last process, if one did."""
        self.process: WorldProcess | None = None
        self._comes_back = False
        self._is_frozen = False
        self._ends: list[asyncio.Future[None]] = []

    def __repr__(self) -> str:
        return f"<Program {self.name}, {self.status}>"

    @property
    def generation(self) -> int:
        """The number of its processes that have ended."""
        return self.host.generation

    @property
    def is_running(self) -> bool:
        """True if one of its processes is alive, frozen or not."""
        return self.process is not None

    # -- what a test does ---------------------------------------------------------------------------------

    def kill(self) -> None:
        """End its process as `kill -9` does: no `finally` runs, and the system closes its connections.

        It stays down until `restart`, or until the fault that killed it is over.
        """
        self.wanted = False
        self.crash()

    async def stop(self, *, grace: float = GRACE_S) -> None:
        """Ask it to stop, and wait until it has; it is killed after `grace` seconds.

        Its handler of SIGTERM is called if it has one. Without one its coroutine is cancelled, as
        `asyncio.run` does at Ctrl-C.
        """
        grace = duration("grace", grace)
        self.wanted = False
        self._ask_to_stop(grace)
        await self.ended()

    async def restart(self, *, graceful: bool = True) -> None:
        """Stop it, or kill it, and start it again at once."""
        if self.is_running:
            if graceful:
                await self.stop()
            else:
                self.kill()
        self.wanted = True
        self.start()

    async def ended(self) -> None:
        """Wait until its process has ended."""
        if self.process is not None:
            future: asyncio.Future[None] = self._loop.create_future()
            self._ends.append(future)
            await future

    def freeze(self, seconds: float | None = None) -> None:
        """Freeze it, as in a long garbage collection: for that time, or until `thaw`.

        Its host's system keeps running: connections stay open, and bytes wait.
        """
        lasts_us = None if seconds is None else round(duration("freeze", seconds) * 1e6)
        self.freeze_process()
        if lasts_us is not None:
            self._after(lasts_us, self.thaw_process)

    def thaw(self) -> None:
        """Resume it."""
        self.thaw_process()

    def slow(self, callback_seconds: float = SLOW_CALLBACK_US / 1e6) -> None:
        """Let each callback of its event loop compute for that long; 0 ends it."""
        callback_us = round(duration("slow", callback_seconds) * 1e6)
        self._tell("slow", f"{callback_seconds:g} s a callback")
        self.host.slow(callback_us)

    # -- what a nemesis does ------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process, if none runs."""
        if self.process is not None:
            return
        process = WorldProcess(
            self.host, self._world.next_process(), leave=self._leave, kill=self._killed_by_itself
        )
        self.process = self.host.process = process
        self.status, self.error = ProcessStatus.RUNNING, None
        self._tell("start")
        context = contextvars.Context()
        context.run(PROCESS.set, process)
        context.run(self._begin, process)

    def _begin(self, process: WorldProcess) -> None:
        process.main = self._loop.create_task(self._run(process), name=self.name)

    async def _run(self, process: WorldProcess) -> None:
        error: BaseException | None = None
        try:
            work = self._function()
            if not inspect.isawaitable(work):
                raise NotAProgram(
                    f"process({self.name!r}, ...): the function returned {work!r}, expected a coroutine. "
                    "Give an async function, without asyncio.run around it"
                )
            await work
        except GeneratorExit:
            raise  # the run is over
        except asyncio.CancelledError as raised:
            if self.status is not ProcessStatus.STOPPING:
                error = raised  # something that it waited for was cancelled, as if by an error
        except BaseException as raised:
            error = raised
        process.is_ending = True
        await _end_the_rest(process)
        # After what it computed last: nothing of it happens when it is killed meanwhile.
        ended = partial(self.host.run, self._ended)
        self._loop.schedule(self._loop.here_us, ended, (process, process.left or error))

    def _ended(self, end: tuple[WorldProcess, BaseException | None]) -> None:
        process, error = end
        if process.ended:
            return
        self._end(process, ProcessStatus.STOPPED)
        if error is not None and not (isinstance(error, SystemExit) and error.code in (None, 0)):
            self.error = error
            self._tell("crash", f"{type(error).__name__}: {error}")
            self._world.program_failed(self, error)
        else:
            self._tell("stopped")
        if self._comes_back or (self.error is not None and self.wanted):
            self._comes_back = False
            self.restart_later()
        elif self.error is None:
            self.wanted = False

    def _end(self, process: WorldProcess, status: ProcessStatus) -> None:
        process.end()
        self._is_frozen = False
        self.process = None
        self.status = status
        self._world.bury(process)
        self.host.end()
        self.host.slow(0)
        ends, self._ends = self._ends, []
        for each in ends:
            if not each.done():
                each.set_result(None)

    def _leave(self, error: BaseException) -> None:
        """Let its process leave the event loop: what runs is cancelled, as `asyncio.run` does it."""
        process = self.process
        if process is not None and process.left is None:
            process.left = error
            self._cancel(process)

    @staticmethod
    def _cancel(process: WorldProcess) -> None:
        if process.main is not None and not process.is_ending:
            process.main.cancel()

    def _killed_by_itself(self) -> None:
        self.crash("killed by itself")
        self.restart_later()

    def crash(self, why: str = "") -> None:
        """End its process without notifying any peer."""
        if self.process is not None:
            self._tell("crash", why)
            self._end(self.process, ProcessStatus.CRASHED)
        self.status = ProcessStatus.CRASHED

    def _ask_to_stop(self, grace: float) -> None:
        process = self.process
        if process is None or self.status is ProcessStatus.STOPPING:
            return
        self.status = ProcessStatus.STOPPING
        handler = process.signal_handlers.get(signal.SIGTERM)
        if handler is not None:
            handler.call()
        else:
            self._cancel(process)
        self._loop.schedule(self._loop.now_us + round(grace * 1e6), self._out_of_patience, process)

    def _out_of_patience(self, process: WorldProcess) -> None:
        if not process.ended and self.process is process:
            self.crash("it did not stop in time")
            if self._comes_back:
                self._comes_back = False
                self.restart_later()

    def stop_process(self, *, come_back: bool) -> None:
        """Ask it to stop; it is started again afterwards if it is to come back."""
        self._comes_back = come_back
        self.wanted = self.wanted and come_back
        self._ask_to_stop(GRACE_S)

    def restart_later(self) -> None:
        """Start it again after the time that a restart takes."""
        self._world.restart_later(self)

    def freeze_process(self) -> None:
        """Freeze it."""
        if self.status is ProcessStatus.RUNNING:
            self.status = ProcessStatus.FROZEN
            self._tell("freeze")
            self._is_frozen = True
            self.host.freeze()

    def thaw_process(self) -> None:
        """Resume it, unless its process has ended."""
        if not self._is_frozen:
            return
        self._is_frozen = False
        if self.status is ProcessStatus.FROZEN:  # else it was asked to stop meanwhile
            self.status = ProcessStatus.RUNNING
            self._tell("thaw")
        self.host.hindered_us = self._loop.now_us
        # Not within the step of a test: asyncio does not run one task inside of another.
        self._after(0, self.host.thaw)

    def _after(self, wait_us: int, call: Callable[[], None]) -> None:
        """Call then, unless the program was started anew."""

        def later(generation: int) -> None:
            if generation == self.generation:
                call()

        self._loop.schedule(self._loop.now_us + wait_us, later, self.generation)

    def slow_callback(self, lasts_us: int) -> None:
        """Let its next rebalance callback take that long, and meanwhile each callback of its loop compute."""
        if self.process is not None:
            self.process.callback_takes_us = lasts_us
        self.host.slow(SLOW_CALLBACK_US)
        self._after(lasts_us, lambda: self.host.slow(0))

    def fail_callback(self) -> None:
        """Let its next rebalance callback raise."""
        if self.process is not None:
            self.process.callback_fails = True

    def stall(self, until_us: int) -> None:
        """Let it work on what it has read until then, before it polls again."""
        if self.process is not None:
            self.process.busy_until_us = until_us

    def _tell(self, what: str, detail: str = "") -> None:
        self._world.tell_program(self, what, detail)


async def _end_the_rest(process: WorldProcess) -> None:
    """Cancel the tasks that the program has left, as `asyncio.run` does."""
    current = asyncio.current_task()
    rest = [task for task in process.tasks if task is not current and not task.done()]
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.gather(*rest, return_exceptions=True)
    generators = list(process.generators.values())
    if generators:
        await asyncio.gather(*(each.aclose() for each in generators), return_exceptions=True)


def check_name(name: object, taken: Callable[[str], bool]) -> str:
    """Return the name of a host.

    :raises FencepostError: unless it is a valid name, and free.
    """
    if not isinstance(name, str) or not name or not all(c.isalnum() or c in "-._" for c in name):
        raise FencepostError(f"process({name!r}): expected a host name of letters, digits, '-', '.' and '_'")
    if taken(name):
        raise FencepostError(f"process({name!r}): that name stands for a host already. Choose another one")
    return name
