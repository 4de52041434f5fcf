"""The states of a Streams client, which are derived from those of its threads, and every arrow between them.

KIP-696 on KIP-671 and KIP-457. ERROR and NOT_RUNNING are final: an instance does not start again.

CREATED --> REBALANCING <--> RUNNING
            REBALANCING, RUNNING <--> DISCONNECTED
            all of them --> PENDING_SHUTDOWN --> NOT_RUNNING
            all but CREATED --> PENDING_ERROR --> ERROR
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable


class StreamClientState(enum.StrEnum):
    """The states of a client. The order is that of Kafka's ordinals; DISCONNECTED is behind them."""

    CREATED = "CREATED"
    """The client is made and not started."""
    REBALANCING = "REBALANCING"
    """Some thread is not ready for all its partitions. A started client begins here."""
    RUNNING = "RUNNING"
    """All live threads run."""
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    """The application called close. The client closes everything."""
    NOT_RUNNING = "NOT_RUNNING"
    """The client is closed."""
    PENDING_ERROR = "PENDING_ERROR"
    """A failure ends the client. The client closes everything."""
    ERROR = "ERROR"
    """A failure closed the client. Find its cause before you start the application again."""
    DISCONNECTED = "DISCONNECTED"
    """No live thread has a connection to its broker."""


class StreamClientEvent(enum.StrEnum):
    """The events that move a client to another state."""

    STARTED = "started"
    """The application starts the client."""
    REBALANCING = "a thread rebalances"
    """At least one thread is in a rebalance."""
    RUNNING = "all threads run"
    """Every live thread is RUNNING."""
    DISCONNECTED = "all threads disconnected"
    """No live thread has a connection."""
    CLOSE = "close"
    """The application closes the client."""
    FAILED = "shut down by a failure"
    """A handler returned SHUTDOWN_CLIENT, the application shuts down, or the global thread died."""
    CLOSED = "everything closed"
    """All threads and services of the client are closed."""


S = StreamClientState
E = StreamClientEvent

RUNNING: tuple[S, ...] = (S.REBALANCING, S.RUNNING, S.DISCONNECTED)
"""Started, and not about to end: threads may be added, removed and replaced."""

STREAM_CLIENT: StateTable[S, E] = StateTable(
    "stream-client",
    source="KIP-696 on KIP-671 and KIP-457, KafkaStreams.State",
    states=S,
    initial=S.CREATED,
    terminal=(S.NOT_RUNNING, S.ERROR),
    transitions=[
        (S.CREATED, E.STARTED, S.REBALANCING),
        (S.CREATED, E.CLOSE, S.PENDING_SHUTDOWN),
        (S.REBALANCING, E.RUNNING, S.RUNNING),
        (S.RUNNING, E.REBALANCING, S.REBALANCING),
        (S.REBALANCING, E.DISCONNECTED, S.DISCONNECTED),
        (S.RUNNING, E.DISCONNECTED, S.DISCONNECTED),
        (S.DISCONNECTED, E.REBALANCING, S.REBALANCING),
        (S.DISCONNECTED, E.RUNNING, S.RUNNING),
        *((state, E.CLOSE, S.PENDING_SHUTDOWN) for state in RUNNING),
        *((state, E.FAILED, S.PENDING_ERROR) for state in RUNNING),
        (S.PENDING_SHUTDOWN, E.CLOSED, S.NOT_RUNNING),
        (S.PENDING_ERROR, E.CLOSED, S.ERROR),
    ],
    refused=[
        *((S.PENDING_SHUTDOWN, state) for state in S if state is not S.NOT_RUNNING),
        *((S.PENDING_ERROR, state) for state in S if state is not S.ERROR),
        (S.NOT_RUNNING, S.PENDING_SHUTDOWN),
        (S.ERROR, S.PENDING_SHUTDOWN),
    ],
)
