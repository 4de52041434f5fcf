"""The tail of a real coordinator's journal: the partition of `__consumer_offsets` that holds one group.

A broker appends the outcomes of several requests as one record batch. No consumer shows batches, so they are
read here with plain fetches up to the high watermark, from the broker that leads the partition. A fetch that
fails is repeated for as long as it takes; nothing is skipped or read twice. Offsets that a transaction
committed come with the end of their transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final

import msgspec
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.codec.batches import BatchHeader, is_commit, whole_batches
from fencepost.coordinator.codec.client import read_response, request_frame
from fencepost.coordinator.codec.conversation import CallVersions
from fencepost.coordinator.codec.framing import MalformedFrame
from fencepost.coordinator.codec.group_records import OpaqueRecord, decode_record
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol.cluster import MetadataRequest, MetadataResponse
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC, Topic, TopicsImage
from fencepost.member.kafka.client import KafkaClient
from fencepost.member.kafka.connections import AiokafkaRequest, Connections

TOPIC: Final = OFFSETS_TOPIC
MAX_WAIT_MS: Final = 250
"""Time for which a broker keeps a fetch that finds nothing, in ms."""

_METADATA: Final = CallVersions(ApiKey.METADATA, 12, 13)
_CONNECT_S: Final = 30.0
_REQUEST_TIMEOUT_MS: Final = 3_000
"""Time after which the successor of a broker that does not respond, such as a paused one, is asked; in ms."""
_PAUSE_S: Final = 0.05
_MAX_BYTES: Final = 4 << 20
_LATEST, _EARLIEST = -1, -2
_LOST_S: Final = 30.0
"""Time for which a new leader may lag behind, in seconds. What it still lacks then is lost."""


class GroupLogLost(EnvironmentLacks):
    """The partition no longer has the next offset to read: its records were lost or deleted."""


class LoggedRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of the group at its place in the log."""

    offset: int
    timestamp_ms: int
    """Time at which the broker made it, in ms of the broker's clock. Records of one outcome have the same."""
    record: Record | OpaqueRecord


class LogBatch(msgspec.Struct, frozen=True, gc=False):
    """The group's records of one record batch: one or several whole outcomes, in their order."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    """The epoch of the leader. A new one means that another broker leads the partition and coordinates the
    group."""
    leader: int
    """The broker that responded."""
    records: tuple[LoggedRecord, ...]


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """The result of one fetch."""

    batches: tuple[LogBatch, ...]
    """The batches that have records of the group."""
    complete_to_ns: int | None
    """Time of `time.monotonic_ns` up to which all visible records have been read; None if there are more."""


class GroupLogTail:
    """Reads one group's journal from its beginning.

        async with GroupLogTail("orders", cluster.bootstrap_servers) as journal:
            while True:
                stretch = await journal.read()

    :raises EnvironmentLacks: on entry, if no broker answers in time.
    """

    def __init__(self, group_id: str, bootstrap_servers: str) -> None:
        self.group_id = group_id
        self._client = KafkaClient(
            bootstrap_servers=bootstrap_servers,
            client_id="fencepost-journal",
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=5_000,
            retry_backoff_ms=int(1000 * _PAUSE_S),
        )
        self._connections = Connections(self._client)
        self._partition = TopicPartition(TOPIC, 0)
        self._open: dict[int, list[LoggedRecord]] = {}
        """Records of transactions that have not ended, by producer id."""
        self._out_of_range_since: float | None = None
        self.position = -1
        """The offset that is read next."""
        self.failures = 0
        """Number of fetches that had to be repeated."""

    async def __aenter__(self) -> GroupLogTail:
        """Find the partition and its start; it is created if it does not exist."""
        async with AsyncExitStack() as opened:
            opened.push_async_callback(self._client.close)
            try:
                async with asyncio.timeout(_CONNECT_S):
                    await self._connections.bootstrap()
                    self._partition = TopicPartition(TOPIC, await self._locate())
                    self.position = await self._sure(_EARLIEST)
            except (KafkaError, OSError, TimeoutError) as error:
                raise EnvironmentLacks(f"the journal of {self.group_id} can't be read: {error!r}") from error
            opened.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._client.close()

    async def read(self) -> Stretch:
        """Return the next records; wait a moment for them. Errors of brokers and connections are waited out.

        :raises GroupLogLost: if the log does not have the next offset any more.
        :raises MalformedRecord: if a record is malformed.
        """
        while True:
            asked_ns = time.monotonic_ns()
            leader = self._client.cluster.leader_for_partition(self._partition)
            if leader is None or leader == -1:
                await self._again()
                continue
            try:
                answer = await self._client.send(leader, self._request(), group=ConnectionGroup.COORDINATION)
            except (KafkaError, OSError):
                await self._again()
                continue
            error_code, high_watermark, data = _answer(answer)
            if error_code == ErrorCode.NONE:
                self._out_of_range_since = None
                batches = tuple(self._batches(data, leader))
                complete = self.position >= high_watermark
                return Stretch(batches, asked_ns if complete else None)
            if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._check_range()
            elif error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise EnvironmentLacks(f"{self._named()} may not be read: allow Read on the topic {TOPIC}")
            await self._again()

    async def end(self) -> int:
        """Return the log's end as of now: the next offset that becomes visible."""
        return await self._sure(_LATEST)

    async def topics(self) -> TopicsImage:
        """Return the cluster's topics, as known to the broker that leads the partition: the group's
        coordinator.

        A coordinator never knows newer topics than its broker returns.
        """
        while True:
            leader = self._client.cluster.leader_for_partition(self._partition)
            if leader is not None and leader != -1:
                call = AiokafkaRequest(_METADATA, _metadata_frame)
                try:
                    answer = await self._connections.ask(leader, call, _REQUEST_TIMEOUT_MS)
                    return _image(read_response(ApiKey.METADATA, call.version, answer)[1])
                except (KafkaError, OSError, TimeoutError, MalformedFrame):
                    pass
            await self._again()

    # -- how ---------------------------------------------------------------------------------------------

    async def _locate(self) -> int:
        """Return the group's partition. Asking for a coordinator creates the topic."""
        while True:
            try:
                await self._client.coordinator_lookup(CoordinationType.GROUP, self.group_id)
            except (KafkaError, OSError):
                await self._again()
                continue
            self._connections.track({TOPIC})
            found = self._client.cluster.partitions_for_topic(TOPIC)
            if found:
                partition = offsets_partition(self.group_id, len(found))
                if self._client.cluster.leader_for_partition(TopicPartition(TOPIC, partition)) not in (
                    None,
                    -1,
                ):
                    return partition
            await self._again()

    async def _again(self) -> None:
        self.failures += 1
        self._connections.renew_metadata()
        await asyncio.sleep(_PAUSE_S)

    async def _sure(self, timestamp: int) -> int:
        while True:
            try:
                return await self._offset(timestamp)
            except (KafkaError, OSError):
                await self._again()

    async def _offset(self, timestamp: int) -> int:
        request = OffsetRequest(-1, 0, [(TOPIC, [(self._partition.partition, timestamp)])])
        leader = self._client.cluster.leader_for_partition(self._partition)
        answer = await self._client.send(leader, request)
        ((_, ((_, error_code, _, offset),)),) = answer.topics
        if error_code:
            raise for_code(error_code)
        return int(offset)

    def _request(self) -> FetchRequest:
        partitions = [(self._partition.partition, self.position, _MAX_BYTES)]
        return FetchRequest(MAX_WAIT_MS, 1, _MAX_BYTES, 0, [(TOPIC, partitions)])

    def _named(self) -> str:
        return f"{TOPIC}-{self._partition.partition} at offset {self.position}"

    async def _check_range(self) -> None:
        """Move a position before the log's start to that start: compaction took what was between."""
        now = time.monotonic()
        since = self._out_of_range_since = self._out_of_range_since or now
        try:
            first = await self._offset(_EARLIEST)
        except (KafkaError, OSError):
            return
        if self.position < first:
            self.position = first
        elif now - since > _LOST_S:
            raise GroupLogLost(
                f"{self._named()} is beyond the end of the log: records that were read before are lost"
            )

    def _batches(self, data: bytes, leader: int) -> Iterator[LogBatch]:
        for header, raw in whole_batches(data):
            following = header.base_offset + header.last_offset_delta + 1
            if following <= self.position:
                continue
            if header.is_control:
                records = self._ended(header, raw)
            else:
                records = [each for each in self._read(raw) if each.offset >= self.position]
                if header.is_transactional:
                    self._open.setdefault(header.producer_id, []).extend(records)
                    records = []
            self.position = following
            if records:
                yield LogBatch(header.base_offset, following, header.leader_epoch, leader, tuple(records))

    def _ended(self, header: BatchHeader, raw: memoryview) -> list[LoggedRecord]:
        """Return the records of a transaction that this control batch commits; those of an aborted one are
        dropped."""
        pending = self._open.pop(header.producer_id, [])
        return pending if is_commit(raw) else []

    def _read(self, raw: memoryview) -> Iterator[LoggedRecord]:
        for each in MemoryRecords(bytes(raw)).next_batch():
            record = decode_record(each.key, each.value)
            group_id = record.group_id if isinstance(record, OpaqueRecord) else record.key.group_id
            if group_id == self.group_id:
                yield LoggedRecord(each.offset, each.timestamp, record)


def _answer(answer: Any) -> tuple[int, int, bytes]:
    """Return error code, high watermark and bytes of the one requested partition."""
    ((_, ((_, error_code, high_watermark, *_, data),)),) = answer.topics
    return error_code, high_watermark, data or b""


def _metadata_frame(version: int, correlation_id: int, client_id: str) -> bytes:
    message = MetadataRequest(topics=None, allow_auto_topic_creation=False)
    return request_frame(ApiKey.METADATA, version, correlation_id, client_id, message)


def _image(answer: MetadataResponse) -> TopicsImage:
    return TopicsImage.of(
        Topic(topic_id=topic.topic_id, name=topic.name, partitions=len(topic.partitions))
        for topic in answer.topics
        if topic.topic_id and topic.name and topic.error_code is ErrorCode.NONE
    )
