"""Handlers of requests about committed offsets.

Topics are looked up before the coordinator sees a request, as in Kafka's broker: partitions that do not exist
get their error, the others continue. In fetched results, topics with unknown ids are last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

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
)
from fencepost.coordinator.protocol.acls import AclOperation, AclResourceType
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import (
    NO_OFFSET,
    TOPIC_IDS_VERSION,
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.server.existing_topics import ExistingTopics, commit_existing
from fencepost.coordinator.server.services import Asked, May, Services
from fencepost.coordinator.server.turns import Work, in_turns


def offset_commit(services: Services, call: OffsetCommitCall, asked: Asked) -> OffsetCommitReply:
    """Commit positions of partitions that exist."""
    by_id = call.api_version >= TOPIC_IDS_VERSION
    known = services.cluster.shown.by_name

    def commit(offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Mapping[TopicPartition, ErrorCode]:
        names = {partition.topic for partition in offsets} if by_id else ()
        reply = services.ask(
            OffsetCommitRequest(
                group_id=call.group_id,
                member_id=call.member_id,
                member_epoch=call.member_epoch,
                instance_id=call.instance_id,
                offsets=offsets,
                topic_ids={name: known[name].topic_id for name in names},
                retention_time_ms=call.retention_time_ms,
                api_version=call.api_version,
            )
        )
        return reply.errors

    limit = services.config.offset_metadata_max_bytes
    topics = commit_existing(services.cluster, call.topics, commit, metadata_max_bytes=limit)
    return OffsetCommitReply(topics=topics)


MAX_QUESTIONS_PER_GROUP = 10
"""Number of times that one OffsetFetch may name a group, each time for other partitions."""


@in_turns
def offset_fetch(services: Services, call: OffsetFetchCall, asked: Asked) -> Work[OffsetFetchReply]:
    """Fetch each group by itself. A group that is named twice in the same words has one result."""
    questions = dict.fromkeys(call.groups)
    times = Counter(group.group_id for group in questions)
    too_often = {group_id for group_id, count in times.items() if count > MAX_QUESTIONS_PER_GROUP}
    yield len(call.groups)
    fetched = [
        FetchedGroup(group_id=group_id, error_code=ErrorCode.INVALID_REQUEST, topics=())
        for group_id in sorted(too_often)
    ]
    for group in questions:
        if group.group_id not in too_often:
            fetched.append(_fetch_group(services, call, group, asked.may))
            yield 1 + sum(len(topic.partitions) for topic in fetched[-1].topics)
    return OffsetFetchReply(groups=tuple(fetched))


def _each_once(topics: tuple[OfTopic[int], ...]) -> list[OfTopic[int]]:
    """Return the partitions without repeated ones, and no topic that has only repeated ones."""
    seen: dict[tuple[str | None, TopicId | None], set[int]] = {}
    once = []
    for topic in topics:
        known = seen.setdefault((topic.name, topic.topic_id), set())
        numbers = tuple(each for each in dict.fromkeys(topic.partitions) if each not in known)
        if numbers or not topic.partitions:
            known.update(numbers)
            once.append(OfTopic(name=topic.name, topic_id=topic.topic_id, partitions=numbers))
    return once


def _fetch_group(
    services: Services, call: OffsetFetchCall, group: OffsetFetchGroup, may: May | None
) -> FetchedGroup:
    def is_denied(name: str | None) -> bool:
        """Return true for a topic that the client may not see."""
        return (
            name is not None
            and may is not None
            and not may(AclOperation.DESCRIBE, AclResourceType.TOPIC, name)
        )

    with_ids = call.api_version >= TOPIC_IDS_VERSION
    partitions: tuple[TopicPartition, ...] | None = None
    names: list[str | None] = []
    references: list[OfTopic[int]] = []
    if group.topics is not None:
        references = _each_once(group.topics)
        names = [_name_of(services, reference, with_ids) for reference in references]
        partitions = tuple(
            TopicPartition(name, number)
            for name, reference in zip(names, references, strict=True)
            if name is not None and not is_denied(name)
            for number in reference.partitions
        )
    reply = services.ask(
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
        topics = tuple(each for each in _all_topics(services, reply, with_ids) if not is_denied(each.name))
    else:
        named = zip(names, references, strict=True)
        topics = tuple(
            OfTopic(
                name=reference.name,
                topic_id=reference.topic_id,
                partitions=tuple(
                    FetchedOffset(partition=number, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                    if is_denied(name)
                    else _fetched(reply, name, number)
                    for number in reference.partitions
                ),
            )
            for name, reference in sorted(named, key=lambda each: each[0] is None)
        )
    return FetchedGroup(group_id=group.group_id, error_code=reply.error_code, topics=topics)


def _name_of(services: Services, reference: OfTopic[int], with_ids: bool) -> str | None:
    """Return the topic's name. A name need not exist any more; the id of a deleted topic has no name to look
    for."""
    if not with_ids:
        return reference.name
    return None if reference.topic_id is None else services.cluster.shown.name_of(reference.topic_id)


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
    """Return all topics by name; with ids, only those that still exist."""
    by_name: dict[str, list[FetchedOffset]] = {}
    for name, number in sorted(reply.offsets):
        by_name.setdefault(name, []).append(_fetched(reply, name, number))
    image = services.cluster.shown
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
    """Delete offsets of partitions that exist."""
    if not call.group_id:
        return OffsetDeleteReply(error_code=ErrorCode.INVALID_GROUP_ID)
    existing = ExistingTopics(services.cluster, call.topics, int)
    partitions = tuple(partition for partition, _ in existing)
    reply = services.ask(OffsetDeleteRequest(group_id=call.group_id, partitions=partitions))
    if reply.error_code is not ErrorCode.NONE:
        return OffsetDeleteReply(error_code=reply.error_code)
    return OffsetDeleteReply(topics=existing.answers(lambda partition, _: reply.errors[partition]))
