"""The states of a single active consumer, and the arrows between them.

Connectivity {connected, disconnected, forgotten} times activity {waiting, active, deactivating}. A consumer
whose connection is lost while it steps down is waiting from then on, so two of the nine are never reached.
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.coordinator.protocol.sac import ConsumerStatus


class ConsumerEvent(enum.StrEnum):
    """An event of a consumer."""

    REGISTERED = "registered"
    """The consumer subscribed and joined its group."""
    ACTIVATED = "activated"
    """The coordinator chose the consumer and notifies it."""
    STEP_DOWN_ASKED = "asked to step down"
    """The coordinator asks the consumer to step down for another one (super streams only)."""
    RELEASED = "group activated"
    """The group chooses again and every connected consumer waits; a step-down response does this."""
    RECONCILED = "asked to step down by a return"
    """A forgotten active consumer is back. All consumers that may be active must step down."""
    CONNECTION_LOST = "connection lost"
    """The consumer's node or connection cannot be reached."""
    RETURNED = "connection is back"
    """The consumer's connection is reachable again."""
    TIMED_OUT = "disconnected timeout"
    """The connection was lost for the disconnected timeout."""
    REMOVED = "removed"
    """It unsubscribed, its connection ended, its node left, or an operator repaired the group."""


_S, _E = ConsumerStatus, ConsumerEvent

SAC_CONSUMER_TABLE: StateTable[ConsumerStatus, ConsumerEvent] = StateTable(
    "sac-consumer",
    source="RabbitMQ's stream coordinator, Single Active Consumer; its machine version 7",
    states=ConsumerStatus,
    initial=_S.UNREGISTERED,
    transitions=(
        (_S.UNREGISTERED, _E.REGISTERED, _S.CONNECTED_WAITING),
        (_S.UNREGISTERED, _E.REGISTERED, _S.CONNECTED_ACTIVE),
        (_S.CONNECTED_WAITING, _E.ACTIVATED, _S.CONNECTED_ACTIVE),
        (_S.CONNECTED_WAITING, _E.CONNECTION_LOST, _S.DISCONNECTED_WAITING),
        (_S.CONNECTED_WAITING, _E.REMOVED, _S.UNREGISTERED),
        (_S.CONNECTED_ACTIVE, _E.STEP_DOWN_ASKED, _S.CONNECTED_DEACTIVATING),
        (_S.CONNECTED_ACTIVE, _E.RELEASED, _S.CONNECTED_WAITING),
        (_S.CONNECTED_ACTIVE, _E.RECONCILED, _S.CONNECTED_WAITING),
        (_S.CONNECTED_ACTIVE, _E.CONNECTION_LOST, _S.DISCONNECTED_ACTIVE),
        (_S.CONNECTED_ACTIVE, _E.REMOVED, _S.UNREGISTERED),
        (_S.CONNECTED_DEACTIVATING, _E.STEP_DOWN_ASKED, _S.CONNECTED_DEACTIVATING),
        (_S.CONNECTED_DEACTIVATING, _E.RELEASED, _S.CONNECTED_WAITING),
        (_S.CONNECTED_DEACTIVATING, _E.CONNECTION_LOST, _S.DISCONNECTED_WAITING),
        (_S.CONNECTED_DEACTIVATING, _E.REMOVED, _S.UNREGISTERED),
        (_S.DISCONNECTED_WAITING, _E.CONNECTION_LOST, _S.DISCONNECTED_WAITING),
        (_S.DISCONNECTED_WAITING, _E.RETURNED, _S.CONNECTED_WAITING),
        (_S.DISCONNECTED_WAITING, _E.TIMED_OUT, _S.FORGOTTEN_WAITING),
        (_S.DISCONNECTED_WAITING, _E.REMOVED, _S.UNREGISTERED),
        (_S.DISCONNECTED_ACTIVE, _E.CONNECTION_LOST, _S.DISCONNECTED_ACTIVE),
        (_S.DISCONNECTED_ACTIVE, _E.RETURNED, _S.CONNECTED_ACTIVE),
        (_S.DISCONNECTED_ACTIVE, _E.TIMED_OUT, _S.FORGOTTEN_ACTIVE),
        (_S.DISCONNECTED_ACTIVE, _E.REMOVED, _S.UNREGISTERED),
        (_S.FORGOTTEN_WAITING, _E.CONNECTION_LOST, _S.DISCONNECTED_WAITING),
        (_S.FORGOTTEN_WAITING, _E.RETURNED, _S.CONNECTED_WAITING),
        (_S.FORGOTTEN_WAITING, _E.REMOVED, _S.UNREGISTERED),
        (_S.FORGOTTEN_ACTIVE, _E.CONNECTION_LOST, _S.DISCONNECTED_ACTIVE),
        (_S.FORGOTTEN_ACTIVE, _E.RECONCILED, _S.CONNECTED_WAITING),
        (_S.FORGOTTEN_ACTIVE, _E.REMOVED, _S.UNREGISTERED),
    ),
)
"""A return turns a forgotten waiting consumer into a connected one, also if another connection returned."""
