"""Says at once that an interrupt was heard, where it takes a while until everything has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Final

STOPPING: Final = "stopping: ending Spark takes some seconds"


@contextlib.contextmanager
def told_at_once(line: str) -> Iterator[None]:
    """Write that line to stderr at the first Ctrl-C or SIGTERM, which then does what it did before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}
    told: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        restore()
        # Who holds interrupts for a while has a handler of its own, which asks this one each time.
        if not told:
            told.append(number)
            write()
        handler(number, frame)

    def write() -> None:
        with contextlib.suppress(OSError, ValueError):
            # Not by the stream, which may be in the middle of a line of its own.
            begin = "\n" if sys.stderr.isatty() else ""
            os.write(sys.stderr.fileno(), f"{begin}{line}\n".encode())

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is tell:
                signal.signal(number, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        if callable(handler := signal.getsignal(number)):
            before[number] = handler
            signal.signal(number, tell)
    try:
        yield
    finally:
        restore()
