"""Topologies and tasks of streams groups, out of messages and records, and into messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol.streams import (
    CopartitionGroup,
    Endpoint,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)


def task_ids(entries: Iterable[Mapping[str, Any]]) -> TaskIds:
    """Tasks in canonical form: sorted, without duplicates and empty subtopologies."""
    found: dict[str, set[int]] = {}
    for entry in entries:
        found.setdefault(entry["subtopology_id"], set()).update(entry["partitions"])
    return {one: tuple(sorted(numbers)) for one, numbers in sorted(found.items()) if numbers}


def endpoint(value: Mapping[str, Any] | None) -> Endpoint | None:
    """An endpoint, if there is one."""
    return None if value is None else Endpoint(value["host"], value["port"])


def pairs(entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Names and values, by name."""
    found = {entry["key"]: entry["value"] for entry in entries}
    return dict(sorted(found.items()))


def topology(value: Mapping[str, Any]) -> Topology:
    """A topology, in the order in which it was sent."""
    return Topology(value["epoch"], tuple(map(_subtopology, value["subtopologies"])))


def _subtopology(value: Mapping[str, Any]) -> Subtopology:
    return Subtopology(
        subtopology_id=value["subtopology_id"],
        source_topics=tuple(value["source_topics"]),
        source_topic_regex=tuple(value["source_topic_regex"]),
        state_changelog_topics=tuple(map(topic_info, value["state_changelog_topics"])),
        repartition_sink_topics=tuple(value["repartition_sink_topics"]),
        repartition_source_topics=tuple(map(topic_info, value["repartition_source_topics"])),
        copartition_groups=tuple(
            CopartitionGroup(
                tuple(group["source_topics"]),
                tuple(group["source_topic_regex"]),
                tuple(group["repartition_source_topics"]),
            )
            for group in value["copartition_groups"]
        ),
    )


def topic_info(value: Mapping[str, Any]) -> TopicInfo:
    """An internal topic."""
    return TopicInfo(
        name=value["name"],
        partitions=value["partitions"],
        replication_factor=value["replication_factor"],
        configs=tuple((entry["key"], entry["value"]) for entry in value["topic_configs"]),
    )


def shaped_tasks(tasks: TaskIds, shape: Shape) -> tuple[Any, ...]:
    """Tasks for a message."""
    return tuple(shape.TaskIds(subtopology_id=one, partitions=numbers) for one, numbers in tasks.items())


def shaped_topics(topics: Iterable[TopicInfo], shape: Shape) -> tuple[Any, ...]:
    """Internal topics for a message."""
    return tuple(
        shape.TopicInfo(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            topic_configs=tuple(shape.KeyValue(key=key, value=value) for key, value in topic.configs),
        )
        for topic in topics
    )
