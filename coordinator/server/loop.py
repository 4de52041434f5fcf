"""The event loop of programs that serve: uvloop's where it is there, which is quicker with sockets."""

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
    """A loop of uvloop if that is installed (`fencepost[kafka]` brings it), else asyncio's own."""
    return _factory()()


def accepts_quickly(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop has a way to accept of its own that makes no Python socket of each client: uvloop's."""
    uvloop = sys.modules.get("uvloop")
    return uvloop is not None and isinstance(loop, uvloop.Loop)


@functools.cache
def _factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop
    import uvloop

    class ExactLoop(uvloop.Loop):
        """With asyncio's promises about time.

        uvloop's clock stands still within a turn and counts whole milliseconds, so its timers may come up to
        one too early. Here none does: what is due in half a millisecond may take two.
        """

        def time(self) -> float:
            """The monotonic clock."""
            return time.monotonic()

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
