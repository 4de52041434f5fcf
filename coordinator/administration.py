"""Requests about groups of every kind: listing, deletion, committed offsets, and their expiry."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from fencepost.coordinator.classic import describe as describe_classic
from fencepost.coordinator.classic.group import ClassicGroup
from fencepost.coordinator.classic.groups import end_of_classic
from fencepost.coordinator.consumer import describe
from fencepost.coordinator.kinds import GroupKinds
from fencepost.coordinator.offsets import commit, delete, expiry, fetch
from fencepost.coordinator.offsets.store import OffsetStore, tombstones
from fencepost.coordinator.offsets.transactions import pending_tombstones
from fencepost.coordinator.protocol import classic, consumer
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
)
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage


def describe_classic_groups(
    request: classic.DescribeGroupsRequest, kinds: GroupKinds, offsets: OffsetStore
) -> Outcome:
    """DescribeGroups: describe each group of the request, in that order. It knows classic groups only."""

    def described(group_id: str) -> classic.DescribedClassicGroup:
        found = kinds.find(group_id)
        if found is not None:
            if isinstance(found[1], ClassicGroup):
                return describe_classic.describe(found[1])
            return describe_classic.missing(group_id, f"Group {group_id} is not a classic group.")
        if group_id in offsets:
            return describe_classic.simple(group_id)
        return describe_classic.missing(group_id, f"Group {group_id} not found.")

    return Outcome(reply=classic.DescribeGroupsResponse(groups=tuple(map(described, request.group_ids))))


def list_groups(request: consumer.ListGroupsRequest, kinds: GroupKinds, offsets: OffsetStore) -> Outcome:
    """ListGroups: groups of every kind, and those that consist of committed offsets only."""
    rows = [kind.listed(group) for kind in kinds for group in kind.groups.values()]
    rows += [describe.listed_simple(group_id) for group_id in offsets.group_ids if kinds.of(group_id) is None]
    rows.sort(key=lambda row: row.group_id)
    wanted = (row for row in rows if describe.matches(row, request.states_filter, request.types_filter))
    return Outcome(reply=consumer.ListGroupsResponse(groups=tuple(wanted)))


def delete_group(request: consumer.DeleteGroupsRequest, kinds: GroupKinds, offsets: OffsetStore) -> Outcome:
    """DeleteGroups: an empty group and its offsets."""
    group_id = request.group_id
    if kinds.of(group_id) is None and group_id not in offsets:
        return _not_deleted(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    end = _end_of_empty(kinds, group_id)
    if end is None:
        return _not_deleted(group_id, ErrorCode.NON_EMPTY_GROUP, "The group is not empty.")
    records = tombstones(offsets, group_id) + pending_tombstones(offsets, group_id) + end
    return Outcome(records=records, reply=consumer.DeleteGroupsResponse(group_id=group_id))


def _not_deleted(group_id: str, code: ErrorCode, message: str) -> Outcome:
    reply = consumer.DeleteGroupsResponse(group_id=group_id, error_code=code, error_message=message)
    return Outcome(reply=reply)


def _end_of_empty(kinds: GroupKinds, group_id: str) -> tuple[Record, ...] | None:
    """Return the tombstones of a group without members, a simple group too; None if it has members."""
    found = kinds.find(group_id)
    return end_of_classic(group_id) if found is None else found[0].end_of_empty(found[1])


def give_way(kinds: GroupKinds, offsets: OffsetStore, group_id: str) -> tuple[Record, ...] | None:
    """Return the records that end a group which gives way to another kind: () if missing, None if it stays.

    Committed offsets without members are an empty classic group to Kafka.
    """
    found = kinds.find(group_id)
    if found is not None:
        return found[0].gives_way(found[1])
    return end_of_classic(group_id) if group_id in offsets else ()


# Committed offsets


def commit_offsets(
    request: OffsetCommitRequest,
    kinds: GroupKinds,
    offsets: OffsetStore,
    *,
    image: TopicsImage,
    metadata_max_bytes: int,
    now_ms: int,
) -> Outcome:
    """OffsetCommit, fenced by the group's kind."""
    fence: commit.CommitFence
    found = kinds.find(request.group_id)
    if found is None:
        fence = partial(commit.fence_without_members, group_exists=request.group_id in offsets)
    else:
        fence = partial(found[0].check_commit, found[1], image, now_ms)
    outcome = commit.commit(
        request, image=image, fence=fence, metadata_max_bytes=metadata_max_bytes, now_ms=now_ms
    )
    reply = outcome.reply
    assert isinstance(reply, OffsetCommitResponse)
    if found is None and not outcome.records and ErrorCode.OFFSET_METADATA_TOO_LARGE in reply.errors.values():
        # Kafka makes the group first, and looks at the metadata of each partition then.
        offsets.keep_emptied(request.group_id)
    return outcome


def fetch_offsets(
    request: OffsetFetchRequest, kinds: GroupKinds, offsets: OffsetStore, image: TopicsImage
) -> Outcome:
    """OffsetFetch, fenced by the group's kind."""
    found = kinds.find(request.group_id)
    fence = None if found is None else partial(found[0].check_fetch, found[1])
    return fetch.fetch(request, offsets, image=image, fence=fence)


def delete_offsets(
    request: OffsetDeleteRequest, kinds: GroupKinds, offsets: OffsetStore, image: TopicsImage
) -> Outcome:
    """OffsetDelete."""
    found = kinds.find(request.group_id)
    if found is not None and not found[0].may_delete_offsets(found[1]):
        return Outcome(reply=OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP))
    return delete.delete(
        request,
        offsets,
        image=image,
        group_exists=found is not None,
        is_subscribed=_subscribed_in(kinds, request.group_id),
    )


def _subscribed_in(kinds: GroupKinds, group_id: str) -> Callable[[str], bool]:
    """Return a function that returns true if the group subscribes to a topic; one without members never
    does."""
    found = kinds.find(group_id)
    if found is None:
        return lambda _topic: False
    is_subscribed: Callable[[str], bool] = found[1].is_subscribed_to
    return is_subscribed


SWEPT_AT_ONCE: Final = 500
"""The number of groups that one step looks at for a sweep: about 10 ms of work."""


def sweep(
    kinds: GroupKinds, offsets: OffsetStore, group_ids: Iterable[str], retention_ms: int, now_ms: int
) -> tuple[Record, ...]:
    """Return the tombstones of offsets of these groups that are due, and of empty groups that have no others.

    A group with offsets in open transactions stays (OffsetMetadataManager.cleanupExpiredOffsets).
    """
    records: list[Record] = []
    for group_id in group_ids:
        found = kinds.find(group_id)
        if found is None and group_id not in offsets:
            continue  # deleted meanwhile
        due: tuple[Record, ...] = ()
        if found is None or found[0].offsets_may_expire(found[1]):
            due = expiry.expired(
                offsets,
                group_id,
                is_subscribed=_subscribed_in(kinds, group_id),
                retention_ms=retention_ms,
                since_ms=None if found is None else found[0].retained_since_ms(found[1]),
                now_ms=now_ms,
            )
        records.extend(due)
        left = sum(map(len, offsets.topics(group_id).values())) - len(due)
        if not left and not offsets.pending(group_id):
            records.extend(_end_of_empty(kinds, group_id) or ())
    return tuple(records)
