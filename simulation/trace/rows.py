"""Collects the rows of one run: hashes them for the digest, and hands them on in batches.

Rows gather as events, without fields that are the same for all rows or can be counted. Memory stays flat: a
full batch is hashed, written if there is a sink, and dropped. The digest depends on nothing but the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias, overload

import msgspec

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.trace.schema import Row, RowKind

BATCH_ROWS: Final = 8_192

Event: TypeAlias = tuple[int, str, str, str, str, int, int, tuple[TopicPartition, ...], str, str]
"""A row without `seq`, `world` and `group`. A plain tuple, because named ones cost three times as much."""


class RowBatch(Sequence[Row]):
    """Rows by columns, as most writers want them; a row is made when it is read."""

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = columns
        """One for each field of a row, in their order."""

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Row]:
        return map(Row._make, zip(*self.columns, strict=True))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...

    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return RowBatch([column[index] for column in self.columns])
        return Row._make(column[index] for column in self.columns)


class TraceSink(Protocol):
    """A receiver of batches of rows, such as a Parquet file."""

    def write(self, rows: Sequence[Row], /) -> None:
        """Take a batch; its rows do not change afterwards."""


class OwnershipTrace:
    """Passes on only the rows about rebalances and ownership, and the ends of the run.

    Tables of rebalances and downtime are the same without all other rows, which are most of a trace.
    """

    def __init__(self, sink: TraceSink) -> None:
        self._sink = sink

    def write(self, rows: Sequence[Row], /) -> None:
        """Take a batch."""
        kept = [row for row in rows if row.kind in _OF_OWNERSHIP or _joins(row)]
        if kept:
            self._sink.write(kept)


_OF_OWNERSHIP: Final = frozenset(
    {
        RowKind.RUN_START,
        RowKind.RUN_END,
        RowKind.GROUP_EPOCH,
        RowKind.GROUP_STATE,
        RowKind.CALLBACK_BEGIN,
        RowKind.CALLBACK_END,
        RowKind.HOST,
        RowKind.MEMBER_REMOVED,
        RowKind.TOPIC,
        RowKind.VIOLATION,
    }
)


def _joins(row: Row) -> bool:
    """Return true for a response with which a fenced member becomes a member again."""
    return row.kind == RowKind.HEARTBEAT and row.detail.startswith(("join", "full"))


class TraceRows:
    """The trace of one run as it grows. `seq` is the number of the last row."""

    __slots__ = ("_encoder", "_events", "_fixed", "_hash", "_sink", "seq")

    def __init__(self, *, world: str, group: str, sink: TraceSink | None = None) -> None:
        self.seq = 0
        self._fixed = (world, group)
        self._sink = sink
        self._events: list[Event] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._hash = hashlib.blake2b(self._encoder.encode(self._fixed), digest_size=16)

    def add(
        self,
        t_us: int,
        actor: str,
        kind: str,
        *,
        state_from: str = "",
        state_to: str = "",
        member_epoch: int = -1,
        group_epoch: int = -1,
        partitions: tuple[TopicPartition, ...] = (),
        error: str = "",
        detail: str = "",
    ) -> None:
        """Record one event; missing epochs are -1."""
        states = (state_from, state_to)
        self.append((t_us, actor, kind, *states, member_epoch, group_epoch, partitions, error, detail))

    def append(self, event: Event) -> None:
        """Record one event, given without the columns that are the same for all rows. The hot path."""
        self.seq = seq = self.seq + 1
        self._events.append(event)
        if not seq % BATCH_ROWS:  # only the last batch of a run ends early
            self.flush()

    def flush(self) -> None:
        """Hash the gathered rows, and pass them on."""
        events, self._events = self._events, []
        if events:
            self._hash.update(self._encoder.encode(events))
            if self._sink is not None:
                self._sink.write(self._rows(events))

    def _rows(self, events: list[Event]) -> RowBatch:
        size = len(events)
        world, group = self._fixed
        moments, *others = zip(*events, strict=True)
        numbers = range(self.seq - size + 1, self.seq + 1)
        return RowBatch([numbers, moments, (world,) * size, (group,) * size, *others])

    def digest(self) -> str:
        """A hash of all rows so far, 32 hexadecimal digits. Ends a batch: ask once, at the end."""
        self.flush()
        return self._hash.hexdigest()
