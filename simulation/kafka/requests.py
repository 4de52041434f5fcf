"""The requests of members to brokers other than group requests, and the responses that refuse group
requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol import classic, consumer, transactions
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)
from fencepost.coordinator.protocol.streams import StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest
from fencepost.coordinator.refusals import refusal
from fencepost.simulation.kernel.rng import Draws


class FindCoordinator(msgspec.Struct, frozen=True):
    """A request for the host that coordinates the group or the transactional id. The response is
    `CoordinatorFound`."""

    key: str
    of_transactions: bool = False


class CoordinatorFound(msgspec.Struct, frozen=True):
    """The coordinator's host; empty with an error."""

    host: str = ""
    error_code: ErrorCode = ErrorCode.NONE


class TopicNames(msgspec.Struct, frozen=True):
    """A request for the names of these topics, from the cluster's metadata. The response is a mapping."""

    topic_ids: tuple[TopicId, ...]


class PartitionCounts(msgspec.Struct, frozen=True):
    """A request for the numbers of partitions of these topics. The response is a mapping without the topics
    that do not exist."""

    topics: tuple[str, ...]


class MatchingTopics(msgspec.Struct, frozen=True):
    """A request for all topics that a regular expression matches, as a client finds them. The response is a
    tuple."""

    pattern: str


class LogOffsets(msgspec.Struct, frozen=True):
    """A request for the first or the next offset of these logs. The response is a mapping."""

    partitions: tuple[TopicPartition, ...]
    earliest: bool


class OffsetsSince(msgspec.Struct, frozen=True):
    """A request for the first offset of these logs at this time or later, or for their end. The response is a
    mapping."""

    partitions: tuple[TopicPartition, ...]
    since_us: int


GROUP_REQUESTS: frozenset[type] = frozenset(
    {
        consumer.ConsumerGroupHeartbeatRequest,
        StreamsGroupHeartbeatRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        classic.JoinGroupRequest,
        classic.SyncGroupRequest,
        classic.HeartbeatRequest,
        consumer.LeaveGroupRequest,
        consumer.LeaveGroupBatchRequest,
        consumer.ConsumerGroupDescribeRequest,
        classic.DescribeGroupsRequest,
        StreamsGroupDescribeRequest,
        consumer.ListGroupsRequest,
        consumer.DeleteGroupsRequest,
        OffsetDeleteRequest,
    }
)
"""Requests that only the group's coordinator answers."""

TRANSACTION_REQUESTS: tuple[type, ...] = (
    transactions.InitProducerIdRequest,
    transactions.AddPartitionsToTxnRequest,
    transactions.AddOffsetsToTxnRequest,
    transactions.EndTxnRequest,
)
"""Requests that only the coordinator of transactions answers."""


class TxnOffsetCommit(msgspec.Struct, frozen=True):
    """A commit of positions of a group within a producer's transaction. The response is that of a commit."""

    transactional_id: str
    producer_epoch: int
    client_version: int
    """2 for producers whose groups the broker adds to the transaction (KIP-890)."""
    offsets: OffsetCommitRequest
    """With the producer's id, and the member for which it commits (KIP-447)."""


_JOINED = (classic.JoinGroupResponse, classic.SyncGroupResponse)


def refuse(request: object, code: ErrorCode) -> object:
    """Return the response that carries this error for a group request."""
    return refusal(request, code)  # type: ignore[arg-type]  # GROUP_REQUESTS are events


def moves_epoch(request: object, response: object) -> bool:
    """Return true if a response has an assignment, or an epoch that differs from its request's."""
    if isinstance(response, consumer.ConsumerGroupHeartbeatResponse):
        return (
            isinstance(request, consumer.ConsumerGroupHeartbeatRequest)
            and (response.member_epoch != request.member_epoch or response.assignment is not None)
            and response.error_code == ErrorCode.NONE
        )
    return isinstance(response, _JOINED) and response.error_code == ErrorCode.NONE


def error_of(response: object) -> ErrorCode:
    """Return the error of a response; if each partition has one, the first that is not NONE."""
    if isinstance(response, OffsetCommitResponse | transactions.AddPartitionsToTxnResponse):
        errors: Mapping[TopicPartition, ErrorCode] = response.errors
        return next((code for code in errors.values() if code != ErrorCode.NONE), ErrorCode.NONE)
    code = getattr(response, "error_code", ErrorCode.NONE)
    assert isinstance(code, ErrorCode)
    return code


MAY_WAIT: Final = frozenset({classic.JoinGroupRequest, classic.SyncGroupRequest})
"""Requests whose responses wait for other members."""


class ArrivalTokens:
    """The values that brokers add to requests on arrival: a number, and an id for a member that has
    none yet."""

    __slots__ = ("_draws", "_last")

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        self._last = 0

    def stamp(self, request: Any) -> Any:
        """Return the request with its number; no two requests have the same number."""
        self._last += 1
        if isinstance(request, classic.SyncGroupRequest):
            return msgspec.structs.replace(request, token=self._last)
        suffix = self._draws.uuid(f"joiner/{self._last}") if not request.member_id else ""
        return msgspec.structs.replace(request, token=self._last, new_member_suffix=suffix)
