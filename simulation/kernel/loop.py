"""An asyncio loop on a virtual clock: integer microseconds, ties in the order of insertion, nothing outside.

A heap of (time, sequence) holds the entries of the near future; later entries wait unsorted in slots of a
tenth of a second. Ready callbacks run first. When there are no more, the clock jumps to the next entry of the
heap. Entries come from asyncio's own timers and from `schedule`. The latter takes a plain function and one
argument and makes no handle; it is for deliveries of the network and timers of hosts.

Runs are repeatable: tasks and futures hash by a counter instead of their address, so that sets of them
(asyncio.wait, anyio, TaskGroup) iterate in the same order in every process. Access to the outside world
(threads, executors, sockets, signals, subprocesses) raises `OutsideWorld`.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
from asyncio import events
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVarTuple, Unpack

Arguments = TypeVarTuple("Arguments")

_PURGE_FROM = 4096
"""Number of cancelled entries from which on they are swept out."""
_SLOT_BITS = 17
"""The length of a slot is 2**17 microseconds: most timers of a host are some slots away, most deliveries are
not."""


class Deadlock(RuntimeError):
    """Raised if tasks wait and no further event is scheduled."""


class TooManyEvents(RuntimeError):
    """Raised if the run exceeds its limit on events: a task spins without time passing, or the limit is too
    low."""


class OutsideWorld(RuntimeError):
    """Raised if code in virtual time uses a thread, a socket, a signal or a process."""


def _count(self: VirtualTask | VirtualFuture) -> int:
    """Return the hash of a task or a future: a number that its loop assigns on first use."""
    try:
        return self._number
    except AttributeError:
        loop: Any = self.get_loop()
        self._number = loop.hashed = loop.hashed + 1
        return self._number


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes by a counter of its loop."""

    __slots__ = ("_number",)
    _number: int
    __hash__ = _count


class VirtualFuture(asyncio.Future[Any]):
    """A future that hashes by a counter of its loop."""

    __slots__ = ("_number",)
    _number: int
    __hash__ = _count


def first_us(when: float) -> int:
    """Return the first whole microsecond that, as a float in seconds, is at least `when`.

    A timer that fires earlier stops a program that waits for a deadline: it sees that the deadline is not
    reached, and waits for the same microsecond again, forever.

    :raises OverflowError: if it is infinite.
    :raises ValueError: if it is no number.
    """
    when_us = int(when * 1_000_000)
    if when_us / 1_000_000 < when:
        when_us += 1
        if when_us / 1_000_000 < when:  # so late that neighbouring floats are more than a microsecond apart
            numerator, denominator = when.as_integer_ratio()
            when_us = -(-numerator * 1_000_000 // denominator)
    return when_us


class Timer:
    """An entry of the heap that can be cancelled."""

    __slots__ = ("_loop", "action", "argument")

    def __init__(self, loop: VirtualLoop, action: Callable[..., Any], argument: Any) -> None:
        self._loop = loop
        self.action: Callable[..., Any] | None = action
        self.argument = argument

    def cancel(self) -> None:
        """Cancel the entry; do nothing if it has run already."""
        if self.action is not None:
            self.action = None
            self.argument = None
            self._loop.note_cancelled()


def _run_timer(timer: Timer) -> None:
    action = timer.action
    if action is not None:
        timer.action = None
        action(timer.argument)


def _run_handle(handle: asyncio.TimerHandle) -> None:
    handle._scheduled = False  # type: ignore[attr-defined]
    if not handle.cancelled():
        handle._run()


def _refusing(what: str) -> Callable[..., NoReturn]:
    """Return a method that refuses a part of asyncio's interface."""

    def refuse(self: VirtualLoop, *_: object, **__: object) -> NoReturn:
        self._refuse(what)

    return refuse


Entry: TypeAlias = tuple[int, int, Callable[[Any], Any], Any]


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is `now_us` and moves only when nothing is left to do at that moment.

    `events` counts what ran: ready callbacks and entries of the heap. `max_events` bounds it.
    """

    if TYPE_CHECKING:  # asyncio's own attributes, which typeshed does not declare
        _ready: Any
        _stopping: bool
        _closed: bool

        def _check_closed(self) -> None: ...

    def __init__(self, *, max_events: int | None = None) -> None:
        super().__init__()
        self.now_us = 0
        self.events = 0
        self.hashed = 0
        self.max_events = max_events
        self.on_task_failed: Callable[[BaseException], None] | None = None
        """Called with the exception that ended a task, whether or not other code waits for the task."""
        self._heap: list[Entry] = []
        """Entries that are due before `_horizon_us`."""
        self._horizon_us = 0
        self._slots: dict[int, list[Entry]] = {}
        """Entries that are due later, by the number of their slot; no slot is empty."""
        self._next_slots: list[int] = []
        """The heap of the slots' numbers."""
        self._sequence = 0
        self._cancelled = 0
        self._thread = threading.get_ident()

    # -- time ---------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self.now_us / 1_000_000

    def schedule(self, when_us: int, action: Callable[[Any], Any], argument: object) -> None:
        """Run `action(argument)` at that time. It can't be cancelled. An exception ends the run."""
        self._sequence = sequence = self._sequence + 1
        if when_us < self._horizon_us:
            heappush(self._heap, (when_us, sequence, action, argument))
            return
        slot = when_us >> _SLOT_BITS
        entries = self._slots.get(slot)
        if entries is None:
            entries = self._slots[slot] = []
            heappush(self._next_slots, slot)
        entries.append((when_us, sequence, action, argument))

    def timer(self, when_us: int, action: Callable[[Any], Any], argument: object) -> Timer:
        """Do the same as `schedule`, but return a timer that can be cancelled."""
        timer = Timer(self, action, argument)
        self.schedule(when_us, _run_timer, timer)
        return timer

    def run_until(self, when_us: int) -> None:
        """Run everything up to that time, and let time pass until then."""
        self.schedule(when_us, self._stop_here, None)
        self.run_forever()

    def _stop_here(self, _: object) -> None:
        self.halt()

    def halt(self) -> None:
        """End the run after this pass, whatever a subclass lets `stop` do."""
        super().stop()

    # -- asyncio's interface -------------------------------------------------------------------------

    def call_soon(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Run the callback before time moves on."""
        if self._closed:
            self._check_closed()
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run the callback at that time of `time()`, never before it; equal times keep their order."""
        self._check_closed()
        handle = events.TimerHandle(when, callback, args, self, context)
        self._schedule_handle(handle, when, _run_handle)
        return handle

    def _schedule_handle(
        self, handle: asyncio.TimerHandle, when: float, run: Callable[[asyncio.TimerHandle], None]
    ) -> None:
        """Schedule a timer for the first moment at which `time()` is at least `when`, which may be never."""
        try:
            when_us = first_us(when)
        except OverflowError:
            if when > 0:
                return
            when_us = 0
        handle._scheduled = True  # type: ignore[attr-defined]
        self.schedule(max(when_us, self.now_us), run, handle)

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run the callback after `delay` virtual seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Arguments]], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Do the same as `call_soon`; from another thread, raise OutsideWorld."""
        if threading.get_ident() != self._thread:
            self._refuse("a call from another thread")
        return self.call_soon(callback, *args, context=context)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """Return a task of this loop, hashed by a counter."""
        self._check_closed()
        task = VirtualTask(coro, loop=self, **options)
        if self.on_task_failed is not None:
            task.add_done_callback(self._look_at)
        return task

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.on_task_failed is not None:
            self.on_task_failed(error)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop, hashed by a counter."""
        return VirtualFuture(loop=self)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if handle._scheduled:  # type: ignore[attr-defined]
            self.note_cancelled()

    def close(self) -> None:
        """Drop all pending entries."""
        super().close()
        self._heap.clear()
        self._slots.clear()
        self._next_slots.clear()

    # -- the run ----------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        """Run one pass for asyncio's `run_forever`: it continues until the loop is stopped."""
        ready, heap = self._ready, self._heap
        limit = sys.maxsize if self.max_events is None else self.max_events
        count = self.events
        try:
            while True:
                if ready:
                    for _ in range(len(ready)):
                        handle = ready.popleft()
                        count += 1
                        if not handle._cancelled:
                            handle._run()
                    if count > limit:
                        self._give_up(limit)
                    if self._stopping:
                        return
                elif self._stopping:
                    return
                else:
                    if not heap:
                        self._open_slot()
                    self.now_us, _, action, argument = heappop(heap)
                    count += 1
                    action(argument)
                    if count > limit:
                        self._give_up(limit)
        finally:
            self.events = count

    def _open_slot(self) -> None:
        """Move the next slot's entries into the empty heap."""
        if not self._next_slots:
            self._report_deadlock()
        slot = heappop(self._next_slots)
        self._horizon_us = (slot + 1) << _SLOT_BITS
        self._heap += self._slots.pop(slot)
        heapify(self._heap)

    def note_cancelled(self) -> None:
        """Count a cancelled entry; remove cancelled entries when they are half of all."""
        self._cancelled += 1
        if self._cancelled % _PURGE_FROM or self._cancelled * 2 < self.pending():
            return
        for entries in (self._heap, *self._slots.values()):
            entries[:] = [entry for entry in entries if not _is_dead(entry)]
        heapify(self._heap)
        self._slots = {slot: entries for slot, entries in self._slots.items() if entries}
        self._next_slots = sorted(self._slots)
        self._cancelled = 0

    def pending(self) -> int:
        """Return the number of entries that wait for their time, cancelled ones included."""
        return len(self._heap) + sum(map(len, self._slots.values()))

    def _give_up(self, limit: int) -> NoReturn:
        raise TooManyEvents(f"{limit} events were not enough; virtual time is {self.now_us} us")

    def _report_deadlock(self) -> NoReturn:
        waiting = sorted(task.get_name() for task in asyncio.all_tasks(self))
        names = ", ".join(waiting[:10])
        raise Deadlock(f"nothing is scheduled at {self.now_us} us, and {len(waiting)} tasks wait: {names}")

    def _refuse(self, what: str) -> NoReturn:
        raise OutsideWorld(f"{what} has no place in virtual time")

    if not TYPE_CHECKING:  # the signatures do not matter for refusals
        run_in_executor = _refusing("a thread")
        add_signal_handler = _refusing("a signal")
        add_reader = _refusing("a socket")
        add_writer = _refusing("a socket")
        create_connection = _refusing("a socket")
        create_server = _refusing("a socket")
        create_datagram_endpoint = _refusing("a socket")
        subprocess_exec = _refusing("a process")
        subprocess_shell = _refusing("a process")


def _is_dead(entry: Entry) -> bool:
    argument = entry[3]
    if isinstance(argument, Timer):
        return argument.action is None
    return isinstance(argument, asyncio.TimerHandle) and argument.cancelled()
