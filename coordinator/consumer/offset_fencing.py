"""Checks of commits and fetches of a consumer group's offsets (KIP-848, OffsetCommit and OffsetFetch;
KIP-1251)."""

from __future__ import annotations

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.consumer.member import ConsumerGroupMember
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId
from fencepost.coordinator.protocol.offsets import (
    MEMBER_EPOCH_VERSION,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionFence,
)


def check_commit(group: ConsumerGroup, request: OffsetCommitRequest) -> PartitionFence | None:
    """Check that the request may commit. Return None if it may for any partition, else a check for each one.

    The current epoch may commit for every partition, assigned or not. An older one may commit for a partition
    that the member has held since then, or since before.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, UNSUPPORTED_VERSION for a request from before member epochs, or
        STALE_MEMBER_EPOCH for an epoch that the member has not reached; a member that speaks the classic
        protocol gets ILLEGAL_GENERATION.
    """
    epoch = request.member_epoch
    if epoch < 0 and not group.members:
        return None
    if request.is_anonymous_transaction:
        return None
    member = group.member(request.member_id)
    if not request.is_transactional and request.api_version < MEMBER_EPOCH_VERSION and member.classic is None:
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"OffsetCommit version {MEMBER_EPOCH_VERSION} or above must be used by members using the "
            "consumer group protocol",
        )
    if epoch == member.member_epoch:
        return None
    if epoch > member.member_epoch:
        raise _stale(
            member, f"Received member epoch {epoch} is newer than current member epoch {member.member_epoch}."
        )
    return _held_since(member, epoch)


def _held_since(member: ConsumerGroupMember, epoch: int) -> PartitionFence:
    """Return a check that the member holds the partition, and held it at that epoch of its own."""

    def check(topic_id: TopicId, partition: int) -> None:
        assigned_at = member.assignment_epochs.get(topic_id, {}).get(partition)
        if assigned_at is None:
            raise _stale(
                member,
                f"Partition {topic_id}-{partition} is not assigned or pending revocation for member.",
            )
        if epoch < assigned_at:
            raise _stale(
                member,
                f"Received member epoch {epoch} is older than assignment epoch {assigned_at} "
                f"for partition {topic_id}-{partition}.",
            )

    return check


def check_fetch(group: ConsumerGroup, request: OffsetFetchRequest) -> None:
    """Check that the request may fetch. Any request may without a member; a member may at its current epoch
    only.

    :raises ProtocolError: UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, or ILLEGAL_GENERATION for a classic member.
    """
    if request.member_id is None and request.member_epoch < 0:
        return
    member = group.member("" if request.member_id is None else request.member_id)
    if request.member_epoch != member.member_epoch:
        raise _stale(
            member,
            f"The received member epoch {request.member_epoch} does not match the expected member epoch "
            f"{member.member_epoch}.",
        )


def _stale(member: ConsumerGroupMember, message: str) -> ProtocolError:
    classic = member.classic is not None
    return ProtocolError(ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH, message)
