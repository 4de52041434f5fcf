"""One partition's log in memory: batches as received, placed at their offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fencepost.coordinator.codec.batches import (
    LOG_APPEND_TIME,
    BatchHeader,
    belongs_to_transaction,
    checked_batch,
    end_marker,
    is_commit,
    last_offset,
    placed,
    stored_batch,
)
from fencepost.coordinator.codec.record_checks import CheckedBatch, RecordRules, checking
from fencepost.coordinator.codec.record_contents import StoredRecord, first_record, timed
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import AbortedTransaction
from fencepost.coordinator.protocol.slices import Sliced, at_once
from fencepost.coordinator.server.compaction import Compaction
from fencepost.coordinator.server.leaders import EpochStarts
from fencepost.coordinator.server.producers import Producers

MAX_BATCH_BYTES = 1_048_588
"""Kafka's default of max.message.bytes."""
LOG_END = -1
"""Offset that stands for the log's end: deletes all records."""


class ReadRecords(NamedTuple):
    """Batches of a log. `aborted` has the aborted transactions whose records do not count.

    It is None if not even the first batch fits: Kafka discards all that it read then.
    """

    batches: tuple[bytes, ...] = ()
    aborted: tuple[AbortedTransaction, ...] | None = ()


class LogSettings(NamedTuple):
    """A topic's settings for appending to its logs."""

    max_batch_bytes: int = MAX_BATCH_BYTES
    stamps: bool = False
    """True if records get the time at which they are appended."""
    compacts: bool = False
    """True if each record needs a key."""
    before_max_ms: int = 2**63 - 1
    """Maximum age of a record when it arrives, in ms."""
    after_max_ms: int = 3_600_000
    """Maximum time by which a record may be ahead of now, in ms."""
    min_in_sync: int = 1
    """Number of in-sync replicas without which a producer with acks=all is refused."""


class PartitionLog:
    """Appends, reads and searches batches. There is one replica, so the log's end is its high watermark."""

    __slots__ = (
        "_base_offsets",
        "_batches",
        "_before",
        "_cleaned_to",
        "_compaction",
        "_ends",
        "_has_gaps",
        "_latest",
        "_listeners",
        "_max_timestamps",
        "epochs",
        "high_watermark",
        "is_closed",
        "log_start_offset",
        "on_append",
        "producers",
        "settings",
    )

    def __init__(self, leader_epoch: int = 0, *, start: int = 0) -> None:
        self.epochs = EpochStarts()
        self.epochs.begin(leader_epoch, start)
        self.settings = LogSettings()
        self.on_append: Callable[[bytes], None] | None = None
        """Called with each batch at its place, before it can be read."""
        self.is_closed = False
        """True if the topic was deleted."""
        self.log_start_offset = start
        self.high_watermark = start
        self.producers = Producers()
        self._base_offsets: list[int] = []
        self._batches: list[bytes] = []
        self._before = 0
        """Bytes of the log that were deleted from its start."""
        self._ends: list[int] = []
        """Bytes of the log up to and with each batch, deleted ones too."""
        self._max_timestamps: list[int] = []
        self._listeners: dict[Callable[[PartitionLog], None], None] = {}
        self._has_gaps = False
        """True if batches are missing between others, and not only at the start."""
        self._cleaned_to = -1
        """The log's end when it was compacted last, with no tombstone left in it."""
        self._compaction: Compaction | None = None
        """The newest one that is not over; an older one is void."""
        self._latest: tuple[bytes, tuple[int, int]] | None = None
        """The last result of `offset_of_max_timestamp`, and the batch that it is about."""

    def checking(
        self, records: bytes | memoryview | None, *, now_ms: int | None = None, name: str = ""
    ) -> Sliced[CheckedBatch]:
        """Check one batch for `append`; only a very large one takes more than one slice.

        `now_ms` decides which records are too old or too far ahead. `name` is for messages.
        :raises ProtocolError: with Kafka's error code for such a batch.
        """
        settings = self.settings
        header = checked_batch(records, settings.max_batch_bytes)
        assert records is not None
        rules = RecordRules(
            partition=name,
            needs_key=settings.compacts,
            stamps=settings.stamps,
            now_ms=now_ms,
            before_max_ms=settings.before_max_ms,
            after_max_ms=settings.after_max_ms,
        )
        return checking(records, header, rules)

    def append(
        self,
        records: bytes | memoryview | None,
        *,
        now_ms: int | None = None,
        name: str = "",
    ) -> int:
        """Check one batch and append it, see `append_checked`."""
        return self.append_checked(at_once(self.checking(records, now_ms=now_ms, name=name)), now_ms)

    def append_checked(self, checked: CheckedBatch, now_ms: int | None = None) -> int:
        """Append one batch; return the offset of its first record.

        A batch that an idempotent producer sends again is not appended again. The coordinator of the
        transaction must have checked before that the transaction is open. `now_ms` is the records' time if
        the log sets it.
        :raises ProtocolError: with Kafka's error code for such a batch.
        """
        settings = self.settings
        records, header, latest = checked
        duplicate = self.producers.check(header)
        if duplicate is not None:
            return duplicate
        base_offset = self.high_watermark
        if settings.stamps and now_ms is not None:
            latest = now_ms
        if settings.stamps or latest != header.max_timestamp or header.attributes & LOG_APPEND_TIME:
            records = timed(records, header, latest, stamps=settings.stamps)
            header = header._replace(max_timestamp=latest)
        self._add(placed(records, base_offset, self.epochs.latest), header, base_offset)
        self.producers.appended(header, base_offset)
        self._appended()
        return base_offset

    def append_own(self, batch: bytes) -> None:
        """Append a batch that the broker has made itself: no setting limits it, and no producer sent it."""
        offset = self.high_watermark
        self._add(placed(batch, offset, self.epochs.latest), stored_batch(batch), offset)
        self._appended()

    def clear(self) -> None:
        """Remove all batches, like a compaction that finds newer records of all keys. Offsets go on."""
        self._rewrite(dict.fromkeys(self._base_offsets))

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, timestamp_ms: int
    ) -> None:
        """Append the marker that ends a producer's transaction.

        :raises ProtocolError: INVALID_PRODUCER_EPOCH for one of a producer that was fenced since.
        """
        self.producers.check_marker(producer_id, producer_epoch)
        marker = end_marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            commit=commit,
            timestamp_ms=timestamp_ms,
        )
        if self.settings.stamps:
            marker = timed(marker, stored_batch(marker), timestamp_ms, stamps=True)
        offset = self.high_watermark
        batch = placed(marker, offset, self.epochs.latest)
        self._add(batch, stored_batch(batch), offset)
        self.producers.ended(
            producer_id, producer_epoch, commit=commit, offset=offset, timestamp_ms=timestamp_ms
        )
        self._appended()

    def restore(self, batch: bytes) -> None:
        """Restore a batch that was in this log before, at its place.

        :raises ProtocolError: CORRUPT_MESSAGE if it was damaged since.
        """
        header = stored_batch(batch)
        offset = header.base_offset
        self.epochs.begin(header.leader_epoch, offset)
        self._add(batch, header, offset)
        self._note_producer(batch, header)

    def _note_producer(self, batch: bytes, header: BatchHeader) -> None:
        """Let the producers know of a batch that was in this log before."""
        offset = header.base_offset
        if header.is_control:
            self.producers.ended(
                header.producer_id,
                header.producer_epoch,
                commit=is_commit(batch),
                offset=offset,
                timestamp_ms=header.max_timestamp,
            )
        else:
            self.producers.appended(header, offset)

    def _add(self, batch: bytes, header: BatchHeader, base_offset: int) -> None:
        self._base_offsets.append(base_offset)
        self._ends.append(self._end + len(batch))
        self._batches.append(batch)
        self._max_timestamps.append(header.max_timestamp)
        self.high_watermark = base_offset + header.last_offset_delta + 1

    def _appended(self) -> None:
        if self.on_append is not None:
            self.on_append(self._batches[-1])
        self._notify()

    def _notify(self) -> None:
        for listener in tuple(self._listeners):
            listener(self)

    def delete_records(self, offset: int) -> int:
        """Let the log start at `offset`; the offset of the first batch that is still kept, at most that.

        :raises ProtocolError: OFFSET_OUT_OF_RANGE beyond the end.
        """
        wanted = self.high_watermark if offset == LOG_END else offset
        if not 0 <= wanted <= self.high_watermark:
            raise ProtocolError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {wanted} is not within 0 to {self.high_watermark}"
            )
        self.log_start_offset = max(self.log_start_offset, wanted)
        gone = self._batch_at(self.log_start_offset)
        if gone:
            self._before = self._ends[gone - 1]
            for each in (self._base_offsets, self._batches, self._ends, self._max_timestamps):
                del each[:gone]
            self.producers.forget_before(self.log_start_offset)
        self.epochs.start_at(self.log_start_offset)
        return self._base_offsets[0] if self._base_offsets else self.high_watermark

    def truncate(self, offset: int) -> int:
        """Drop the batches from the one with `offset` on, as a leader that never had them. Return the end.

        :raises ProtocolError: OFFSET_OUT_OF_RANGE for an offset that is not within the log.
        """
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise ProtocolError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {self.high_watermark}",
            )
        first = self._batch_at(offset)
        if first < len(self._batches):
            self.high_watermark = max(self._base_offsets[first], self.log_start_offset)
        for each in (self._base_offsets, self._batches, self._ends, self._max_timestamps):
            del each[first:]
        self.epochs.end_at(self.high_watermark)
        self._latest = self._compaction = None
        self._cleaned_to = -1
        self.producers = Producers()
        for batch in self._batches:
            self._note_producer(batch, stored_batch(batch))
        return self.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset at which readers of committed records must stop: the start of the first open
        transaction.

        The first records of that transaction may have been deleted.
        """
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else max(unstable, self.log_start_offset)

    @property
    def _end(self) -> int:
        return self._ends[-1] if self._ends else self._before

    @property
    def size(self) -> int:
        """Bytes of all batches that are kept."""
        return self._end - self._before

    def available(self, offset: int, *, committed: bool = False) -> int:
        """Bytes of the batches from the one that holds `offset` on, as far as they may be read."""
        first, last = self._batch_at(offset), self._limit(committed)
        return max(0, self._bytes_before(last) - self._bytes_before(first))

    def _bytes_before(self, index: int) -> int:
        return self._ends[index - 1] if index > 0 else self._before

    def _limit(self, committed: bool) -> int:
        """Return the index after the last batch that may be read."""
        unstable = self.producers.first_unstable_offset if committed else None
        return len(self._batches) if unstable is None else bisect_left(self._base_offsets, unstable)

    def _batch_at(self, offset: int) -> int:
        """Return the index of the batch with the offset; for the log's end, the index after the last
        batch."""
        if offset >= self.high_watermark:
            return len(self._batches)
        index = max(0, bisect_right(self._base_offsets, offset) - 1)
        if self._has_gaps and index < len(self._batches) and last_offset(self._batches[index]) < offset:
            return index + 1
        return index

    def read(
        self, offset: int, max_bytes: int, *, at_least_one: bool, committed: bool = False
    ) -> ReadRecords:
        """Return whole batches from the one with `offset` on, `max_bytes` at most.

        With `at_least_one`, the first batch is returned even if it is larger (KIP-74). With `committed`, no
        records from an open transaction on are returned, and aborted ones are reported (KIP-98).
        :raises ProtocolError: OFFSET_OUT_OF_RANGE.
        """
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise ProtocolError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {self.high_watermark}",
            )
        first, limit = self._batch_at(offset), self._limit(committed)
        if first >= limit:
            return ReadRecords()
        last = min(limit, bisect_right(self._ends, self._bytes_before(first) + max_bytes))
        if last <= first:
            if not at_least_one:
                return ReadRecords(aborted=None if max_bytes > 0 else ())
            last = first + 1
        batches = tuple(self._batches[first:last])
        if not committed:
            return ReadRecords(batches)
        end = self._base_offsets[last] if last < len(self._batches) else self.high_watermark
        return ReadRecords(batches, tuple(self.producers.aborted(offset, end)))

    def offset_for_time(self, timestamp_ms: int) -> Sliced[tuple[int, int] | None]:
        """Find (offset, timestamp) of the first record at or after that time, without reading later ones."""

        def fits(record: StoredRecord) -> bool:
            return record.timestamp >= timestamp_ms and record.offset >= self.log_start_offset

        for batch, latest in tuple(zip(self._batches, self._max_timestamps, strict=True)):
            if latest >= timestamp_ms and (found := (yield from first_record(batch, fits))) is not None:
                return found.offset, found.timestamp
        return None

    def offset_of_max_timestamp(self) -> Sliced[tuple[int, int] | None]:
        """Find (offset, timestamp) of the latest record, the first of several (KIP-734).

        The result is remembered while that batch is the latest.
        """
        if not self._batches:
            return None
        latest = max(self._max_timestamps)
        batch = self._batches[self._max_timestamps.index(latest)]
        if self._latest is None or self._latest[0] is not batch:
            best = StoredRecord(last_offset(batch), -1, None, False, 0, 0, 0)

            def is_latest(record: StoredRecord) -> bool:
                # In an older journal, a header may have a later time than any record.
                nonlocal best
                best = record if record.timestamp > best.timestamp else best
                return record.timestamp >= latest

            yield from first_record(batch, is_latest)
            self._latest = batch, (best.offset, best.timestamp)
        return self._latest[1]

    def retained_from(self, now_ms: int, *, retention_ms: int, retention_bytes: int) -> int:
        """Return the offset before which batches are too old, or the log is too large; -1 means no limit.

        A batch corresponds to a segment in Kafka: it is deleted as a whole, and the log stays as large as
        allowed.
        """
        size, offset = self.size, self.log_start_offset
        limit = self.last_stable_offset
        for batch, latest in zip(self._batches, self._max_timestamps, strict=True):
            is_old = 0 <= latest < now_ms - retention_ms and retention_ms >= 0
            size -= len(batch)
            behind = last_offset(batch) + 1
            if behind > limit or not (is_old or 0 <= retention_bytes <= size):
                break
            offset = max(offset, behind)
        return offset

    def compact(self, now_ms: int, *, min_lag_ms: int, delete_retention_ms: int) -> Sliced[list[int]]:
        """Keep the newest record of each key, and no tombstone older than the retention time.

        The newest batch is not compacted, like Kafka's active segment. Transactions are not compacted either:
        their records are kept, and replace no others. Batches that can't be read, which older journals have,
        are kept too; their offsets are returned. Batches may be appended or deleted between slices.
        """
        if self._cleaned_to == self.high_watermark:
            return []
        end = self.high_watermark
        compaction = self._compaction = Compaction(now_ms - delete_retention_ms)
        closed = [
            batch
            for batch, latest in zip(self._batches[:-1], self._max_timestamps, strict=False)
            if latest <= now_ms - min_lag_ms and not belongs_to_transaction(batch)
        ]
        everything = len(closed) == len(self._batches) - 1
        start: int | None = 0
        while start is not None:
            start = yield from compaction.remember(closed, start)
            replaced = yield from compaction.replace(closed)
            if self.is_closed or self._compaction is not compaction:
                return []
            if replaced:
                self._rewrite(replaced)
                closed = [
                    kept
                    for batch in closed
                    if (kept := replaced.get(int.from_bytes(batch[:8]), batch)) is not None
                ]
        self._cleaned_to = end if everything and not compaction.has_tombstones else -1
        self._compaction = None  # free the memory of its keys
        return sorted(compaction.unreadable)

    def _rewrite(self, replaced: Mapping[int, bytes | None]) -> None:
        """Replace some batches by others, or remove them, by their base offsets."""
        kept = [
            (base, batch, latest if batch is old else stored_batch(batch).max_timestamp)
            for base, old, latest in zip(self._base_offsets, self._batches, self._max_timestamps, strict=True)
            if (batch := replaced.get(base, old)) is not None
        ]
        end = self._before
        self._base_offsets, self._batches, self._max_timestamps, self._ends = [], [], [], []
        for base, batch, latest in kept:
            end += len(batch)
            self._base_offsets.append(base)
            self._batches.append(batch)
            self._max_timestamps.append(latest)
            self._ends.append(end)
        self._has_gaps = True

    def lead(self, epoch: int) -> None:
        """Give the next records this leader epoch. A new one wakes all requests that wait for records."""
        if epoch > self.epochs.latest:
            self.epochs.begin(epoch, self.high_watermark)
            self._notify()

    def diverging_end(self, epoch: int, offset: int) -> tuple[int, int] | None:
        """Return the end of the client's last epoch in this log, as (epoch, offset), if it had read records
        beyond it; -1 is not checked.

        :raises ProtocolError: OFFSET_OUT_OF_RANGE for an epoch that this log does not know (KIP-595).
        """
        if epoch < 0:
            return None
        end = self.epochs.end(epoch, self.high_watermark)
        if end is None:
            raise ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, f"no records of the leader epoch {epoch}")
        if offset < self.log_start_offset:
            raise ProtocolError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is before {self.log_start_offset}"
            )
        return end if end[0] < epoch or end[1] < offset else None

    def add_listener(self, listener: Callable[[PartitionLog], None]) -> None:
        """Call the listener with this log after each append and change of leader until `remove_listener`."""
        self._listeners[listener] = None

    def remove_listener(self, listener: Callable[[PartitionLog], None]) -> None:
        """Remove a listener, if it is still there."""
        self._listeners.pop(listener, None)

    def close(self) -> None:
        """Close the log of a deleted topic: wake all requests that wait for records."""
        self.is_closed = True
        self._notify()
