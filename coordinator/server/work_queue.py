"""Long work on records and names, in slices, so that other clients never wait for long.

One piece of work runs at a time, in the order of arrival, and one slice per turn of the loop. A batch that is
being read may take 64 MiB: the queue bounds the memory that all clients together can make the server take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from fencepost.coordinator.protocol.slices import Sliced

T = TypeVar("T")


class WorkQueue:
    """A queue of sliced work on the running loop."""

    def __init__(self) -> None:
        self.slices = 0
        """The number of slices after first ones. Work that sees it change was interrupted."""
        self._queue: deque[tuple[Sliced[Any], asyncio.Future[Any]]] = deque()
        self._handle: asyncio.Handle | None = None

    @property
    def is_idle(self) -> bool:
        """True if no work waits for its next slice."""
        return not self._queue

    def run(self, work: Sliced[T]) -> T | asyncio.Future[T]:
        """Run the first slice now: the result, or a future of it if more slices follow.

        The first slice is short by definition: it need not wait for the work of others. To cancel the future
        ends the work.
        """
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.append((work, future))
        self._arm(loop)
        return future

    def close(self) -> None:
        """End all work."""
        for work, future in self._queue:
            work.close()
            future.cancel()
        self._queue.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._handle is None and self._queue:
            self._handle = loop.call_soon(self._slice, loop)

    def _slice(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle = None
        self.slices += 1
        work, future = self._queue[0]
        try:
            if future.done():
                work.close()
                self._queue.popleft()
            else:
                next(work)
        except StopIteration as end:
            self._queue.popleft()
            future.set_result(end.value)
        except Exception as error:
            self._queue.popleft()
            future.set_exception(error)
        finally:
            self._arm(loop)
