"""The states of a stream thread and of the global thread, and every arrow between them.

KIP-457, read as docs/deviations.md says:

CREATED --> STARTING --> PARTITIONS_REVOKED <--> PARTITIONS_ASSIGNED --> RUNNING --> PARTITIONS_REVOKED
              STARTING, PARTITIONS_REVOKED, PARTITIONS_ASSIGNED, RUNNING <--> DISCONNECTED
              all of them --> PENDING_SHUTDOWN --> DEAD
"""

from __future__ import annotations

import enum

from fencepost.coordinator.protocol.machine import StateTable


class StreamThreadState(enum.StrEnum):
    """Where a stream thread stands. The order is that of Kafka's ordinals; DISCONNECTED is behind them."""

    CREATED = "CREATED"
    """Made, and not started."""
    STARTING = "STARTING"
    """Runs, and has not heard of any partitions."""
    PARTITIONS_REVOKED = "PARTITIONS_REVOKED"
    """A rebalance has begun: some partitions, or none, are taken away."""
    PARTITIONS_ASSIGNED = "PARTITIONS_ASSIGNED"
    """The rebalance has given it its partitions; their tasks are being made ready."""
    RUNNING = "RUNNING"
    """All its tasks are ready."""
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    """Closes its tasks, and leaves the group."""
    DEAD = "DEAD"
    """Over."""
    DISCONNECTED = "DISCONNECTED"
    """Alive and well, but without a connection to its broker."""


class StreamThreadEvent(enum.StrEnum):
    """What makes a stream thread move."""

    STARTED = "started"
    REVOKED = "partitions revoked"
    """A rebalance begins, or the member was fenced and has lost everything."""
    ASSIGNED = "partitions assigned"
    READY = "tasks ready"
    """All tasks that it has are restored; at once, if it has none."""
    CONNECTION_LOST = "connection lost"
    CONNECTION_BACK = "connection back"
    """On to where it was before."""
    SHUTDOWN = "shutdown"
    """Its client closes, it is removed, or it failed."""
    ENDED = "ended"
    """Everything of it is closed."""


S = StreamThreadState
E = StreamThreadEvent

RUNNING: tuple[S, ...] = (
    S.STARTING,
    S.PARTITIONS_REVOKED,
    S.PARTITIONS_ASSIGNED,
    S.RUNNING,
    S.DISCONNECTED,
)
"""The states that count as running (KIP-457, `isRunning`)."""

CONNECTED: tuple[S, ...] = RUNNING[:-1]
"""Those among them from which a thread goes to DISCONNECTED, and back."""

STREAM_THREAD: StateTable[S, E] = StateTable(
    "stream-thread",
    source="KIP-457, StreamThread.State",
    states=S,
    initial=S.CREATED,
    terminal=(S.DEAD,),
    transitions=[
        (S.CREATED, E.STARTED, S.STARTING),
        (S.STARTING, E.REVOKED, S.PARTITIONS_REVOKED),
        (S.PARTITIONS_REVOKED, E.ASSIGNED, S.PARTITIONS_ASSIGNED),
        (S.PARTITIONS_ASSIGNED, E.REVOKED, S.PARTITIONS_REVOKED),
        (S.PARTITIONS_ASSIGNED, E.READY, S.RUNNING),
        (S.RUNNING, E.REVOKED, S.PARTITIONS_REVOKED),
        *((state, E.CONNECTION_LOST, S.DISCONNECTED) for state in CONNECTED),
        *((S.DISCONNECTED, E.CONNECTION_BACK, state) for state in CONNECTED),
        (S.DISCONNECTED, E.REVOKED, S.PARTITIONS_REVOKED),
        *((state, E.SHUTDOWN, S.PENDING_SHUTDOWN) for state in (S.CREATED, *RUNNING)),
        (S.PENDING_SHUTDOWN, E.ENDED, S.DEAD),
    ],
    refused=[
        (S.PARTITIONS_REVOKED, S.PARTITIONS_REVOKED),
        *((S.PENDING_SHUTDOWN, state) for state in S if state is not S.DEAD),
    ],
)


class GlobalThreadState(enum.StrEnum):
    """Where the global thread stands. It is no member of the group, and reads all partitions."""

    CREATED = "CREATED"
    """Made, or reading up to where its topics ended when it started."""
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    DEAD = "DEAD"


class GlobalThreadEvent(enum.StrEnum):
    """What makes the global thread move."""

    READY = "caught up"
    SHUTDOWN = "shutdown"
    ENDED = "ended"


G = GlobalThreadState
GE = GlobalThreadEvent

GLOBAL_THREAD: StateTable[G, GE] = StateTable(
    "global-stream-thread",
    source="Kafka 4.x, GlobalStreamThread.State",
    states=G,
    initial=G.CREATED,
    terminal=(G.DEAD,),
    transitions=[
        (G.CREATED, GE.READY, G.RUNNING),
        (G.CREATED, GE.SHUTDOWN, G.PENDING_SHUTDOWN),
        (G.RUNNING, GE.SHUTDOWN, G.PENDING_SHUTDOWN),
        (G.PENDING_SHUTDOWN, GE.ENDED, G.DEAD),
    ],
    refused=[
        (G.PENDING_SHUTDOWN, G.RUNNING),
        (G.PENDING_SHUTDOWN, G.PENDING_SHUTDOWN),
    ],
)
