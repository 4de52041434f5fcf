"""The topics of a run on a real cluster, the records sent to them, and what happened to each record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.topics import Topic, TopicsImage
from fencepost.simulation.lab.chaos.admin import Admin, TopicTaken
from fencepost.simulation.lab.chaos.clock import RealTime, RunQueue
from fencepost.simulation.lab.chaos.events import RunEvents, TopicImageChanged
from fencepost.simulation.lab.chaos.producer import Producer


class RecordCount:
    """Counts records by their number, which is unique."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[TopicPartition, int]] = {}
        """The place of each record."""
        self._processed: Counter[int] = Counter()

    def acknowledge(self, number: int, partition: TopicPartition, offset: int) -> None:
        """Note that the cluster has promised to keep it."""
        self.acknowledged[number] = partition, offset

    def process(self, numbers: Iterable[int]) -> None:
        """Note that a member has processed these."""
        self._processed.update(numbers)

    def forget(self, topic: str) -> None:
        """Forget the records of a deleted topic."""
        for number in [n for n, (partition, _) in self.acknowledged.items() if partition.topic == topic]:
            del self.acknowledged[number]

    def missing(self, subscribed: Callable[[str], bool]) -> list[int]:
        """Return records that were acknowledged and that no member processed, of topics with a subscriber."""
        return [
            number
            for number, (partition, _) in self.acknowledged.items()
            if number not in self._processed and subscribed(partition.topic)
        ]

    @property
    def processed(self) -> int:
        """Number of times that any record was processed."""
        return self._processed.total()

    @property
    def duplicated(self) -> int:
        """Number of times that a record was processed again."""
        return sum(times - 1 for times in self._processed.values())


class RealTopics:
    """Creates topics one after the other, in the order of the requests.

    A change counts from the moment of the request to the cluster: members may see it before the response.
    """

    def __init__(
        self, admin: Admin, producer: Producer, ledger: RecordCount, happenings: RunEvents, time: RealTime
    ) -> None:
        self._admin = admin
        self._producer = producer
        self._ledger = ledger
        self._happenings = happenings
        self._time = time
        self._image = TopicsImage()
        self.changes = RunQueue(time)
        self._rates: dict[str, float] = {}
        """Records per second of each partition, by topic."""
        self.partitions: dict[str, int] = {}
        """Partitions by topic, as they were requested."""
        self.made: dict[str, None] = {}
        """Topics that are to be deleted at the end."""

    def has(self, name: str) -> bool:
        """Return true if the topic exists."""
        return name in self.partitions

    def create(self, name: str, partitions: int, records_per_second: float) -> None:
        """Create a topic."""
        self.partitions[name] = partitions
        self._rates[name] = records_per_second / partitions
        self.changes.add(self._create, name, partitions)

    def grow(self, name: str, partitions: int) -> None:
        """Give a topic more partitions, each with the same rate as the others."""
        before = self.partitions[name]
        if partitions > before:
            self.partitions[name] = partitions
            self.changes.add(self._grow, name, before, partitions)

    def delete(self, name: str) -> None:
        """Delete a topic."""
        del self.partitions[name]
        self.changes.add(self._delete, name)

    async def _create(self, name: str, partitions: int) -> None:
        asked_us = self._time.now_us
        self.made[name] = None
        try:
            topic_id = await self._admin.create_topic(name, partitions)
        except TopicTaken:
            del self.made[name]
            raise
        topic = Topic(topic_id=topic_id, name=name, partitions=partitions)
        self._changed(asked_us, self._image.with_topic(topic), name, "created", partitions)
        self._producer.produce(name, range(partitions), self._rates[name] * partitions)

    async def _grow(self, name: str, before: int, partitions: int) -> None:
        asked_us = self._time.now_us
        await self._admin.grow_topic(name, partitions)
        topic = Topic(topic_id=self._image.by_name[name].topic_id, name=name, partitions=partitions)
        self._changed(asked_us, self._image.with_topic(topic), name, "grown", partitions)
        self._producer.produce(name, range(before, partitions), self._rates[name] * (partitions - before))

    async def _delete(self, name: str) -> None:
        await self._producer.stop(name)
        self._ledger.forget(name)
        asked_us = self._time.now_us
        await self._admin.delete_topic(name)
        self.made.pop(name, None)
        self._changed(asked_us, self._image.without(name), name, "deleted", 0)

    def _changed(self, at_us: int, image: TopicsImage, name: str, what: str, partitions: int) -> None:
        self._image = image
        self._happenings.add(at_us, "", TopicImageChanged(image, name, what, partitions))

    async def clean_up(self, name: str) -> None:
        """Delete a topic that the run would leave behind.

        :raises EnvironmentLacks: if it can't be deleted.
        """
        await self._admin.delete_topic(name)
        del self.made[name]
