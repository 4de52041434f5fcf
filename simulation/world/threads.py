"""Threads of a program in its own process: real ones, of which one runs at a time.

A thread runs until it waits for a lock, a socket or time. Then another thread runs that can go on, drawn from
the seed. If none can, the world is asked for what comes first. The running thread may also change after each
release of a lock, so after each `put`, `set` and `call_soon_threadsafe`. It changes at no other line.
"""

from __future__ import annotations

import _queue
import _thread
import asyncio
import itertools
import logging
import multiprocessing
import queue
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fencepost.simulation.kernel.loop import OutsideWorld, first_us
from fencepost.simulation.world.places import place_in, stack_of, user_lines
from fencepost.simulation.world.processes import PROCESS

if TYPE_CHECKING:
    import random

    from fencepost.simulation.world.inner import WorldLink

CHANGES: Final = 0.5
"""The probability that the thread changes after a release, if others can run."""
_ALWAYS: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
_ENDING: Final = (signal.SIGTERM, signal.SIGINT)


class _Originals:
    """Functions of the machine, kept where no substitute replaces them."""

    allocate_lock = staticmethod(_thread.allocate_lock)
    start_new_thread = staticmethod(_thread.start_new_thread)
    start_joinable_thread: Any = getattr(_thread, "start_joinable_thread", None)
    join = staticmethod(threading.Thread.join)
    raise_signal = staticmethod(signal.raise_signal)
    excepthook = staticmethod(threading.excepthook)
    lock_types = (type(_thread.allocate_lock()), _thread.RLock)


class Turn:
    """A thread, as its process schedules it. It waits for its baton while another one runs."""

    def __init__(self) -> None:
        self.baton = _Originals.allocate_lock()
        self.baton.acquire()
        self.ident = 0
        self.thread: threading.Thread | None = None
        self.timeout: float | None = None
        self.until_us: int | None = None
        self.watched: list[tuple[int, int]] = []
        self.found: list[tuple[int, int]] = []
        self.waits_for_thread = False
        """True while only another thread can end its wait, or a timeout."""
        self.joiners: list[Turn] = []


class Threads:
    """The threads of this process. `current` is the one that runs."""

    def __init__(self, link: WorldLink, draws: random.Random) -> None:
        self._link = link
        self._random = draws
        self.main = self.current = Turn()
        self.main.ident = threading.get_ident()
        self.signals: list[int] = []
        """Signals that the main thread has not handled yet: no other one runs handlers."""
        self._of: dict[threading.Thread, Turn] = {}
        self._parked: dict[Turn, None] = {}
        self._ready: list[Turn] = []
        self._is_changing = False
        """True from when a thread gives up its turn until the next one has it."""
        self._ended: threading.Thread | None = None
        """A thread that has given up its last turn, and that the system has not ended yet."""
        RUNNING.append(self)
        threading.excepthook = self._failed

    # -- waiting ------------------------------------------------------------------------------------------

    def park(
        self, timeout: float | None, watched: list[tuple[int, int]], *, by_loop: bool = False
    ) -> list[tuple[int, int]]:
        """Let others run until a socket is ready, `wake` is called, a signal came, or so many seconds passed.

        Returns descriptors with events of `poll`. Only the thread that runs may call this.
        """
        link, me = self._link, self.current
        if timeout is not None and timeout <= 0:
            self.may_change()
            found: list[tuple[int, int]] = link.ask("poll", 0, watched)
            return found
        begin_us = link.now_us
        me.timeout, me.watched, me.found = timeout, watched, []
        me.until_us = None if timeout is None else first_us(link.time() + timeout)
        self._parked[me] = None
        self._go_on(me)
        if not by_loop and asyncio._get_running_loop() is not None:
            link.tell_held(begin_us, link.now_us - begin_us)
        return me.found

    def wait_for_thread(self, waiters: list[Turn], until_us: int | None) -> bool:
        """Wait in a list, from which another thread takes this one to wake it; false if it is too late."""
        me, now_us = self.current, self._link.now_us
        if until_us is not None and now_us >= until_us:
            return False
        waiters.append(me)
        me.waits_for_thread = True
        try:
            self.park(None if until_us is None else (until_us - now_us) / 1e6, [])
        finally:
            me.waits_for_thread = False
            if me in waiters:
                waiters.remove(me)
        return True

    def until(self, timeout: float | None) -> int | None:
        """Return the virtual time in microseconds at which a timeout of that many seconds is over."""
        return None if timeout is None else first_us(self._link.time() + timeout)

    def wake(self, turn: Turn) -> None:
        """Let a thread that waits go on, when it is its turn."""
        if turn in self._parked:
            del self._parked[turn]
            self._ready.append(turn)

    def wake_one(self, waiters: list[Turn]) -> None:
        """Wake one of the threads in a list, and maybe let it run at once."""
        if waiters:
            self.wake(waiters.pop(self._random.randrange(len(waiters))))
        self.may_change()

    def may_change(self) -> None:
        """Let another thread run, if one can and the seed says so."""
        if self._ready and not self._is_changing and self._random.random() < CHANGES:
            me, turn = self.current, self._next()
            self._ready.append(me)
            self._change(me, turn)

    def _go_on(self, me: Turn) -> None:
        """Let the next thread run; return when it is this one's turn again."""
        self._change(me, self._next())

    def _change(self, me: Turn, turn: Turn) -> None:
        if turn is not me:
            self.current = turn
            turn.baton.release()
            me.baton.acquire()
            self._begin_turn()
        self._is_changing = False
        while me is self.main and self.signals:
            _Originals.raise_signal(self.signals.pop(0))

    def _next(self) -> Turn:
        """Return the thread that runs next: one that can go on, or the first that the world lets go on."""
        self._is_changing = True
        while not self._ready:
            self._ask()
        ready = self._ready
        return ready.pop(self._random.randrange(len(ready)) if len(ready) > 1 else 0)

    def _ask(self) -> None:
        """Ask the world for what comes first of all that threads wait for."""
        link, parked = self._link, list(self._parked)
        if len(parked) == 1 and not parked[0].waits_for_thread:
            (only,) = parked
            only.found = link.ask("poll", only.timeout, only.watched)
            self.wake(only)
            return
        masks: dict[int, int] = {}
        for turn in parked:
            for fd, mask in turn.watched:
                masks[fd] = masks.get(fd, 0) | mask
        times = [each.until_us for each in parked if each.until_us is not None]
        if not times and not self.signals and all(each.waits_for_thread for each in parked):
            self._check_deadlock()
        wait_s = max(0, min(times) - link.now_us) / 1e6 if times else None
        events = dict(link.ask("poll", wait_s, list(masks.items())))
        for turn in parked:
            turn.found = [
                (fd, found) for fd, mask in turn.watched if (found := events.get(fd, 0) & (mask | _ALWAYS))
            ]
            if turn.found or (turn.until_us is not None and turn.until_us <= link.now_us):
                self.wake(turn)

    def take_signal(self, number: int) -> None:
        """Let the main thread handle a signal, at once if it runs."""
        self.signals.append(number)
        if self.current is self.main and not self._is_changing:
            _Originals.raise_signal(self.signals.pop(0))
        else:
            self.wake(self.main)

    # -- lives ----------------------------------------------------------------------------------------------

    def start(self, start: Callable[..., Any], work: Callable[[], object], owner: object) -> Any:
        """Start a thread, which runs when it is its turn; `start` is the function of the machine for it."""
        turn = Turn()
        if isinstance(owner, threading.Thread):
            turn.thread = owner
            self._of[owner] = turn
        result = start(partial(self._live, turn, work))
        self._ready.append(turn)
        return result

    def _live(self, turn: Turn, work: Callable[[], object]) -> None:
        turn.ident = threading.get_ident()
        # Python's handlers run in the main thread, which this one may keep waiting.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF})
        turn.baton.acquire()
        self._begin_turn()
        self._is_changing = False
        PROCESS.set(self._link.process)
        try:
            work()
        except SystemExit:
            pass
        except BaseException as error:
            traceback.print_exc()
            self._end_if_refused(error)
        self._ended = turn.thread
        if turn.thread is not None:
            self._of.pop(turn.thread, None)
        for each in turn.joiners:
            self.wake(each)
        following = self.current = self._next()
        following.baton.release()

    def _begin_turn(self) -> None:
        """Wait until the system has ended the thread that ran before, so that no two run at a time."""
        ended, self._ended = self._ended, None
        if ended is not None:
            _Originals.join(ended)

    def join(self, thread: threading.Thread, timeout: float | None) -> None:
        """Do what `Thread.join` does."""
        turn = self._of.get(thread)
        if turn is not None and turn is not self.current:
            until_us = self.until(timeout)
            while self._of.get(thread) is turn:
                if not self.wait_for_thread(turn.joiners, until_us):
                    return
        _Originals.join(thread, timeout)

    def finish(self) -> None:
        """Wait for threads as Python does before it exits."""
        for each in reversed(getattr(threading, "_threading_atexits", ())):
            each()
        while waiting := [each for each in self._of if not each.daemon]:
            self.join(waiting[0], None)

    def _failed(self, args: Any) -> None:
        """Handle an exception that has ended a thread: a refusal ends the run."""
        self._end_if_refused(args.exc_value)
        _Originals.excepthook(args)

    def _end_if_refused(self, error: BaseException | None) -> None:
        if isinstance(error, OutsideWorld):
            self._link.end_run("refused", str(error))

    # -- telling --------------------------------------------------------------------------------------------

    def frame(self) -> FrameType | None:
        """Return the innermost frame of the thread that runs."""
        return sys._current_frames().get(self.current.ident)

    def _check_deadlock(self) -> None:
        """End the run if the threads wait for each other and no handler of a signal can end that."""
        if any(
            callable(each := signal.getsignal(number)) and each is not signal.default_int_handler
            for number in _ENDING
        ):
            return
        frames = sys._current_frames()
        lines = []
        for turn in self._parked:
            name = "the main thread" if turn.thread is None else turn.thread.name
            stack = list(stack_of(frames.get(turn.ident)))
            place = " > ".join(user_lines(stack)) or place_in(stack) or "a line that is not known"
            lines.append(f"\n  {name}: {place}")
        self._link.end_run(
            "stuck",
            f"threads of {self._link.name} wait for each other, and nothing can end that:{''.join(lines)}",
        )


RUNNING: Final[list[Threads]] = []
"""The threads of this process, once its program runs."""


class Lock:
    """Replaces `threading.Lock`. Without threads, as while a template imports, it is never waited for."""

    __slots__ = ("__weakref__", "_is_locked", "_waiters")

    def __init__(self) -> None:
        self._is_locked = False
        self._waiters: list[Turn] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take the lock; false if it could not be taken in time."""
        if timeout != -1 and (timeout < 0 or not blocking):
            raise ValueError("a timeout needs a blocking call, and must not be negative")
        if self._take():
            return True
        if not blocking:
            return False
        if not RUNNING:
            raise OutsideWorld("a lock is taken that no thread can release while a program is imported")
        threads = RUNNING[-1]
        until_us = threads.until(None if timeout == -1 else timeout)
        while not self._take():
            if not threads.wait_for_thread(self._waiters, until_us):
                return False
        return True

    def _take(self) -> bool:
        was_locked, self._is_locked = self._is_locked, True
        return not was_locked

    __enter__ = acquire

    def release(self) -> None:
        """Release it."""
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        if RUNNING:
            RUNNING[-1].wake_one(self._waiters)

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        """Return true if it is taken."""
        return self._is_locked

    def _at_fork_reinit(self) -> None:
        self._is_locked, self._waiters = False, []

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle '_thread.lock' object")

    def __repr__(self) -> str:
        return f"<{'' if self._is_locked else 'un'}locked lock of a simulated world>"


def _threads() -> Threads:
    if not RUNNING:
        sys.audit("_thread.start_new_thread")
        raise OutsideWorld("a thread can't be started while a program is imported for several processes")
    return RUNNING[-1]


def start_new_thread(function: Any, args: tuple[Any, ...], kwargs: Any = None, /) -> int:
    """Stand in for `_thread.start_new_thread`."""
    work = partial(function, *args, **(kwargs or {}))
    ident: int = _threads().start(
        lambda live: _Originals.start_new_thread(live, ()), work, getattr(function, "__self__", None)
    )
    return ident


def start_joinable_thread(function: Any, handle: Any = None, daemon: bool = True) -> Any:
    """Stand in for `_thread.start_joinable_thread`, with which threads start since Python 3.13."""
    start = partial(_Originals.start_joinable_thread, handle=handle, daemon=daemon)
    return _threads().start(start, function, getattr(function, "__self__", None))


def joined(self: threading.Thread, timeout: float | None = None) -> None:
    """Stand in for `Thread.join`."""
    if RUNNING:
        RUNNING[-1].join(self, timeout)
    else:
        _Originals.join(self, timeout)


_numbers: Final = itertools.count(1)
_NUMBER: Final = "_fencepost_number"


def _hash_by_number(self: threading.Thread) -> int:
    """Return the hash of a thread: executors keep theirs in sets, and join them in the order of these."""
    if _NUMBER not in self.__dict__:
        self.__dict__[_NUMBER] = next(_numbers)
    number: int = self.__dict__[_NUMBER]
    return number


class _AcquiredByBlock:
    """The parameters of `acquire` in `multiprocessing`, for a lock of threads."""

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take it; false if that would have to wait for longer than the timeout, in seconds."""
        options = {} if timeout is None or not block else {"timeout": max(0, timeout)}
        taken: bool = super().acquire(block, **options)  # type: ignore[misc]
        return taken

    __enter__ = acquire


class OneProcessLock(_AcquiredByBlock, Lock):
    """Replaces `multiprocessing.Lock`."""


class OneProcessRLock(_AcquiredByBlock, threading._RLock):  # type: ignore[misc]  # final in stubs only
    """Replaces `multiprocessing.RLock`."""


class OneProcessSemaphore(_AcquiredByBlock, threading.Semaphore):
    """Replaces `multiprocessing.Semaphore`."""


class OneProcessBoundedSemaphore(_AcquiredByBlock, threading.BoundedSemaphore):
    """Replaces `multiprocessing.BoundedSemaphore`."""


class OneProcessCondition(threading.Condition):
    """Replaces `multiprocessing.Condition`."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__(OneProcessRLock() if lock is None else lock)


class OneProcessQueue(queue.Queue[Any]):
    """Replaces the queues of `multiprocessing`, between threads: no other process can be started."""

    _is_closed = False

    def put(self, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        """Put an object, as a copy.

        :raises ValueError: if the queue is closed.
        """
        self._check_open()
        super().put(obj, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an object.

        :raises ValueError: if the queue is closed.
        """
        self._check_open()
        return super().get(block, timeout)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"Queue {self!r} is closed")

    def _put(self, item: Any) -> None:
        super()._put(bytes(ForkingPickler.dumps(item)))

    def _get(self) -> Any:
        return ForkingPickler.loads(super()._get())

    def close(self) -> None:
        """Let no more objects be put or taken."""
        self._is_closed = True

    def join_thread(self) -> None:
        """Do nothing: each object is there as soon as it is put."""

    cancel_join_thread = join_thread


_OF_MULTIPROCESSING: Final[dict[str, Callable[..., Any]]] = {
    "Lock": OneProcessLock,
    "RLock": OneProcessRLock,
    "Semaphore": OneProcessSemaphore,
    "BoundedSemaphore": OneProcessBoundedSemaphore,
    "Condition": OneProcessCondition,
    "Event": threading.Event,
    "Barrier": threading.Barrier,
    **dict.fromkeys(("Queue", "JoinableQueue", "SimpleQueue"), OneProcessQueue),
}
"""Substitutes for what `multiprocessing` has for several processes, in programs that are one, as libraries
such as loguru use it."""


def methods_of_threads() -> Iterator[tuple[type, str, Any]]:
    """Yield each method of threads that has a substitute: its class, its name, the substitute."""
    yield threading.Thread, "join", joined
    yield threading.Thread, "__hash__", _hash_by_number
    for name, make in _OF_MULTIPROCESSING.items():
        yield BaseContext, name, staticmethod(make)


def functions_of_threads() -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield each function and class of threads that has a substitute: its module, its name, the substitute.

    All others, such as conditions, queues and executors, are Python's own, on top of these.
    """
    yield _thread, "allocate_lock", Lock
    if hasattr(_thread, "lock"):
        yield _thread, "lock", Lock  # which is `threading.Lock` since Python 3.13
    yield _thread, "RLock", threading._RLock
    yield threading, "RLock", threading._RLock
    yield _thread, "start_new_thread", start_new_thread
    if hasattr(_thread, "start_joinable_thread"):
        yield _thread, "start_joinable_thread", start_joinable_thread
    for name, make in _OF_MULTIPROCESSING.items():
        yield multiprocessing, name, make
    yield _queue, "SimpleQueue", queue._PySimpleQueue  # type: ignore[attr-defined]


def replace_locks() -> None:
    """Replace the locks that loaded modules have made."""
    simple, reentrant = _Originals.lock_types
    for module in tuple(sys.modules.values()):
        for name, value in tuple(vars(module).items()) if isinstance(module, ModuleType) else ():
            if type(value) in (simple, reentrant):
                vars(module)[name] = Lock() if type(value) is simple else threading._RLock()
    for reference in logging._handlerList:  # type: ignore[attr-defined]
        if (handler := reference()) is not None:
            handler.createLock()
