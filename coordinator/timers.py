"""Deadlines as data: a shell looks at the next one, and a test runs them without sleeping."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

from fencepost.coordinator.protocol.ids import MemberId

K = TypeVar("K", bound=Hashable)

WRITE_RETRY_MS = 500
"""A timer whose records could not be appended runs again after this time."""
METADATA_REFRESH_INTERVAL_MS = 2**31 - 1
_EXPIRED_MS = -(2**63)


def next_look_ms(deadline_ms: int, now_ms: int) -> int:
    """Return the time, in ms, at which to check a deadline that is moved on as time passes.

    It is the last whole second before the deadline, shared with all other deadlines of that second, and after
    that the deadline itself. So thousands of members that keep sending heartbeats do not wake the coordinator
    one by one.
    """
    whole_second_ms = deadline_ms // 1_000 * 1_000
    return whole_second_ms if whole_second_ms > now_ms else deadline_ms


class Timers(Generic[K]):
    """A queue of deadlines, one for each key. Equal deadlines run in the order in which they were set.

    Setting a later deadline for a key costs O(1): the queue notices when the earlier deadline is reached.
    """

    __slots__ = ("_deadlines", "_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, K]] = []
        """May hold entries that are out of date: earlier than the key's deadline, or of another setting."""
        self._deadlines: dict[K, tuple[int, int, int]] = {}
        """By key: the deadline, its sequence number, and the time under which the heap has it."""
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._deadlines)

    def __contains__(self, key: object) -> bool:
        return key in self._deadlines

    def __iter__(self) -> Iterator[K]:
        """Return the keys of all armed timers."""
        return iter(self._deadlines)

    def set(self, key: K, deadline_ms: int) -> None:
        """Arm the key's timer, or move it."""
        self._sequence += 1
        known = self._deadlines.get(key)
        if known is not None and known[2] <= deadline_ms:
            self._deadlines[key] = deadline_ms, self._sequence, known[2]
        else:
            self._push(key, deadline_ms, self._sequence)

    def cancel(self, key: K) -> None:
        """Disarm the key's timer, if it has one."""
        if self._deadlines.pop(key, None) is not None and len(self._heap) > 2 * len(self._deadlines) + 64:
            self._rebuild()

    def clear(self) -> None:
        """Disarm all timers."""
        self._heap.clear()
        self._deadlines.clear()

    def deadline_of(self, key: K) -> int | None:
        """Return the key's deadline in ms, or None if it is not armed."""
        known = self._deadlines.get(key)
        return None if known is None else known[0]

    def next_deadline(self) -> int | None:
        """Return the earliest deadline, or None if no timer is armed."""
        while self._heap:
            at, sequence, key = self._heap[0]
            known = self._deadlines.get(key)
            if known is not None and known[0] == at and known[1] == sequence:
                return at
            # The entry is out of date: update it.
            heapq.heappop(self._heap)
            if known is not None and known[2] == at:
                self._push(key, known[0], known[1])
        return None

    def pop_due(self, now_ms: int) -> K | None:
        """Disarm the most overdue timer and return its key; None if no timer is due."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._deadlines[key]
        return key

    def _push(self, key: K, deadline_ms: int, sequence: int) -> None:
        self._deadlines[key] = deadline_ms, sequence, deadline_ms
        heapq.heappush(self._heap, (deadline_ms, sequence, key))

    def _rebuild(self) -> None:
        self._heap = [(at, sequence, key) for key, (at, sequence, _) in self._deadlines.items()]
        self._deadlines = {key: (at, sequence, at) for at, sequence, key in self._heap}
        heapq.heapify(self._heap)


class GroupTimerKind(enum.StrEnum):
    """The purpose of a deadline of a group, or of one of its members."""

    SESSION = "session"
    """The member sent no request for its session timeout, or no client joined with an id that was given
    out."""
    REBALANCE = "rebalance"
    """The member did not confirm a revocation within its rebalance timeout."""
    JOIN = "join"
    """The members of a classic group, or one classic member of a consumer group, did not join again."""
    SYNC = "sync"
    """They joined, and did not ask for their assignment."""
    INITIAL = "initial"
    """The streams group has waited for members long enough, and gets its first target."""


class GroupTimerKey(NamedTuple):
    """One deadline."""

    kind: GroupTimerKind
    group_id: str
    member_id: MemberId = ""
    """Empty if the deadline is the whole group's."""


class MetadataRefresh:
    """The next time that a group looks at its topics: a deadline in its soft state, checked at its next
    heartbeat."""

    __slots__ = ("refresh_deadline_ms", "refresh_epoch")

    def __init__(self) -> None:
        self.refresh_deadline_ms = _EXPIRED_MS
        self.refresh_epoch = 0
        """The group epoch that the last look led to."""

    def metadata_expired(self, group_epoch: int, now_ms: int) -> bool:
        """Return true if the group must look at its topics again.

        It must if it was just created or loaded, if its topics changed, or if the epoch of the last look was
        never written.
        """
        return now_ms >= self.refresh_deadline_ms or group_epoch < self.refresh_epoch

    def metadata_refreshed(self, group_epoch: int, now_ms: int) -> None:
        """Note that the group's topics were looked at, for that epoch."""
        self.refresh_deadline_ms = now_ms + METADATA_REFRESH_INTERVAL_MS
        self.refresh_epoch = group_epoch

    def request_metadata_refresh(self) -> None:
        """Make the next heartbeat of any member look at the topics, as topics changed."""
        self.refresh_deadline_ms = _EXPIRED_MS
        self.refresh_epoch = 0
