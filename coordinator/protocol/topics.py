"""The cluster's topics, as a group sees them: names, ids and partition counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from fencepost.coordinator.protocol.ids import TopicId


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. A topic that is deleted and created again has another id."""

    topic_id: TopicId
    name: str
    partitions: int
    racks: tuple[tuple[str, ...], ...] = ()
    """The racks of each partition's replicas, where they are known."""


class TopicsImage(msgspec.Struct, frozen=True):
    """An immutable snapshot of all topics. `version` grows with every change."""

    version: int = 0
    by_name: Mapping[str, Topic] = {}
    by_id: Mapping[TopicId, Topic] = {}

    @classmethod
    def of(cls, topics: Iterable[Topic], version: int = 1) -> TopicsImage:
        """An image of exactly these topics."""
        ordered = sorted(topics, key=lambda topic: topic.name)
        return cls(version, {t.name: t for t in ordered}, {t.topic_id: t for t in ordered})

    def with_topic(self, topic: Topic) -> TopicsImage:
        """The image after that topic was created, or replaced under its name."""
        others = (t for t in self.by_name.values() if t.name != topic.name)
        return TopicsImage.of([*others, topic], self.version + 1)

    def without(self, name: str) -> TopicsImage:
        """The image after the topic of that name was deleted."""
        return TopicsImage.of((t for t in self.by_name.values() if t.name != name), self.version + 1)

    def name_of(self, topic_id: TopicId) -> str | None:
        """The topic's name, or None if there is no such topic (any more)."""
        topic = self.by_id.get(topic_id)
        return None if topic is None else topic.name
