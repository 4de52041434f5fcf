"""Long requests of many clients: a turn of the loop takes some of them, the others wait for the next ones."""

from __future__ import annotations

import asyncio
from typing import Final

from fencepost.coordinator.codec.schema import UNCOUNTED_BYTES

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
        """Whether one of that size may be taken now. The first one of a turn always may."""
        if self._taken == 0:
            self._loop.call_soon(self._renew)
        elif self._taken + size > _BYTES_PER_TURN:
            return False
        self._taken += size
        return True

    def _renew(self) -> None:
        self._taken = 0
