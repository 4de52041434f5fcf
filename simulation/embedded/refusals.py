"""What a broker answers to a request of any kind when it fails as a whole: each part of it with the error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from fencepost.coordinator.codec.groups import DeleteGroupsCall, DeleteGroupsReply
from fencepost.coordinator.codec.offsets import (
    FetchedGroup,
    OffsetCommitCall,
    OffsetCommitReply,
    OffsetFetchCall,
    OffsetFetchReply,
    PartitionError,
)
from fencepost.coordinator.protocol import administration, cluster, consumer, logs
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.runtime import refusal

A = TypeVar("A")


def refused(request: Any, code: ErrorCode) -> Any:
    """The answer that gives this error to a request, and has done nothing; None if none can tell it."""
    if isinstance(request, logs.ProduceRequest) and request.acks == 0:
        return None
    for answer in (refusal, _by_parts, _as_a_whole):
        if (reply := answer(request, code)) is not None:
            return reply
    return None


def spoiled(reply: cluster.MetadataResponse, code: ErrorCode) -> cluster.MetadataResponse:
    """Metadata whose brokers are right, and whose topics all have the error."""
    topics = (cluster.TopicMetadata(name=t.name, topic_id=t.topic_id, error_code=code) for t in reply.topics)
    return msgspec.structs.replace(reply, topics=tuple(topics))


def _by_parts(request: Any, code: ErrorCode) -> Any:
    match request:
        case logs.ProduceRequest():
            return logs.ProduceResponse(topics=_each(request.topics, logs.AppendedPartition, code))
        case logs.ListOffsetsRequest():
            return logs.ListOffsetsResponse(topics=_each(request.topics, logs.ListedOffset, code))
        case logs.OffsetForLeaderEpochRequest():
            return logs.OffsetForLeaderEpochResponse(topics=_each(request.topics, logs.EpochEndOffset, code))
        case OffsetCommitCall():
            return OffsetCommitReply(topics=_each(request.topics, _partition_error, code))
        case OffsetFetchCall():
            groups = (FetchedGroup(group_id=each.group_id, error_code=code) for each in request.groups)
            return OffsetFetchReply(groups=tuple(groups))
        case DeleteGroupsCall():
            deleted = (
                consumer.DeleteGroupsResponse(group_id=each.group_id, error_code=code)
                for each in request.groups
            )
            return DeleteGroupsReply(groups=tuple(deleted))
        case cluster.FindCoordinatorRequest():
            found = (cluster.FoundCoordinator(key=key, error_code=code) for key in request.keys)
            return cluster.FindCoordinatorResponse(coordinators=tuple(found))
        case administration.CreateTopicsRequest():
            created = (
                administration.CreatedTopic(name=each.name, error_code=code) for each in request.topics
            )
            return administration.CreateTopicsResponse(topics=tuple(created))
        case administration.CreatePartitionsRequest():
            grown = (
                administration.CreatedPartitions(name=each.name, error_code=code) for each in request.topics
            )
            return administration.CreatePartitionsResponse(topics=tuple(grown))
        case administration.DeleteTopicsRequest():
            gone = (
                administration.DeletedTopic(name=each.name, topic_id=each.topic_id, error_code=code)
                for each in request.topics
            )
            return administration.DeleteTopicsResponse(topics=tuple(gone))
    return None


def _each(
    topics: tuple[OfTopic[Any], ...], make: Callable[..., A], code: ErrorCode
) -> tuple[OfTopic[A], ...]:
    return tuple(
        OfTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=tuple(make(partition=each.partition, error_code=code) for each in topic.partitions),
        )
        for topic in topics
    )


def _partition_error(partition: int, error_code: ErrorCode) -> PartitionError:
    return PartitionError(partition, error_code)


def _as_a_whole(request: Any, code: ErrorCode) -> Any:
    """The request's counterpart, where that has one error for all of it and needs nothing else."""
    name = type(request).__name__
    module = sys.modules[type(request).__module__]
    for suffix, other in (("Request", "Response"), ("Call", "Reply")):
        kind = getattr(module, name.removesuffix(suffix) + other, None)
        if name.endswith(suffix) and kind is not None and "error_code" in kind.__struct_fields__:
            required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
            return kind(error_code=code) if required == 0 else None
    return None
