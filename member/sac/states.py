"""The states of a single active consumer in its own eyes, and the arrows between them.

It does not know its group: it is told to be active or to step down, and answers. Whether it is forgotten
meanwhile is the coordinator's matter; a consumer that was is told to step down when its node is back.
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable


class SacMemberState(enum.StrEnum):
    """Where a consumer stands."""

    UNSUBSCRIBED = "UNSUBSCRIBED"
    CONNECTING = "CONNECTING"
    SUBSCRIBING = "SUBSCRIBING"
    WAITING = "WAITING"
    """Another one is active, or nobody yet."""
    ACTIVATING = "ACTIVATING"
    """The application says where to start; nothing is delivered before."""
    ACTIVE = "ACTIVE"
    STEPPING_DOWN = "STEPPING_DOWN"
    """The application finishes what it has; nobody else is active before the answer."""
    LOST = "LOST"
    """The connection is gone, and the application is being told that it is not active any more."""
    BACKING_OFF = "BACKING_OFF"
    """It connects again in a while."""
    CLOSED = "CLOSED"
    FAILED = "FAILED"
    """The server refused the subscription: the partition index differs, or there is no such stream.

    Or something else failed that no second try would mend.
    """


class SacMemberEvent(enum.StrEnum):
    """What moves it."""

    STARTED = "started"
    CONNECTED = "connected"
    SUBSCRIBED = "subscribed"
    REFUSED = "refused"
    TOLD_ACTIVE = "told to be active"
    TOLD_WAITING = "told to step down"
    OFFSET_CHOSEN = "offset chosen"
    LET_GO = "let go"
    DISCONNECTED = "connection lost"
    TOLD_LOST = "application told"
    BACKOFF_OVER = "backoff over"
    CLOSED = "closed"


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
