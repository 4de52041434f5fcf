"""The states of a member that speaks the classic protocol, and the arrows between them.

UNJOINED to STABLE are those of the Java client (AbstractCoordinator.MemberState). The rest, which concerns
the application, is in no table there.
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.base.leave import ends


class ClassicMemberState(enum.StrEnum):
    """The states of a member of a classic group."""

    UNSUBSCRIBED = "UNSUBSCRIBED"
    """The member is in no group: it has not subscribed, has not polled since, or left."""
    UNJOINED = "UNJOINED"
    """The member will join, or join again. The next poll commits and runs callbacks first."""
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    """JoinGroup is sent. The response comes once all members have joined."""
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    """A new generation began. The leader assigns; every member sends SyncGroup."""
    STABLE = "STABLE"
    """The member has its assignment and sends heartbeats. Callbacks may still run."""
    FENCED = "FENCED"
    """The coordinator refused the member's id or generation. It drops everything, then joins again."""
    STALE = "STALE"
    """The member left because the application did not poll in time. The next poll joins again."""
    PREPARE_LEAVING = "PREPARE_LEAVING"
    """The member commits and releases everything before it leaves."""
    FATAL = "FATAL"
    """The member met an error that no retry fixes. It stays here."""


class ClassicMemberEvent(enum.StrEnum):
    """The events that move a member to another state."""

    SUBSCRIBED = "subscribed"
    """The application has a subscription and polls."""
    JOIN_SENT = "join sent"
    """The member sent JoinGroup."""
    JOIN_REFUSED = "join refused"
    """The coordinator refused the join, asked for a member id first, or did not reply."""
    JOINED = "joined"
    """The JoinGroup response arrived: a generation has begun."""
    SYNC_REFUSED = "sync refused"
    """Another member joins before all have the assignment, or the coordinator did not reply."""
    SYNCED = "synced"
    """The SyncGroup response arrived with the assignment."""
    REJOIN = "rejoin"
    """The coordinator, assignor or application wants a round, or the leader saw topics change."""
    FENCED = "fenced"
    """The coordinator replied UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION."""
    POLL_TIMED_OUT = "poll timed out"
    """The application did not poll for max.poll.interval.ms."""
    UNSUBSCRIBE = "unsubscribe"
    """The application unsubscribes."""
    CLOSE = "close"
    """The application closes the member."""
    RELEASED = "released"
    """The member owns nothing any more, and the callback for it returned."""
    POLLED = "polled"
    """The application polls again after a poll timeout."""
    FATAL_ERROR = "fatal error"
    """A response carries an error that no retry fixes."""


S = ClassicMemberState
E = ClassicMemberEvent

ACTIVE: tuple[S, ...] = (S.UNJOINED, S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.STABLE)
"""In the group or on the way into it, and intending to stay."""

CLASSIC_MEMBER: StateTable[S, E] = StateTable(
    "classic-member",
    source="Kafka's group membership protocol; AbstractCoordinator.MemberState in Kafka 4.3",
    states=S,
    initial=S.UNSUBSCRIBED,
    terminal=(S.FATAL,),
    transitions=[
        (S.UNSUBSCRIBED, E.SUBSCRIBED, S.UNJOINED),
        (S.UNJOINED, E.JOIN_SENT, S.PREPARING_REBALANCE),
        (S.PREPARING_REBALANCE, E.JOIN_REFUSED, S.UNJOINED),
        (S.PREPARING_REBALANCE, E.JOINED, S.COMPLETING_REBALANCE),
        (S.COMPLETING_REBALANCE, E.SYNC_REFUSED, S.UNJOINED),
        (S.COMPLETING_REBALANCE, E.SYNCED, S.STABLE),
        (S.STABLE, E.REJOIN, S.UNJOINED),
        *ends(S, E, ACTIVE),
        *((active, E.POLL_TIMED_OUT, S.STALE) for active in ACTIVE),
        (S.FENCED, E.RELEASED, S.UNJOINED),
        (S.STALE, E.POLLED, S.UNJOINED),
        (S.STALE, E.UNSUBSCRIBE, S.UNSUBSCRIBED),
        (S.STALE, E.CLOSE, S.UNSUBSCRIBED),
    ],
)
