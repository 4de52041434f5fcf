"""The client's half of OffsetCommit (8), OffsetFetch (9) and OffsetDelete (47)."""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.offsets import (
    FetchedGroup,
    FetchedOffset,
    OffsetCommitCall,
    OffsetCommitReply,
    OffsetDeleteCall,
    OffsetDeleteReply,
    OffsetFetchCall,
    OffsetFetchReply,
    PartitionError,
)
from fencepost.coordinator.codec.schema import Shape, error_of
from fencepost.coordinator.protocol.ids import NO_EPOCH
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata


def encode_commit(call: OffsetCommitCall, shape: Shape) -> Any:
    """OffsetCommit, versions 2 to 10."""
    return shape.OffsetCommitRequest(
        group_id=call.group_id,
        generation_id_or_member_epoch=call.member_epoch,
        member_id=call.member_id,
        group_instance_id=call.instance_id,
        retention_time=call.retention_time_ms,
        topics=tuple(
            shape.OffsetCommitRequestTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    shape.OffsetCommitRequestPartition(
                        partition_index=one.partition,
                        committed_offset=one.offset.offset,
                        committed_leader_epoch=one.offset.leader_epoch,
                        committed_metadata=one.offset.metadata,
                    )
                    for one in topic.partitions
                ),
            )
            for topic in call.topics
        ),
    )


def _errors(values: dict[str, Any]) -> OfTopic[PartitionError]:
    return OfTopic(
        name=values.get("name"),
        topic_id=values.get("topic_id"),
        partitions=tuple(
            PartitionError(one["partition_index"], error_of(one["error_code"]))
            for one in values["partitions"]
        ),
    )


def decode_commit(values: dict[str, Any], version: int) -> OffsetCommitReply:
    """OffsetCommit, versions 2 to 10."""
    return OffsetCommitReply(topics=tuple(map(_errors, values["topics"])))


def encode_fetch(call: OffsetFetchCall, shape: Shape) -> Any:
    """OffsetFetch, versions 1 to 10. Below 8 only the first group is asked for, and 1 can't ask for all."""
    if shape.version >= 8:
        groups = tuple(
            shape.OffsetFetchRequestGroup(
                group_id=group.group_id,
                member_id=group.member_id,
                member_epoch=group.member_epoch,
                topics=_asked(group.topics, shape, "Topics"),
            )
            for group in call.groups
        )
        return shape.OffsetFetchRequest(groups=groups, require_stable=call.require_stable)
    group = call.groups[0]
    return shape.OffsetFetchRequest(
        group_id=group.group_id,
        topics=_asked(group.topics, shape, "Topic"),
        require_stable=call.require_stable,
    )


def _asked(topics: tuple[OfTopic[int], ...] | None, shape: Shape, kind: str) -> tuple[Any, ...] | None:
    if topics is None:
        return None
    make = getattr(shape, "OffsetFetchRequest" + kind)
    return tuple(
        make(name=topic.name, topic_id=topic.topic_id, partition_indexes=topic.partitions) for topic in topics
    )


def decode_fetch(values: dict[str, Any], version: int) -> OffsetFetchReply:
    """OffsetFetch, versions 1 to 10. Below version 8 the answer does not name its group."""
    groups = values["groups"] if version >= 8 else [values]
    return OffsetFetchReply(
        groups=tuple(
            FetchedGroup(
                group_id=group.get("group_id", ""),
                error_code=error_of(group.get("error_code", 0)),
                topics=tuple(map(_fetched, group["topics"])),
            )
            for group in groups
        )
    )


def _fetched(values: dict[str, Any]) -> OfTopic[FetchedOffset]:
    return OfTopic(
        name=values.get("name"),
        topic_id=values.get("topic_id"),
        partitions=tuple(
            FetchedOffset(
                partition=one["partition_index"],
                offset=OffsetAndMetadata(
                    offset=one["committed_offset"],
                    leader_epoch=one.get("committed_leader_epoch", NO_EPOCH),
                    metadata=one["metadata"] or "",
                ),
                error_code=error_of(one["error_code"]),
            )
            for one in values["partitions"]
        ),
    )


def encode_delete(call: OffsetDeleteCall, shape: Shape) -> Any:
    """OffsetDelete, version 0."""
    return shape.OffsetDeleteRequest(
        group_id=call.group_id,
        topics=tuple(
            shape.OffsetDeleteRequestTopic(
                name=topic.name,
                partitions=tuple(
                    shape.OffsetDeleteRequestPartition(partition_index=number) for number in topic.partitions
                ),
            )
            for topic in call.topics
        ),
    )


def decode_delete(values: dict[str, Any], version: int) -> OffsetDeleteReply:
    """OffsetDelete, version 0."""
    return OffsetDeleteReply(
        error_code=error_of(values["error_code"]), topics=tuple(map(_errors, values["topics"]))
    )
