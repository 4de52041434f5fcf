"""The decoder of a program between a client and a broker, for messages that pass through it.

Requests of group members and their responses become the messages of `coordinator.protocol`, as the
coordinator receives them from the server. Topics are not resolved here: `name_of` names a topic that has an
id and no name on the wire.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from fencepost.coordinator.codec import offsets
from fencepost.coordinator.codec.client import CLIENT_APIS, read_response
from fencepost.coordinator.codec.context import RequestContext
from fencepost.coordinator.codec.framing import MalformedFrame, RequestHeader
from fencepost.coordinator.codec.reader import read_unsigned_varint, skip_tagged_fields
from fencepost.coordinator.codec.registry import ApiKey, codec_of
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)

NameOf: TypeAlias = Callable[[TopicId], str]

MEMBER_APIS: frozenset[int] = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.OFFSET_DELETE,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_HEARTBEAT,
    }
)
"""The APIs whose messages are read; they are small."""

_FIRST_FLEXIBLE_PRODUCE = 9


def expects_answer(frame: bytes, header: RequestHeader) -> bool:
    """Return true if the broker responds to the request. It does, unless the request is a Produce with acks
    0.

    :raises MalformedFrame: if a Produce ends before it says so.
    """
    if header.api_key != ApiKey.PRODUCE:
        return True
    at = header.body_offset
    try:
        if header.api_version >= _FIRST_FLEXIBLE_PRODUCE:
            length, at = read_unsigned_varint(frame, skip_tagged_fields(frame, at))
            at += max(length - 1, 0)
        elif header.api_version >= 3:
            (length,) = struct.unpack_from(">h", frame, at)
            at += 2 + max(length, 0)
        (acks,) = struct.unpack_from(">h", frame, at)
    except (struct.error, IndexError) as error:
        raise MalformedFrame(f"Produce request of {len(frame)} bytes ends within its head") from error
    return bool(acks)


def read_member_request(frame: bytes, header: RequestHeader, client_host: str, name_of: NameOf) -> Any:
    """Return the message of a request of `MEMBER_APIS`; None in a version that is not spoken here.

    An OffsetFetch for several groups stays the codec's `OffsetFetchCall`.
    :raises MalformedFrame: if the frame is not of this API and version.
    """
    codec = codec_of(header.api_key, header.api_version)
    if codec is None:
        return None
    context = RequestContext(header.api_version, header.client_id, client_host)
    call = codec.decode(frame, codec.body_of(frame, header), context)
    if isinstance(call, offsets.OffsetCommitCall):
        return _commit_request(call, name_of)
    if isinstance(call, offsets.OffsetFetchCall) and len(call.groups) == 1:
        return _fetch_request(call, name_of)
    return call


def read_member_answer(frame: bytes, header: RequestHeader, name_of: NameOf) -> Any:
    """Return the message of a response to `MEMBER_APIS`; None in a version that is not spoken here.

    :raises MalformedFrame: if the frame is not of this API and version.
    """
    if header.api_key not in CLIENT_APIS or codec_of(header.api_key, header.api_version) is None:
        return None
    _, reply = read_response(header.api_key, header.api_version, frame)
    if isinstance(reply, offsets.OffsetCommitReply):
        return OffsetCommitResponse(
            errors={place: one.error_code for place, one in _by_partition(reply.topics, name_of)}
        )
    if isinstance(reply, offsets.OffsetFetchReply) and len(reply.groups) == 1:
        (group,) = reply.groups
        return OffsetFetchResponse(
            group_id=group.group_id,
            error_code=group.error_code,
            offsets={place: one.offset for place, one in _by_partition(group.topics, name_of)},
        )
    return reply


def _name(topic: OfTopic[Any], name_of: NameOf) -> str:
    return topic.name or ("" if topic.topic_id is None else name_of(topic.topic_id))


def _by_partition(topics: Iterable[OfTopic[Any]], name_of: NameOf) -> Iterable[tuple[TopicPartition, Any]]:
    for topic in topics:
        name = _name(topic, name_of)
        for one in topic.partitions:
            yield TopicPartition(name, one.partition), one


def _commit_request(call: offsets.OffsetCommitCall, name_of: NameOf) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=call.group_id,
        member_id=call.member_id,
        member_epoch=call.member_epoch,
        instance_id=call.instance_id,
        offsets={place: one.offset for place, one in _by_partition(call.topics, name_of)},
        topic_ids={
            _name(topic, name_of): topic.topic_id for topic in call.topics if topic.topic_id is not None
        },
        retention_time_ms=call.retention_time_ms,
        api_version=call.api_version,
    )


def _fetch_request(call: offsets.OffsetFetchCall, name_of: NameOf) -> OffsetFetchRequest:
    (group,) = call.groups
    return OffsetFetchRequest(
        group_id=group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
        partitions=None
        if group.topics is None
        else tuple(
            TopicPartition(_name(topic, name_of), number)
            for topic in group.topics
            for number in topic.partitions
        ),
        require_stable=call.require_stable,
        api_version=call.api_version,
    )
