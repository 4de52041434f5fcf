"""What became of each record: acknowledged to its producer, processed by members, lost with its topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from fencepost.coordinator.protocol.ids import TopicPartition


class RecordCount:
    """Keeps count of records by their number, which no two share."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[TopicPartition, int]] = {}
        """Where each record is."""
        self._processed: Counter[int] = Counter()

    def acknowledge(self, number: int, partition: TopicPartition, offset: int) -> None:
        """The cluster has promised to keep it."""
        self.acknowledged[number] = partition, offset

    def process(self, numbers: Iterable[int]) -> None:
        """A member has processed these."""
        self._processed.update(numbers)

    def forget(self, topic: str) -> None:
        """The topic is deleted, and its records with it."""
        for number in [n for n, (partition, _) in self.acknowledged.items() if partition.topic == topic]:
            del self.acknowledged[number]

    def missing(self, subscribed: Callable[[str], bool]) -> list[int]:
        """Records that were acknowledged and that nobody processed, of topics that somebody subscribes to."""
        return [
            number
            for number, (partition, _) in self.acknowledged.items()
            if number not in self._processed and subscribed(partition.topic)
        ]

    @property
    def processed(self) -> int:
        """How often any record was processed."""
        return self._processed.total()

    @property
    def duplicated(self) -> int:
        """How often a record was processed once more."""
        return sum(times - 1 for times in self._processed.values())
