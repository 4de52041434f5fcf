"""Waiting on one loop until a condition holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Waiting:
    """The waiting tasks; `wake` lets them check their conditions again."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    async def until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the condition holds, checking it at each wake. Return true if it held in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not is_so():
            waiter = loop.create_future()
            self._waiters[waiter] = None
            try:
                async with asyncio.timeout_at(deadline):
                    await waiter
            except TimeoutError:
                return is_so()
            finally:
                self._waiters.pop(waiter, None)
        return True

    def wake(self) -> None:
        """Let all tasks check again: something may have changed."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def __len__(self) -> int:
        return len(self._waiters)
