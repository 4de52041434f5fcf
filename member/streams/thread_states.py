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
    """The states of a stream thread. The order is that of Kafka's ordinals; DISCONNECTED is behind them."""

    CREATED = "CREATED"
    """The thread is made and not started."""
    STARTING = "STARTING"
    """The thread runs and has received no partitions yet."""
    PARTITIONS_REVOKED = "PARTITIONS_REVOKED"
    """A rebalance has begun. It may take partitions away."""
    PARTITIONS_ASSIGNED = "PARTITIONS_ASSIGNED"
    """The rebalance assigned the thread's partitions. Their tasks are being prepared."""
    RUNNING = "RUNNING"
    """All tasks of the thread are ready."""
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    """The thread closes its tasks and leaves the group."""
    DEAD = "DEAD"
    """The thread has ended."""
    DISCONNECTED = "DISCONNECTED"
    """The thread is alive without a connection to its broker."""


class StreamThreadEvent(enum.StrEnum):
    """The events that move a stream thread to another state."""

    STARTED = "started"
    """The client starts the thread."""
    REVOKED = "partitions revoked"
    """A rebalance begins, or the member was fenced and lost everything."""
    ASSIGNED = "partitions assigned"
    """The member received an assignment."""
    READY = "tasks ready"
    """All tasks of the thread are restored. This happens at once if it has no tasks."""
    CONNECTION_LOST = "connection lost"
    """The connection to the broker broke."""
    CONNECTION_BACK = "connection back"
    """The connection works again. The thread returns to its earlier state."""
    SHUTDOWN = "shutdown"
    """The client closes or removes the thread, or the thread failed."""
    ENDED = "ended"
    """Everything of the thread is closed."""


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
"""Those among them from which a thread moves to DISCONNECTED, and back."""

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
    """The states of the global thread. It is no member of the group, and reads all partitions."""

    CREATED = "CREATED"
    """The thread is made, or reads up to the ends that its topics had when it started."""
    RUNNING = "RUNNING"
    """The thread has caught up and keeps reading."""
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    """The thread closes its stores."""
    DEAD = "DEAD"
    """The thread has ended."""


class GlobalThreadEvent(enum.StrEnum):
    """The events that move the global thread to another state."""

    READY = "caught up"
    """The thread read all records that existed when it started."""
    SHUTDOWN = "shutdown"
    """The client closes, or the thread failed."""
    ENDED = "ended"
    """Everything of the thread is closed."""


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
