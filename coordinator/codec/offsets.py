"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47).

OffsetCommit: 2 to 4 have a retention time, 6 brings leader epochs, 7 the instance id, 9 member epochs, 10
topic ids in place of names. OffsetFetch: 2 brings "all topics" and an error for the group, 7 stable offsets,
8 several groups, 9 member epochs, 10 topic ids.

Names and ids are resolved by the server, which knows the topics; so these messages still have both.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.schema import Shape
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_EPOCH
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import NO_OFFSET, OffsetAndMetadata


class CommittedPartition(msgspec.Struct, frozen=True):
    """The position to commit for one partition."""

    partition: int
    offset: OffsetAndMetadata


class OffsetCommitCall(msgspec.Struct, frozen=True, kw_only=True):
    """An OffsetCommit request before its topics are looked up."""

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    retention_time_ms: int
    api_version: int
    topics: tuple[OfTopic[CommittedPartition], ...]


class PartitionError(msgspec.Struct, frozen=True):
    """A code for one partition."""

    partition: int
    error_code: ErrorCode


class OffsetCommitReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for each partition of the request, in its order."""

    topics: tuple[OfTopic[PartitionError], ...]


def decode_commit(values: dict[str, Any], context: RequestContext) -> OffsetCommitCall:
    """OffsetCommit, versions 2 to 10."""
    return OffsetCommitCall(
        group_id=values["group_id"],
        member_id=values["member_id"],
        member_epoch=values["generation_id_or_member_epoch"],
        instance_id=values.get("group_instance_id"),
        retention_time_ms=values.get("retention_time", -1),
        api_version=context.api_version,
        topics=tuple(
            OfTopic(
                name=topic.get("name"),
                topic_id=topic.get("topic_id"),
                partitions=tuple(map(committed_partition, topic["partitions"])),
            )
            for topic in values["topics"]
        ),
    )


def committed_partition(values: dict[str, Any]) -> CommittedPartition:
    """One partition of an OffsetCommit or a TxnOffsetCommit."""
    position = OffsetAndMetadata(
        offset=values["committed_offset"],
        leader_epoch=values.get("committed_leader_epoch", NO_EPOCH),
        metadata=values["committed_metadata"] or "",
    )
    return CommittedPartition(values["partition_index"], position)


def encode_commit(reply: OffsetCommitReply, shape: Shape) -> Any:
    """OffsetCommit, versions 2 to 10."""
    return shape.OffsetCommitResponse(
        throttle_time=0,
        topics=tuple(
            shape.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    shape.OffsetCommitResponsePartition(
                        partition_index=one.partition, error_code=one.error_code
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )


class OffsetFetchGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One group of an OffsetFetch; `topics` None asks for all offsets."""

    group_id: str
    member_id: str | None = None
    member_epoch: int = NO_EPOCH
    topics: tuple[OfTopic[int], ...] | None


class OffsetFetchCall(msgspec.Struct, frozen=True, kw_only=True):
    """An OffsetFetch request before its topics are looked up."""

    groups: tuple[OffsetFetchGroup, ...]
    require_stable: bool
    api_version: int


class FetchedOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The committed position of one partition."""

    partition: int
    offset: OffsetAndMetadata = NO_OFFSET
    error_code: ErrorCode = ErrorCode.NONE


class FetchedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The committed positions of one group. With an error, `topics` says what was asked for."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    topics: tuple[OfTopic[FetchedOffset], ...] = ()


class OffsetFetchReply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer for each group of the request, in its order."""

    groups: tuple[FetchedGroup, ...]


def decode_fetch(values: dict[str, Any], context: RequestContext) -> OffsetFetchCall:
    """OffsetFetch, versions 1 to 10."""
    groups = values["groups"] if context.api_version >= 8 else [values]
    return OffsetFetchCall(
        groups=tuple(
            OffsetFetchGroup(
                group_id=group["group_id"],
                member_id=group.get("member_id"),
                member_epoch=group.get("member_epoch", NO_EPOCH),
                topics=None if group["topics"] is None else tuple(map(_asked_topic, group["topics"])),
            )
            for group in groups
        ),
        require_stable=values.get("require_stable", False),
        api_version=context.api_version,
    )


def _asked_topic(values: dict[str, Any]) -> OfTopic[int]:
    return OfTopic(
        name=values.get("name"),
        topic_id=values.get("topic_id"),
        partitions=tuple(values["partition_indexes"]),
    )


def encode_fetch(reply: OffsetFetchReply, shape: Shape) -> Any:
    """Version 1 has no place for the group's error but each partition."""
    if shape.version >= 8:
        groups = tuple(
            shape.OffsetFetchResponseGroup(
                group_id=group.group_id,
                topics=_fetched_topics(group, shape, "Topics", "Partitions"),
                error_code=group.error_code,
            )
            for group in reply.groups
        )
        return shape.OffsetFetchResponse(throttle_time=0, groups=groups)
    (group,) = reply.groups
    return shape.OffsetFetchResponse(
        throttle_time=0,
        topics=_fetched_topics(group, shape, "Topic", "Partition"),
        error_code=group.error_code,
    )


def _fetched_topics(
    group: FetchedGroup, shape: Shape, topic_kind: str, partition_kind: str
) -> tuple[Any, ...]:
    if group.error_code is not ErrorCode.NONE and shape.version >= 2:
        return ()
    make_topic = getattr(shape, "OffsetFetchResponse" + topic_kind)
    make_partition = getattr(shape, "OffsetFetchResponse" + partition_kind)
    return tuple(
        make_topic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(
                make_partition(
                    partition_index=one.partition,
                    committed_offset=one.offset.offset,
                    committed_leader_epoch=one.offset.leader_epoch,
                    metadata=one.offset.metadata,
                    error_code=one.error_code if group.error_code is ErrorCode.NONE else group.error_code,
                )
                for one in topic.partitions
            ),
        )
        for topic in group.topics
    )


class OffsetDeleteCall(msgspec.Struct, frozen=True, kw_only=True):
    """An OffsetDelete request before its topics are looked up."""

    group_id: str
    topics: tuple[OfTopic[int], ...]


class OffsetDeleteReply(msgspec.Struct, frozen=True, kw_only=True):
    """A code for the group, and one for each partition when that is NONE."""

    error_code: ErrorCode = ErrorCode.NONE
    topics: tuple[OfTopic[PartitionError], ...] = ()


def decode_delete(values: dict[str, Any], context: RequestContext) -> OffsetDeleteCall:
    """OffsetDelete, version 0."""
    return OffsetDeleteCall(
        group_id=values["group_id"],
        topics=tuple(
            OfTopic(
                name=topic["name"], partitions=tuple(one["partition_index"] for one in topic["partitions"])
            )
            for topic in values["topics"]
        ),
    )


def encode_delete(reply: OffsetDeleteReply, shape: Shape) -> Any:
    """OffsetDelete, version 0."""
    return shape.OffsetDeleteResponse(
        error_code=reply.error_code,
        throttle_time=0,
        topics=tuple(
            shape.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=tuple(
                    shape.OffsetDeleteResponsePartition(
                        partition_index=one.partition, error_code=one.error_code
                    )
                    for one in topic.partitions
                ),
            )
            for topic in reply.topics
        ),
    )
