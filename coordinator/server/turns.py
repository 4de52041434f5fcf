"""Long work in turns of the loop, so that other clients never wait for long.

A handler of a long list pauses between turns, and one turn takes only some of the long requests. Work on
records and names is done in slices. One piece of sliced work runs at a time, in the order of arrival, one
slice per turn. A batch that is being read may take 64 MiB: the queue bounds the memory that all clients
together can take.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

from fencepost.coordinator.codec.schema import UNCOUNTED_BYTES
from fencepost.coordinator.protocol.slices import Sliced

if TYPE_CHECKING:
    from fencepost.coordinator.server.services import Services

R = TypeVar("R")
P = ParamSpec("P")

WORK_PER_TURN = 5_000
"""Work that a handler does in one turn of the loop, in cheap elements of a request."""
CHANGE = 250
"""Cost of a change of the cluster's topics, in such elements."""

Work: TypeAlias = Generator[int, None, R]
"""A handler's work: it yields the amount done since its last yield, and returns the response."""


def in_turns(
    handler: Callable[Concatenate[Services, P], Work[R]],
) -> Callable[Concatenate[Services, P], R | asyncio.Future[R]]:
    """Make a handler of a generator. It returns the response after one turn, else a future of it.

    If the loop is not shared, it always returns the response.
    """

    @functools.wraps(handler)
    def answer(services: Services, /, *args: P.args, **kwargs: P.kwargs) -> R | asyncio.Future[R]:
        work = handler(services, *args, **kwargs)
        try:
            _work_one_turn(work)
            while services.long_requests is None:
                _work_one_turn(work)
        except StopIteration as finished:
            response: R = finished.value
            return response
        return services.loop.create_task(_finish(work))

    return answer


def _work_one_turn(work: Work[Any]) -> None:
    done = 0
    while done < WORK_PER_TURN:
        done += next(work)


async def _finish(work: Work[R]) -> R:
    while True:
        await asyncio.sleep(0)
        try:
            _work_one_turn(work)
        except StopIteration as finished:
            response: R = finished.value
            break
    await asyncio.sleep(0)  # writing a long response takes another turn
    return response


LONG_BYTES: Final = UNCOUNTED_BYTES
"""Requests above this size are long."""
_BYTES_PER_TURN: Final = 1 << 18


class LongRequests:
    """The long requests that all connections of a broker take in one turn of the loop."""

    __slots__ = ("_loop", "_taken")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._taken = 0

    def may_take(self, size: int) -> bool:
        """Return true if one of that size may be taken now. The first one of a turn always may."""
        if self._taken == 0:
            self._loop.call_soon(self._renew)
        elif self._taken + size > _BYTES_PER_TURN:
            return False
        self._taken += size
        return True

    def _renew(self) -> None:
        self._taken = 0


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
