"""The facts of a cluster that outlive its brokers: topics, settings, producer ids, log starts.

Kafka keeps them in its metadata log and next to its segments; here they share the journal of the groups. A
value of None is a tombstone. The numbers lie above those of Kafka's group records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol.ids import TopicId


class ClusterKey(msgspec.Struct, frozen=True, tag=100, array_like=True, gc=False):
    """The cluster itself."""


class ClusterValue(msgspec.Struct, frozen=True, tag=100, array_like=True, gc=False):
    """The cluster's id, and the numbers of changes of its topics and of its partitions' leaders."""

    cluster_id: str
    image_version: int
    leader_changes: int = 0


class TopicKey(msgspec.Struct, frozen=True, tag=101, array_like=True, gc=False):
    """A topic; one that is created again has another id."""

    topic_id: TopicId


class TopicValue(msgspec.Struct, frozen=True, tag=101, array_like=True, gc=False):
    """A topic's name, number of partitions, replicas of each, and manual placement.

    `leader_changes` is the cluster's number when the topic was created: leader epochs count from there.
    """

    name: str
    partitions: int
    replicas: int = 1
    assignments: tuple[tuple[int, ...], ...] = ()
    leader_changes: int = 0


class ConfigKey(msgspec.Struct, frozen=True, tag=102, array_like=True, gc=False):
    """The settings that were changed on a resource. `resource_type` is Kafka's number."""

    resource_type: int
    name: str


class ConfigValue(msgspec.Struct, frozen=True, tag=102, array_like=True, gc=False):
    """Settings by Kafka's names, as they were sent."""

    entries: Mapping[str, str]


class ProducerIdsKey(msgspec.Struct, frozen=True, tag=103, array_like=True, gc=False):
    """The ids of producers."""


class ProducerIdsValue(msgspec.Struct, frozen=True, tag=103, array_like=True, gc=False):
    """Every producer id below this one may have been given away."""

    next_block: int


class LogStartKey(msgspec.Struct, frozen=True, tag=104, array_like=True, gc=False):
    """The start of one partition's log."""

    topic_id: TopicId
    partition: int


class LogStartValue(msgspec.Struct, frozen=True, tag=104, array_like=True, gc=False):
    """The start of a log; records before this offset were deleted."""

    offset: int


ClusterRecordKey: TypeAlias = ClusterKey | TopicKey | ConfigKey | ProducerIdsKey | LogStartKey
ClusterRecordValue: TypeAlias = ClusterValue | TopicValue | ConfigValue | ProducerIdsValue | LogStartValue


class ClusterRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One fact of the cluster; with value None, its end."""

    key: ClusterRecordKey
    value: ClusterRecordValue | None
