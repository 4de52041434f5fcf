"""Answers about committed offsets.

Topics are looked up before the coordinator sees a request, as Kafka's broker does: partitions that do not
exist get their error, the others go on. An answer keeps the order of its request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fencepost.coordinator.codec.offsets import (
    FetchedGroup,
    FetchedOffset,
    OffsetCommitCall,
    OffsetCommitReply,
    OffsetDeleteCall,
    OffsetDeleteReply,
    OffsetFetchCall,
    OffsetFetchGroup,
    OffsetFetchReply,
    PartitionError,
)
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import (
    NO_OFFSET,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.services import Asked, Services

FIRST_VERSION_WITH_IDS = 10


def offset_commit(services: Services, call: OffsetCommitCall, asked: Asked) -> OffsetCommitReply:
    """Commits what exists."""
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    topic_ids: dict[str, str] = {}
    found: list[Topic | ErrorCode] = []
    for reference in call.topics:
        try:
            topic = services.cluster.topic_of(reference)
        except ProtocolError as error:
            found.append(error.code)
            continue
        found.append(topic)
        if reference.topic_id is not None:
            topic_ids[topic.name] = topic.topic_id
        for one in reference.partitions:
            if 0 <= one.partition < topic.partitions:
                offsets[TopicPartition(topic.name, one.partition)] = one.offset
    errors: Mapping[TopicPartition, ErrorCode] = {}
    if offsets or not call.topics:
        reply: OffsetCommitResponse = services.ask(
            OffsetCommitRequest(
                group_id=call.group_id,
                member_id=call.member_id,
                member_epoch=call.member_epoch,
                instance_id=call.instance_id,
                offsets=offsets,
                topic_ids=topic_ids,
                retention_time_ms=call.retention_time_ms,
                api_version=call.api_version,
            )
        )
        errors = reply.errors
    return OffsetCommitReply(
        topics=tuple(
            _with_errors(reference, (one.partition for one in reference.partitions), result, errors)
            for reference, result in zip(call.topics, found, strict=True)
        )
    )


def _with_errors(
    reference: OfTopic[Any],
    partitions: Iterable[int],
    found: Topic | ErrorCode,
    errors: Mapping[TopicPartition, ErrorCode],
) -> OfTopic[PartitionError]:
    if isinstance(found, Topic):
        name = found.name
        results = tuple(
            PartitionError(
                number, errors.get(TopicPartition(name, number), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            )
            for number in partitions
        )
    else:
        results = tuple(PartitionError(number, found) for number in partitions)
    return OfTopic(name=reference.name, topic_id=reference.topic_id, partitions=results)


def offset_fetch(services: Services, call: OffsetFetchCall, asked: Asked) -> OffsetFetchReply:
    """Each group by itself."""
    return OffsetFetchReply(groups=tuple(_fetch_group(services, call, group) for group in call.groups))


def _fetch_group(services: Services, call: OffsetFetchCall, group: OffsetFetchGroup) -> FetchedGroup:
    with_ids = call.api_version >= FIRST_VERSION_WITH_IDS
    partitions: tuple[TopicPartition, ...] | None = None
    names: list[str | None] = []
    if group.topics is not None:
        names = [_name_of(services, reference, with_ids) for reference in group.topics]
        partitions = tuple(
            TopicPartition(name, number)
            for name, reference in zip(names, group.topics, strict=True)
            if name is not None
            for number in reference.partitions
        )
    reply: OffsetFetchResponse = services.ask(
        OffsetFetchRequest(
            group_id=group.group_id,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
            partitions=partitions,
            require_stable=call.require_stable,
            api_version=call.api_version,
        )
    )
    if group.topics is None:
        topics = _all_topics(services, reply, with_ids)
    else:
        topics = tuple(
            OfTopic(
                name=reference.name,
                topic_id=reference.topic_id,
                partitions=tuple(_fetched(reply, name, number) for number in reference.partitions),
            )
            for name, reference in zip(names, group.topics, strict=True)
        )
    return FetchedGroup(group_id=group.group_id, error_code=reply.error_code, topics=topics)


def _name_of(services: Services, reference: OfTopic[int], with_ids: bool) -> str | None:
    """A name need not exist any more; an id that is gone has no name to look for."""
    if not with_ids:
        return reference.name
    return None if reference.topic_id is None else services.cluster.image.name_of(reference.topic_id)


def _fetched(reply: OffsetFetchResponse, name: str | None, number: int) -> FetchedOffset:
    if name is None:
        return FetchedOffset(partition=number, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    partition = TopicPartition(name, number)
    if partition in reply.unstable:
        return FetchedOffset(partition=number, error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT)
    return FetchedOffset(partition=number, offset=reply.offsets.get(partition, NO_OFFSET))


def _all_topics(
    services: Services, reply: OffsetFetchResponse, with_ids: bool
) -> tuple[OfTopic[FetchedOffset], ...]:
    """By name; with ids only those topics that still exist."""
    by_name: dict[str, list[FetchedOffset]] = {}
    for name, number in sorted(reply.offsets):
        by_name.setdefault(name, []).append(_fetched(reply, name, number))
    image = services.cluster.image
    return tuple(
        OfTopic(
            name=name,
            topic_id=image.by_name[name].topic_id if name in image.by_name else None,
            partitions=tuple(offsets),
        )
        for name, offsets in by_name.items()
        if not with_ids or name in image.by_name
    )


def offset_delete(services: Services, call: OffsetDeleteCall, asked: Asked) -> OffsetDeleteReply:
    """Deletes what exists."""
    if not call.group_id:
        return OffsetDeleteReply(error_code=ErrorCode.INVALID_GROUP_ID)
    image = services.cluster.image
    partitions = tuple(
        TopicPartition(reference.name or "", number)
        for reference in call.topics
        if (topic := image.by_name.get(reference.name or "")) is not None
        for number in reference.partitions
        if 0 <= number < topic.partitions
    )
    reply: OffsetDeleteResponse = services.ask(
        OffsetDeleteRequest(group_id=call.group_id, partitions=partitions)
    )
    if reply.error_code is not ErrorCode.NONE:
        return OffsetDeleteReply(error_code=reply.error_code)
    return OffsetDeleteReply(
        topics=tuple(
            _with_errors(
                reference,
                reference.partitions,
                image.by_name.get(reference.name or "", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                reply.errors,
            )
            for reference in call.topics
        )
    )
