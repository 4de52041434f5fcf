"""The states of a consumer group member and every arrow between them.

KIP-848, Client State Machine, as developed further by Kafka's clients.

UNSUBSCRIBED --> JOINING --> RECONCILING <--> ACKNOWLEDGING --> STABLE --> RECONCILING
                    |             |                 |              |
                    +-------------+--------+--------+--------------+
                                           |
              FENCED --> JOINING           +--> FENCED, PREPARE_LEAVING, FATAL
              PREPARE_LEAVING --> LEAVING --> UNSUBSCRIBED
                                          \\-> STALE --> JOINING
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable, Transition
from fencepost.member.base.leave import ends


class ConsumerMemberState(enum.StrEnum):
    """The states of a member."""

    UNSUBSCRIBED = "UNSUBSCRIBED"
    """The member is in no group: it never subscribed, or it left."""
    JOINING = "JOINING"
    """The member sends heartbeats with epoch 0 until a response carries an assignment."""
    RECONCILING = "RECONCILING"
    """The member moves to its target: commit, on_revoked, on_assigned. Heartbeats continue."""
    ACKNOWLEDGING = "ACKNOWLEDGING"
    """One pass is finished. The next heartbeat, sent at once, lists the owned partitions."""
    STABLE = "STABLE"
    """The member owns its target and keeps its session alive."""
    FENCED = "FENCED"
    """The coordinator does not know the member. The member drops its partitions, then joins again."""
    PREPARE_LEAVING = "PREPARE_LEAVING"
    """The member commits and runs callbacks before its leave heartbeat."""
    LEAVING = "LEAVING"
    """The member has released everything and is about to send the leave heartbeat."""
    STALE = "STALE"
    """The member left because the application did not poll in time. The next poll joins again."""
    FATAL = "FATAL"
    """The member met an error that no retry fixes. It stays here."""


class ConsumerMemberEvent(enum.StrEnum):
    """The events that move a member to another state."""

    SUBSCRIBED = "subscribed"
    """The application has a subscription and polls."""
    TARGET_RECEIVED = "target received"
    """A heartbeat response carries an assignment that differs from the last one."""
    TARGET_OWNED = "target owned"
    """A heartbeat response carries an assignment that the member already owns."""
    PASS_FINISHED = "pass finished"
    """The last callback of a reconciliation returned, or no callback was needed."""
    ACKNOWLEDGED = "acknowledged"
    """The member built the heartbeat that lists its owned partitions."""
    FENCED = "fenced"
    """The coordinator replied FENCED_MEMBER_EPOCH or UNKNOWN_MEMBER_ID."""
    POLL_TIMED_OUT = "poll timed out"
    """The application did not poll for max.poll.interval.ms."""
    UNSUBSCRIBE = "unsubscribe"
    """The application unsubscribes."""
    CLOSE = "close"
    """The application closes the member."""
    RELEASED = "released"
    """The member owns nothing any more, and the callback for it returned."""
    LEAVE_BUILT = "leave built"
    """The member built the leave heartbeat, or needs none."""
    POLLED = "polled"
    """The application polls again after a poll timeout."""
    FATAL_ERROR = "fatal error"
    """A response carries an error that no retry fixes."""


S = ConsumerMemberState
E = ConsumerMemberEvent

(
    UNSUBSCRIBED,
    JOINING,
    RECONCILING,
    ACKNOWLEDGING,
    STABLE,
    FENCED,
    PREPARE_LEAVING,
    LEAVING,
    STALE,
    FATAL,
) = ConsumerMemberState
"""Names of their own: in Python 3.11 an attribute of an enum class costs as much as a call."""

ACTIVE: tuple[S, ...] = (S.JOINING, S.RECONCILING, S.ACKNOWLEDGING, S.STABLE)
"""In the group, and intending to stay."""

CONSUMER_MEMBER: StateTable[S, E] = StateTable(
    "consumer-member",
    source="KIP-848, Client State Machine; Kafka 4.3 client",
    states=S,
    initial=S.UNSUBSCRIBED,
    terminal=(S.FATAL,),
    transitions=[
        (S.UNSUBSCRIBED, E.SUBSCRIBED, S.JOINING),
        (S.UNSUBSCRIBED, E.FATAL_ERROR, S.FATAL),
        (S.JOINING, E.TARGET_OWNED, S.STABLE),
        (S.JOINING, E.TARGET_RECEIVED, S.RECONCILING),
        (S.STABLE, E.TARGET_RECEIVED, S.RECONCILING),
        (S.RECONCILING, E.TARGET_RECEIVED, S.RECONCILING),
        (S.RECONCILING, E.TARGET_OWNED, S.STABLE),
        (S.RECONCILING, E.PASS_FINISHED, S.ACKNOWLEDGING),
        (S.ACKNOWLEDGING, E.TARGET_RECEIVED, S.RECONCILING),
        (S.ACKNOWLEDGING, E.ACKNOWLEDGED, S.STABLE),
        (S.ACKNOWLEDGING, E.ACKNOWLEDGED, S.RECONCILING),
        *ends(S, E, ACTIVE),
        *((active, E.POLL_TIMED_OUT, S.PREPARE_LEAVING) for active in ACTIVE),
        (S.FENCED, E.RELEASED, S.JOINING),
        (S.PREPARE_LEAVING, E.RELEASED, S.LEAVING),
        (S.PREPARE_LEAVING, E.POLL_TIMED_OUT, S.LEAVING),
        (S.PREPARE_LEAVING, E.FENCED, S.FENCED),
        (S.LEAVING, E.LEAVE_BUILT, S.UNSUBSCRIBED),
        (S.LEAVING, E.LEAVE_BUILT, S.STALE),
        (S.LEAVING, E.FENCED, S.UNSUBSCRIBED),
        (S.LEAVING, E.FENCED, S.FENCED),
        (S.LEAVING, E.FATAL_ERROR, S.FATAL),
        (S.STALE, E.POLLED, S.JOINING),
    ],
)

NEVER_TAKEN: tuple[Transition[S, E], ...] = (
    Transition(S.UNSUBSCRIBED, E.FATAL_ERROR, S.FATAL),
    Transition(S.PREPARE_LEAVING, E.FENCED, S.FENCED),
    Transition(S.LEAVING, E.FENCED, S.UNSUBSCRIBED),
    Transition(S.LEAVING, E.FENCED, S.FENCED),
    Transition(S.LEAVING, E.FATAL_ERROR, S.FATAL),
)
"""Arrows that Kafka declares and this machine does not use.

A member that is fenced while it prepares to leave has left. Responses that arrive once a member is out of the
group are ignored, errors included. LEAVING lasts no longer than it takes to build the leave.
"""
