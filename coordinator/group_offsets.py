"""Committed offsets of groups of every kind: who may commit, fetch and delete them."""

from __future__ import annotations

from functools import partial

from fencepost.coordinator import administration
from fencepost.coordinator.classic import offset_fencing as classic_fencing
from fencepost.coordinator.classic.groups import ClassicGroups
from fencepost.coordinator.consumer import offset_fencing
from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.offsets import commit, delete, fetch
from fencepost.coordinator.offsets.store import OffsetStore
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
)
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.topics import TopicsImage


def commit_offsets(
    request: OffsetCommitRequest,
    group: ConsumerGroup | None,
    classic: ClassicGroups,
    offsets: OffsetStore,
    *,
    image: TopicsImage,
    metadata_max_bytes: int,
    now_ms: int,
) -> Outcome:
    """OffsetCommit. A member of a classic group is heard by it."""
    fence: commit.CommitFence
    if group is not None:
        fence = partial(offset_fencing.check_commit, group)
    elif request.group_id in classic.groups:
        fence = partial(_fence_of_classic_group, classic, now_ms)
    else:
        exists = request.group_id in offsets
        fence = partial(commit.fence_without_members, group_exists=exists)
    return commit.commit(
        request, image=image, fence=fence, metadata_max_bytes=metadata_max_bytes, now_ms=now_ms
    )


def _fence_of_classic_group(classic: ClassicGroups, now_ms: int, request: OffsetCommitRequest) -> None:
    """Any member of the generation may commit for any partition.

    :raises ProtocolError: if it is no member, or of another generation.
    """
    if classic_fencing.check_commit(classic.groups[request.group_id], request) is not None:
        classic.heard(request.group_id, request.member_id, now_ms)


def fetch_offsets(
    request: OffsetFetchRequest, group: ConsumerGroup | None, offsets: OffsetStore, image: TopicsImage
) -> Outcome:
    """OffsetFetch. Only consumer groups know an epoch to check."""
    fence = None if group is None else partial(offset_fencing.check_fetch, group)
    return fetch.fetch(request, offsets, image=image, fence=fence)


def delete_offsets(
    request: OffsetDeleteRequest,
    group: ConsumerGroup | None,
    classic: ClassicGroups,
    offsets: OffsetStore,
    image: TopicsImage,
) -> Outcome:
    """OffsetDelete."""
    other = classic.groups.get(request.group_id)
    if other is not None and not classic_fencing.may_delete_offsets(other):
        return Outcome(reply=OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
    return delete.delete(
        request,
        offsets,
        image=image,
        group_exists=group is not None or other is not None,
        is_subscribed=administration.subscribed_in(group or other),
    )
