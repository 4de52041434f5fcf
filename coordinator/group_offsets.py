"""Committed offsets of groups of every kind: who may commit, fetch and delete them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from fencepost.coordinator.administration import AllGroups
from fencepost.coordinator.classic import offset_fencing as classic_fencing
from fencepost.coordinator.classic.group import ClassicGroup
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
from fencepost.coordinator.streams import offset_fencing as streams_fencing
from fencepost.coordinator.streams.group import StreamsGroup


def commit_offsets(
    request: OffsetCommitRequest,
    groups: AllGroups,
    classic: ClassicGroups,
    offsets: OffsetStore,
    *,
    image: TopicsImage,
    metadata_max_bytes: int,
    now_ms: int,
) -> Outcome:
    """OffsetCommit. A member of a classic group is heard by it."""
    fence: commit.CommitFence
    match groups.find(request.group_id):
        case ConsumerGroup() as group:
            fence = partial(offset_fencing.check_commit, group)
        case StreamsGroup() as streams_group:
            fence = partial(streams_fencing.check_commit, streams_group, image)
        case None:
            fence = partial(commit.fence_without_members, group_exists=request.group_id in offsets)
        case _:
            fence = partial(_fence_of_classic_group, classic, now_ms)
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
    request: OffsetFetchRequest, groups: AllGroups, offsets: OffsetStore, image: TopicsImage
) -> Outcome:
    """OffsetFetch. Classic groups know no epoch to check."""
    fence: Callable[[OffsetFetchRequest], None] | None = None
    match groups.find(request.group_id):
        case ConsumerGroup() as group:
            fence = partial(offset_fencing.check_fetch, group)
        case StreamsGroup() as streams_group:
            fence = partial(streams_fencing.check_fetch, streams_group)
    return fetch.fetch(request, offsets, image=image, fence=fence)


def delete_offsets(
    request: OffsetDeleteRequest, groups: AllGroups, offsets: OffsetStore, image: TopicsImage
) -> Outcome:
    """OffsetDelete."""
    group = groups.find(request.group_id)
    if isinstance(group, ClassicGroup) and not classic_fencing.may_delete_offsets(group):
        return Outcome(reply=OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
    return delete.delete(
        request,
        offsets,
        image=image,
        group_exists=group is not None,
        is_subscribed=groups.subscribed_in(request.group_id),
    )
