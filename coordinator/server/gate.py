"""The gate between answers and the wire: shut while something that they may tell of is not on disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fencepost.coordinator.journal.sqlite import JournalFailed


class Gate:
    """Lets answers out after a flush. All that one turn of the loop appended shares the flush at its end.

    `flush` brings it to the disk; `on_failure` is told when it can't, and then the gate stays shut for good.
    """

    def __init__(
        self,
        flush: Callable[[], None] = lambda: None,
        on_failure: Callable[[JournalFailed], None] = lambda failure: None,
    ) -> None:
        self.is_shut = False
        self._flush = flush
        self._on_failure = on_failure
        self._waiting: dict[Callable[[], None], None] = {}
        self._failed = False

    def shut(self) -> None:
        """Something was appended. Without a running loop it is flushed at once.

        :raises JournalFailed: if that fails.
        """
        if self.is_shut:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._flush()
            return
        self.is_shut = True
        loop.call_soon(self.open)

    def when_open(self, callback: Callable[[], None]) -> None:
        """Call back once the gate opens, each callback once, in their order."""
        self._waiting[callback] = None

    def open(self) -> None:
        """Flush, and let out who waits. A gate that is open stays so."""
        if not self.is_shut or self._failed:
            return
        try:
            self._flush()
        except JournalFailed as failure:
            self._failed = True
            self._waiting.clear()
            self._on_failure(failure)
            return
        self.is_shut = False
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            callback()
