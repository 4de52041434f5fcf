"""The outcome of a coordinator's step: records to append, then a reply and effects.

The order is fixed: append the records, apply them, then send the reply and carry out the effects. If the
append fails, nothing else happens, and the request gets the mapped error.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from fencepost.coordinator.protocol import classic, consumer, offsets, streams
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.records import Record
from fencepost.coordinator.protocol.topics import TopicsImage
from fencepost.coordinator.protocol.transactions import TransactionEnded

Request: TypeAlias = (
    classic.JoinGroupRequest
    | classic.SyncGroupRequest
    | classic.HeartbeatRequest
    | classic.DescribeGroupsRequest
    | consumer.ConsumerGroupHeartbeatRequest
    | consumer.ConsumerGroupDescribeRequest
    | consumer.ListGroupsRequest
    | consumer.DeleteGroupsRequest
    | consumer.LeaveGroupRequest
    | consumer.LeaveGroupBatchRequest
    | offsets.OffsetCommitRequest
    | offsets.OffsetFetchRequest
    | offsets.OffsetDeleteRequest
    | streams.StreamsGroupHeartbeatRequest
    | streams.StreamsGroupDescribeRequest
)

Response: TypeAlias = (
    classic.JoinGroupResponse
    | classic.SyncGroupResponse
    | classic.HeartbeatResponse
    | classic.DescribeGroupsResponse
    | consumer.ConsumerGroupHeartbeatResponse
    | consumer.ConsumerGroupDescribeResponse
    | consumer.ListGroupsResponse
    | consumer.DeleteGroupsResponse
    | consumer.LeaveGroupResponse
    | consumer.LeaveGroupBatchResponse
    | offsets.OffsetCommitResponse
    | offsets.OffsetFetchResponse
    | offsets.OffsetDeleteResponse
    | streams.StreamsGroupHeartbeatResponse
    | streams.StreamsGroupDescribeResponse
)


class TopicsChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster's topics are now these: created, deleted or grown since the last event."""

    image: TopicsImage


class RegularExpressionsResolved(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `ResolveRegularExpressions`."""

    group_id: str
    topics: dict[str, tuple[str, ...]]
    """Names that match, sorted, by regular expression; empty if they could not be matched."""
    image_version: int
    denied: frozenset[str] = frozenset()
    """Names that match too, but that the client whose request led to this may not describe."""


class DeadlineReached(msgspec.Struct, frozen=True):
    """Time has reached `next_deadline()`: the most overdue timer runs."""

    due_ms: int = 0
    """Time at which it was due, in ms; a timer of a real loop fires a little late."""


class MemberHeard(msgspec.Struct, frozen=True, kw_only=True):
    """A member is alive, as the shell knows without a request: its session restarts."""

    group_id: str
    member_id: MemberId


class SessionEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A member's session is over now, whatever its timer says: the shell changes the time."""

    group_id: str
    member_id: MemberId


class RebalanceRequested(msgspec.Struct, frozen=True, kw_only=True):
    """A group shall rebalance although nothing changed: a new epoch, or a new generation."""

    group_id: str


Event: TypeAlias = (
    Request
    | TopicsChanged
    | RegularExpressionsResolved
    | DeadlineReached
    | TransactionEnded
    | MemberHeard
    | SessionEnded
    | RebalanceRequested
)


class ResolveRegularExpressions(msgspec.Struct, frozen=True, kw_only=True):
    """Match these expressions against all topic names, in the background, and return the matches as an
    event."""

    group_id: str
    regular_expressions: tuple[str, ...]


class MemberFenced(msgspec.Struct, frozen=True, kw_only=True):
    """A timer removed a member. No action is needed, but it may be of interest."""

    group_id: str
    member_id: MemberId
    reason: str
    """`session`, `rebalance`, `join` or `sync`: the timer that ran out."""


class ParkedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request that had to wait: its outcome had no reply."""

    token: classic.Token
    response: classic.JoinGroupResponse | classic.SyncGroupResponse


class CreateInternalTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Create these topics of a Streams application: its group waits for them (KIP-1071)."""

    group_id: str
    topics: tuple[streams.TopicInfo, ...]
    """Each with the number of partitions it must have."""


Effect: TypeAlias = ResolveRegularExpressions | MemberFenced | ParkedResponse | CreateInternalTopics


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The value of one coordinator step."""

    records: tuple[Record, ...] = ()
    """One atomic batch; to be durable before anything below is seen by anyone."""
    reply: Response | None = None
    """None for a request that has to wait: a `ParkedResponse` with its token follows in a later outcome."""
    effects: tuple[Effect, ...] = ()


NOTHING = Outcome()
