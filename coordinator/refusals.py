"""The replies of a coordinator that cannot handle a request: an error in the form of each response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fencepost.coordinator.offsets.commit import rejected
from fencepost.coordinator.protocol import classic, consumer, offsets, streams
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Event, Response

_CLIENT_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def client_error(code: ErrorCode) -> ErrorCode:
    """Return the error that a member gets when the log failed with that error: it says whether and where to
    try again."""
    return _CLIENT_ERRORS.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)


def refusal(event: Event, code: ErrorCode) -> Response | None:
    """Return the reply that refuses a request with this error; None for an event that needs no reply.

    A request of a further kind returns its reply in its own method `refused(code)`.
    """
    make = _REFUSALS.get(type(event)) or getattr(type(event), "refused", None)
    return None if make is None else make(event, code)


def _no_consumer_groups(request: consumer.ConsumerGroupDescribeRequest, code: ErrorCode) -> Response:
    groups = (consumer.DescribedGroup(group_id=group_id, error_code=code) for group_id in request.group_ids)
    return consumer.ConsumerGroupDescribeResponse(groups=tuple(groups))


def _no_streams_groups(request: streams.StreamsGroupDescribeRequest, code: ErrorCode) -> Response:
    groups = (
        streams.DescribedStreamsGroup(group_id=group_id, error_code=code) for group_id in request.group_ids
    )
    return streams.StreamsGroupDescribeResponse(groups=tuple(groups))


def _no_classic_groups(request: classic.DescribeGroupsRequest, code: ErrorCode) -> Response:
    return classic.DescribeGroupsResponse(
        groups=tuple(
            classic.DescribedClassicGroup(group_id=group_id, group_state="", error_code=code)
            for group_id in request.group_ids
        )
    )


def _blind_heartbeat(_: classic.HeartbeatRequest, code: ErrorCode) -> Response:
    """Return the heartbeat's reply while groups are loaded: only that the member is alive is known."""
    loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return classic.HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)


_REFUSALS: Mapping[type, Callable[[Any, ErrorCode], Response]] = {
    classic.JoinGroupRequest: lambda request, code: classic.JoinGroupResponse(
        error_code=code, member_id=request.member_id
    ),
    classic.SyncGroupRequest: lambda _, code: classic.SyncGroupResponse(error_code=code),
    classic.HeartbeatRequest: _blind_heartbeat,
    classic.DescribeGroupsRequest: _no_classic_groups,
    consumer.ConsumerGroupHeartbeatRequest: lambda _, code: consumer.ConsumerGroupHeartbeatResponse(
        error_code=code
    ),
    consumer.ConsumerGroupDescribeRequest: _no_consumer_groups,
    streams.StreamsGroupHeartbeatRequest: lambda _, code: streams.StreamsGroupHeartbeatResponse(
        error_code=code
    ),
    streams.StreamsGroupDescribeRequest: _no_streams_groups,
    offsets.OffsetCommitRequest: rejected,
    offsets.OffsetFetchRequest: lambda request, code: offsets.OffsetFetchResponse(
        group_id=request.group_id, error_code=code
    ),
    offsets.OffsetDeleteRequest: lambda _, code: offsets.OffsetDeleteResponse(error_code=code),
    consumer.ListGroupsRequest: lambda _, code: consumer.ListGroupsResponse(error_code=code),
    consumer.DeleteGroupsRequest: lambda request, code: consumer.DeleteGroupsResponse(
        group_id=request.group_id, error_code=code
    ),
    consumer.LeaveGroupBatchRequest: lambda _, code: consumer.LeaveGroupBatchResponse(error_code=code),
    consumer.LeaveGroupRequest: lambda request, code: consumer.LeaveGroupResponse(
        member_id=request.member_id, instance_id=request.instance_id, error_code=code
    ),
}
