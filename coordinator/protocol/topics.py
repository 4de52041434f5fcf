"""The cluster's topics, as a group sees them: names, ids and partition counts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from fencepost.coordinator.protocol.ids import TopicId

_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

OFFSETS_TOPIC = "__consumer_offsets"
"""The topic of the group coordinators' records."""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state", "__share_group_state"})
"""Topics of the brokers themselves."""


def is_valid_name(name: str) -> bool:
    """Return true if the name is valid for a topic: 1 to 249 of a-z, A-Z, 0-9, '.', '_', '-', and not '.' or
    '..'."""
    return _NAME.fullmatch(name) is not None and name not in {".", ".."}


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. A topic that is deleted and created again has another id."""

    topic_id: TopicId
    name: str
    partitions: int
    replicas: int = 1
    """Number of brokers that each partition is meant to be on."""
    racks: tuple[tuple[str, ...], ...] = ()
    """The racks of each partition's replicas, if they are known."""
    assignments: tuple[tuple[int, ...], ...] = ()
    """The broker ids of each partition's replicas if they were placed manually, the leader first.

    Empty for a partition that was not, and missing after the last one that was.
    """


class TopicsImage(msgspec.Struct, frozen=True):
    """An immutable snapshot of all topics. `version` grows with every change."""

    version: int = 0
    by_name: Mapping[str, Topic] = {}
    by_id: Mapping[TopicId, Topic] = {}

    @classmethod
    def of(cls, topics: Iterable[Topic], version: int = 1) -> TopicsImage:
        """Return an image of exactly these topics."""
        ordered = sorted(topics, key=lambda topic: topic.name)
        return cls(version, {t.name: t for t in ordered}, {t.topic_id: t for t in ordered})

    def with_topic(self, topic: Topic) -> TopicsImage:
        """Return the image after that topic was created, or replaced under its name."""
        others = (t for t in self.by_name.values() if t.name != topic.name)
        return TopicsImage.of([*others, topic], self.version + 1)

    def beside(self, topic: Topic) -> TopicsImage:
        """Return the same version with one more topic, the last of all."""
        by_name, by_id = {**self.by_name, topic.name: topic}, {**self.by_id, topic.topic_id: topic}
        return TopicsImage(self.version, by_name, by_id)

    def without(self, name: str) -> TopicsImage:
        """Return the image after the topic of that name was deleted."""
        return TopicsImage.of((t for t in self.by_name.values() if t.name != name), self.version + 1)

    def name_of(self, topic_id: TopicId) -> str | None:
        """Return the topic's name, or None if there is no such topic (any more)."""
        topic = self.by_id.get(topic_id)
        return None if topic is None else topic.name


def metadata_hash(names: Iterable[str], image: TopicsImage) -> int:
    """Return a 64-bit signed digest of the existing topics among `names`, given sorted; 0 if none of them
    exists.

    It changes with a topic's id, partition count or racks. Kafka uses XXH3 (KIP-1101); the value is private
    to a coordinator's records.
    """
    by_name = image.by_name
    digests = [_topic_digest(by_name[name]) for name in names if name in by_name]
    if not digests:
        return 0
    return int.from_bytes(hashlib.blake2b(b"".join(digests), digest_size=8).digest(), "big", signed=True)


_encoder = msgspec.msgpack.Encoder()


@lru_cache(maxsize=16_384)
def _topic_digest(topic: Topic) -> bytes:
    racks = tuple(tuple(sorted(racks)) for racks in topic.racks)
    fields = (topic.topic_id, topic.name, topic.partitions, racks)
    return hashlib.blake2b(_encoder.encode(fields), digest_size=8).digest()
