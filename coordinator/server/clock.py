"""The clock of a served coordinator: the running loop's, set by the wall clock once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class ServerClock:
    """Milliseconds since the epoch that never go back, whatever happens to the wall clock meanwhile."""

    __slots__ = ("_advanced_ms", "_loop", "_offset")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset = time.time() - loop.time()
        self._advanced_ms = 0  # of its own: a float that is large has no milliseconds

    def now_ms(self) -> int:
        """The time now."""
        return int((self._loop.time() + self._offset) * 1000) + self._advanced_ms

    def latest_ms(self) -> int:
        """The later of this clock and the machine's, which goes on while the machine sleeps."""
        return max(self.now_ms(), int(time.time() * 1000))

    def advance_to(self, when_ms: int) -> None:
        """Let the time be at least that from now on. Timers that were set do not know: set them anew."""
        self._advanced_ms += max(0, when_ms - self.now_ms())

    def call_at(self, when_ms: int, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Run the callback when `now_ms()` has reached that time, not before."""
        # A millisecond of a float may come out a hair below the whole number.
        return self._loop.call_at((when_ms - self._advanced_ms + 0.001) / 1000 - self._offset, callback)
