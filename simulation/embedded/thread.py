"""A thread with an event loop of its own, and the way from other threads into it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.server.loop import new_event_loop

P = ParamSpec("P")
R = TypeVar("R")


TURN_S = 0.0005
"""Time that one thread may compute while another one waits, in seconds, while a `LoopThread` runs."""


class _Turns:
    """Shortens the turns of threads: with Python's default of 5 ms, a client that computes keeps brokers
    waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0

    def shorten(self) -> None:
        """Shorten turns for one more loop."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(TURN_S, self._before))

    def restore(self) -> None:
        """End that for one loop; after the last one, restore the turns."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                sys.setswitchinterval(self._before)


_turns = _Turns()


class LoopThread:
    """Runs an event loop from `start` to `stop`. Its thread never keeps an interpreter from ending.

    While it runs, all threads of the process take turns every 0.5 ms.
    """

    def __init__(self, name: str, what: str = "this Kafka") -> None:
        self._name = name
        self.what = what
        """The name of the server on the thread, for messages."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._has_run = False
        self._submitting = threading.Lock()
        self._submitted: set[concurrent.futures.Future[Any]] = set()
        """Work that is not done yet."""

    @classmethod
    def running(cls, name: str, what: str) -> LoopThread:
        """Return the object for the loop that runs in this thread, so that other threads can use it.

        Neither start nor stop it.
        """
        made = cls(name, what)
        made._pid = os.getpid()
        made._loop = asyncio.get_running_loop()
        return made

    def start(self) -> None:
        """Start the thread.

        :raises EnvironmentLacks: if threads are replaced by coroutines, because the loop would block
            everything else.
        """
        patched = _threads_patched_by()
        if patched is not None:
            raise EnvironmentLacks(
                f"{self.what} needs a thread, and {patched} has replaced threads in this process: use "
                "`fencepost serve`, or do not let it patch threads"
            )
        self._pid = os.getpid()
        self._loop = loop = new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
        self._thread.start()
        _turns.shorten()

    def stop(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """End the loop and the thread; callers that wait for a result get an error.

        `last` runs on the loop before that, after all work was refused or cancelled: no caller meets what
        `last` has closed.
        """
        if not self.is_running:
            return
        with self._submitting:
            loop, self._loop = self._loop, None
            self._has_run = True
        if loop is None or self._thread is None:
            return
        for each in self._submitted.copy():  # in one step: other threads remove what is done
            each.cancel()  # on the loop, before `last` begins
        try:
            if last is not None:
                asyncio.run_coroutine_threadsafe(last(), loop).result()
        finally:
            asyncio.run_coroutine_threadsafe(_cancel_the_rest(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._thread = None
            loop.close()
            _turns.restore()

    @property
    def is_running(self) -> bool:
        """True if it was started in this process and not stopped: a forked process does not inherit
        threads."""
        return self._loop is not None and self._pid == os.getpid()

    def not_running(self) -> FencepostError:
        """Return the error for callers that use it while it does not run."""
        if self._loop is not None and self._pid != os.getpid():
            return FencepostError(
                f"{self.what} runs in process {self._pid}: one that was forked from it can only connect to it"
            )
        if self._has_run:
            return FencepostError(f"{self.what} has stopped: use it before its `with` block ends")
        return FencepostError(f"{self.what} is not running: enter it with `with` or `async with` first")

    def submit(self, work: Coroutine[Any, Any, R]) -> concurrent.futures.Future[R]:
        """Run a coroutine on the loop.

        :raises FencepostError: if the loop does not run.
        """
        __tracebackhide__ = True
        if self.is_running:  # checked before the lock, which a fork may have copied while it was held
            with self._submitting:
                if self._loop is not None:
                    future = asyncio.run_coroutine_threadsafe(work, self._loop)
                    self._submitted.add(future)
                    future.add_done_callback(self._submitted.discard)
                    return future
        work.close()
        raise self.not_running()

    def result(self, future: concurrent.futures.Future[R]) -> R:
        """Return the result of something that was submitted, once it is done. If the caller stops waiting,
        the work is cancelled.

        :raises FencepostError: if the loop ended before the result was there.
        """
        __tracebackhide__ = True
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise self.not_running() from None
        except (FencepostError, TimeoutError) as error:
            # The caller made a mistake, or waited in vain: the place in the loop that noticed it is of no
            # use.
            raise error.with_traceback(None) from error.__cause__
        finally:
            future.cancel()


def _threads_patched_by() -> str | None:
    """Return the library that has replaced threads by coroutines in this process, if any."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent is not None and gevent.is_module_patched("threading"):
        return "gevent"
    if eventlet is not None and eventlet.is_monkey_patched("thread"):
        return "eventlet"
    return None


async def _cancel_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


class InThread(Protocol):
    """Something whose state belongs to the loop of a thread."""

    @property
    def thread(self) -> LoopThread:
        """The thread."""


S = TypeVar("S", bound=InThread)


def _wait_for(future: concurrent.futures.Future[Any]) -> None:
    with contextlib.suppress(concurrent.futures.CancelledError):
        future.exception()


def on_loop(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Make a method callable from any other thread: its body runs on the loop."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def run() -> R:
            return method(self, *args, **kwargs)

        __tracebackhide__ = True
        return self.thread.result(self.thread.submit(run()))

    return call


def until_done(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], R]:
    """Turn a coroutine method into one that blocks its caller; the coroutine runs on the loop."""

    @functools.wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        return self.thread.result(self.thread.submit(method(self, *args, **kwargs)))

    return call


async def wait_unblocked(future: concurrent.futures.Future[Any]) -> None:
    """Wait in any loop of asyncio or trio for work on the thread's loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:  # trio's
        from anyio import to_thread
    else:
        wrapped = asyncio.wrap_future(future)
        await asyncio.wait([wrapped])
        if not wrapped.cancelled():
            wrapped.exception()  # the caller reads that of the other future
        return

    await to_thread.run_sync(_wait_for, future, abandon_on_cancel=True)


def awaiting(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Make a coroutine method awaitable in any loop of asyncio or trio; it runs on the thread's own loop."""

    @functools.wraps(method)
    async def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        future = self.thread.submit(method(self, *args, **kwargs))
        try:
            await wait_unblocked(future)
        finally:
            future.cancel()
        return self.thread.result(future)

    return call
