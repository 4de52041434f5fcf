"""The server's time, divided fairly among its clients, in short turns of the loop.

All work for clients comes in pieces: the requests that a connection sent, a part of a long handler, a slice
of sliced work, writing a long response. A piece runs at once while no other one waits. Then pieces wait for
their turn: half of the time is for clients whose pieces are short, one piece of each, and the other half for
those of clients that used less time first.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from fencepost.coordinator.codec.schema import UNCOUNTED_BYTES
from fencepost.coordinator.protocol.slices import LARGE, MEDIUM, Sliced

if TYPE_CHECKING:
    from fencepost.coordinator.server.services import Asked, Services

R = TypeVar("R")

TURN_S: Final = 0.05
"""Time after which no further piece of work runs in a turn of the loop, in s."""
_NOTED_S: Final = TURN_S / 4
"""Work of this many seconds may be counted in a later turn: to notice each turn would cost too much."""
PIECE_S: Final = 0.001
"""Time after which a connection takes no further request in one piece of work, in s."""
_ROUND_S: Final = 0.2
"""Time that a round of pieces, one of each client that waits, takes at most, in s: the more clients wait, the
shorter are the pieces."""
_SHORT_S: Final = PIECE_S / 4
"""Time below which a piece is short, in s. Clients with short ones have half of a turn: a crowd of others
does not delay them."""
_LARGE_DELAY_S: Final = TURN_S / 5
"""Time by which large work is behind, in s, since one slice of it may take longer than a turn: other clients
that used up to that much more time are served first."""


class Share:
    """One client's share of the server's time.

    `due_s` is the virtual time of its next piece of work, as in start-time fair queueing: that of a client
    moves on by the seconds that its work took, short pieces in the half for them excepted.
    """

    __slots__ = ("due_s", "expected_s", "piece")

    def __init__(self) -> None:
        self.due_s = 0.0
        self.expected_s = PIECE_S
        """Time that its last piece took, in s, which the next one may take too; at most `PIECE_S`, as for
        a new client."""
        self.piece: Callable[[], None] | None = None
        """Its next piece of work, while it is among the clients with short ones that wait."""


class FairTurns:
    """Runs pieces of work, in turns of at most `TURN_S` and one piece.

    Its clock is the running loop's. A turn is over by that clock and by the thread's CPU time.
    """

    __slots__ = (
        "_began_s",
        "_clock",
        "_cpu_began_s",
        "_cpu_clock",
        "_cpu_noted_s",
        "_is_armed",
        "_long",
        "_now_s",
        "_numbers",
        "_runs",
        "_short",
        "_spent_s",
        "is_crowded",
    )

    def __init__(self) -> None:
        self._clock: Callable[[], float] | None = None
        self._short: deque[Share] = deque()
        """Clients with short pieces that wait, one each, in the order of their work."""
        self._long: list[tuple[float, int, Share, Callable[[], None]]] = []
        """Heap of the work of other clients, by its virtual time."""
        self._numbers = itertools.count()
        self._now_s = 0.0
        """Virtual time: when the piece was due that runs, or ran last."""
        self._spent_s = 0.0
        self._began_s = 0.0
        self._cpu_clock = time.thread_time
        self._cpu_began_s = self._cpu_noted_s = 0.0
        self._runs: Share | None = None
        """The client that the running piece is charged to."""
        self._is_armed = False
        self.is_crowded = False
        """True while a piece runs, others wait, or the time of this turn is over."""

    def run(self, share: Share, piece: Callable[[], None], delay_s: float = 0.0) -> None:
        """Run a piece of work for a client: now if no other one waits, else in its turn.

        It is `delay_s` seconds behind the client's other work.
        """
        if self.is_crowded:
            is_short = share.expected_s < _SHORT_S and share is not self._runs and not delay_s
            if is_short and share.piece is None:
                share.piece = piece
                self._short.append(share)
            else:
                due_s = self.due_s(share) + delay_s
                heapq.heappush(self._long, (due_s, next(self._numbers), share, piece))
            self._arm()
            return
        self.begin(share)
        try:
            piece()
        finally:
            self.end()

    def begin(self, share: Share) -> None:
        """Note that a piece of work for a client begins; `end` follows. Not while it `is_crowded`."""
        if share.due_s > self._now_s and not self._long:
            self._now_s = share.due_s
        self.is_crowded = True
        self._runs = share
        clock = self._clock
        if clock is None:
            clock = self._clock = asyncio.get_running_loop().time
        self._began_s = clock()

    def charge(self, share: Share) -> None:
        """Charge the piece that runs to another client than the one whose turn it took."""
        self._runs = share

    def end(self) -> None:
        """Note that the piece of work is over."""
        took_s = self._took_s()
        share, self._runs = self._runs, None
        assert share is not None
        if took_s < _SHORT_S:
            share.expected_s = took_s
        else:
            self._cpu_noted_s = self._cpu_clock()
            if self._short or self._long:  # else it may have waited for other programs
                # A client with short pieces may have one that took longer by chance.
                share.expected_s = min(took_s, PIECE_S, max(share.expected_s, _SHORT_S / 8) * 4)
        share.due_s = (share.due_s if share.due_s > self._now_s else self._now_s) + took_s
        self._spent_s = spent_s = self._spent_s + took_s
        if spent_s < _NOTED_S:
            self.is_crowded = bool(self._short or self._long)
        else:
            self._arm()
            if spent_s >= TURN_S:  # short pieces, too, may have waited for other programs
                self._spent_s = spent_s = min(spent_s, self._cpu_clock() - self._cpu_began_s)
            self.is_crowded = spent_s >= TURN_S or bool(self._short or self._long)
        if not self.is_crowded:  # no one waited for this piece: it is no debt to those that come next
            self._now_s = share.due_s

    def clear(self) -> None:
        """Drop all work that waits."""
        for share in self._short:
            share.piece = None
        self._short.clear()
        self._long.clear()

    @property
    def is_long(self) -> bool:
        """True if the piece that runs has run for `PIECE_S`, or less if many clients wait."""
        assert self._clock is not None
        took_s = self._clock() - self._began_s
        return took_s >= PIECE_S or took_s * (len(self._short) + len(self._long)) >= _ROUND_S

    def due_s(self, share: Share) -> float:
        """Return the virtual time for the next work of a client."""
        due_s = max(share.due_s, self._now_s)
        return due_s + self._took_s() if share is self._runs else due_s

    def _took_s(self) -> float:
        """Return the time that the running piece took so far, in s."""
        took_s = self._clock() - self._began_s  # type: ignore[misc]  # `begin` has set it
        if took_s >= _SHORT_S:
            # On a busy machine most of it may be time in which other programs ran.
            return min(took_s, self._cpu_clock() - self._cpu_noted_s)
        return took_s

    def _arm(self) -> None:
        if not self._is_armed:
            self._is_armed = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        if self._spent_s >= TURN_S:
            # First the loop reads what clients sent meanwhile.
            self._spent_s = 0.0
            asyncio.get_running_loop().call_soon(self._turn)
            return
        short, long = self._short, self._long
        self._is_armed = self.is_crowded = False
        self._spent_s = 0.0
        self._cpu_began_s = self._cpu_noted_s = self._cpu_clock()
        of_long_s = 0.0
        try:
            for _ in range(len(short) + len(long)):
                self.is_crowded = False
                if short and (not long or of_long_s >= self._spent_s / 2):
                    share = short.popleft()
                    piece, share.piece = cast("Callable[[], None]", share.piece), None
                    due_s = share.due_s
                    self.run(share, piece)
                    if share.due_s < max(due_s, self._now_s) + _SHORT_S:  # no debt in the other half
                        share.due_s = due_s
                else:
                    _, _, share, piece = heapq.heappop(long)
                    self._now_s = max(self._now_s, share.due_s)
                    before_s = self._spent_s
                    self.run(share, piece)
                    of_long_s += self._spent_s - before_s
                if self._spent_s >= TURN_S:
                    break
        finally:
            if short or long:
                self.is_crowded = True
                self._arm()


WORK_PER_TURN = 5_000
"""Work that a handler does in one piece, in cheap elements of a request."""
CHANGE = 250
"""Cost of a change of the cluster's topics, in such elements."""
LONG_BYTES: Final = UNCOUNTED_BYTES
"""Requests above this size are long."""

Work: TypeAlias = Generator[int, None, R]
"""A handler's work: it yields the amount done since its last yield, and returns the response."""
Request = TypeVar("Request")


def in_turns(
    handler: Callable[[Services, Request, Asked], Work[R]],
) -> Callable[[Services, Request, Asked], R | asyncio.Future[R]]:
    """Make a handler of a generator. It returns the response after one piece, else a future of it.

    If the loop is not shared, it always returns the response.
    """

    @functools.wraps(handler)
    def answer(services: Services, request: Request, asked: Asked) -> R | asyncio.Future[R]:
        work = handler(services, request, asked)
        turns = services.turns
        try:
            _do_one_piece(work)
            while turns is None:
                _do_one_piece(work)
        except StopIteration as finished:
            response: R = finished.value
            return response
        future: asyncio.Future[R] = services.loop.create_future()
        share = asked.connection.share

        def go_on() -> None:
            if future.done():
                work.close()
                return
            try:
                _do_one_piece(work)
            except StopIteration as finished:
                future.set_result(finished.value)
            except Exception as error:
                future.set_exception(error)
            else:
                turns.run(share, go_on)

        turns.run(share, go_on)
        return future

    return answer


def _do_one_piece(work: Work[Any]) -> None:
    done = 0
    while done < WORK_PER_TURN:
        done += next(work)


T = TypeVar("T")


class _Queued(NamedTuple):
    """Sliced work that is not done."""

    work: Sliced[Any]
    future: asyncio.Future[Any]
    share: Share


class _Lane:
    """The work of one size: the one that is under way, and those that wait."""

    __slots__ = ("current", "due_s", "runs", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.current: _Queued | None = None
        self.waiting: list[tuple[float, int, _Queued]] = []
        """Heap, by the virtual time of the clients."""
        self.due_s = math.inf
        """Virtual time of its next slice; infinite if none is due."""
        self.runs = 0
        """The number of times that a slice became due. Only the latest one runs."""

    def works(self) -> list[_Queued]:
        """Return all its work."""
        waiting = [queued for _, _, queued in self.waiting]
        return waiting if self.current is None else [self.current, *waiting]


class WorkQueue:
    """Lanes of sliced work on the running loop, one for each size (`MEDIUM`, `LARGE`).

    One piece of work is under way in each of them, which bounds the memory that all clients together take:
    a batch that is being read may take 64 MiB. Work of clients that used less time is first. Meanwhile the
    work that they wait for has their priority, so that no other work delays it, and is charged to its client.
    """

    def __init__(self, turns: FairTurns | None = None) -> None:
        self.slices = 0
        """The number of slices after first ones. Work that sees it change was interrupted."""
        self._turns = FairTurns() if turns is None else turns
        self._lanes = {size: _Lane(size) for size in (MEDIUM, LARGE)}
        self._numbers = itertools.count()

    @property
    def is_idle(self) -> bool:
        """True if no work waits for its next slice."""
        return not any(lane.works() for lane in self._lanes.values())

    def run(self, work: Sliced[T], share: Share) -> T | asyncio.Future[T]:
        """Run the first slice now: the result, or a future of it if more slices follow.

        The first slice is short by definition: it need not wait for the work of others. To cancel the future
        ends the work.
        """
        try:
            size = next(work)
        except StopIteration as end:
            result: T = end.value
            return result
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._wait(_Queued(work, future, share), size or MEDIUM)
        return future

    def close(self) -> None:
        """End all work."""
        lanes = self._lanes.values()
        for queued in [queued for lane in lanes for queued in lane.works()]:
            queued.work.close()
            queued.future.cancel()
        for lane in lanes:
            lane.current, lane.due_s = None, math.inf
            lane.waiting.clear()
            lane.runs += 1

    def _wait(self, queued: _Queued, size: int) -> None:
        lane = self._lanes[size]
        due_s = self._turns.due_s(queued.share)
        heapq.heappush(lane.waiting, (due_s, next(self._numbers), queued))
        self._go_on(lane)

    def _go_on(self, lane: _Lane) -> None:
        """Run a lane's next slice when the first of the clients that wait for it is due."""
        due_s = lane.waiting[0][0] if lane.waiting else math.inf
        if lane.current is not None:
            due_s = min(due_s, self._turns.due_s(lane.current.share))
        if due_s < lane.due_s:
            lane.due_s = due_s
            lane.runs += 1
            turn = Share()
            turn.due_s = due_s
            delay_s = _LARGE_DELAY_S if lane.size == LARGE else _SHORT_S - PIECE_S
            self._turns.run(turn, functools.partial(self._slice, lane, lane.runs), delay_s)

    def _slice(self, lane: _Lane, run: int) -> None:
        if run != lane.runs:
            return  # it ran earlier, in the turn of another client, or all work ended
        lane.due_s = math.inf
        if lane.current is None:
            _, _, lane.current = heapq.heappop(lane.waiting)
        work, future, share = queued = lane.current
        self._turns.charge(share)
        self.slices += 1
        wanted: int | None = None
        try:
            if future.done():
                work.close()
            elif (wanted := next(work)) is None:
                self._go_on(lane)
                return
        except StopIteration as end:
            future.set_result(end.value)
        except Exception as error:
            future.set_exception(error)
        lane.current = None
        if wanted is not None:
            self._wait(queued, max(wanted, lane.size))
        self._go_on(lane)
