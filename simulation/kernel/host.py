"""A machine of the world: deliveries and timers wait while it is frozen, and are lost when it crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fencepost.simulation.kernel.loop import Timer, VirtualLoop
from fencepost.simulation.kernel.rng import Samples


class Host:
    """One process on one machine. Deliveries and timers arrive through `run`, in order.

    When a process ends, its timers and waiting deliveries are dropped: `generation` identifies those of an
    earlier process.
    """

    # Each delivery reads these; subclasses keep further attributes in a dictionary.
    __slots__ = ("_tasks", "_waiting", "frozen", "generation", "loop", "name", "timer_delays")

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.loop = loop
        self.frozen = False
        self.generation = 0
        self.timer_delays: Samples | None = None
        """The delays of its timers; None if they are on time."""
        self._waiting: list[tuple[Callable[[Any], Any], Any]] = []
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        """Run a coroutine in the process, which ends with it."""
        task: asyncio.Task[None] = self.loop.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._forget_task)
        return task

    def _forget_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)

    def cancel_tasks(self) -> None:
        """Cancel what runs in the process, except the present task."""
        current = asyncio.current_task(self.loop)
        tasks, self._tasks = self._tasks, {}
        for task in tasks:
            if task is not current:
                task.cancel()

    def run(self, action: Callable[[Any], Any], argument: object) -> None:
        """Run the action now, or when the host thaws."""
        if self.frozen:
            self._waiting.append((action, argument))
        else:
            action(argument)

    async def pause_us(self, us: int) -> None:
        """Let `us` microseconds pass in this process; if the process ends first, nothing happens after
        them."""
        if us > 0:
            future: asyncio.Future[None] = self.loop.create_future()
            HostTimer(self, self.loop.now_us + us, _wake, (future,))
            await future

    def freeze(self) -> None:
        """Freeze: arrivals wait, and no timer runs."""
        self.frozen = True

    def thaw(self) -> None:
        """Continue, with everything that has arrived since the freeze."""
        self.frozen = False
        waiting, self._waiting = self._waiting, []
        generation = self.generation
        for done, (action, argument) in enumerate(waiting):
            if self.generation != generation:
                return
            if self.frozen:
                self._waiting = waiting[done:] + self._waiting
                return
            action(argument)

    def end(self) -> None:
        """End the process, and drop everything that waited for it."""
        self.generation += 1
        self.frozen = False
        self._waiting.clear()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class HostTimer(Timer):
    """A timer of a host; it does nothing once its process has ended."""

    __slots__ = ("_generation", "_host")

    def __init__(
        self, host: Host, when_us: int, callback: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> None:
        self._loop = loop = host.loop
        if host.timer_delays is not None and when_us > loop.now_us:
            when_us += host.timer_delays.draw()
        self.action = callback
        self.argument = arguments
        self._host = host
        self._generation = host.generation
        loop.schedule(when_us, HostTimer._due, self)

    def _due(self) -> None:
        host = self._host
        if host.frozen:
            host.run(HostTimer._due, self)
            return
        action = self.action
        if action is not None and self._generation == host.generation:
            self.action = None
            action(*self.argument)


class HostClock:
    """A host's clock: milliseconds since its first start, a little faster or slower than the world's.

    `drift_ppm` is its speed difference in parts per million; `offset_us` is its time at the start of the run.
    """

    __slots__ = ("_host", "_loop", "_offset_ps", "_rate")

    def __init__(self, host: Host, *, drift_ppm: int = 0, offset_us: int = 0) -> None:
        self._host = host
        self._loop = host.loop
        self._rate = 1_000_000 + drift_ppm
        """Picoseconds of this clock per microsecond of the world's clock."""
        self._offset_ps = offset_us * 1_000_000

    def now_us(self) -> int:
        """This clock's time in microseconds."""
        return (self._offset_ps + self._loop.now_us * self._rate) // 1_000_000

    def now_ms(self) -> int:
        """This clock's time in milliseconds."""
        return (self._offset_ps + self._loop.now_us * self._rate) // 1_000_000_000

    def call_at(self, when_ms: int, callback: Callable[..., Any], *args: Any) -> HostTimer:
        """Run the callback once `now_ms` has reached that time."""
        # Rounded up, to the first moment of that millisecond.
        true_us = -((self._offset_ps - when_ms * 1_000_000_000) // self._rate)
        now_us = self._loop.now_us
        return HostTimer(self._host, true_us if true_us > now_us else now_us, callback, args)
