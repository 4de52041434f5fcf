"""The requests of a consumer about logs and topics, assigned or not, except what comes with a fetch."""

from __future__ import annotations

import abc
from collections.abc import Iterable
from typing import Any

from aiokafka.structs import OffsetAndTimestamp, TopicPartition

from fencepost.coordinator.protocol import ids
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.kafka.client import KafkaClient
from fencepost.member.kafka.member import KafkaMember

Partition = tuple[str, int]


class LogQuestions(abc.ABC):
    """The methods of AIOKafkaConsumer about logs and topics.

    :raises IllegalStateError: before the start, and for the last fetch of a partition that is not
        assigned.
    :raises ConsumerStoppedError: once the consumer is stopped.
    :raises KafkaTimeoutError: for offsets, if they can't be had within `request_timeout_ms`.
    """

    _client: KafkaClient
    _config: ConsumerConfig

    @abc.abstractmethod
    def _running(self) -> KafkaMember:
        """The session, if it runs."""

    @abc.abstractmethod
    def _assigned(self, partitions: Iterable[Partition]) -> tuple[ids.TopicPartition, ...]:
        """Return these partitions, if they are assigned."""

    def highwater(self, partition: Partition) -> int | None:
        """Return the offset of the next record to be produced, as of the last fetch."""
        return self._last_seen(partition)[0]

    def last_stable_offset(self, partition: Partition) -> int | None:
        """Return the offset up to which transactions are over, at the last fetch; -1 if read_uncommitted."""
        return self._last_seen(partition)[1]

    def last_poll_timestamp(self, partition: Partition) -> int | None:
        """Return the time of the last fetch, in ms since 1970."""
        return self._last_seen(partition)[2]

    def _last_seen(self, partition: Partition) -> tuple[int | None, int | None, int | None]:
        (chosen,) = self._assigned((partition,))
        return self._running().fetching.last_seen(chosen)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, assigned or not."""
        return await self._offsets_at(partitions, earliest=True)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset of each partition, assigned or not."""
        return await self._offsets_at(partitions, earliest=False)

    async def _offsets_at(self, partitions: Iterable[TopicPartition], *, earliest: bool) -> dict[Any, int]:
        return await self._running().fetching.offsets_at(
            list(partitions), self._config.request_timeout_ms, earliest=earliest
        )

    async def offsets_for_times(
        self, timestamps: dict[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first offset at or after a time in ms, by partition; None if there is no such record.

        :raises ValueError: for a time before 1970.
        """
        times = {partition: int(time) for partition, time in timestamps.items()}
        for partition, time in times.items():
            if time < 0:
                raise ValueError(f"The time for partition {partition} is {time}: it cannot be negative")
        return await self._running().fetching.offsets_for_times(times, self._config.request_timeout_ms)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Partitions of a topic whose metadata is at hand; None for others."""
        found: set[int] | None = self._client.cluster.partitions_for_topic(topic)
        return found

    async def topics(self) -> set[str]:
        """Return all topics that this client may see."""
        self._running()
        found: set[str] = (await self._client.fetch_all_metadata()).topics()
        return found
