"""The states of a member that speaks the classic protocol, and the arrows between them.

UNJOINED to STABLE are those of the Java client (AbstractCoordinator.MemberState). The rest, what
the application has to do with it, is in no table there.
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable


class ClassicMemberState(enum.StrEnum):
    """Where a member of a classic group is."""

    UNSUBSCRIBED = "UNSUBSCRIBED"
    """Not in the group. The application has not subscribed, not polled since it did, or left."""
    UNJOINED = "UNJOINED"
    """About to join, for the first time or again: commits and callbacks come first, in the next poll."""
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    """JoinGroup is on its way; it is answered when everybody has joined."""
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    """In a new generation: the leader assigns, everybody asks for the assignment with SyncGroup."""
    STABLE = "STABLE"
    """Has its assignment, and heartbeats. Callbacks for what changed may still run."""
    FENCED = "FENCED"
    """The coordinator does not know it in this generation: everything is lost before it joins again."""
    STALE = "STALE"
    """Left because the application does not poll; joins again when it does."""
    PREPARE_LEAVING = "PREPARE_LEAVING"
    """Commits, and gives everything up, before it leaves."""
    FATAL = "FATAL"
    """Met an error that no retry mends. The end."""


class ClassicMemberEvent(enum.StrEnum):
    """What makes a member move."""

    SUBSCRIBED = "subscribed"
    """There is a subscription, and the application polls."""
    JOIN_SENT = "join sent"
    JOIN_REFUSED = "join refused"
    """Not now, or not without an id; or no answer came."""
    JOINED = "joined"
    """The generation has begun."""
    SYNC_REFUSED = "sync refused"
    """Somebody joins again before everybody has the assignment; or no answer came."""
    SYNCED = "synced"
    """The assignment is here."""
    REJOIN = "rejoin"
    """The coordinator, assignor or application wants another round, or the leader saw topics change."""
    FENCED = "fenced"
    """UNKNOWN_MEMBER_ID or ILLEGAL_GENERATION."""
    POLL_TIMED_OUT = "poll timed out"
    """The application was outside of poll for max.poll.interval.ms."""
    UNSUBSCRIBE = "unsubscribe"
    CLOSE = "close"
    RELEASED = "released"
    """Nothing is owned any more, and the callback for it ended."""
    POLLED = "polled"
    """The application polls again after a poll time-out."""
    FATAL_ERROR = "fatal error"


S = ClassicMemberState
E = ClassicMemberEvent

ACTIVE: tuple[S, ...] = (S.UNJOINED, S.PREPARING_REBALANCE, S.COMPLETING_REBALANCE, S.STABLE)
"""In the group or on the way into it, and meaning to stay."""

CLASSIC_MEMBER: StateTable[S, E] = StateTable(
    "classic-member",
    source="Kafka's group membership protocol; AbstractCoordinator.MemberState in Kafka 4.3",
    states=S,
    initial=S.UNSUBSCRIBED,
    terminal=(S.FATAL,),
    transitions=[
        (S.UNSUBSCRIBED, E.SUBSCRIBED, S.UNJOINED),
        (S.UNSUBSCRIBED, E.CLOSE, S.PREPARE_LEAVING),
        (S.UNJOINED, E.JOIN_SENT, S.PREPARING_REBALANCE),
        (S.PREPARING_REBALANCE, E.JOIN_REFUSED, S.UNJOINED),
        (S.PREPARING_REBALANCE, E.JOINED, S.COMPLETING_REBALANCE),
        (S.COMPLETING_REBALANCE, E.SYNC_REFUSED, S.UNJOINED),
        (S.COMPLETING_REBALANCE, E.SYNCED, S.STABLE),
        (S.STABLE, E.REJOIN, S.UNJOINED),
        *((active, E.FENCED, S.FENCED) for active in ACTIVE),
        *((active, E.FATAL_ERROR, S.FATAL) for active in ACTIVE),
        *((active, E.POLL_TIMED_OUT, S.STALE) for active in ACTIVE),
        *((active, E.UNSUBSCRIBE, S.PREPARE_LEAVING) for active in ACTIVE),
        *((active, E.CLOSE, S.PREPARE_LEAVING) for active in ACTIVE),
        (S.FENCED, E.RELEASED, S.UNJOINED),
        (S.FENCED, E.UNSUBSCRIBE, S.UNSUBSCRIBED),
        (S.FENCED, E.CLOSE, S.UNSUBSCRIBED),
        (S.STALE, E.POLLED, S.UNJOINED),
        (S.STALE, E.UNSUBSCRIBE, S.UNSUBSCRIBED),
        (S.STALE, E.CLOSE, S.UNSUBSCRIBED),
        (S.PREPARE_LEAVING, E.RELEASED, S.UNSUBSCRIBED),
        (S.PREPARE_LEAVING, E.FENCED, S.UNSUBSCRIBED),
        (S.PREPARE_LEAVING, E.FATAL_ERROR, S.FATAL),
    ],
)
