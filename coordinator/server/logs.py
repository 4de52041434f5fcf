"""One partition's log in memory: batches as they came, placed at their offsets."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable

from fencepost.coordinator.codec.batches import NO_PRODUCER_ID, BatchHeader, checked_batch, placed, timestamps
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError

MAX_BATCH_BYTES = 1_048_588
"""Kafka's default of message.max.bytes."""
_REMEMBERED_BATCHES = 5
"""How many batches of a producer are recognised when they come again: as many as it may have in flight."""
_SEQUENCES = 2**31


class PartitionLog:
    """Appends, reads and searches batches. Offsets start at 0 and nothing is ever removed.

    There is one replica, so the log's end is its high watermark and its last stable offset.
    """

    __slots__ = (
        "_base_offsets",
        "_batches",
        "_ends",
        "_max_timestamps",
        "_producers",
        "_watchers",
        "high_watermark",
        "is_closed",
        "leader_epoch",
        "log_start_offset",
        "on_append",
    )

    def __init__(self, leader_epoch: int = 0, *, start: int = 0) -> None:
        self.leader_epoch = leader_epoch
        self.on_append: Callable[[bytes], None] | None = None
        """Called with each batch at its place, before anybody can read it."""
        self.is_closed = False
        """Whether the topic is gone."""
        self.log_start_offset = start
        self.high_watermark = start
        self._base_offsets: list[int] = []
        self._batches: list[bytes] = []
        self._ends: list[int] = []
        """Bytes of the log up to and with each batch."""
        self._max_timestamps: list[int] = []
        self._producers: dict[int, _Producer] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    def append(self, records: bytes | memoryview | None) -> int:
        """Append one batch; the offset of its first record.

        A batch that an idempotent producer sends again is not appended again.
        :raises ProtocolError: with the code that Kafka answers for such a batch.
        """
        header = checked_batch(records, MAX_BATCH_BYTES)
        assert records is not None
        if header.producer_id != NO_PRODUCER_ID:
            duplicate = self._check_sequence(header)
            if duplicate is not None:
                return duplicate
        base_offset = self.high_watermark
        batch = placed(records, base_offset, self.leader_epoch)
        self._add(batch, header, base_offset)
        if self.on_append is not None:
            self.on_append(batch)
        for watcher in tuple(self._watchers):
            watcher()
        return base_offset

    def restore(self, batch: bytes) -> None:
        """Take a batch that was in this log before, at its place."""
        header = checked_batch(batch, len(batch))
        if header.producer_id not in self._producers:
            self._producers[header.producer_id] = _Producer(header.producer_epoch)
        self._add(batch, header, header.base_offset)

    def _add(self, batch: bytes, header: BatchHeader, base_offset: int) -> None:
        self._base_offsets.append(base_offset)
        self._batches.append(batch)
        self._ends.append(self.size + len(batch))
        self._max_timestamps.append(header.max_timestamp)
        self.high_watermark = base_offset + header.records
        if header.producer_id != NO_PRODUCER_ID:
            self._producers[header.producer_id].appended(header, base_offset)

    def _check_sequence(self, header: BatchHeader) -> int | None:
        producer = self._producers.get(header.producer_id)
        if producer is None:
            self._producers[header.producer_id] = _Producer(header.producer_epoch)
            return None
        return producer.check(header)

    @property
    def size(self) -> int:
        """All bytes of the log."""
        return self._ends[-1] if self._ends else 0

    def available(self, offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` on."""
        at = self._batch_at(offset)
        return self.size - (self._ends[at - 1] if at > 0 else 0)

    def _batch_at(self, offset: int) -> int:
        """The index of the batch that holds the offset; behind the last one for the log's end."""
        if offset >= self.high_watermark:
            return len(self._batches)
        return bisect_right(self._base_offsets, offset) - 1

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> tuple[bytes, ...]:
        """Whole batches from the one that holds `offset` on, `max_bytes` at most.

        With `at_least_one` the first batch comes even if it is larger (KIP-74).
        :raises ProtocolError: OFFSET_OUT_OF_RANGE.
        """
        if not self.log_start_offset <= offset <= self.high_watermark:
            raise ProtocolError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {self.high_watermark}",
            )
        first = self._batch_at(offset)
        if first == len(self._batches):
            return ()
        before = self._ends[first - 1] if first > 0 else 0
        last = bisect_right(self._ends, before + max_bytes)
        if last <= first:
            return (self._batches[first],) if at_least_one else ()
        return tuple(self._batches[first:last])

    def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record at or after that time."""
        for index, latest in enumerate(self._max_timestamps):
            if latest >= timestamp_ms:
                for offset, timestamp in timestamps(self._batches[index]):
                    if timestamp >= timestamp_ms:
                        return offset, timestamp
        return None

    def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the latest record, the first of several (KIP-734)."""
        if not self._batches:
            return None
        latest = max(self._max_timestamps)
        index = self._max_timestamps.index(latest)
        found = timestamps(self._batches[index])
        return max(found, key=lambda record: (record[1], -record[0]))

    def check_leader_epoch(self, epoch: int) -> None:
        """Compare what a client believes with the log's epoch; -1 believes nothing.

        :raises ProtocolError: FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH (KIP-320).
        """
        if epoch < 0 or epoch == self.leader_epoch:
            return
        code = ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
        raise ProtocolError(code, f"leader epoch {epoch}, here it is {self.leader_epoch}")

    def watch(self, watcher: Callable[[], None]) -> None:
        """Call the watcher after each append until `unwatch`."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Callable[[], None]) -> None:
        """Take a watcher back; one that is gone does no harm."""
        self._watchers.pop(watcher, None)

    def close(self) -> None:
        """The topic is gone: wake everybody who waits for records."""
        self.is_closed = True
        for watcher in tuple(self._watchers):
            watcher()


class _Producer:
    """What the log remembers of one idempotent producer."""

    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int]] = deque(maxlen=_REMEMBERED_BATCHES)
        """(first sequence, last sequence, base offset) of its newest batches."""

    def check(self, header: BatchHeader) -> int | None:
        """The base offset of the same batch when it is here already, None when the batch is the next one."""
        if header.producer_epoch < self.epoch:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer epoch {header.producer_epoch} is older than {self.epoch}",
            )
        first, last = header.base_sequence, (header.base_sequence + header.records - 1) % _SEQUENCES
        if header.producer_epoch > self.epoch:
            expected = 0
        else:
            for known_first, known_last, base_offset in self.batches:
                if (first, last) == (known_first, known_last):
                    return base_offset
            expected = (self.batches[-1][1] + 1) % _SEQUENCES if self.batches else first
        if first != expected:
            raise ProtocolError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {first}, expected {expected}"
            )
        return None

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.batches.clear()
        last = (header.base_sequence + header.records - 1) % _SEQUENCES
        self.batches.append((header.base_sequence, last, base_offset))
