"""What members ask brokers besides group requests, and how brokers refuse group requests."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)


class FindCoordinator(msgspec.Struct, frozen=True):
    """Which host coordinates the group? Answered with `CoordinatorFound`."""

    group_id: str


class CoordinatorFound(msgspec.Struct, frozen=True):
    """The coordinator's host; with an error, none."""

    host: str = ""
    error_code: ErrorCode = ErrorCode.NONE


class TopicNames(msgspec.Struct, frozen=True):
    """The names of these topics, from the cluster's metadata. Answered with a mapping."""

    topic_ids: tuple[TopicId, ...]


class LogOffsets(msgspec.Struct, frozen=True):
    """The first or the next offset of these logs. Answered with a mapping."""

    partitions: tuple[TopicPartition, ...]
    earliest: bool


GROUP_REQUESTS: tuple[type, ...] = (
    ConsumerGroupHeartbeatRequest,
    StreamsGroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
"""What only the group's coordinator answers."""


def refuse(request: object, code: ErrorCode) -> object:
    """The response that carries this error for a group request."""
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return ConsumerGroupHeartbeatResponse(error_code=code)
    if isinstance(request, StreamsGroupHeartbeatRequest):
        return StreamsGroupHeartbeatResponse(error_code=code)
    if isinstance(request, OffsetCommitRequest):
        return OffsetCommitResponse(errors={partition: code for partition in request.offsets})
    assert isinstance(request, OffsetFetchRequest)
    return OffsetFetchResponse(group_id=request.group_id, error_code=code)


def moves_epoch(request: object, response: object) -> bool:
    """Whether a heartbeat's response carries another epoch than its request, or an assignment."""
    return (
        isinstance(request, ConsumerGroupHeartbeatRequest)
        and isinstance(response, ConsumerGroupHeartbeatResponse)
        and response.error_code == ErrorCode.NONE
        and (response.member_epoch != request.member_epoch or response.assignment is not None)
    )


def error_of(response: object) -> ErrorCode:
    """The error of a group's response; of a commit, the first that is not NONE."""
    if isinstance(response, OffsetCommitResponse):
        errors: Mapping[TopicPartition, ErrorCode] = response.errors
        return next((code for code in errors.values() if code != ErrorCode.NONE), ErrorCode.NONE)
    code = getattr(response, "error_code", ErrorCode.NONE)
    assert isinstance(code, ErrorCode)
    return code
