"""Real time as a nemesis sees it: microseconds since the start of the run, and the actions that are due."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVarTuple, Unpack

Arguments = TypeVarTuple("Arguments")


class RealTime:
    """Runs due actions on the running loop. The first exception ends the run: see `failure`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.began_us = 0
        """The start of the run by CLOCK_MONOTONIC, which all processes of a machine share; 0 before it."""
        self.failure: asyncio.Future[None] = self._loop.create_future()
        """Fails when a scheduled action fails."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()

    def begin(self) -> None:
        """Start the run now."""
        self.began_us = time.monotonic_ns() // 1_000

    @property
    def now_us(self) -> int:
        """Microseconds since the start; 0 before it."""
        return time.monotonic_ns() // 1_000 - self.began_us if self.began_us else 0

    def schedule(self, when_us: int, action: Callable[[Any], Any], argument: object) -> None:
        """Call `action(argument)` at that time."""
        timer: asyncio.TimerHandle

        def due() -> None:
            self._timers.discard(timer)
            try:
                action(argument)
            except Exception as error:
                self.fail(error)

        timer = self._loop.call_later(max(0, when_us - self.now_us) / 1_000_000, due)
        self._timers.add(timer)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine at the same time as the rest."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the run with this error."""
        if not self.failure.done():
            self.failure.set_exception(error)

    async def until(self, when_us: int) -> None:
        """Wait for that time.

        :raises Exception: the error of anything that failed meanwhile.
        """
        await self.wait(asyncio.sleep(max(0, when_us - self.now_us) / 1_000_000))

    async def wait(self, work: Coroutine[Any, Any, Any]) -> None:
        """Wait for a coroutine, unless anything fails.

        :raises Exception: the error of anything that failed meanwhile.
        """
        task = self._loop.create_task(work)
        try:
            await asyncio.wait((task, self.failure), return_when=asyncio.FIRST_COMPLETED)
            if self.failure.done():
                self.failure.result()
            await task
        finally:
            task.cancel()

    async def close(self) -> None:
        """Give up due actions and running coroutines."""
        for timer in self._timers:
            timer.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self.failure.done():
            self.failure.cancel()
        elif not self.failure.cancelled():
            self.failure.exception()


class RunQueue:
    """Work that runs at the same time as the rest, each piece after those that were added before."""

    def __init__(self, time: RealTime) -> None:
        self._time = time
        self._turn = asyncio.Lock()

    def add(self, work: Callable[[Unpack[Arguments]], Awaitable[None]], *arguments: *Arguments) -> None:
        """Run this after all work that was added before, unless the run is closed by then."""
        self._time.spawn(self._in_turn(work, *arguments))

    async def _in_turn(
        self, work: Callable[[Unpack[Arguments]], Awaitable[None]], *arguments: *Arguments
    ) -> None:
        async with self._turn:
            await work(*arguments)

    async def settled(self) -> None:
        """Wait until all added work is done."""
        await asyncio.sleep(0)
        async with self._turn:
            return
