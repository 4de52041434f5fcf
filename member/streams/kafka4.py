"""The machines of Kafka 4.x beside ours, and each move that one has and the other one has not.

The tables are those of `StreamThread.State` and `KafkaStreams.State`; what they refuse without an error
is in code around them. Moves are compared as pairs of states: the labels of Kafka's arrows are ours.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.streams.client_states import STREAM_CLIENT, StreamClientEvent
from fencepost.member.streams.client_states import StreamClientState as C
from fencepost.member.streams.thread_states import STREAM_THREAD, StreamThreadEvent
from fencepost.member.streams.thread_states import StreamThreadState as T


class Kafka4ThreadState(enum.StrEnum):
    """`StreamThread.State` of Kafka 4.x."""

    CREATED = "CREATED"
    STARTING = "STARTING"
    PARTITIONS_REVOKED = "PARTITIONS_REVOKED"
    PARTITIONS_ASSIGNED = "PARTITIONS_ASSIGNED"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    DEAD = "DEAD"


class Kafka4ClientState(enum.StrEnum):
    """`KafkaStreams.State` of Kafka 4.x."""

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"


CE = StreamClientEvent
TE = StreamThreadEvent
KT = Kafka4ThreadState
KC = Kafka4ClientState

KAFKA_4_THREAD: StateTable[KT, TE] = StateTable(
    "stream-thread-kafka-4",
    source="Kafka 4.x, StreamThread.State",
    states=KT,
    initial=KT.CREATED,
    terminal=(KT.DEAD,),
    transitions=[
        (KT.CREATED, TE.STARTED, KT.STARTING),
        *((state, TE.REVOKED, KT.PARTITIONS_REVOKED) for state in list(KT)[1:5]),
        *((state, TE.ASSIGNED, KT.PARTITIONS_ASSIGNED) for state in list(KT)[1:5]),
        (KT.PARTITIONS_ASSIGNED, TE.READY, KT.RUNNING),
        (KT.RUNNING, TE.READY, KT.RUNNING),
        *((state, TE.SHUTDOWN, KT.PENDING_SHUTDOWN) for state in list(KT)[:5]),
        (KT.PENDING_SHUTDOWN, TE.ENDED, KT.DEAD),
    ],
    refused=[
        *((KT.PENDING_SHUTDOWN, state) for state in KT if state is not KT.DEAD),
        *((KT.DEAD, state) for state in KT),
    ],
)

KAFKA_4_CLIENT: StateTable[KC, CE] = StateTable(
    "stream-client-kafka-4",
    source="Kafka 4.x, KafkaStreams.State",
    states=KC,
    initial=KC.CREATED,
    terminal=(KC.NOT_RUNNING, KC.ERROR),
    transitions=[
        (KC.CREATED, CE.STARTED, KC.REBALANCING),
        (KC.CREATED, CE.CLOSE, KC.PENDING_SHUTDOWN),
        (KC.REBALANCING, CE.RUNNING, KC.RUNNING),
        (KC.REBALANCING, CE.CLOSE, KC.PENDING_SHUTDOWN),
        (KC.REBALANCING, CE.FAILED, KC.PENDING_ERROR),
        (KC.RUNNING, CE.REBALANCING, KC.REBALANCING),
        (KC.RUNNING, CE.RUNNING, KC.RUNNING),
        (KC.RUNNING, CE.CLOSE, KC.PENDING_SHUTDOWN),
        (KC.RUNNING, CE.FAILED, KC.PENDING_ERROR),
        (KC.PENDING_SHUTDOWN, CE.CLOSED, KC.NOT_RUNNING),
        (KC.PENDING_ERROR, CE.CLOSED, KC.ERROR),
    ],
    refused=[
        (KC.REBALANCING, KC.REBALANCING),
        *((KC.PENDING_SHUTDOWN, state) for state in KC if state is not KC.NOT_RUNNING),
        (KC.NOT_RUNNING, KC.PENDING_SHUTDOWN),
        (KC.NOT_RUNNING, KC.NOT_RUNNING),
        *((KC.PENDING_ERROR, state) for state in KC if state is not KC.ERROR),
        (KC.ERROR, KC.PENDING_ERROR),
        (KC.ERROR, KC.ERROR),
    ],
)

Move = tuple[str, str]
"""From a state to a state, by name."""


class Verdict(enum.StrEnum):
    """What a machine does that is asked for a move."""

    MADE = "made"
    REFUSED = "refused"
    """Without an error, and nothing changes."""
    AN_ERROR = "an error"
    NO_SUCH_STATE = "no such state"


class Kafka4Difference(NamedTuple):
    """Moves on which two machines answer differently, and why."""

    reason: str
    moves: tuple[Move, ...]


class KafkaView(NamedTuple):
    """Kafka's machine beside ours. Moves that are not listed get the same answer of both."""

    kafka: StateTable[Any, Any]
    ours: StateTable[Any, Any]
    differences: tuple[Kafka4Difference, ...]


def verdict(table: StateTable[Any, Any], move: Move) -> Verdict:
    """What the machine does that is asked for this move."""
    if not set(move) <= set(map(str, table.states)):
        return Verdict.NO_SUCH_STATE
    if table.allows(*move):
        return Verdict.MADE
    return Verdict.REFUSED if move in table.refused else Verdict.AN_ERROR


def _moves(pairs: Iterable[tuple[enum.StrEnum, enum.StrEnum]]) -> tuple[Move, ...]:
    return tuple((str(source), str(target)) for source, target in pairs)


def _to_and_from(others: Iterable[enum.StrEnum], state: enum.StrEnum) -> tuple[Move, ...]:
    return _moves(
        [*((state, other) for other in others), *((other, state) for other in others), (state, state)]
    )


_DISCONNECTED = "KIP-457 has the state; Kafka never took it up."

THREAD_VIEW = KafkaView(
    kafka=KAFKA_4_THREAD,
    ours=STREAM_THREAD,
    differences=(
        Kafka4Difference(_DISCONNECTED, _to_and_from(list(T)[:-1], T.DISCONNECTED)),
        Kafka4Difference(
            "Since KIP-429 a cooperative rebalance may assign with nothing revoked before. Here each "
            "rebalance goes by way of PARTITIONS_REVOKED, as KIP-457 draws it; it may revoke nothing.",
            _moves(
                [
                    (T.STARTING, T.PARTITIONS_ASSIGNED),
                    (T.PARTITIONS_ASSIGNED, T.PARTITIONS_ASSIGNED),
                    (T.RUNNING, T.PARTITIONS_ASSIGNED),
                ]
            ),
        ),
        Kafka4Difference(
            "KIP-457 forbids it without an error: a coordinator that fails again and again makes a thread "
            "want it without end. Kafka tells its listeners of it since KIP-429.",
            _moves([(T.PARTITIONS_REVOKED, T.PARTITIONS_REVOKED)]),
        ),
        Kafka4Difference(
            "Kafka looks after each poll whether tasks are ready, and moves again; here a thread that runs "
            "is not asked.",
            _moves([(T.RUNNING, T.RUNNING)]),
        ),
        Kafka4Difference(
            "A thread that is dead is asked for nothing; who asks is wrong.",
            _moves((T.DEAD, state) for state in T if state is not T.DISCONNECTED),
        ),
    ),
)

CLIENT_VIEW = KafkaView(
    kafka=KAFKA_4_CLIENT,
    ours=STREAM_CLIENT,
    differences=(
        Kafka4Difference(_DISCONNECTED, _to_and_from(list(C)[:-1], C.DISCONNECTED)),
        Kafka4Difference(
            "Kafka's client moves whenever one of its threads says that it rebalances or runs; here the "
            "state is asked of all threads, and one that stays is no news.",
            _moves([(C.RUNNING, C.RUNNING), (C.REBALANCING, C.REBALANCING)]),
        ),
        Kafka4Difference(
            "KIP-696: close does nothing in ERROR. Kafka's close looks at the state first, and does not ask.",
            _moves([(C.ERROR, C.PENDING_SHUTDOWN)]),
        ),
        Kafka4Difference(
            "Everything is closed by then: nothing is left that could ask.",
            _moves([(C.NOT_RUNNING, C.NOT_RUNNING), (C.ERROR, C.PENDING_ERROR), (C.ERROR, C.ERROR)]),
        ),
    ),
)

VIEWS: tuple[KafkaView, ...] = (THREAD_VIEW, CLIENT_VIEW)
