"""Compares a topology with the existing topics: the missing topics, and the number of tasks (KIP-1071)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

import msgspec

from fencepost.coordinator.assign.java_order import hash_map_order
from fencepost.coordinator.protocol.streams import StatusCode, Subtopology, TopicInfo, Topology
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.partition_counts import (
    DecidedPartitionCounts,
    TopicsNotReady,
    broken,
    copartition_groups,
    inputs,
)

_SHOWN = 3
"""Number of topics that a status names; of the others it reports the number."""


class ConfiguredSubtopology(msgspec.Struct, frozen=True):
    """A subtopology with the numbers that were decided for it."""

    tasks: int
    source_topics: tuple[str, ...]
    repartition_sink_topics: tuple[str, ...]
    repartition_source_topics: tuple[TopicInfo, ...]
    state_changelog_topics: tuple[TopicInfo, ...]


class ConfiguredTopology(msgspec.Struct, frozen=True, kw_only=True):
    """A topology as configured from one image of the cluster."""

    topology_epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None = None
    """Subtopologies by id, ascending; None if not even the source topics are right."""
    missing_internal_topics: tuple[TopicInfo, ...] = ()
    problem: TopicsNotReady | None = None
    """The reason why no member can have tasks; None if the topology is ready."""

    @property
    def is_ready(self) -> bool:
        """True if all topics are there as they must be."""
        return self.problem is None


def required_topics(topology: Topology) -> frozenset[str]:
    """Return all topics that an application needs."""
    return _required_topics(topology.subtopologies)


@lru_cache(maxsize=256)
def _required_topics(subtopologies: tuple[Subtopology, ...]) -> frozenset[str]:
    return frozenset(
        name
        for subtopology in subtopologies
        for name in (*inputs(subtopology), *(topic.name for topic in subtopology.state_changelog_topics))
    )


def source_subtopologies(topology: Topology) -> dict[str, str]:
    """Return the id of the subtopology that reads each topic."""
    return {topic: one.subtopology_id for one in topology.subtopologies for topic in inputs(one)}


def same_topology(first: Topology, second: Topology) -> bool:
    """Return true if they are equal, in any order of their subtopologies."""
    return first.epoch == second.epoch and _by_id(first) == _by_id(second)


def _by_id(topology: Topology) -> dict[str, Subtopology]:
    return {one.subtopology_id: one for one in topology.subtopologies}


def check_topology(topology: Topology) -> None:
    """Check that a topology is valid.

    :raises ProtocolError: UNKNOWN_SERVER_ERROR for a negative epoch, or a repeated id.
    """
    if topology.epoch < 0:
        raise broken("Topology epoch must be non-negative.")
    if len(_by_id(topology)) < len(topology.subtopologies):
        raise broken("a subtopology id is used twice")


def configure(topology: Topology, image: TopicsImage) -> ConfiguredTopology:
    """Look up all topics of a topology, and decide the partition counts of the internal ones.

    :raises ProtocolError: STREAMS_INVALID_TOPOLOGY if that cannot be decided, UNKNOWN_SERVER_ERROR for an
        impossible topology.
    """
    for subtopology in topology.subtopologies:
        copartition_groups(subtopology)
    try:
        _check_sources(topology, image)
        counts = DecidedPartitionCounts(topology.subtopologies, image)
        subtopologies = {
            one.subtopology_id: _configured(one, counts)
            for one in sorted(topology.subtopologies, key=lambda one: one.subtopology_id)
        }
        missing = _missing_internal_topics(topology, subtopologies, image)
    except TopicsNotReady as found:
        return ConfiguredTopology(topology_epoch=topology.epoch, problem=found)
    problem: TopicsNotReady | None = None
    if missing:
        detail = f"Internal topics are missing: {_summary([topic.name for topic in missing])}"
        problem = TopicsNotReady(StatusCode.MISSING_INTERNAL_TOPICS, detail)
    return ConfiguredTopology(
        topology_epoch=topology.epoch,
        subtopologies=subtopologies,
        missing_internal_topics=missing,
        problem=problem,
    )


def _check_sources(topology: Topology, image: TopicsImage) -> None:
    missing = {
        topic
        for subtopology in topology.subtopologies
        for topic in subtopology.source_topics
        if topic not in image.by_name
    }
    if missing:
        raise TopicsNotReady(
            StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(sorted(missing))} are missing."
        )


def _configured(subtopology: Subtopology, counts: DecidedPartitionCounts) -> ConfiguredSubtopology:
    def decided(topic: TopicInfo) -> TopicInfo:
        partitions = topic.partitions or counts.decided[topic.name]
        if partitions < 1:
            raise broken("Number of partitions must be at least 1.")
        return msgspec.structs.replace(topic, partitions=partitions)

    tasks = counts.tasks(subtopology)
    return ConfiguredSubtopology(
        tasks=tasks,
        source_topics=tuple(sorted({*subtopology.source_topics})),
        repartition_sink_topics=tuple(sorted({*subtopology.repartition_sink_topics})),
        repartition_source_topics=tuple(map(decided, subtopology.repartition_source_topics)),
        state_changelog_topics=tuple(map(decided, subtopology.state_changelog_topics)),
    )


def _missing_internal_topics(
    topology: Topology, subtopologies: Mapping[str, ConfiguredSubtopology], image: TopicsImage
) -> tuple[TopicInfo, ...]:
    """Return the internal topics to create, in the order in which a status names them.

    :raises TopicsNotReady: if one of them is there with another number of partitions.
    """
    wanted = {
        topic.name: topic
        for one in subtopologies.values()
        for topic in (*one.repartition_source_topics, *one.state_changelog_topics)
    }
    order = hash_map_order(wanted)
    for name in hash_map_order(sorted(required_topics(topology))):
        known = image.by_name.get(name)
        expected = None if known is None else wanted.pop(name, None)
        if known is not None and expected is not None and known.partitions != expected.partitions:
            raise TopicsNotReady(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected "
                f"{expected.partitions}, found {known.partitions}",
            )
    return tuple(wanted[name] for name in order if name in wanted)


def _summary(topics: Collection[str]) -> str:
    shown = ", ".join(list(topics)[:_SHOWN])
    return f"{shown} and {len(topics) - _SHOWN} additional topics" if len(topics) > _SHOWN else shown
