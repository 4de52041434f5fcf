"""The runtime of a client's tasks: the running event loop, or a host of a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol


class CutShort(Exception):
    """Work was cancelled because its time was over."""


class Runtime(Protocol):
    """Tasks and time."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run this next to everything else."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def wait_for(
        self, work: Coroutine[Any, Any, None], told: asyncio.Event, grace_s: Callable[[], float]
    ) -> None:
        """Wait for this; once `told` is set, for at most `grace_s` seconds more.

        :raises CutShort: if that was not enough; the work is cancelled then.
        """

    def now(self) -> float:
        """Return seconds since an arbitrary moment, never going back."""


class LoopRuntime:
    """The running event loop. Tasks are kept until they are done."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run this in a task of this name."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def wait_for(
        self, work: Coroutine[Any, Any, None], told: asyncio.Event, grace_s: Callable[[], float]
    ) -> None:
        """Wait for this; once `told` is set, for at most `grace_s` seconds more.

        :raises CutShort: if that was not enough; the work is cancelled then.
        """
        task = asyncio.get_running_loop().create_task(work)
        telling = asyncio.get_running_loop().create_task(told.wait())
        try:
            await asyncio.wait((task, telling), return_when="FIRST_COMPLETED")
            if not task.done():
                await asyncio.wait((task,), timeout=grace_s())
            if not task.done():
                raise CutShort
            task.result()
        finally:
            telling.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))

    def now(self) -> float:
        """Return the loop's time."""
        return asyncio.get_running_loop().time()
