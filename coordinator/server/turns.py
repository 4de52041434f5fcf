"""Long work of a broker in slices, so that its other clients never wait for long.

One piece of work runs at a time, which bounds the memory that all of them take, and one slice per turn of the
loop. The order is that of arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from fencepost.coordinator.protocol.slices import Sliced

T = TypeVar("T")


class Turns:
    """A queue of sliced work on the running loop."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Sliced[Any], asyncio.Future[Any]]] = deque()
        self._handle: asyncio.Handle | None = None

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
