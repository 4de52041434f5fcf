"""OffsetCommit: the checks, their order, and the records.

First the partitions on their own: a topic or partition that does not exist fails alone. Then the group: this
member may commit at its epoch, or not. Then each partition: its metadata may be too large, and it fails
alone; with KIP-1251 the epoch may be too old for it, and that refuses the whole request.

A request on the wire may name a partition more than once. Kafka judges the metadata of each position by
itself, and writes them one after the other (OffsetMetadataManager.commitOffset), so that the last good one
counts. Here a request has one position for each partition: `that_count` chooses it, and `code_of` returns the
result of each position on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from fencepost.coordinator.protocol import offsets
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.outcome import Outcome
from fencepost.coordinator.protocol.records import (
    OffsetCommitKey,
    OffsetCommitValue,
    PendingOffsetCommitKey,
    PendingOffsetCommitValue,
    Record,
)
from fencepost.coordinator.protocol.topics import Topic, TopicsImage

_NOT_THERE = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})

CommitFence: TypeAlias = Callable[[offsets.OffsetCommitRequest], offsets.PartitionFence | None]
"""Raises ProtocolError if the member may not commit at all; returns None if it may for any partition."""


def commit(
    request: offsets.OffsetCommitRequest,
    *,
    image: TopicsImage,
    fence: CommitFence,
    metadata_max_bytes: int,
    now_ms: int,
) -> Outcome:
    """Return the records of a commit and its reply, with a code for each partition in the request's order."""
    by_name, stated = image.by_name, request.topic_ids
    errors = {
        partition: _existence(partition, by_name.get(partition.topic), stated.get(partition.topic))
        for partition in request.offsets
    }
    existing = [partition for partition, code in errors.items() if code is ErrorCode.NONE]
    if not existing:
        return Outcome(reply=offsets.OffsetCommitResponse(errors=errors))
    records = []
    try:
        partition_fence = fence(request)
        for partition in existing:
            topic_id = by_name[partition.topic].topic_id
            position = request.offsets[partition]
            if _is_too_large(position, metadata_max_bytes):
                errors[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            if partition_fence is not None:
                partition_fence(topic_id, partition.partition)
            records.append(_record(request, partition, position, topic_id, now_ms))
    except ProtocolError as refused:
        errors.update(dict.fromkeys(existing, refused.code))
        return Outcome(reply=offsets.OffsetCommitResponse(errors=errors))
    return Outcome(records=tuple(records), reply=offsets.OffsetCommitResponse(errors=errors))


def rejected(request: offsets.OffsetCommitRequest, code: ErrorCode) -> offsets.OffsetCommitResponse:
    """Return the reply to a request that failed as a whole, such as one that reached no coordinator."""
    return offsets.OffsetCommitResponse(errors=dict.fromkeys(request.offsets, code))


def not_recorded(reply: offsets.OffsetCommitResponse, code: ErrorCode) -> offsets.OffsetCommitResponse:
    """Return the reply to a commit whose records could not be appended.

    Partitions that do not exist keep their error: Kafka sorts them out before it asks the coordinator.
    """
    errors = {partition: found if found in _NOT_THERE else code for partition, found in reply.errors.items()}
    return offsets.OffsetCommitResponse(errors=errors)


def that_count(
    positions: Iterable[tuple[TopicPartition, offsets.OffsetAndMetadata]], metadata_max_bytes: int
) -> dict[TopicPartition, offsets.OffsetAndMetadata]:
    """Return for each partition the last position whose metadata is not too large, or else the last one."""
    chosen: dict[TopicPartition, offsets.OffsetAndMetadata] = {}
    for partition, position in positions:
        before = chosen.setdefault(partition, position)
        if not _is_too_large(position, metadata_max_bytes) or _is_too_large(before, metadata_max_bytes):
            chosen[partition] = position
    return chosen


def code_of(position: offsets.OffsetAndMetadata, answered: ErrorCode, metadata_max_bytes: int) -> ErrorCode:
    """Return the code of one position for a partition, if the position that counts got `answered`."""
    if answered is ErrorCode.NONE and _is_too_large(position, metadata_max_bytes):
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return answered


def fence_without_members(
    request: offsets.OffsetCommitRequest, *, group_exists: bool
) -> offsets.PartitionFence | None:
    """Fence commits to a group that does not exist, or that consists of committed offsets only.

    A commit without an epoch comes from an administrator or from a consumer that assigns partitions to
    itself; it creates a missing group. An epoch belongs to a member, and the group has no members.

    :raises ProtocolError: for a request with an epoch.
    """
    if request.member_epoch < 0:
        return None
    if group_exists:
        raise ProtocolError(ErrorCode.UNKNOWN_MEMBER_ID, f"group {request.group_id} has no members")
    if request.api_version >= offsets.MEMBER_EPOCH_VERSION:
        raise ProtocolError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id} not found")
    raise ProtocolError(ErrorCode.ILLEGAL_GENERATION, f"group {request.group_id} has no generation")


def _existence(partition: TopicPartition, topic: Topic | None, stated: TopicId | None) -> ErrorCode:
    """Return the error for a partition that does not exist (under the topic id of the request), or NONE."""
    if stated is not None and (topic is None or topic.topic_id != stated):
        return ErrorCode.UNKNOWN_TOPIC_ID
    if topic is None or not 0 <= partition.partition < topic.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _is_too_large(position: offsets.OffsetAndMetadata, metadata_max_bytes: int) -> bool:
    """Return true if the metadata is too large. Kafka compares offset.metadata.max.bytes with UTF-16 units,
    despite the name."""
    if 2 * len(position.metadata) <= metadata_max_bytes:  # a character has two units at most
        return False
    return len(position.metadata.encode("utf-16-le", "surrogatepass")) // 2 > metadata_max_bytes


def _record(
    request: offsets.OffsetCommitRequest,
    partition: TopicPartition,
    position: offsets.OffsetAndMetadata,
    topic_id: TopicId,
    now_ms: int,
) -> Record:
    if request.is_transactional:
        return Record(
            PendingOffsetCommitKey(
                request.group_id, partition.topic, partition.partition, request.producer_id
            ),
            PendingOffsetCommitValue(
                offset=position.offset,
                leader_epoch=position.leader_epoch,
                metadata=position.metadata,
                commit_timestamp_ms=now_ms,
                topic_id=topic_id,
            ),
        )
    retention_ms = request.retention_time_ms
    value = OffsetCommitValue(
        offset=position.offset,
        leader_epoch=position.leader_epoch,
        metadata=position.metadata,
        commit_timestamp_ms=now_ms,
        expire_timestamp_ms=-1 if retention_ms < 0 else now_ms + retention_ms,
        topic_id=topic_id,
    )
    return Record(OffsetCommitKey(request.group_id, partition.topic, partition.partition), value)
