"""The journal in memory: acknowledged records, as long as the process lives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar

from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.sac_records import SacRecord


class _Keyed(Protocol):
    """A record: its key and its value. A value of None is a tombstone."""

    @property
    def key(self) -> Hashable: ...

    @property
    def value(self) -> object: ...


_R = TypeVar("_R", bound=_Keyed)


class RecordBatches(Generic[_R]):
    """An append-only list of record batches. Each batch is one outcome, kept whole or not at all.

    With `compact_beyond`, an append compacts the list when it exceeds that length, and twice the length after
    the last compaction. `now_ms` tells the time of an append; without it all happen at 0.
    """

    __slots__ = ("_batches", "_compact_beyond", "_length", "_limit", "_now_ms", "_times_ms")

    def __init__(
        self,
        batches: Iterable[tuple[_R, ...]] = (),
        *,
        compact_beyond: int | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._now_ms = now_ms
        self._batches = [batch for batch in batches if batch]
        self._times_ms = [0] * len(self._batches)
        self._length = sum(map(len, self._batches))
        self._compact_beyond = self._limit = compact_beyond

    def append(self, records: tuple[_R, ...]) -> None:
        """Keep one batch, unless it has no records."""
        if records:
            self._batches.append(records)
            self._times_ms.append(self._now_ms())
            self._length += len(records)
            if self._limit is not None and self._length > self._limit:
                self.compact()
                self._limit = max(self._compact_beyond or 0, 2 * self._length)

    def __iter__(self) -> Iterator[_R]:
        return chain.from_iterable(self._batches)

    def __len__(self) -> int:
        return self._length

    def batches(self) -> Iterator[tuple[_R, ...]]:
        """Return the batches in order; a replay may stop after any of them."""
        return iter(self._batches)

    def dated(self) -> Iterator[tuple[int, tuple[_R, ...]]]:
        """Return the batches in order, each after the time of its append in ms."""
        return zip(self._times_ms, self._batches, strict=True)

    def truncate(self, batches: int) -> None:
        """Forget all but the first batches: the loss of a failover before replication."""
        del self._batches[batches:], self._times_ms[batches:]
        self._length = sum(map(len, self._batches))

    def compact(self, *, keep_tombstones: bool = False) -> None:
        """Keeps the newest record of each key, in order, and batches in their bounds.

        Tombstones go too unless they are kept, as Kafka's cleaner keeps them for delete.retention.ms.
        """
        seen: set[Hashable] = set()
        survivors = []
        for time_ms, batch in zip(reversed(self._times_ms), reversed(self._batches), strict=True):
            kept = []
            for record in reversed(batch):
                key = record.key
                if key not in seen:
                    seen.add(key)
                    if keep_tombstones or record.value is not None:
                        kept.append(record)
            if kept:
                survivors.append((time_ms, tuple(reversed(kept))))
        survivors.reverse()
        self._times_ms = [time_ms for time_ms, _ in survivors]
        self._batches = [batch for _, batch in survivors]
        self._length = sum(map(len, self._batches))


class MemoryJournal(RecordBatches[Record]):
    """The journal of a group coordinator."""

    __slots__ = ()


class SacMemoryJournal(RecordBatches[SacRecord]):
    """The journal of a coordinator of single active consumers."""

    __slots__ = ()
