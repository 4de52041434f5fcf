"""Handlers of Produce, ListOffsets, OffsetForLeaderEpoch and DeleteRecords."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from fencepost.coordinator.codec.batches import is_transactional, sent_batch
from fencepost.coordinator.codec.record_checks import SLICE_RECORDS
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import NO_EPOCH, TopicId, TopicPartition
from fencepost.coordinator.protocol.logs import OffsetSpec, OfTopic
from fencepost.coordinator.protocol.slices import Sliced, at_once
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC, Topic
from fencepost.coordinator.protocol.transactions import NO_PRODUCER_ID
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.services import NO_REPLY, Asked, NoReply, Services, Unanswered

P = TypeVar("P")
A = TypeVar("A")

_SLICE_SEARCHES: Final = 8
"""The number of logs that one slice searches by time."""

_SPECS_FROM: dict[int, int] = {
    OffsetSpec.LATEST: 0,
    OffsetSpec.EARLIEST: 0,
    OffsetSpec.MAX_TIMESTAMP: 7,
    OffsetSpec.EARLIEST_LOCAL: 8,
    OffsetSpec.LATEST_TIERED: 9,
    OffsetSpec.EARLIEST_PENDING_UPLOAD: 11,
}
"""The first versions of ListOffsets that know them."""


def _each(
    services: Services,
    topics: tuple[OfTopic[P], ...],
    answer: Callable[[Topic, P], Sliced[A]],
    refuse: Callable[[P, ProtocolError], A],
    check: Callable[[OfTopic[P], P], None] = lambda reference, partition: None,
) -> Sliced[tuple[OfTopic[A], ...]]:
    """Return a result for each partition; a refused partition does not affect the others.

    `check` refuses a partition before its topic is looked up.
    """
    answers = []
    for reference in topics:
        partitions: list[A] = []
        for partition in reference.partitions:
            try:
                check(reference, partition)
                topic = services.cluster.topic_of(reference)
                partitions.append((yield from answer(topic, partition)))
                if topic.name == OFFSETS_TOPIC:
                    yield  # its log may have been written just now
            except ProtocolError as error:
                partitions.append(refuse(partition, error))
        answers.append(
            OfTopic(name=reference.name, topic_id=reference.topic_id, partitions=tuple(partitions))
        )
    return tuple(answers)


def _short(answer: Callable[[Topic, P], A]) -> Callable[[Topic, P], Sliced[A]]:
    """Wrap the same function as work of one slice."""

    def work(topic: Topic, partition: P) -> Sliced[A]:
        yield from ()
        return answer(topic, partition)

    return work


def produce(
    services: Services, request: logs.ProduceRequest, asked: Asked
) -> logs.ProduceResponse | NoReply | asyncio.Future[logs.ProduceResponse | NoReply]:
    """Batches go to the log as they are; those of a transaction only if it is open.

    Very large batches are checked in slices, and other clients have a turn in between.
    """
    return services.work_queue.run(_produced(services, request, asked), asked.connection.share)


def _produced(
    services: Services, request: logs.ProduceRequest, asked: Asked
) -> Sliced[logs.ProduceResponse | NoReply]:
    produce = _Produce(services, request)
    merged = _merged(request.topics)
    topics = yield from _each(services, merged, produce.append, produce.refuse, produce.check)
    if request.acks != 0:
        return logs.ProduceResponse(topics=topics, leaders=services.leaders(topics, asked))
    for topic in topics:
        for partition in topic.partitions:
            if partition.error_code is not ErrorCode.NONE:
                # The producer waits for no response: it notices an error only if the connection is closed.
                raise Unanswered(f"{topic.name or topic.topic_id}: {partition.error_message}")
    return NO_REPLY


class _Produce:
    """One request to append."""

    __slots__ = ("_mixed", "_nameless", "_records", "_request", "_services")

    def __init__(self, services: Services, request: logs.ProduceRequest) -> None:
        self._services = services
        self._request = request
        self._nameless = request.transactional_id is None and any(
            is_transactional(one.records) for topic in request.topics for one in topic.partitions
        )
        self._mixed = request.transactional_id is not None and len(_senders(services, request)) > 1
        self._records = 0
        """The number of records that were read in this slice."""

    def check(self, reference: OfTopic[logs.ProducedPartition], data: logs.ProducedPartition) -> None:
        """Refuse each partition if the whole request is refused."""
        if self._nameless:
            raise ProtocolError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch without a transactional id",
            )
        if self._mixed:
            raise ProtocolError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                "Transactional records contained more than one producer ID",
            )

    def append(self, topic: Topic, data: logs.ProducedPartition) -> Sliced[logs.AppendedPartition]:
        """Check and append one batch."""
        self._services.cluster.check_own(topic, "Cannot append to")
        try:
            log = self._permitted(topic, data)
        except ProtocolError as error:
            if error.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                raise
            leader = self._services.current_leader(topic, data.partition)
            return msgspec.structs.replace(self.refuse(data, error), current_leader=leader)
        acks = self._request.acks
        if acks not in {-1, 0, 1}:
            raise ProtocolError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {acks}, expected -1, 0 or 1")
        if acks == -1 and log.settings.min_in_sync > 1:
            self._check_in_sync(topic, data.partition, log.settings.min_in_sync)
        clock = self._services.transactions
        now_ms = clock.now_ms() if log.settings.stamps else clock.latest_ms()
        queue = self._services.work_queue
        slices = queue.slices
        checked = yield from log.checking(data.records, now_ms=now_ms, name=f"{topic.name}-{data.partition}")
        if queue.slices != slices:
            # Topics and transactions may have ended in between.
            if log.is_closed:
                raise ProtocolError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic.name!r} was deleted in the meantime"
                )
            log = self._permitted(topic, data)
        answer = logs.AppendedPartition(
            partition=data.partition,
            base_offset=log.append_checked(checked, now_ms),
            log_start_offset=log.log_start_offset,
            log_append_time_ms=now_ms if log.settings.stamps else -1,
        )
        self._records += checked.header.records
        if self._records >= SLICE_RECORDS:
            self._records = 0
            yield
        return answer

    def _check_in_sync(self, topic: Topic, partition: int, needed: int) -> None:
        """Refuse records that too few replicas would have.

        :raises ProtocolError: NOT_ENOUGH_REPLICAS.
        """
        cluster = self._services.cluster
        needed = min(needed, len(cluster.replica_ids(topic, partition)))
        in_sync = cluster.in_sync_ids(topic, partition)
        if len(in_sync) < needed:
            raise ProtocolError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR : {len(in_sync)} is insufficient to satisfy the min.isr "
                f"requirement of {needed} for partition {topic.name}-{partition}",
            )

    def _permitted(self, topic: Topic, data: logs.ProducedPartition) -> PartitionLog:
        services, request = self._services, self._request
        log, place = services.log(topic, data.partition), TopicPartition(topic.name, data.partition)
        header = sent_batch(data.records, request.api_version)
        services.transactions.check_batch(
            request.transactional_id, header, place, log.producers, api_version=request.api_version
        )
        return log

    def refuse(self, data: logs.ProducedPartition, error: ProtocolError) -> logs.AppendedPartition:
        """Return the result for a refused batch."""
        return logs.AppendedPartition(
            partition=data.partition,
            error_code=error.code,
            error_message=error.message,
            record_errors=error.errors if isinstance(error, logs.RefusedRecords) else (),
        )


def _senders(services: Services, request: logs.ProduceRequest) -> set[tuple[int, int]]:
    """Return the ids and epochs in the transactional batches that could be appended."""
    found = set()
    for reference in request.topics:
        for one in reference.partitions:
            with contextlib.suppress(ProtocolError):
                services.log(services.cluster.topic_of(reference), one.partition)
                header = sent_batch(one.records, request.api_version)
                if header.is_transactional and header.producer_id != NO_PRODUCER_ID:
                    found.add((header.producer_id, header.producer_epoch))
    return found


def list_offsets(
    services: Services, request: logs.ListOffsetsRequest, asked: Asked
) -> logs.ListOffsetsResponse | asyncio.Future[logs.ListOffsetsResponse]:
    """Return offsets by time, or the ends of the log; with `committed`, those of committed records (KIP-79,
    KIP-734).

    Long searches by time are done in slices, and other clients have a turn in between.
    """
    return services.work_queue.run(_listed(services, request, asked), asked.connection.share)


def _listed(
    services: Services, request: logs.ListOffsetsRequest, asked: Asked
) -> Sliced[logs.ListOffsetsResponse]:
    searches = 0

    def end(log: PartitionLog) -> int:
        return log.last_stable_offset if request.committed else log.high_watermark

    def look(topic: Topic, wanted: logs.ListOffsetsPartition) -> Sliced[logs.ListedOffset]:
        nonlocal searches
        find = services.replica_log if request.from_any_replica else services.log
        log = find(topic, wanted.partition, wanted.current_leader_epoch)
        timestamp_ms, offset = -1, -1
        match wanted.timestamp_ms:
            case OffsetSpec.LATEST:
                offset = end(log)
            case OffsetSpec.EARLIEST | OffsetSpec.EARLIEST_LOCAL:
                offset = log.log_start_offset
            case OffsetSpec.LATEST_TIERED | OffsetSpec.EARLIEST_PENDING_UPLOAD:
                pass
            case time_ms:
                searches += 1
                if searches % _SLICE_SEARCHES == 0:
                    yield
                by_time = time_ms != OffsetSpec.MAX_TIMESTAMP
                search = log.offset_for_time(time_ms) if by_time else log.offset_of_max_timestamp()
                offset, timestamp_ms = (yield from search) or (-1, -1)
        if offset > end(log) or (timestamp_ms >= 0 and offset == end(log)):
            timestamp_ms, offset = -1, -1
        return logs.ListedOffset(
            partition=wanted.partition,
            offset=offset,
            timestamp_ms=timestamp_ms,
            leader_epoch=log.epochs.at(offset) if offset >= 0 else NO_EPOCH,
        )

    def refuse(wanted: logs.ListOffsetsPartition, error: ProtocolError) -> logs.ListedOffset:
        return logs.ListedOffset(partition=wanted.partition, error_code=error.code)

    times = Counter((topic.name, one.partition) for topic in request.topics for one in topic.partitions)

    def check(reference: OfTopic[logs.ListOffsetsPartition], wanted: logs.ListOffsetsPartition) -> None:
        if times[reference.name, wanted.partition] > 1:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"partition {wanted.partition} is named twice")
        first_version = _SPECS_FROM.get(wanted.timestamp_ms, 0 if wanted.timestamp_ms >= 0 else None)
        if first_version is None or asked.context.api_version < first_version:
            raise ProtocolError(
                ErrorCode.UNSUPPORTED_VERSION, f"timestamp {wanted.timestamp_ms} is not known in this version"
            )

    topics = yield from _each(services, _merged(request.topics), look, refuse, check)
    return logs.ListOffsetsResponse(topics=topics)


def _merged(topics: tuple[OfTopic[Any], ...]) -> tuple[OfTopic[Any], ...]:
    """Return each partition once, and no topic without partitions; of repeated ones the last counts."""
    merged: dict[tuple[str | None, TopicId | None], dict[int, Any]] = {}
    for topic in topics:
        found = merged.setdefault((topic.name, topic.topic_id), {})
        found.update({one.partition: one for one in topic.partitions})
    return tuple(
        OfTopic(name=name, topic_id=topic_id, partitions=tuple(found.values()))
        for (name, topic_id), found in merged.items()
        if found
    )


def offset_for_leader_epoch(
    services: Services, request: logs.OffsetForLeaderEpochRequest, asked: Asked
) -> logs.OffsetForLeaderEpochResponse:
    """Return the ends of epochs, so that clients find out how far their records are in the log (KIP-320)."""

    def look(topic: Topic, wanted: logs.LeaderEpochPartition) -> logs.EpochEndOffset:
        log = services.log(topic, wanted.partition, wanted.current_leader_epoch)
        end = log.epochs.end(wanted.leader_epoch, log.high_watermark)
        if end is None:
            return logs.EpochEndOffset(partition=wanted.partition)
        return logs.EpochEndOffset(partition=wanted.partition, leader_epoch=end[0], end_offset=end[1])

    def refuse(wanted: logs.LeaderEpochPartition, error: ProtocolError) -> logs.EpochEndOffset:
        return logs.EpochEndOffset(partition=wanted.partition, error_code=error.code)

    topics = at_once(_each(services, request.topics, _short(look), refuse))
    return logs.OffsetForLeaderEpochResponse(topics=topics)


def delete_records(
    services: Services, request: logs.DeleteRecordsRequest, asked: Asked
) -> logs.DeleteRecordsResponse:
    """Delete records of each log by itself (KIP-107)."""

    def delete(topic: Topic, wanted: logs.DeleteRecordsPartition) -> logs.DeletedRecords:
        services.cluster.check_own(topic, "Cannot delete records of")
        services.log(topic, wanted.partition)
        if services.cluster.only_compacts(topic):
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"records of {topic.name} are compacted only")
        start = services.cluster.delete_records(topic, wanted.partition, wanted.offset)
        return logs.DeletedRecords(partition=wanted.partition, low_watermark=start)

    def refuse(wanted: logs.DeleteRecordsPartition, error: ProtocolError) -> logs.DeletedRecords:
        return logs.DeletedRecords(partition=wanted.partition, error_code=error.code)

    topics = at_once(_each(services, _merged(request.topics), _short(delete), refuse))
    return logs.DeleteRecordsResponse(topics=topics)
