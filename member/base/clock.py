"""The clocks of a member that runs in real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from fencepost.member.base.transport import TimerHandle


class LoopClock:
    """The running event loop's clock in milliseconds."""

    __slots__ = ("_loop",)

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()

    def now_ms(self) -> int:
        """Return milliseconds of the loop's clock; with a microsecond of grace for the binary fractions of
        `call_at`."""
        return int(self._loop.time() * 1000 + 0.001)

    def call_at(self, when_ms: int, callback: Callable[..., Any], *args: Any) -> TimerHandle:
        """Run the callback at that time of the loop's clock."""
        return self._loop.call_at(when_ms / 1000, callback, *args)


def time_before_ms(duration_ms: int) -> int:
    """Return the wall clock's time that long ago, in ms since 1970; 0 for any time before 1970, which logs
    don't have."""
    return max(0, time.time_ns() // 1_000_000 - duration_ms)
