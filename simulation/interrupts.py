"""Handling of signals that end a process: a run ends between two steps, and work that must be completed is
completed."""

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

STOPPING: Final = "stopping: ending Spark, if it runs, takes some seconds"


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a process: Ctrl-C, SIGTERM, and SIGHUP of a terminal that closes.

    If SIGHUP is ignored, as `nohup` does, it is left out.
    """
    hangs_up = hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hangs_up else []))


@contextlib.contextmanager
def between_steps(loop: VirtualLoop) -> Iterator[Callable[[], None]]:
    """Hold back signals that end the process while the loop runs: the first one only stops the loop.

    Inside a step, simulated code would take the exception for its own failure.

    The yielded function runs the signal's original handler, once the loop has stopped. A second signal runs
    the original handler at once, for a step that does not end. Threads other than the main thread receive no
    signals, so nothing changes there.
    """
    before: dict[int, Any] = {}
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if heard:
            before[number](number, frame)
        else:
            heard.append(number)
            loop.halt()

    def pass_on() -> None:
        if heard:
            number = heard.pop()
            before[number](number, None)

    if threading.current_thread() is threading.main_thread():
        for number in ending_signals():
            if callable(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, hear)
    try:
        yield pass_on
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    pass_on()  # a signal that came after the last check


@contextlib.contextmanager
def told_at_once(line: str) -> Iterator[None]:
    """Write that line to stderr at the first signal to end, and then run the original handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[int, Any] = {}
    told: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        restore()
        # Code that holds interrupts has a handler of its own, which calls this one each time.
        if not told:
            told.append(number)
            write()
        handler(number, frame)

    def write() -> None:
        with contextlib.suppress(OSError, ValueError):
            # Not through the stream, which may be in the middle of another line.
            begin = "\n" if sys.stderr.isatty() else ""
            os.write(sys.stderr.fileno(), f"{begin}{line}\n".encode())

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is tell:
                signal.signal(number, handler)

    for number in ending_signals():
        if callable(handler := signal.getsignal(number)):
            before[number] = handler
            signal.signal(number, tell)
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C until the yielded function is called: no JVM is left behind, and no call to it is
    interrupted.

    The previous handler still runs at once, and may print a line; only the exception waits.
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
            if (following := signal.getsignal(signal.SIGINT)) is not hold:  # it gets the next signal
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


def leave_signals_to_parent() -> None:
    """Ignore in a forked process what reaches its whole group: the parent decides, and may send SIGTERM."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, if the system can: Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
