"""Where a client's tasks run: the running event loop, or a host of a simulation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol


class Runtime(Protocol):
    """Tasks and time."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run this beside everything else."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def now(self) -> float:
        """Seconds since an arbitrary moment, never going back."""


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

    def now(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()
