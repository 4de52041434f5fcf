"""The replies of a coordinator that cannot handle a request: an error in the form of each response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
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


def _described(reply: type[Any], group: Callable[..., Any]) -> Callable[[Any, ErrorCode], Response]:
    """Return the function that makes a description in which each group of the request has the error."""

    def refuse(request: Any, code: ErrorCode) -> Any:
        return reply(
            groups=tuple(group(group_id=group_id, error_code=code) for group_id in request.group_ids)
        )

    return refuse


def _whole(reply: type[Any], *names: str) -> Callable[[Any, ErrorCode], Response]:
    """Return the function that makes a response with the error, and the request's fields of these names."""
    return lambda request, code: reply(error_code=code, **{name: getattr(request, name) for name in names})


def _blind_heartbeat(_: classic.HeartbeatRequest, code: ErrorCode) -> Response:
    """Return the heartbeat's reply while groups are loaded: only that the member is alive is known."""
    loading = code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return classic.HeartbeatResponse(error_code=ErrorCode.NONE if loading else code)


_REFUSALS: Mapping[type, Callable[[Any, ErrorCode], Response]] = {
    classic.JoinGroupRequest: _whole(classic.JoinGroupResponse, "member_id"),
    classic.SyncGroupRequest: _whole(classic.SyncGroupResponse),
    classic.HeartbeatRequest: _blind_heartbeat,
    classic.DescribeGroupsRequest: _described(
        classic.DescribeGroupsResponse, partial(classic.DescribedClassicGroup, group_state="")
    ),
    consumer.ConsumerGroupHeartbeatRequest: _whole(consumer.ConsumerGroupHeartbeatResponse),
    consumer.ConsumerGroupDescribeRequest: _described(
        consumer.ConsumerGroupDescribeResponse, consumer.DescribedGroup
    ),
    streams.StreamsGroupHeartbeatRequest: _whole(streams.StreamsGroupHeartbeatResponse),
    streams.StreamsGroupDescribeRequest: _described(
        streams.StreamsGroupDescribeResponse, streams.DescribedStreamsGroup
    ),
    offsets.OffsetCommitRequest: rejected,
    offsets.OffsetFetchRequest: _whole(offsets.OffsetFetchResponse, "group_id"),
    offsets.OffsetDeleteRequest: _whole(offsets.OffsetDeleteResponse),
    consumer.ListGroupsRequest: _whole(consumer.ListGroupsResponse),
    consumer.DeleteGroupsRequest: _whole(consumer.DeleteGroupsResponse, "group_id"),
    consumer.LeaveGroupBatchRequest: _whole(consumer.LeaveGroupBatchResponse),
    consumer.LeaveGroupRequest: _whole(consumer.LeaveGroupResponse, "member_id", "instance_id"),
}
