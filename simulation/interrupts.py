"""What Ctrl-C and SIGTERM do: a run ends between two steps, and what must not be broken off is not."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from fencepost.simulation.kernel.loop import VirtualLoop

STOPPING: Final = "stopping: ending Spark takes some seconds"


@contextlib.contextmanager
def between_steps(loop: VirtualLoop) -> Iterator[Callable[[], None]]:
    """Hold SIGINT and SIGTERM back while the loop runs: the first one stops it, and does nothing else.

    Within a step, what is simulated would take it for a failure of its own.

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


@contextlib.contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits until what this answers is called: no JVM is left behind, no call to it broken off.

    Whoever listened for it hears of it at once, and may say so; only the exception waits.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []
    handler: Any = signal.getsignal(signal.SIGINT)

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal handler
        try:
            if callable(handler):
                handler(number, frame)
            else:
                came.append(number)
        except KeyboardInterrupt:
            came.append(number)
        finally:
            if (following := signal.getsignal(signal.SIGINT)) is not hold:  # it hears of the next one
                handler = following
                signal.signal(signal.SIGINT, hold)

    def release() -> None:
        if came:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hold)
    try:
        yield release
    finally:
        if signal.getsignal(signal.SIGINT) is hold:
            signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def interrupt_handler_kept() -> Iterator[None]:
    """Restore the handler of SIGINT that the block replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
