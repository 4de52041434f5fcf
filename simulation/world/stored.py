"""Judges what brokers do with the batches that producers send: one that is acknowledged is in the log, once.

The account is made of requests, before a broker handles them, and of its responses, before the network may
lose them. A producer without idempotence that sends a batch again is expected to find it in the log twice.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.coordinator.codec.batches import HEADER_BYTES, sent_batch, stored_batch
from fencepost.coordinator.codec.record_contents import records_in
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.logs import ProduceRequest, ProduceResponse
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.protocol.transactions import NO_PRODUCER_ID
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.services import Asked, Handler, Services

RECORD_STORED: Final = "record-stored"
_ALL: Final = 2**62

_LogId: TypeAlias = tuple[TopicId, int]


class _Batch(NamedTuple):
    """The identity of a batch: a producer that is idempotent never has two of the same."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    size: int
    content: bytes
    """A hash of its records."""

    @property
    def is_idempotent(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID


class _Account:
    """The batches of one partition: those that producers have sent, and those that its log holds."""

    def __init__(self) -> None:
        self.sent: dict[_Batch, int] = {}
        """The number of requests with each batch."""
        self.senders: dict[_Batch, list[str]] = {}
        """The addresses of the clients that sent each batch."""
        self.acknowledged: list[tuple[int, _Batch]] = []
        """Batches with the offset of which a broker has acknowledged them."""
        self.held: dict[_Batch, list[int]] = {}
        """The offsets of each batch in the log."""
        self.copy_of: dict[int, int] = {}
        """The offsets of records that the log holds once more than they were sent: by these, those of the
        originals."""
        self.read_to = 0

    def follow(self, log: PartitionLog) -> None:
        """Read what was appended to the log since the last time."""
        start = max(self.read_to, log.log_start_offset)
        for raw in log.read(start, _ALL, at_least_one=True).batches:
            header = stored_batch(raw)
            self.read_to = header.base_offset + header.last_offset_delta + 1
            if header.is_control or header.base_offset < start:
                continue
            batch = _batch(header, raw)
            offsets = self.held.setdefault(batch, [])
            offsets.append(header.base_offset)
            if len(offsets) > self.allowed(batch):
                for index in range(batch.size):
                    self.copy_of[header.base_offset + index] = offsets[0] + index

    def allowed(self, batch: _Batch) -> int:
        """Return how often the log may hold a batch."""
        requests = self.sent.get(batch, 0)
        return min(requests, 1) if batch.is_idempotent else requests


def _batch(header: Any, raw: bytes | memoryview) -> _Batch:
    content = hashlib.blake2b(memoryview(raw)[HEADER_BYTES:], digest_size=16).digest()
    return _Batch(header.producer_id, header.producer_epoch, header.base_sequence, header.records, content)


class StoredRecords:
    """The account of all partitions of a cluster. `report` takes a message about a violation."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._accounts: dict[_LogId, _Account] = {}

    # -- requests -----------------------------------------------------------------------------------------

    def observing(self, table: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """Return handlers of a broker, of which that of Produce is observed."""
        handler: Any = table[ApiKey.PRODUCE]

        def produce(services: Services, request: ProduceRequest, asked: Asked) -> Any:
            sent = list(self._note(services.cluster, request, asked.context.client_host))
            reply = handler(services, request, asked)
            if isinstance(reply, asyncio.Future):
                reply.add_done_callback(lambda done: self._answered(sent, _result(done)))
            else:
                self._answered(sent, reply)
            return reply

        return {**table, ApiKey.PRODUCE: produce}

    def _note(
        self, cluster: KafkaCluster, request: ProduceRequest, client_host: str
    ) -> Iterator[tuple[_LogId, _Batch] | None]:
        for reference in request.topics:
            for data in reference.partitions:
                try:
                    header = sent_batch(data.records, request.api_version)
                    topic = cluster.topic_of(reference)
                except ProtocolError:
                    yield None  # the broker refuses it
                    continue
                assert data.records is not None
                place, batch = (topic.topic_id, data.partition), _batch(header, data.records)
                account = self._accounts.setdefault(place, _Account())
                account.sent[batch] = account.sent.get(batch, 0) + 1
                account.senders.setdefault(batch, []).append(client_host)
                yield place, batch

    def _answered(self, sent: list[tuple[_LogId, _Batch] | None], reply: Any) -> None:
        if not isinstance(reply, ProduceResponse):
            return  # nothing is acknowledged
        answers = [each for topic in reply.topics for each in topic.partitions]
        for one, answer in zip(sent, answers, strict=True):
            if one is not None and answer.error_code is ErrorCode.NONE:
                place, batch = one
                self._accounts[place].acknowledged.append((answer.base_offset, batch))

    # -- logs ---------------------------------------------------------------------------------------------

    def original(self, cluster: KafkaCluster, partition: TopicPartition, offset: int) -> int:
        """Return the offset of the record of which this one is a copy that a broker has made, or its own."""
        account = self._followed(cluster, partition)
        return offset if account is None else account.copy_of.get(offset, offset)

    def copies(self, cluster: KafkaCluster, partition: TopicPartition) -> Mapping[int, int]:
        """Return the offsets of such copies in a partition, each with that of its original."""
        account = self._followed(cluster, partition)
        return {} if account is None else account.copy_of

    def sender(self, cluster: KafkaCluster, partition: TopicPartition, offset: int) -> str:
        """Return the address of the client that sent the record at an offset; "" if it is not known."""
        account = self._followed(cluster, partition)
        if account is None:
            return ""
        for batch, offsets in account.held.items():
            for nth, base in enumerate(offsets):
                if base <= offset < base + batch.size and (senders := account.senders.get(batch)):
                    return senders[min(nth, len(senders) - 1)]
        return ""

    def _followed(self, cluster: KafkaCluster, partition: TopicPartition) -> _Account | None:
        topic = cluster.image.by_name.get(partition.topic)
        account = None if topic is None else self._accounts.get((topic.topic_id, partition.partition))
        if topic is not None and account is not None:
            account.follow(cluster.log(topic, partition.partition))
        return account

    def judge(self, cluster: KafkaCluster) -> None:
        """Judge what the logs hold now."""
        for (topic_id, number), account in self._accounts.items():
            topic = cluster.image.by_id.get(topic_id)
            if topic is not None:
                log = cluster.log(topic, number)
                if not log.settings.compacts:
                    account.follow(log)
                    self._judge(topic, number, account, log.log_start_offset)

    def _judge(self, topic: Topic, number: int, account: _Account, start: int) -> None:
        name = f"{topic.name}-{number}"
        for batch, offsets in account.held.items():
            requests = account.sent.get(batch, 0)
            if len(offsets) > account.allowed(batch):
                places = ", ".join(map(str, offsets[:5]))
                self._report(
                    f"{name} holds {_records(batch)} {len(offsets)} times, at offsets {places}; "
                    f"{_requests(requests)} sent them"
                    + (", and their producer is idempotent" if batch.is_idempotent else "")
                )
        seen: dict[tuple[int, _Batch], None] = {}
        for offset, batch in account.acknowledged:
            if offset < start:
                continue  # deleted since
            place = (offset, batch)
            if offset not in account.held.get(batch, ()):
                self._report(
                    f"{name} has lost {_records(batch)} that a broker has acknowledged with offset {offset}"
                )
            elif place in seen and not batch.is_idempotent:
                self._report(
                    f"{name} holds {_records(batch)} at offset {offset} once; a broker has acknowledged "
                    "two requests with that offset"
                )
            seen[place] = None


def _result(done: asyncio.Future[Any]) -> Any:
    return None if done.cancelled() or done.exception() is not None else done.result()


def _records(batch: _Batch) -> str:
    return "a record" if batch.size == 1 else f"a batch of {batch.size} records"


def _requests(count: int) -> str:
    return "no request has" if count == 0 else "one request has" if count == 1 else f"{count} requests have"


def committed_from(log: PartitionLog, offset: int) -> Iterator[int]:
    """Yield offsets of records from `offset` on: none of open or aborted transactions, and no markers."""
    start = max(offset, log.log_start_offset)
    found = log.read(min(start, log.high_watermark), _ALL, at_least_one=True, committed=True)
    aborted = deque(sorted(found.aborted or (), key=lambda each: each.first_offset))
    gone: set[int] = set()
    for batch in found.batches:
        header = stored_batch(batch)
        while aborted and aborted[0].first_offset <= header.base_offset:
            gone.add(aborted.popleft().producer_id)
        if header.is_control:
            gone.discard(header.producer_id)
        elif not header.is_transactional or header.producer_id not in gone:
            yield from (each.offset for each in records_in(batch) if each.offset >= start)
