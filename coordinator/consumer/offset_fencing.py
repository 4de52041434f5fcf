"""Checks of commits of a consumer group's offsets (KIP-848, OffsetCommit; KIP-1251)."""

from __future__ import annotations

from functools import partial

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.epoch_groups import check_commit_epoch, check_held_since
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, PartitionFence


def check_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> PartitionFence | None:
    """Check that the request may commit, as `check_commit_epoch` does.

    The current epoch may commit for every partition, assigned or not. An older one may commit for a partition
    that the member has held since then, or since before.
    """
    member = check_commit_epoch(group, request, "consumer")
    if member is None:
        return None
    return partial(check_held_since, member, request.member_epoch, what="Partition")
