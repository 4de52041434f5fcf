"""Checks of commits and fetches of a streams group's offsets (KIP-1071; KIP-1251)."""

from __future__ import annotations

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.offsets import (
    MEMBER_EPOCH_VERSION,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionFence,
)
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.streams.group import StreamsGroup
from fencepost.coordinator.streams.member import StreamsGroupMember


def check_commit(
    group: StreamsGroup, image: TopicsImage, request: OffsetCommitRequest
) -> PartitionFence | None:
    """Check that the request may commit. Return None if it may for any partition, else a check for each one.

    The current epoch may commit for every partition. An older one may commit for a partition whose task the
    member has had since then, or since before.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION for a request from before member epochs,
        or STALE_MEMBER_EPOCH for an epoch that the member has not reached.
    """
    epoch = request.member_epoch
    if epoch < 0 and not group.members:
        return None
    if request.is_anonymous_transaction:
        return None
    member = group.member(request.member_id)
    if not request.is_transactional and request.api_version < MEMBER_EPOCH_VERSION:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"OffsetCommit version {MEMBER_EPOCH_VERSION} or above must be used by members using the "
            "streams group protocol",
        )
    if epoch == member.member_epoch:
        return None
    if epoch > member.member_epoch:
        raise _stale(
            f"Received member epoch {epoch} is newer than current member epoch {member.member_epoch}."
        )
    if group.topology is None:
        raise _stale("Topology is not available for offset commit validation.")
    return _had_since(group, image, member, epoch)


def _had_since(
    group: StreamsGroup, image: TopicsImage, member: StreamsGroupMember, epoch: int
) -> PartitionFence:
    """Return a check that the member has the partition's task, and had it at that epoch of its own."""

    def check(topic_id: TopicId, partition: int) -> None:
        topic = image.by_id[topic_id].name
        subtopology = group.source_subtopologies.get(topic)
        if subtopology is None:
            raise _stale(f"Topic {topic} is not in the topology.")
        assigned_at = member.assignment_epochs.get(subtopology, {}).get(partition)
        if assigned_at is None:
            raise _stale(f"Task {subtopology}-{partition} is not assigned or pending revocation for member.")
        if epoch < assigned_at:
            raise _stale(
                f"Received member epoch {epoch} is older than assignment epoch {assigned_at} "
                f"for task {subtopology}-{partition}."
            )

    return check


def check_fetch(group: StreamsGroup, request: OffsetFetchRequest) -> None:
    """Check that the request may fetch. Any request may without a member; a member may at its current epoch
    only.

    :raises ProtocolError: UNKNOWN_MEMBER_ID or STALE_MEMBER_EPOCH.
    """
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.member("" if request.member_id is None else request.member_id)
    if request.member_epoch != member.member_epoch:
        raise _stale(
            f"The received member epoch {request.member_epoch} does not match the expected member epoch "
            f"{member.member_epoch}."
        )


def _stale(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.STALE_MEMBER_EPOCH, message)
