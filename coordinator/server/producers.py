"""The state of one log's producers: sequences, and transactions that are open or aborted.

The rules are those of Kafka's ProducerStateManager (KIP-98; KIP-890 for markers with a higher epoch).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from fencepost.coordinator.codec.batches import COORDINATOR_EPOCH, BatchHeader
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.inspection import ActiveProducer
from fencepost.coordinator.protocol.logs import AbortedTransaction
from fencepost.coordinator.protocol.transactions import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

_REMEMBERED_VERIFICATIONS = 1_000
"""Number of remembered producers whose transactions have not begun. It is limited, as clients may make up any
number."""
_REMEMBERED_BATCHES = 5
"""Number of a producer's batches that are recognised when they are sent again: as many as it may have in
flight."""
_SEQUENCES = 2**31


class _Batch(NamedTuple):
    first: int
    last: int
    base_offset: int


class _Verification(NamedTuple):
    """A question to the coordinator, before the first batch of a transaction is in the log."""

    epoch: int
    own_epochs: bool
    """True if each transaction of the producer has its own epoch."""
    first: int
    """The lowest sequence that was received."""


class _Producer:
    """One producer in one log."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "transaction_start")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[_Batch] = deque(maxlen=_REMEMBERED_BATCHES)
        self.transaction_start: int | None = None
        """Offset of the first record of its open transaction."""
        self.last_timestamp = -1
        self.coordinator_epoch = -1
        """That of the last marker."""


class Producers:
    """The producers of one log."""

    __slots__ = ("_aborted", "_open", "_producers", "_verifications")

    def __init__(self) -> None:
        self._producers: dict[int, _Producer] = {}
        self._open: dict[int, int] = {}
        """Producers with an open transaction, and its first offset; ascending, for logs only grow."""
        self._aborted: list[tuple[int, AbortedTransaction]] = []
        """Aborted transactions by the offset of their markers, ascending."""
        self._verifications: dict[int, _Verification] = {}
        """By producer, the oldest first."""

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset that belongs to an open transaction."""
        return next(iter(self._open.values()), None)

    def needs_verification(self, header: BatchHeader, *, own_epochs: bool) -> bool:
        """Return true if a batch may begin a transaction here, so that the coordinator must verify it.

        If so, it is remembered until a batch is in the log, so that no later batch gets ahead of it.
        `own_epochs` is true if each transaction of the producer has its own epoch.
        :raises ProtocolError: INVALID_PRODUCER_EPOCH for a producer that was fenced.
        """
        producer_id, epoch, first = header.producer_id, header.producer_epoch, header.base_sequence
        if not header.is_transactional or producer_id == NO_PRODUCER_ID:
            return False
        self._check_epoch(producer_id, epoch)
        if producer_id in self._open and self._producers[producer_id].epoch == epoch:
            return False
        before = self._verifications.get(producer_id)
        if before is None:
            self._verifications[producer_id] = _Verification(epoch, own_epochs, first)
            if len(self._verifications) > _REMEMBERED_VERIFICATIONS:
                del self._verifications[next(iter(self._verifications))]
        elif epoch > before.epoch or (epoch == before.epoch and first < before.first):
            self._verifications[producer_id] = before._replace(epoch=epoch, first=first)
        return True

    def _check_epoch(self, producer_id: int, epoch: int) -> None:
        producer = self._producers.get(producer_id)
        known = NO_PRODUCER_EPOCH if producer is None else producer.epoch
        if epoch < known:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"producer epoch {epoch} is older than {known}"
            )

    def check(self, header: BatchHeader) -> int | None:
        """Return the base offset of the same batch if it is in the log already, None if it may be appended.

        :raises ProtocolError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, or INVALID_TXN_STATE for
            a batch outside of the transaction that the producer has open.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        if producer_id == NO_PRODUCER_ID:
            return None
        producer = self._producers.get(producer_id)
        first, last = header.base_sequence, _last_sequence(header)
        if producer is not None and epoch == producer.epoch:
            for batch in producer.batches:
                if (first, last) == (batch.first, batch.last):
                    return batch.base_offset
        self._check_epoch(producer_id, epoch)
        self._check_first(producer_id, first)
        if producer is None:
            # The producer is unknown: it is new, or its records were deleted. Any sequence is accepted.
            return None
        same = epoch == producer.epoch and producer.batches
        expected = (producer.batches[-1].last + 1) % _SEQUENCES if same else 0
        if first != expected:
            raise ProtocolError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {first}, expected {expected}"
            )
        if producer.transaction_start is not None and not header.is_transactional:
            raise ProtocolError(ErrorCode.INVALID_TXN_STATE, f"producer {producer_id} has a transaction open")
        return None

    def _check_first(self, producer_id: int, first: int) -> None:
        """Refuse batches before the one that began a transaction, if that was refused or is still to come."""
        verification = self._verifications.get(producer_id)
        if verification is None:
            return
        producer = self._producers.get(producer_id)
        is_new = producer is None or not producer.batches
        expected = 0 if verification.own_epochs and is_new else verification.first
        if first > expected:
            raise ProtocolError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"sequence {first}, expected {expected} at most"
            )

    def appended(self, header: BatchHeader, base_offset: int) -> None:
        """Note that a batch is in the log."""
        if header.producer_id == NO_PRODUCER_ID:
            return
        producer = self._at_epoch(header.producer_id, header.producer_epoch)
        producer.last_timestamp = header.max_timestamp
        producer.batches.append(_Batch(header.base_sequence, _last_sequence(header), base_offset))
        if header.is_transactional:
            self._verifications.pop(header.producer_id, None)
            if producer.transaction_start is None:
                producer.transaction_start = self._open[header.producer_id] = base_offset

    def check_marker(self, producer_id: int, epoch: int) -> None:
        """Check that a marker may end the producer's transaction.

        :raises ProtocolError: INVALID_PRODUCER_EPOCH for one of a producer that was fenced since.
        """
        producer = self._producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_EPOCH, f"a marker of epoch {epoch}, {producer.epoch} is known"
            )

    def ended(self, producer_id: int, epoch: int, *, commit: bool, offset: int, timestamp_ms: int) -> None:
        """Note that a marker is in the log, at `offset`."""
        producer = self._at_epoch(producer_id, epoch)
        producer.last_timestamp = timestamp_ms
        producer.coordinator_epoch = COORDINATOR_EPOCH
        start, producer.transaction_start = producer.transaction_start, None
        self._verifications.pop(producer_id, None)
        self._open.pop(producer_id, None)
        if start is not None and not commit:
            self._aborted.append((offset, AbortedTransaction(producer_id=producer_id, first_offset=start)))

    def _at_epoch(self, producer_id: int, epoch: int) -> _Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = _Producer(epoch)
        elif epoch != producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer

    def active(self) -> Iterator[ActiveProducer]:
        """Return all remembered producers."""
        for producer_id, producer in sorted(self._producers.items()):
            start = producer.transaction_start
            yield ActiveProducer(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.batches[-1].last if producer.batches else -1,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                transaction_start=-1 if start is None else start,
            )

    def aborted(self, start: int, end: int) -> Iterator[AbortedTransaction]:
        """Return the aborted transactions with records from `start` up to but not with `end`."""
        first = bisect_left(self._aborted, start, key=lambda entry: entry[0])
        return (entry for _, entry in self._aborted[first:] if entry.first_offset < end)

    def forget_before(self, offset: int) -> None:
        """Forget transactions that were aborted before `offset`, the log's new start: they hide no records
        now."""
        del self._aborted[: bisect_left(self._aborted, offset, key=lambda entry: entry[0])]


def _last_sequence(header: BatchHeader) -> int:
    return (header.base_sequence + header.records - 1) % _SEQUENCES
