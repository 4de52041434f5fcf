"""The limits of one test: its time, and whether it may start processes.

An exception that an alarm raises once does not end each test that spins: asyncio catches it in callbacks, and
hypothesis in each example.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import io
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

LIMIT_S = 120.0
"""Limit of setup and call of one test, without the marker `timeout`."""
TEARDOWN_S = 60.0
REPEAT_S = 5.0
"""Delay after which an exception that was swallowed is raised again."""
LOOPS = (str(Path(asyncio.__file__).parent), "fencepost/simulation/kernel/loop.py")
BETWEEN_S = 0.001
"""Delay after which the alarm looks again, if it interrupts the code of an event loop: a callback would
be lost there, and the task that it continues would never end."""
GRACE_S = 20.0
"""Least delay after which a process is ended whose test goes on in spite of the exceptions."""
AHEAD_S = 120.0
"""Greatest further delay. To move the end costs a thread, and on a busy machine more time than most tests."""
WAITED = Path("/proc/self/schedstat")
"""On Linux, its second number is the time in ns for which the main thread has waited for a processor."""
LONGEST = 10.0
"""The most that waiting for a processor adds to a limit, as a multiple of it."""

STARTS = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"}
)
"""Audit events of CPython that start a program or a copy of this one."""


class OutOfTime(KeyboardInterrupt):
    """Raised in the main thread of a test: asyncio and hypothesis let this kind of exception through."""


class Watchdog:
    """A pytest plugin: ends tests that exceed their time, and fails tests that start processes unasked.

    A test's time does not go on while it waits for a processor of a busy machine.
    """

    # The alarm may ring in a simulated world, which replaces these functions in modules, not in classes.
    _set_timer = staticmethod(signal.setitimer)
    _monotonic = staticmethod(time.monotonic)
    _read = staticmethod(os.pread)

    def __init__(self, stderr: int) -> None:
        self._stderr = stderr
        """A descriptor that pytest does not capture."""
        self._fault: str | None = None
        """The reason why the current phase fails, even if the test swallows the exception."""
        self._refuses = False
        self._ends_at = 0.0
        """The monotonic time at which the process is ended."""
        self._waited = os.open(WAITED, os.O_RDONLY) if WAITED.exists() else None
        sys.addaudithook(self._audit)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._phase(item, limit_s(item), refuses=not may_start_processes(item)):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        with self._phase(item, limit_s(item), refuses=not may_start_processes(item)):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        try:
            with self._phase(item, TEARDOWN_S, refuses=False):  # fixtures of other tests end here, too
                return (yield)
        finally:
            if nextitem is None:
                faulthandler.cancel_dump_traceback_later()
                self._ends_at = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        """Keep the reason for other tests that share the fixture: pytest keeps no exception of this kind."""
        try:
            return (yield)
        except OutOfTime as error:
            failure = pytest.fail.Exception(f"Fixture {fixturedef.argname}: {self._fault}", pytrace=False)
            fixturedef.cached_result = (None, fixturedef.cache_key(request), (failure, error.__traceback__))  # type: ignore[arg-type]
            raise failure from None

    @contextlib.contextmanager
    def _phase(self, item: pytest.Item, seconds: float, *, refuses: bool) -> Iterator[None]:
        watches = not item.config.getoption("usepdb") and (
            threading.current_thread() is threading.main_thread()
        )
        self._fault, self._refuses = None, refuses
        try:
            if watches:
                self._arm(item, seconds)
            try:
                yield
            finally:
                self._refuses = False
                signal.setitimer(signal.ITIMER_REAL, 0)
        except OutOfTime:
            assert self._fault is not None
        if self._fault is not None:
            pytest.fail(self._fault, pytrace=False)

    def _arm(self, item: pytest.Item, seconds: float) -> None:
        looks = itertools.count()
        begun, waited = self._monotonic(), self._waited_s()

        def ring(_: int, frame: FrameType | None) -> None:
            in_a_loop = frame is not None and any(each in frame.f_code.co_filename for each in LOOPS)
            if in_a_loop and next(looks) < 1_000:
                self._set_timer(signal.ITIMER_REAL, BETWEEN_S, REPEAT_S)
                return
            if self._fault is None:
                more = min(self._waited_s() - waited, LONGEST * seconds)
                left = begun + seconds + more - self._monotonic()
                if left > BETWEEN_S:
                    self._start(left)
                    return
                self._fault = f"{item.nodeid} takes more than {seconds:g} s.\n{stacks(frame)}"
            raise OutOfTime(f"more than {seconds:g} s")

        signal.signal(signal.SIGALRM, ring)
        self._start(seconds)

    def _start(self, seconds: float) -> None:
        """Let the alarm ring after that time; some time later, the process is ended."""
        self._set_timer(signal.ITIMER_REAL, seconds, REPEAT_S)
        now = self._monotonic()
        if not now + seconds + GRACE_S <= self._ends_at <= now + seconds + GRACE_S + AHEAD_S:
            later = seconds + GRACE_S + min(seconds, AHEAD_S) / 2
            # Works without the interpreter: some C code never returns to it.
            faulthandler.dump_traceback_later(later, exit=True, file=self._stderr)
            self._ends_at = now + later

    def _waited_s(self) -> float:
        return 0.0 if self._waited is None else int(self._read(self._waited, 100, 0).split()[1]) / 1e9

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in STARTS or not self._refuses:
            return
        what = " ".join([event, *(str(argument) for argument in arguments[:2])])
        self._fault = (
            f"The test starts a process ({what}). Mark it `processes`, or let its fixture ask for the "
            "fixture of that name: such tests run with `make test ALL=1` only."
        )
        pytest.fail(self._fault)


def limit_s(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return LIMIT_S if marker is None else float(marker.args[0])


def may_start_processes(item: pytest.Item) -> bool:
    """Return true if the test or its parameter is marked `processes`, or a fixture asks for that fixture."""
    fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
    return "processes" in fixtures or item.get_closest_marker("processes") is not None


def stacks(frame: FrameType | None) -> str:
    """Return the stacks of all threads, the one of `frame` last, and what the tasks of its loop wait for."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, top in sys._current_frames().items():
        if ident != threading.get_ident():
            print(f"Thread {names.get(ident, ident)}:", file=text)
            traceback.print_stack(top, file=text)
    with contextlib.suppress(RuntimeError):
        for task in asyncio.all_tasks():
            task.print_stack(file=text)
    print(f"Thread {threading.current_thread().name}:", file=text)
    traceback.print_stack(frame, limit=40, file=text)
    return text.getvalue()
