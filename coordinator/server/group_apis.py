"""Handlers of requests about groups: the coordinator's replies, one request at a time."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any

import msgspec

from fencepost.coordinator.codec.groups import (
    DeleteGroupsCall,
    DeleteGroupsReply,
    LeaveGroupCall,
    LeaveGroupReply,
)
from fencepost.coordinator.protocol import classic, consumer, streams
from fencepost.coordinator.protocol.cluster import GROUP_OPERATIONS
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import topic_id_from_uuid
from fencepost.coordinator.server.services import Asked, Services
from fencepost.coordinator.server.turns import WORK_PER_TURN, Work, in_turns

_tokens = itertools.count(1)
"""Numbers for requests that may have to wait."""


def consumer_group_heartbeat(
    services: Services, request: consumer.ConsumerGroupHeartbeatRequest, asked: Asked
) -> consumer.ConsumerGroupHeartbeatResponse:
    """KIP-848's only request. A member of version 0 has no id before its first response."""
    if not request.member_id:
        request = msgspec.structs.replace(request, generated_member_id=topic_id_from_uuid(uuid.uuid4()))
    return services.ask(request)


def streams_group_heartbeat(
    services: Services, request: streams.StreamsGroupHeartbeatRequest, asked: Asked
) -> streams.StreamsGroupHeartbeatResponse:
    """KIP-1071's only request. Missing internal topics are created after the response."""
    return services.groups.explained(request.group_id, services.ask(request))


@in_turns
def describe(services: Services, request: Any, asked: Asked) -> Work[Any]:
    """Describe groups of one type by id, each once, however often it is named."""
    group_ids = tuple(dict.fromkeys(request.group_ids))
    if len(group_ids) <= WORK_PER_TURN:
        reply = services.ask(msgspec.structs.replace(request, group_ids=group_ids))
    else:
        groups: list[Any] = []
        for first in range(0, len(group_ids), WORK_PER_TURN):
            part = group_ids[first : first + WORK_PER_TURN]
            reply = services.ask(msgspec.structs.replace(request, group_ids=part))
            groups += reply.groups
            yield WORK_PER_TURN
        reply = msgspec.structs.replace(reply, groups=tuple(groups))
    if request.include_operations:  # all of them are allowed
        return msgspec.structs.replace(reply, authorized_operations=GROUP_OPERATIONS)
    return reply


def ask(services: Services, request: Any, asked: Asked) -> Any:
    """Return the group coordinator's reply: to ListGroups, Heartbeat, and all requests of further kinds."""
    return services.ask(request)


def join_group(
    services: Services, request: classic.JoinGroupRequest, asked: Asked
) -> classic.JoinGroupResponse | asyncio.Future[classic.JoinGroupResponse]:
    """Respond immediately, or when all members have joined."""
    suffix = str(uuid.uuid4())
    return services.ask(msgspec.structs.replace(request, new_member_suffix=suffix, token=next(_tokens)))


def sync_group(
    services: Services, request: classic.SyncGroupRequest, asked: Asked
) -> classic.SyncGroupResponse | asyncio.Future[classic.SyncGroupResponse]:
    """Respond immediately, or when the leader has assigned."""
    return services.ask(msgspec.structs.replace(request, token=next(_tokens)))


@in_turns
def delete_groups(services: Services, call: DeleteGroupsCall, asked: Asked) -> Work[DeleteGroupsReply]:
    """Delete each group by itself, and once: a group that is named twice is not missing the second time."""
    deleted = []
    for request in dict.fromkeys(call.groups):
        deleted.append(services.ask(request))
        yield 1
    return DeleteGroupsReply(groups=tuple(deleted))


def leave_group(services: Services, call: LeaveGroupCall, asked: Asked) -> LeaveGroupReply:
    """Remove all members together; up to version 2 there is one, and its error is the response's."""
    if not call.group_id:
        return LeaveGroupReply(error_code=ErrorCode.INVALID_GROUP_ID)
    if call.single:
        return LeaveGroupReply(error_code=services.ask(call.members[0]).error_code)
    if not call.members:
        return LeaveGroupReply()
    batch = consumer.LeaveGroupBatchRequest(group_id=call.group_id, members=call.members)
    reply = services.ask(batch)
    return LeaveGroupReply(error_code=reply.error_code, members=reply.members)
