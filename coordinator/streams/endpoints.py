"""The partitions that can be queried at each process: the map for interactive queries (KIP-1071)."""

from __future__ import annotations

from collections.abc import Mapping

from fencepost.coordinator.protocol.streams import EndpointPartitions, TaskIds, TopicPartitions
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember
from fencepost.coordinator.streams.partition_counts import broken
from fencepost.coordinator.streams.topology import ConfiguredSubtopology, ConfiguredTopology


def partitions_by_endpoint(
    group: StreamsGroup, member: StreamsGroupMember, topology: ConfiguredTopology, image: TopicsImage
) -> tuple[EndpointPartitions, ...]:
    """Return an entry for each member with an endpoint; `member` replaces its old version and is last.

    :raises ProtocolError: UNKNOWN_SERVER_ERROR if there is such a member, and the topology's topics are wrong
        or missing: Kafka 4.3.1 has no other response then.
    """
    others = (one for one in group.members.values() if one.member_id != member.member_id)
    found = []
    for one in (*others, member):
        if one.user_endpoint is None:
            continue
        if topology.subtopologies is None:
            raise broken("the topics of the topology are not known")
        active = _partitions(one.assigned.active, topology.subtopologies, image)
        standby = _partitions(one.assigned.standby, topology.subtopologies, image)
        found.append(EndpointPartitions(one.user_endpoint, active, standby))
    return tuple(found)


def _partitions(
    tasks: TaskIds, subtopologies: Mapping[str, ConfiguredSubtopology], image: TopicsImage
) -> tuple[TopicPartitions, ...]:
    """Return the partitions that tasks read; a topic with fewer partitions than tasks gives the first of
    them."""
    found = []
    for subtopology_id, numbers in tasks.items():
        subtopology = subtopologies.get(subtopology_id)
        if subtopology is None:
            raise broken(f"there is no subtopology {subtopology_id}")
        internal = (topic.name for topic in subtopology.repartition_source_topics)
        for name in sorted({*subtopology.source_topics, *internal}):
            topic = image.by_name.get(name)
            if topic is None:
                raise broken(f"Topic {name} not found in metadata image")
            found.append(TopicPartitions(name, numbers[: topic.partitions]))
    return tuple(found)
