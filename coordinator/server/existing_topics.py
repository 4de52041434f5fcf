"""The topics of a request that exist, apart from those that do not.

Kafka's broker refuses missing topics and partitions before the coordinator sees the rest. So a response
begins with the refused ones. A topic that the request names again, even with only some of its partitions
left, is answered where it came first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from fencepost.coordinator.codec.offsets import CommittedPartition, PartitionError
from fencepost.coordinator.offsets.commit import code_of, that_count
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.cluster import KafkaCluster

P = TypeVar("P")
Q = TypeVar("Q")


class _Found(NamedTuple, Generic[P]):
    topic: Topic
    reference: OfTopic[P]
    """As the request names it, with those partitions that exist; at least one."""


class ExistingTopics(Generic[P]):
    """The partitions of a request that exist; `number_of` returns the partition number of an element."""

    def __init__(
        self, cluster: KafkaCluster, references: Iterable[OfTopic[P]], number_of: Callable[[P], int]
    ) -> None:
        self._number_of = number_of
        self._found: list[_Found[P]] = []
        self._refused: list[OfTopic[PartitionError]] = []
        for reference in references:
            try:
                self._divide(reference, cluster.topic_of(reference))
            except ProtocolError as error:
                self._refuse(reference, reference.partitions, error.code)

    def _divide(self, reference: OfTopic[P], topic: Topic) -> None:
        found: list[P] = []
        missing: list[P] = []
        for one in reference.partitions:
            (found if 0 <= self._number_of(one) < topic.partitions else missing).append(one)
        if found:
            self._found.append(_Found(topic, _with(reference, found)))
        if missing:
            self._refuse(reference, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _refuse(self, reference: OfTopic[P], partitions: Iterable[P], code: ErrorCode) -> None:
        self._refused.append(
            _with(reference, (PartitionError(self._number_of(one), code) for one in partitions))
        )

    def __iter__(self) -> Iterator[tuple[TopicPartition, P]]:
        for topic, reference in self._found:
            for one in reference.partitions:
                yield TopicPartition(topic.name, self._number_of(one)), one

    def answers(
        self, code_of: Callable[[TopicPartition, P], ErrorCode]
    ) -> tuple[OfTopic[PartitionError], ...]:
        """Return the whole response, from the results of the partitions that exist."""
        answers = [
            _with(
                reference,
                (
                    PartitionError(
                        number := self._number_of(one), code_of(TopicPartition(topic.name, number), one)
                    )
                    for one in reference.partitions
                ),
            )
            for topic, reference in self._found
        ]
        if not self._refused:
            return tuple(answers)
        merged: dict[tuple[str | None, str | None], list[PartitionError]] = {}
        for each in (*self._refused, *answers):
            merged.setdefault((each.name, each.topic_id), []).extend(each.partitions)
        return tuple(
            OfTopic(name=name, topic_id=topic_id, partitions=tuple(partitions))
            for (name, topic_id), partitions in merged.items()
        )


def commit_existing(
    cluster: KafkaCluster,
    topics: Iterable[OfTopic[CommittedPartition]],
    commit: Callable[[Mapping[TopicPartition, OffsetAndMetadata]], Mapping[TopicPartition, ErrorCode]],
    *,
    metadata_max_bytes: int,
) -> tuple[OfTopic[PartitionError], ...]:
    """Return the response about positions to commit; `commit` returns the results of those that exist and
    count."""
    existing = ExistingTopics(cluster, topics, attrgetter("partition"))
    offsets = that_count(((partition, one.offset) for partition, one in existing), metadata_max_bytes)
    errors = commit(offsets) if offsets else {}
    return existing.answers(lambda partition, one: code_of(one.offset, errors[partition], metadata_max_bytes))


def _with(reference: OfTopic[P], partitions: Iterable[Q]) -> OfTopic[Q]:
    return OfTopic(name=reference.name, topic_id=reference.topic_id, partitions=tuple(partitions))
