"""A limit on the CPU time that a run may take while virtual time stands still.

A program that spins keeps time from moving: `while not done: await asyncio.sleep(0)`, a poll without a
timeout, or a loop that awaits nothing. A thread of the machine watches the run's thread, and ends such a run.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final, NoReturn

from fencepost.simulation.world.loop import WorldLoop
from fencepost.simulation.world.places import frames_of, place_in, place_of, stack_of
from fencepost.simulation.world.processes import PROCESS, run_callback

LIMIT_CPU_S: Final = 6.0
"""The CPU seconds that a run may take while virtual time moves by less than `MOVED_US`."""
OWN_LIMIT_CPU_S: Final = 4.0
"""The same for a program in a process of its own, and for the answers to it. That process knows its line, so
it is the first to report."""
MOVED_US: Final = 10_000
_LOOK_S: Final = 0.25
"""The interval in which the thread looks, in seconds of the machine."""
_RETURN_CPU_S: Final = 0.5
"""The CPU seconds that the running callback has to return, before it is interrupted."""
_GIVE_UP_CPU_S: Final = 3.0
"""The same, before a line on stderr says that it can't be interrupted."""
_NAMED: Final = 3
"""Maximum number of places that a message names."""


class StandsStill(RuntimeError):
    """The error of a run that takes CPU time while virtual time stands still."""


class _Interrupted(BaseException):
    """Raised in a callback that does not return."""


class StandstillWatch:
    """Watches the loop that runs within its `with` block, and halts it if time stands still.

    Afterwards `error` says so; it is None if time moved. A callback that does not return is interrupted.
    """

    def __init__(self, loop: WorldLoop, limit_cpu_s: float) -> None:
        self.error: StandsStill | None = None
        self._loop = loop
        self._limit_cpu_s = limit_cpu_s
        self._thread = threading.get_ident()
        self._inside = ""
        """The text about the callback that does not return; empty if callbacks return."""
        self._halted = False
        self._interrupts = False
        """True once the thread may have an exception on its way that interrupts it."""
        self._gone = False
        """True once the other thread is over."""
        self._cpu_s: Callable[[], float] = time.process_time
        self._over = _thread.allocate_lock()
        self._ended = _thread.allocate_lock()
        if hasattr(time, "pthread_getcpuclockid"):
            clock = time.pthread_getcpuclockid(self._thread)
            self._cpu_s = lambda: time.clock_gettime(clock)

    def __enter__(self) -> StandstillWatch:
        self._over.acquire()
        self._ended.acquire()
        _thread.start_new_thread(self._watch, ())
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._over.release()
        while True:
            try:
                while not self._gone:
                    self._ended.acquire(timeout=_LOOK_S)
                if self._interrupts:
                    self._interrupts = False
                    _replace_what_is_on_its_way(self._thread)
                break
            except _Interrupted:
                continue
        if self._halted:
            what = self._inside or what_runs_again(self._loop)
            self.error = StandsStill(self._text(what))
        return kind is _Interrupted

    def _text(self, what: str) -> str:
        return (
            f"virtual time stands still at {self._loop.now_us / 1e6:.6f} s, for {self._limit_cpu_s:g} s of "
            f"CPU time now: {what}. Time moves only while all programs wait: await the event itself, give a "
            "poll a timeout, or await asyncio.sleep() of more than 0 s"
        )

    # -- in the other thread ----------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            self._look_again_and_again()
        finally:
            self._gone = True
            self._ended.release()

    def _look_again_and_again(self) -> None:
        loop, cpu_s = self._loop, self._cpu_s
        since_us, since_s, halted_s, told = loop.now_us, cpu_s(), 0.0, False
        callback: FrameType | None = None
        while not self._over.acquire(timeout=_LOOK_S):
            now_s = cpu_s()
            if self._halted:
                if now_s - halted_s > _RETURN_CPU_S:
                    self._interrupts = True
                    _raise_in(self._thread, _Interrupted)
                if now_s - halted_s > _GIVE_UP_CPU_S and not told:
                    told = True
                    os.write(2, f"fencepost: {self._text(self._inside)}. It can't be interrupted\n".encode())
                continue
            if loop.now_us - since_us >= MOVED_US:
                since_us, since_s, callback = loop.now_us, now_s, None
                continue
            stack = list(stack_of(sys._current_frames().get(self._thread)))
            before, callback = callback, stack[-1] if stack else None
            if now_s - since_s > self._limit_cpu_s:
                if callback is not None and callback is before:
                    self._inside = f"{_program_in(stack)} does not return from {place_in(stack)}"
                self._halted, halted_s = True, now_s
                loop.halt()


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))


def _replace_what_is_on_its_way(thread: int) -> NoReturn:
    """Raise the exception once more, in this thread, in place of one that has not arrived.

    To withdraw that one would leave a mark for which CPython looks at each call from then on. Before 3.12,
    a function that is traced would never return.
    """
    _raise_in(thread, _Interrupted)
    while True:
        pass


def _program_in(stack: list[FrameType]) -> str:
    """Return the name of the program whose callback runs."""
    for frame in stack:
        if frame.f_code is run_callback.__code__:
            return _name_of(frame.f_locals["process"])
    return _name_of(None)


def _name_of(process: Any) -> str:
    return "the test" if process is None else str(process.host.name)


def what_runs_again(loop: WorldLoop) -> str:
    """Return which programs run which lines as soon as the loop goes on, though no time passes."""
    found: dict[str, dict[str, None]] = {}
    for handle in loop._ready:
        if not handle._cancelled:
            process = handle._context.get(PROCESS)
            found.setdefault(_name_of(process), {}).update(dict.fromkeys(_places_of(handle._callback)))
    texts = [f"{name} runs {' and '.join([*places][:_NAMED])}" for name, places in found.items() if places]
    return ", ".join(texts[:_NAMED]) + " again and again" if texts else "it is not known what runs"


def _places_of(callback: Any) -> Iterator[str]:
    task = getattr(callback, "__self__", None)
    place = place_in(frames_of(task.get_coro())) if isinstance(task, asyncio.Task) else place_of(callback)
    if place:
        yield place
