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
from types import TracebackType
from typing import Any, Final

import msgspec
from aiokafka.record.memory_records import MemoryRecords

from fencepost.coordinator.assign.java_order import offsets_partition
from fencepost.coordinator.codec.batches import BatchHeader, is_commit, whole_batches
from fencepost.coordinator.codec.group_records import OpaqueRecord, decode_record
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.cluster import MetadataRequest, MetadataResponse
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC, Topic, TopicsImage
from fencepost.simulation.brokers.connection import BrokerConnection
from fencepost.simulation.lab.chaos.admin import Admin

MAX_WAIT_MS: Final = 250
"""Time for which a broker keeps a fetch that finds nothing, in ms."""

_REQUEST_TIMEOUT_S: Final = 3.0
"""Time after which the successor of a broker that does not respond, such as a paused one, is asked; in
seconds."""
_CONNECT_S: Final = 30.0
"""Time within which the partition and its start must be found, in seconds."""
_PAUSE_S: Final = 0.05
_MAX_BYTES: Final = 4 << 20
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


class GroupLogTail:
    """Reads one group's journal from its beginning.

        async with GroupLogTail("orders", cluster.bootstrap_servers) as journal:
            while True:
                batches = await journal.read()

    :raises EnvironmentLacks: if the log may not be read; on entry, also if its start is not found in time.
    """

    def __init__(self, group_id: str, bootstrap_servers: str) -> None:
        self.group_id = group_id
        self._admin = Admin(bootstrap_servers)
        self._connection: BrokerConnection | None = None
        """The connection with the broker that leads the partition, as far as that is known."""
        self._leader = -1
        self._turn = asyncio.Lock()
        self._partition = 0
        self._open: dict[int, list[LoggedRecord]] = {}
        """Records of transactions that have not ended, by producer id."""
        self._out_of_range_since: float | None = None
        self.position = -1
        """The offset that is read next."""
        self._lacking = f"no broker of {bootstrap_servers} names its coordinator"
        """Why the last request had to be repeated."""
        self.failures = 0
        """Number of requests that had to be repeated."""

    async def __aenter__(self) -> GroupLogTail:
        """Find the partition and its start; it is created if it does not exist."""
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._admin.coordinator(self.group_id)
                while not (partitions := await self._admin.partitions(OFFSETS_TOPIC)):
                    await self._again(f"the brokers report no partitions of {OFFSETS_TOPIC}")
                self._partition = offsets_partition(self.group_id, partitions)
                self.position = await self._offset(logs.OffsetSpec.EARLIEST)
        except TimeoutError as error:
            await self._close()
            raise EnvironmentLacks(
                f"the journal of {self.group_id} can't be read within {_CONNECT_S:g} s: {self._lacking}"
            ) from error
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._close()

    async def read(self) -> list[LogBatch]:
        """Return the next batches that have records of the group; wait a moment for them. Errors of brokers
        and connections are waited out.

        :raises GroupLogLost: if the log does not have the next offset any more.
        :raises MalformedRecord: if a record is malformed.
        """
        while True:
            wanted = logs.FetchPartition(
                partition=self._partition, fetch_offset=self.position, partition_max_bytes=_MAX_BYTES
            )
            request = logs.FetchRequest(
                max_wait_ms=MAX_WAIT_MS, min_bytes=1, max_bytes=_MAX_BYTES, topics=(_of_log(wanted),)
            )
            found: logs.FetchedPartition = await self._ask(ApiKey.FETCH, 12, request)
            if found.error_code is ErrorCode.NONE:
                self._out_of_range_since = None
                return list(self._batches(b"".join(found.batches), self._leader))
            if found.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
                await self._check_range()
            await self._again(found.error_code.name)

    async def end(self) -> int:
        """Return the log's end as of now: the next offset that becomes visible."""
        return await self._offset(logs.OffsetSpec.LATEST)

    async def topics(self) -> TopicsImage:
        """Return the cluster's topics, as known to the broker that leads the partition: the group's
        coordinator.

        A coordinator never knows newer topics than its broker returns.
        """
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer: MetadataResponse = await self._ask(ApiKey.METADATA, 12, request)
        return TopicsImage.of(
            Topic(topic_id=topic.topic_id, name=topic.name, partitions=len(topic.partitions))
            for topic in answer.topics
            if topic.topic_id and topic.name and topic.error_code is ErrorCode.NONE
        )

    # -- how ---------------------------------------------------------------------------------------------

    async def _ask(self, api_key: ApiKey, version: int, request: Any) -> Any:
        """Return the response of the broker that leads the partition, once it gives one; of requests about
        the partition, the part about it.

        :raises EnvironmentLacks: if the topic may not be read.
        """
        while True:
            try:
                async with self._turn:
                    if self._connection is None:
                        self._connection = await self._connected()
                    answer = await self._connection.ask(api_key, version, request)
            except EnvironmentLacks as error:
                await self._again(str(error))
                continue
            if api_key is ApiKey.METADATA:
                return answer
            found = answer.topics[0].partitions[0]
            if found.error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                raise EnvironmentLacks(
                    f"{self._named()} may not be read: allow Read on the topic {OFFSETS_TOPIC}"
                )
            return found

    async def _connected(self) -> BrokerConnection:
        leader, nodes = await self._admin.leader(self._partition), await self._admin.nodes()
        if leader is None or leader not in nodes:
            raise EnvironmentLacks(f"{self._named()} has no leader")
        self._leader = leader
        return await BrokerConnection.open(*nodes[leader], "fencepost-journal", _REQUEST_TIMEOUT_S)

    async def _again(self, lacking: str) -> None:
        """Look for the leader anew, in a moment."""
        self._lacking = lacking
        self.failures += 1
        async with self._turn:
            await self._hang_up()
        await asyncio.sleep(_PAUSE_S)

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _close(self) -> None:
        await self._hang_up()
        await self._admin.close()

    async def _offset(self, spec: logs.OffsetSpec) -> int:
        wanted = logs.ListOffsetsPartition(partition=self._partition, timestamp_ms=spec)
        request = logs.ListOffsetsRequest(topics=(_of_log(wanted),))
        while True:
            found: logs.ListedOffset = await self._ask(ApiKey.LIST_OFFSETS, 7, request)
            if found.error_code is ErrorCode.NONE:
                return found.offset
            await self._again(found.error_code.name)

    def _named(self) -> str:
        return f"{OFFSETS_TOPIC}-{self._partition} at offset {self.position}"

    async def _check_range(self) -> None:
        """Move a position before the log's start to that start: compaction took what was between."""
        now = time.monotonic()
        since = self._out_of_range_since = self._out_of_range_since or now
        first = await self._offset(logs.OffsetSpec.EARLIEST)
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


def _of_log(wanted: Any) -> logs.OfTopic[Any]:
    return logs.OfTopic(name=OFFSETS_TOPIC, partitions=(wanted,))
