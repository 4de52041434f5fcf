"""Checks of commits of a streams group's offsets (KIP-1071; KIP-1251)."""

from __future__ import annotations

from fencepost.coordinator.epoch_groups import check_commit_epoch, check_held_since, stale
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, PartitionFence
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember


def check_commit(
    group: StreamsGroup, image: TopicsImage, request: OffsetCommitRequest
) -> PartitionFence | None:
    """Check that the request may commit, as `check_commit_epoch` does.

    The current epoch may commit for every partition. An older one may commit for a partition whose task the
    member has had since then, or since before.
    """
    member = check_commit_epoch(group, request, "streams")
    if member is None:
        return None
    if group.topology is None:
        raise stale(member, "Topology is not available for offset commit validation.")
    return _had_since(group, image, member, request.member_epoch)


def _had_since(
    group: StreamsGroup, image: TopicsImage, member: StreamsGroupMember, epoch: int
) -> PartitionFence:
    """Return a check that the member has the partition's task, and had it at that epoch of its own."""

    def check(topic_id: TopicId, partition: int) -> None:
        topic = image.by_id[topic_id].name
        subtopology = group.source_subtopologies.get(topic)
        if subtopology is None:
            raise stale(member, f"Topic {topic} is not in the topology.")
        check_held_since(member, epoch, subtopology, partition, "Task")

    return check
