"""The states of a single active consumer, as it sees itself, and the arrows between them.

It does not know its group: the server makes it active or makes it step down, and it responds. The coordinator
may forget it meanwhile; such a consumer is made to step down when its node is back.
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable


class SacMemberState(enum.StrEnum):
    """The states of a consumer."""

    UNSUBSCRIBED = "UNSUBSCRIBED"
    """The consumer has not started."""
    CONNECTING = "CONNECTING"
    """The consumer opens a connection."""
    SUBSCRIBING = "SUBSCRIBING"
    """The consumer sent its subscription."""
    WAITING = "WAITING"
    """The consumer is subscribed. Another consumer is active, or no consumer is active yet."""
    ACTIVATING = "ACTIVATING"
    """The application chooses the start offset. The consumer gets no messages before that."""
    ACTIVE = "ACTIVE"
    """The consumer gets messages."""
    STEPPING_DOWN = "STEPPING_DOWN"
    """The application finishes its messages. No other consumer is active before the response."""
    LOST = "LOST"
    """The connection broke. The application is being notified that the consumer is not active."""
    BACKING_OFF = "BACKING_OFF"
    """The consumer waits before it connects again."""
    CLOSED = "CLOSED"
    """The application closed the consumer."""
    FAILED = "FAILED"
    """The server refused the subscription, or another error occurred that no retry fixes."""


class SacMemberEvent(enum.StrEnum):
    """The events that move a consumer to another state."""

    STARTED = "started"
    """The application starts the consumer."""
    CONNECTED = "connected"
    """The connection is open."""
    SUBSCRIBED = "subscribed"
    """The server accepted the subscription."""
    REFUSED = "refused"
    """The server refused the connection or the subscription."""
    TOLD_ACTIVE = "told to be active"
    """The server sent ConsumerUpdate: become active."""
    TOLD_WAITING = "told to step down"
    """The server sent ConsumerUpdate: step down."""
    OFFSET_CHOSEN = "offset chosen"
    """The application returned the start offset."""
    LET_GO = "let go"
    """The application finished the messages it had."""
    DISCONNECTED = "connection lost"
    """The connection broke."""
    TOLD_LOST = "application told"
    """The application's callback for the loss returned."""
    BACKOFF_OVER = "backoff over"
    """The wait before the next attempt is over."""
    CLOSED = "closed"
    """The application closes the consumer."""


_S, _E = SacMemberState, SacMemberEvent
_ON_WIRE = (_S.CONNECTING, _S.SUBSCRIBING, _S.WAITING)
_WITH_CALLBACK = (_S.ACTIVATING, _S.ACTIVE, _S.STEPPING_DOWN)

SAC_MEMBER: StateTable[SacMemberState, SacMemberEvent] = StateTable(
    "sac-member",
    source="RabbitMQ's stream protocol, ConsumerUpdate; its stream coordinator, Single Active Consumer",
    states=SacMemberState,
    initial=_S.UNSUBSCRIBED,
    terminal=(_S.CLOSED, _S.FAILED),
    transitions=(
        (_S.UNSUBSCRIBED, _E.STARTED, _S.CONNECTING),
        (_S.CONNECTING, _E.CONNECTED, _S.SUBSCRIBING),
        (_S.SUBSCRIBING, _E.SUBSCRIBED, _S.WAITING),
        (_S.CONNECTING, _E.REFUSED, _S.FAILED),
        (_S.SUBSCRIBING, _E.REFUSED, _S.FAILED),
        (_S.WAITING, _E.TOLD_ACTIVE, _S.ACTIVATING),
        (_S.ACTIVATING, _E.OFFSET_CHOSEN, _S.ACTIVE),
        (_S.ACTIVE, _E.TOLD_WAITING, _S.STEPPING_DOWN),
        (_S.STEPPING_DOWN, _E.LET_GO, _S.WAITING),
        (_S.ACTIVE, _E.CLOSED, _S.STEPPING_DOWN),
        (_S.STEPPING_DOWN, _E.LET_GO, _S.CLOSED),
        *((state, _E.DISCONNECTED, _S.BACKING_OFF) for state in _ON_WIRE),
        *((state, _E.DISCONNECTED, _S.LOST) for state in _WITH_CALLBACK),
        (_S.LOST, _E.TOLD_LOST, _S.BACKING_OFF),
        (_S.BACKING_OFF, _E.BACKOFF_OVER, _S.CONNECTING),
        *((state, _E.CLOSED, _S.CLOSED) for state in (_S.UNSUBSCRIBED, *_ON_WIRE, _S.LOST, _S.BACKING_OFF)),
    ),
)
"""An active consumer that is closed steps down first."""
