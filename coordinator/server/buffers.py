"""The memory that all connections of a cluster may hold together for requests and responses."""

from __future__ import annotations

import asyncio
import sys
from typing import Final, Protocol

from fencepost.coordinator.server.turns import LONG_BYTES

MAX_QUEUED_REQUEST_BYTES: Final = 256 << 20
"""Default of `queued.max.request.bytes`. Kafka has no limit by default."""
UNCOUNTED: Final = LONG_BYTES
"""Bytes of requests that each connection may hold beside."""
_PATIENCE_S: Final = 1.0
"""Time that a client has to read or to send, in s, while others wait for the memory that it takes."""


class Holder(Protocol):
    """A connection that holds memory."""

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that its client has not read."""

    def read_on(self) -> None:
        """Read from the socket again."""

    def cut_off(self, reason: str) -> None:
        """Close the connection at once."""


class Buffers:
    """Counts the requests that are unfinished or wait, and the responses that are not read, in bytes.

    There is a limit for each of the two; as in Kafka, a number up to 0 is no limit. Beyond that of requests,
    the server does not read from connections that hold more than their part. The one with the most may still
    finish its request, and is closed if it takes too long. Beyond the limit of responses, the server closes
    connections of clients that do not read.
    """

    def __init__(self, limit: int = MAX_QUEUED_REQUEST_BYTES) -> None:
        self.limit = limit if limit > 0 else sys.maxsize
        self.requests = 0
        """Bytes of all requests that are held."""
        self._held: dict[Holder, int] = {}
        self._paused: dict[Holder, None] = {}
        self._finishing: Holder | None = None
        """The connection that may read beyond the limit."""
        self._patience: asyncio.TimerHandle | None = None
        self._unread: dict[Holder, int] = {}
        self._look: asyncio.TimerHandle | None = None

    def hold(self, holder: Holder, size: int) -> bool:
        """Note the bytes of requests that a connection holds; return true if it may read on."""
        before = self._held.pop(holder, 0)
        self.requests += size - before
        if size:
            self._held[holder] = size
        if holder is self._finishing:
            if size >= before and self.requests > self.limit:
                return True
            self._finished()
        if self.requests <= self.limit:
            self._resume()
            return True
        self._paused.pop(holder, None)
        if size <= self.limit // (4 * len(self._held)):
            self._let_one_finish()
            return True
        self._paused[holder] = None
        self._let_one_finish()
        return holder not in self._paused

    def unread(self, holder: Holder) -> None:
        """Note the bytes of responses that a client has not read."""
        if holder.unread_bytes:
            self._unread[holder] = holder.unread_bytes
        else:
            self._unread.pop(holder, None)
        if self._look is None and sum(self._unread.values()) > self.limit:
            self._look = asyncio.get_running_loop().call_later(_PATIENCE_S, self._cut_off_silent)

    def drop(self, holder: Holder) -> None:
        """Forget a connection that is closed."""
        self._unread.pop(holder, None)
        self._paused.pop(holder, None)
        if holder in self._held or holder is self._finishing:
            self.hold(holder, 0)

    def close(self) -> None:
        """Stop the timers."""
        for timer in (self._patience, self._look):
            if timer is not None:
                timer.cancel()

    def _resume(self) -> None:
        paused, self._paused = self._paused, {}
        for each in paused:
            each.read_on()

    def _let_one_finish(self) -> None:
        if self._finishing is None and self._paused:
            largest = max(self._paused, key=lambda each: self._held.get(each, 0))
            del self._paused[largest]
            self._finishing = largest
            self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._cut_off_slow)
            largest.read_on()

    def _finished(self) -> None:
        self._finishing = None
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _cut_off_slow(self) -> None:
        slow = self._finishing
        if slow is None:
            return
        if not self._paused:  # nobody waits for it
            self._patience = asyncio.get_running_loop().call_later(_PATIENCE_S, self._cut_off_slow)
            return
        size = self._held.get(slow, 0)
        slow.cut_off(
            f"{size} bytes of unfinished requests, while all clients together hold {self.requests}, and may "
            f"hold {self.limit} (queued.max.request.bytes)"
        )
        self.drop(slow)
        self._let_one_finish()

    def _cut_off_silent(self) -> None:
        """Close connections whose clients read nothing since the last look, largest first."""
        self._look = None
        silent = sorted(self._unread.items(), key=lambda each: -each[1])
        total = sum(size for _, size in silent)
        for holder, size in silent:
            if total > self.limit and holder.unread_bytes >= size:
                total -= size
                holder.cut_off(
                    f"{size} bytes of responses that the client does not read, while all clients together "
                    f"leave more than {self.limit} (queued.max.request.bytes)"
                )
                self.drop(holder)
            else:
                self.unread(holder)
