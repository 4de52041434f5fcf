"""The event loop of programs that serve (uvloop's if it is installed), and the clock of coordinators."""

from __future__ import annotations

import asyncio
import functools
import math
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVarTuple, Unpack

if TYPE_CHECKING:
    import contextvars


Arguments = TypeVarTuple("Arguments")

_LONGEST_S = 100 * 365 * 86_400.0
"""uvloop waits no longer."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a uvloop loop if uvloop is installed (`fencepost[embedded]` brings it), else asyncio's own."""
    return _factory()()


def accepts_quickly(loop: asyncio.AbstractEventLoop) -> bool:
    """Return true if the loop accepts connections without a Python socket for each client, as uvloop does."""
    uvloop = sys.modules.get("uvloop")
    return uvloop is not None and isinstance(loop, uvloop.Loop)


@functools.cache
def _factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    import uvloop

    class ExactLoop(uvloop.Loop):
        """uvloop's loop with asyncio's guarantees about time.

        uvloop's clock does not advance within a turn and counts whole milliseconds, so its timers may fire up
        to one millisecond early. Here none does: a timer for half a millisecond may take two.
        """

        time = staticmethod(time.monotonic)  # called for each request

        def call_later(
            self,
            delay: float,
            callback: Callable[[Unpack[Arguments]], object],
            *args: *Arguments,
            context: contextvars.Context | None = None,
        ) -> asyncio.TimerHandle:
            """Run the callback after that many seconds, never before."""
            whole_ms = math.ceil(min(delay, _LONGEST_S) * 1_000) + 1 if delay > 0 else 0
            return super().call_later(whole_ms / 1_000, callback, *args, context=context)

        def call_at(
            self,
            when: float,
            callback: Callable[[Unpack[Arguments]], object],
            *args: *Arguments,
            context: contextvars.Context | None = None,
        ) -> asyncio.TimerHandle:
            """Run the callback when `time()` is that, never before."""
            return self.call_later(when - time.monotonic(), callback, *args, context=context)

    return ExactLoop


class ServerClock:
    """Milliseconds since the epoch that never decrease, even if the wall clock does."""

    __slots__ = ("_advanced_ms", "_loop", "_offset")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset = time.time() - loop.time()
        self._advanced_ms = 0  # separate, as a large float has no milliseconds

    def now_ms(self) -> int:
        """Return the present time."""
        return int((self._loop.time() + self._offset) * 1000) + self._advanced_ms

    def latest_ms(self) -> int:
        """Return the later of this clock and the machine's, which advances while the machine sleeps."""
        return max(self.now_ms(), int(time.time() * 1000))

    def advance_to(self, when_ms: int) -> None:
        """Advance the time to at least that. Existing timers are not adjusted: set them again."""
        self._advanced_ms += max(0, when_ms - self.now_ms())

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Run the callback when `now_ms()` has reached that time, not before."""
        # A float in milliseconds may be slightly below the whole number.
        return self._loop.call_at((when_ms - self._advanced_ms + 0.001) / 1000 - self._offset, callback)
