"""Merges the events of members and the coordinator's journal into one order, by time and by cause.

Members stamp their events with the microsecond, a broker its records with the millisecond, and both arrive
late. So everything is pushed first and then released by time, under three rules. The events of one source
keep their order. An event that can only have followed from a record waits for that record. The record of a
commit waits for the member that reported it. A record's time is the end of its millisecond, so that what a
member did before its request comes before the record that the request led to.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

import msgspec

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import SyncGroupRequest, SyncGroupResponse
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH, MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Request, Response

T = TypeVar("T")

PATIENCE_US: Final = 30_000_000
"""Maximum time that an event waits for a record, in microseconds."""
_READINGS: Final = 50

LOG: Final = ""
"""The name of the journal as a source; members have their hosts' names."""


class RunClock:
    """One time for a run: microseconds since its start, for monotonic and for wall-clock times.

    Members and brokers run on machines with the same clocks, or with synchronized ones.
    """

    def __init__(self, began_us: int) -> None:
        """`began_us` is the start of the run, in microseconds of `time.monotonic_ns`."""
        monotonic_us, wall_us = _both_clocks()
        self._began_wall_us = wall_us - (monotonic_us - began_us)

    def of_wall(self, wall_ms: int) -> int:
        """Return the last microsecond of a millisecond of a broker's clock; not before the start."""
        return max(wall_ms * 1_000 + 999 - self._began_wall_us, 0)


def _both_clocks() -> tuple[int, int]:
    """Return the monotonic and the wall clock at one moment, in microseconds.

    A process may be held up between two readings, and then all records of the run would seem too early. So
    the quickest of several attempts counts.
    """
    attempts = []
    for _ in range(_READINGS):
        before = time.monotonic_ns()
        wall = time.time_ns()
        attempts.append((time.monotonic_ns() - before, before, wall))
    took, before, wall = min(attempts)
    return (before + took // 2) // 1_000, wall // 1_000


class _Held(msgspec.Struct, Generic[T], frozen=True, gc=False):
    t_us: int
    number: int
    item: T
    after: Hashable | None
    marks: tuple[Hashable, ...]


class Merge(Generic[T]):
    """Brings what sources push into one order. Each source pushes in its own order, before the first item
    is released."""

    def __init__(self, *, patience_us: int = PATIENCE_US) -> None:
        self._patience_us = patience_us
        self._queues: dict[str, deque[_Held[T]]] = {}
        """The items that each source has pushed. The first of each queue is in `_next`."""
        self._next: list[tuple[int, bool, int, str]] = []
        """A heap of the first items of queues: the time of release, members' after the journal's; number and
        source. One that waits is in twice once that has come."""
        self._waiting: dict[Hashable, list[str]] = {}
        self._marks: set[Hashable] = set()
        self._pushed = 0

    def push(
        self,
        source: str,
        t_us: int,
        item: T,
        *,
        after: Hashable | None = None,
        marks: Iterable[Hashable] = (),
    ) -> None:
        """Take an item in. It comes after the item with the mark `after`, and `marks` are its own."""
        queue = self._queues.setdefault(source, deque())
        self._pushed += 1
        t_us = max(t_us, queue[-1].t_us) if queue else t_us
        queue.append(_Held(t_us, self._pushed, item, after, tuple(marks)))

    def drain(self) -> Iterator[tuple[int, T]]:
        """Release all items, each at its time in the merged order, which never decreases."""
        for source in self._queues:
            self._line_up(source)
        now_us = 0
        while self._next:
            _, _, number, source = heappop(self._next)
            queue = self._queues[source]
            if queue and queue[0].number == number:  # it was not released before
                held = queue.popleft()
                for mark in held.marks:
                    self._show(mark)
                if queue:
                    self._line_up(source)
                now_us = max(now_us, held.t_us)
                yield now_us, held.item

    def _line_up(self, source: str) -> None:
        """Line up the first item of a queue."""
        first = self._queues[source][0]
        if first.after is None or first.after in self._marks:
            heappush(self._next, (first.t_us, source != LOG, first.number, source))
        else:
            self._waiting.setdefault(first.after, []).append(source)
            heappush(self._next, (first.t_us + self._patience_us, True, first.number, source))

    def _show(self, mark: Hashable) -> None:
        self._marks.add(mark)
        for source in self._waiting.pop(mark, ()):
            queue = self._queues[source]
            if queue and queue[0].after == mark:
                heappush(self._next, (queue[0].t_us, source != LOG, queue[0].number, source))


# -- marks: what records and requests show, and what can only follow them ---------------------------------


def _standing(member_id: MemberId, epoch: int, assigned: Partitions | None) -> Hashable:
    return member_id, epoch, None if assigned is None else tuple(sorted(assigned.items()))


def _generation(generation: int) -> Hashable:
    return "generation", generation


def mark_before_sync(request: Request, response: Response) -> Hashable | None:
    """Return the mark that a classic member's assignment waits for: the record of its generation."""
    if isinstance(request, SyncGroupRequest) and isinstance(response, SyncGroupResponse):
        return _generation(request.generation) if response.error_code is ErrorCode.NONE else None
    return None


def marks_of(records: Iterable[r.Record]) -> Iterator[Hashable]:
    """Yield what these records show of members: each epoch that one reaches, with its assignment at that
    epoch."""
    for record in records:
        key, value = record.key, record.value
        if isinstance(value, r.GroupMetadataValue):
            yield _generation(value.generation)
        if not isinstance(key, r.ConsumerGroupCurrentMemberAssignmentKey):
            continue
        if isinstance(value, r.ConsumerGroupCurrentMemberAssignmentValue):
            yield _generation(value.member_epoch)
            yield _standing(key.member_id, value.member_epoch, None)
            yield _standing(key.member_id, value.member_epoch, value.assigned)
        else:
            yield _standing(key.member_id, LEAVE_EPOCH, None)


def marks_of_commit(request: OffsetCommitRequest) -> Iterator[Hashable]:
    """Yield the marks of a member that is about to commit."""
    for partition, value in request.offsets.items():
        yield partition.topic, partition.partition, value.offset


def commit_before(records: Iterable[r.Record]) -> Hashable | None:
    """Return the mark that these records wait for: that of their first commit. None if there is no commit."""
    for record in records:
        key, value = record.key, record.value
        if isinstance(key, r.OffsetCommitKey) and isinstance(value, r.OffsetCommitValue):
            return key.topic, key.partition, value.offset
    return None


def mark_before(member_id: MemberId, response: Response | Exception) -> Hashable | None:
    """Return the mark that a response to a member waits for: its content's record. None without content."""
    if not isinstance(response, ConsumerGroupHeartbeatResponse) or response.error_code is not ErrorCode.NONE:
        return None
    return _standing(response.member_id or member_id, response.member_epoch, response.assignment)
