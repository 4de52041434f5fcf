"""The partitions' logs: the number of records is a function of time. No record exists as an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from fencepost.coordinator.protocol.ids import TopicPartition, topic_partitions
from fencepost.simulation.kernel.loop import VirtualLoop


class SimulatedPartitionLog(msgspec.Struct, frozen=True, gc=False):
    """One log, to which a record is appended every `interval_us`; 0 stands for never."""

    began_us: int
    interval_us: int

    def end(self, now_us: int) -> int:
        """Return the next offset at that time."""
        return (now_us - self.began_us) // self.interval_us if self.interval_us else 0

    def first(self, since_us: int) -> int:
        """Return the offset of the first record at that time or later."""
        return max(0, self.end(since_us - 1))


class PartitionLogs(Mapping[TopicPartition, int]):
    """All logs of the cluster. As a mapping: the next offset of each, as of now."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._logs: dict[TopicPartition, SimulatedPartitionLog] = {}
        self._intervals: dict[str, int] = {}
        self.changes = 0
        """Grows whenever a topic is created, grown or deleted."""

    def create(self, topic: str, partitions: int, records_per_second: float) -> None:
        """Create a topic; its partitions share the rate evenly, one after the other."""
        interval = round(partitions * 1_000_000 / records_per_second) if records_per_second else 0
        self._intervals[topic] = interval
        self._add(topic, range(partitions))

    def grow(self, topic: str, before: int, partitions: int) -> None:
        """Add partitions to a topic, each with the same rate as the others."""
        self._add(topic, range(before, partitions))

    def delete(self, topic: str) -> None:
        """Delete a topic and its records."""
        del self._intervals[topic]
        self._logs = {partition: log for partition, log in self._logs.items() if partition.topic != topic}
        self.changes += 1

    def _add(self, topic: str, numbers: range) -> None:
        now, interval = self._loop.now_us, self._intervals[topic]
        for index, partition in enumerate(topic_partitions(topic, numbers)):
            self._logs[partition] = SimulatedPartitionLog(now - interval * index // len(numbers), interval)
        self.changes += 1

    def log(self, partition: TopicPartition) -> SimulatedPartitionLog | None:
        """Return the partition's log; None if the cluster has no such partition."""
        return self._logs.get(partition)

    def next_record_us(
        self, positions: Mapping[TopicPartition, int]
    ) -> tuple[int | None, list[TopicPartition]]:
        """Return the time of the first record at one of these positions, None if there will be none; and the
        partitions whose position is out of range.

        The time stays valid until positions or `changes` change.
        """
        arrivals, outside = self.arrivals(positions)
        return min(arrivals.values(), default=None), outside

    def arrivals(
        self, positions: Mapping[TopicPartition, int]
    ) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """Return the time of the record at each of these positions, if there will be one; and the partitions
        whose position is out of range."""
        now, logs = self._loop.now_us, self._logs
        arrivals: dict[TopicPartition, int] = {}
        outside = []
        for partition, position in positions.items():
            log = logs.get(partition)
            if log is None:
                continue
            interval_us = log.interval_us
            at = log.began_us + (position + 1) * interval_us
            if at - interval_us > now if interval_us else position:
                outside.append(partition)
            elif interval_us:
                arrivals[partition] = at
        return arrivals, outside

    def take(
        self,
        positions: Mapping[TopicPartition, int],
        most: int,
        after: TopicPartition | None,
        arrivals: Mapping[TopicPartition, int] | None = None,
    ) -> tuple[dict[TopicPartition, tuple[int, int]], TopicPartition | None]:
        """Return at most `most` of the records that are there now, as ranges of offsets, and the partition
        that filled the poll.

        They come from one partition after the other, beginning after `after`, the one that filled the last
        poll. So all partitions have their turn even if records never run out. `arrivals` are those of these
        positions, if they are known.
        """
        if arrivals is None:
            arrivals, _ = self.arrivals(positions)
        now, logs = self._loop.now_us, self._logs
        ready = [partition for partition, at_us in arrivals.items() if at_us <= now]
        if after is not None and after in positions:
            order = list(positions)
            first = order.index(after) + 1
            there = set(ready)
            ready = [partition for partition in order[first:] + order[:first] if partition in there]
        taken: dict[TopicPartition, tuple[int, int]] = {}
        for partition in ready:
            position = positions[partition]
            end = min(logs[partition].end(now), position + most)
            taken[partition] = (position, end)
            most -= end - position
            if not most:
                return taken, partition
        return taken, None

    def get(self, partition: TopicPartition, default: Any = None, /) -> Any:
        """Return the value as any mapping does, but without raising an exception internally."""
        log = self._logs.get(partition)
        if log is None:
            return default
        return (self._loop.now_us - log.began_us) // log.interval_us if log.interval_us else 0

    def __getitem__(self, partition: TopicPartition) -> int:
        return self._logs[partition].end(self._loop.now_us)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._logs)

    def __len__(self) -> int:
        return len(self._logs)
