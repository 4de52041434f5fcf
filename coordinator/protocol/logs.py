"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch and DeleteRecords without their wire form.

Records stay record batches in bytes: nothing between a producer and a consumer looks into them twice.
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import msgspec

from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_EPOCH, TopicId

P = TypeVar("P")

NO_REPLICA = -1
"""The preferred read replica of a partition that the client shall read from the present broker."""


class OfTopic(msgspec.Struct, Generic[P], frozen=True, kw_only=True):
    """Data about partitions of one topic, which has a name or an id, depending on the request's version."""

    name: str | None = None
    topic_id: TopicId | None = None
    partitions: tuple[P, ...]


class ProducedPartition(msgspec.Struct, frozen=True):
    """Record batches to append to one partition."""

    partition: int
    records: bytes | memoryview | None


class ProduceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Appends records. `acks` 0 asks for no response; 1 and -1 are the same with one replica."""

    transactional_id: str | None = None
    acks: int
    timeout_ms: int = 0
    api_version: int = 13
    topics: tuple[OfTopic[ProducedPartition], ...]


class RecordError(msgspec.Struct, frozen=True):
    """Why one record was refused, by its place in the batch (KIP-467)."""

    batch_index: int
    message: str


class RefusedRecords(ProtocolError):
    """Some records of a batch break a rule of their topic, and so the batch is refused (KIP-467)."""

    def __init__(self, code: ErrorCode, errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, _refusal(code, errors))
        self.errors = errors


def _refusal(code: ErrorCode, errors: tuple[RecordError, ...]) -> str:
    if code is ErrorCode.INVALID_TIMESTAMP:
        return "One or more records have been rejected due to invalid timestamp"
    shown = ", ".join(
        f"RecordError(batchIndex={each.batch_index}, message='{each.message}')" for each in errors[:3]
    )
    return (
        f"One or more records have been rejected due to {len(errors)} record errors in total, "
        f"and only showing the first three errors at most: [{shown}]"
    )


class AppendedPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The position at which one partition's records were appended; offset -1 with an error."""

    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    base_offset: int = -1
    log_start_offset: int = -1
    log_append_time_ms: int = -1
    """The time that the log set, in ms; -1 if the producer's time is kept."""
    error_message: str | None = None
    record_errors: tuple[RecordError, ...] = ()
    """The records because of which the batch was refused."""
    current_leader: tuple[int, int] | None = None
    """The broker to send to instead, and its leader epoch (KIP-951)."""


class ProduceResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each partition of the request, in its order."""

    topics: tuple[OfTopic[AppendedPartition], ...]
    leaders: tuple[Node, ...] = ()
    """The addresses of the current leaders in it."""
    throttle_time_ms: int = 0


class FetchPartition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The position from which to read one partition, and the maximum size."""

    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH
    """The epoch of the record before that position, as far as the client knows (KIP-595)."""


class FetchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Reads records: waits up to `max_wait_ms` for `min_bytes` of them (KIP-227 for sessions)."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    session_id: int = 0
    session_epoch: int = -1
    committed: bool = False
    """True to hold back records of open transactions and to report aborted transactions (KIP-98)."""
    topics: tuple[OfTopic[FetchPartition], ...]
    by_id: bool = False
    """True if the request names topics by id, not by name."""
    from_leader: bool = False
    """True if followers refuse the request: versions before KIP-392, and requests of other brokers."""
    rack_id: str = ""
    """The rack of the client; empty without one (KIP-392)."""
    forgotten: tuple[OfTopic[int], ...] = ()
    """Partitions that a session shall no longer hold."""


class AbortedTransaction(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The producer's records from that offset up to its next marker do not count."""

    producer_id: int
    first_offset: int


class FetchedPartition(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of reading one partition."""

    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    batches: tuple[bytes, ...] = ()
    aborted: tuple[AbortedTransaction, ...] | None = None
    """Aborted transactions; None unless only committed records were asked for."""
    diverging_end: tuple[int, int] | None = None
    """An epoch and the offset after its records, if the client's last record is not in the log (KIP-595)."""
    preferred_read_replica: int = NO_REPLICA
    """The broker that the client shall fetch from instead (KIP-392)."""
    current_leader: tuple[int, int] | None = None
    """The leader and its epoch, if the client knows others (KIP-951)."""


class FetchResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each partition of the request. Session 0 means that there is no session."""

    error_code: ErrorCode = ErrorCode.NONE
    session_id: int = 0
    topics: tuple[OfTopic[FetchedPartition], ...] = ()
    leaders: tuple[Node, ...] = ()
    """The addresses of the current leaders in it."""


class OffsetSpec(enum.IntEnum):
    """Timestamps of ListOffsets with a meaning of their own."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


class ListOffsetsPartition(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted offset of one partition: an `OffsetSpec`, or the first record at or after a time in ms."""

    partition: int
    timestamp_ms: int
    current_leader_epoch: int = NO_EPOCH


class ListOffsetsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for offsets; with `committed`, only those before the last stable offset."""

    committed: bool = False
    from_any_replica: bool = False
    """True for debugging clients, to which followers reply too."""
    topics: tuple[OfTopic[ListOffsetsPartition], ...]


class ListedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """An offset; -1 if no record has such a late time."""

    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = NO_EPOCH


class ListOffsetsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """An offset for each partition of the request, in its order."""

    topics: tuple[OfTopic[ListedOffset], ...]


class LeaderEpochPartition(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the end of `leader_epoch` in the log."""

    partition: int
    leader_epoch: int
    current_leader_epoch: int = NO_EPOCH


class OffsetForLeaderEpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks for the ends of leader epochs, to find out whether a consumer's records are still in the log
    (KIP-320)."""

    topics: tuple[OfTopic[LeaderEpochPartition], ...]


class EpochEndOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an epoch's records; -1 for an unknown epoch."""

    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    leader_epoch: int = NO_EPOCH
    end_offset: int = -1


class OffsetForLeaderEpochResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The result for each partition of the request, in its order."""

    topics: tuple[OfTopic[EpochEndOffset], ...]


class DeleteRecordsPartition(msgspec.Struct, frozen=True):
    """Deletes the records of one partition before `offset`; -1 means all."""

    partition: int
    offset: int


class DeleteRecordsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Lets logs start later."""

    topics: tuple[OfTopic[DeleteRecordsPartition], ...]


class DeletedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """The start of one log after the deletion; -1 with an error."""

    partition: int
    low_watermark: int = -1
    error_code: ErrorCode = ErrorCode.NONE


class DeleteRecordsResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A result for each partition of the request, in its order."""

    topics: tuple[OfTopic[DeletedRecords], ...]
