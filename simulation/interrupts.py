"""Lets Ctrl-C end a run between two steps: in one, what is simulated takes it for a failure of its own."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from fencepost.simulation.kernel.loop import VirtualLoop


@contextlib.contextmanager
def between_steps(loop: VirtualLoop) -> Iterator[Callable[[], None]]:
    """Hold SIGINT and SIGTERM back while the loop runs: the first one stops it, and does nothing else.

    What is given does it then, once the loop has stopped. A second one does at once what it did before, for a
    step that does not end. In threads, which hear no signals, nothing changes.
    """
    before: dict[int, Any] = {}
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if heard:
            before[number](number, frame)
        else:
            heard.append(number)
            loop.stop()

    def pass_on() -> None:
        if heard:
            number = heard.pop()
            before[number](number, None)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, hear)
    try:
        yield pass_on
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    pass_on()  # one that came when nobody was to look for it any more
