"""Checks of commits of a consumer group's offsets (KIP-848, OffsetCommit; KIP-1251)."""

from __future__ import annotations

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.epoch_groups import check_commit_epoch, stale
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, PartitionFence


def check_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> PartitionFence | None:
    """Check that the request may commit, as `check_commit_epoch` does.

    The current epoch may commit for every partition, assigned or not. An older one may commit for a partition
    that the member has held since then, or since before.
    """
    member = check_commit_epoch(group, request, "consumer")
    return None if member is None else _held_since(member, request.member_epoch)


def _held_since(member: ConsumerGroupMember, epoch: int) -> PartitionFence:
    """Return a check that the member holds the partition, and held it at that epoch of its own."""

    def check(topic_id: TopicId, partition: int) -> None:
        assigned_at = member.assignment_epochs.get(topic_id, {}).get(partition)
        if assigned_at is None:
            raise stale(
                member,
                f"Partition {topic_id}-{partition} is not assigned or pending revocation for member.",
            )
        if epoch < assigned_at:
            raise stale(
                member,
                f"Received member epoch {epoch} is older than assignment epoch {assigned_at} "
                f"for partition {topic_id}-{partition}.",
            )

    return check
