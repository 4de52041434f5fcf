"""A Kafka topic as a streaming source of Spark, over aiokafka, if Spark's own connector is not available.

Its rows and its offsets have the format of Spark's connector, so either of the two can continue a checkpoint
of the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from aiokafka.structs import ConsumerRecord, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.member.kafka.connections import stop
from fencepost.simulation.brokers.security import OPEN, ClientSecurity
from fencepost.simulation.live.records import GONE

FORMAT: Final = "fencepost-kafka"
COLUMNS: Final = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"

Offsets: TypeAlias = dict[str, dict[str, int]]
"""Offsets by topic and partition, as Spark's connector writes them into a checkpoint."""

AWAY_SECONDS: Final = 60.0
"""Time that brokers may be away before a query fails, in seconds. A restarted query continues from its
checkpoint."""
_PAUSE_S: Final = 1.0
_POLL_MS: Final = 1_000
_AT_ONCE: Final = 5_000


class TopicPart(InputPartition):
    """The records of one partition from `start` up to, but not including, `end`."""

    def __init__(self, partition: int, start: int, end: int) -> None:
        super().__init__(partition)
        self.partition = partition
        self.start = start
        self.end = end


class TopicSource(DataSource):
    """The format, with the options `servers`, `topic`, `most` (the limit on records in a batch) and `secret`.

    The last one is a `ClientSecurity` as JSON. Spark hides the value of an option with such a name.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for Spark's `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of Spark's connector."""
        return COLUMNS

    def streamReader(self, schema: Any) -> TopicReader:  # noqa: N802  # Spark's name
        """Return the reader of a query."""
        security = msgspec.json.decode(self.options["secret"], type=ClientSecurity)
        return TopicReader(
            self.options["servers"], self.options["topic"], int(self.options["most"]), security
        )


class TopicReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads all partitions, from their first record on."""

    def __init__(self, servers: str, topic: str, most: int, security: ClientSecurity = OPEN) -> None:
        self._servers = servers
        self._security = security
        self._topic = topic
        self._most = most
        self._target: dict[int, int] | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802  # Spark's name
        """Return the first offset of each partition."""
        return self._offsets(self.bounds(first=True))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Return the limit on a batch, so that a long topic is read in batches that fit into memory."""
        return ReadMaxRows(self._most)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802  # Spark's name
        """Return the end of each partition, or the offset up to which the limit allows reading."""
        ends = self.bounds(first=False) if self._target is None else self._target
        begun = _by_partition(start, self._topic)
        left = {number: end - begun.get(number, 0) for number, end in ends.items()}
        waiting = sum(max(each, 0) for each in left.values())
        if (
            isinstance(limit, ReadAllAvailable)
            or not isinstance(limit, ReadMaxRows)
            or waiting <= limit.max_rows
        ):
            return self._offsets({number: max(end, begun.get(number, 0)) for number, end in ends.items()})
        share = limit.max_rows / waiting
        return self._offsets(
            {
                number: begun.get(number, 0) + min(left[number], max(int(left[number] * share), 1))
                if left[number] > 0
                else begun.get(number, 0)
                for number in ends
            }
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Fix the ends of the partitions: later records are not read."""
        self._target = self.bounds(first=False)

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return a part for each partition with new records."""
        begun = _by_partition(start, self._topic)
        return [
            TopicPart(number, begun.get(number, 0), until)
            for number, until in sorted(_by_partition(end, self._topic).items())
            if until > begun.get(number, 0)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of a part. Compaction and transactions leave gaps between their offsets."""
        assert isinstance(partition, TopicPart)
        for records in asyncio.run(_records(self._servers, self._security, self._topic, partition)):
            yield _as_arrow(records)

    def _offsets(self, offsets: Mapping[int, int]) -> Offsets:
        return {self._topic: {str(number): offset for number, offset in sorted(offsets.items())}}

    def bounds(self, *, first: bool) -> dict[int, int]:
        """Return the first offset of each partition, or its end, by the partition's number. Brokers may be
        away for a while.

        :raises EnvironmentLacks: if they are away for longer than `AWAY_SECONDS`.
        """
        until = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                return asyncio.run(_bounds(self._servers, self._security, self._topic, first=first))
            except OSError as error:
                if time.monotonic() > until:
                    raise EnvironmentLacks(
                        f"no Kafka broker answers at {self._servers} for {AWAY_SECONDS:.0f} s"
                    ) from error
                time.sleep(_PAUSE_S)


def _by_partition(offsets: Offsets, topic: str) -> dict[int, int]:
    return {int(number): offset for number, offset in offsets.get(topic, {}).items()}


async def _bounds(servers: str, security: ClientSecurity, topic: str, *, first: bool) -> dict[int, int]:
    """Return the first offsets of a topic's partitions, or their ends.

    :raises OSError: if no broker responds.
    """
    async with _consumer(servers, security) as consumer:
        try:
            ask = consumer.beginning_offsets if first else consumer.end_offsets
            known = await ask([TopicPartition(topic, 0)])
            # The client knows the number of partitions only after a request for the topic.
            others = (consumer.partitions_for_topic(topic) or set()) - {0}
            known |= await ask([TopicPartition(topic, number) for number in sorted(others)]) if others else {}
            return {each.partition: offset for each, offset in known.items()}
        except KafkaError as error:
            raise OSError(str(error)) from error


async def _records(
    servers: str, security: ClientSecurity, topic: str, part: TopicPart
) -> list[list[ConsumerRecord]]:
    """Return the records of a part, in the fetched lists.

    :raises EnvironmentLacks: if they were deleted, or no broker returns them.
    """
    partition = TopicPartition(topic, part.partition)
    found: list[list[ConsumerRecord]] = []
    async with _consumer(servers, security) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, part.start)
        position, until = part.start, time.monotonic() + AWAY_SECONDS
        while position < part.end:
            try:
                got = await consumer.getmany(partition, timeout_ms=_POLL_MS, max_records=_AT_ONCE)
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                raise EnvironmentLacks(
                    f"{topic}-{part.partition}: the records from offset {position} on were deleted "
                    f"by the topic's retention; {GONE}"
                ) from error
            found += [[each for each in records if each.offset < part.end] for records in got.values()]
            before, position = position, await consumer.position(partition)
            if position > before:
                until = time.monotonic() + AWAY_SECONDS
            elif time.monotonic() > until:
                raise EnvironmentLacks(
                    f"{topic}-{part.partition}: no broker returned a record after offset {position} for "
                    f"{AWAY_SECONDS:.0f} s"
                )
    return [records for records in found if records]


@contextlib.asynccontextmanager
async def _consumer(servers: str, security: ClientSecurity) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer without a group.

    :raises OSError: if no broker responds.
    """
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # in a worker, whose output is not read
    consumer = AIOKafkaConsumer(
        bootstrap_servers=servers.split(","),
        client_id="fencepost-analyze",
        auto_offset_reset="none",
        enable_auto_commit=False,
        **security.aiokafka(),
    )
    try:
        try:
            await consumer.start()
        except KafkaError as error:
            raise OSError(str(error)) from error
        yield consumer
    finally:
        await stop(consumer)


def _as_arrow(records: Sequence[ConsumerRecord]) -> pa.RecordBatch:
    first = records[0]
    arrays = [
        pa.array([each.key for each in records], pa.binary()),
        pa.array([each.value for each in records], pa.binary()),
        pa.array([first.topic] * len(records), pa.string()),
        pa.array([each.partition for each in records], pa.int32()),
        pa.array([each.offset for each in records], pa.int64()),
        pa.array([each.timestamp * 1_000 for each in records], pa.timestamp("us", "UTC")),
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[column.split()[0] for column in COLUMNS.split(", ")])
