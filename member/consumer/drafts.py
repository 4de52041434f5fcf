"""The two drafts of the client state machine from which the consumer member grew, as named views.

Both stand on Kafka's wiki page "KIP-848 Client State Machine". A view holds a draft's own states and
arrows, says which of them our states and events stand for, and lists every step of our machine that the
draft does not have, and every arrow of the draft that our machine does not take, with the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from fencepost.coordinator.protocol.machine import StateTable, Transition
from fencepost.member.consumer.states import ConsumerMemberEvent as E
from fencepost.member.consumer.states import ConsumerMemberState as S

_SOURCE = "Kafka wiki, KIP-848 Client State Machine"


class Draft1State(enum.StrEnum):
    """States of the first draft. RECONCILIATION_LOOP holds the second to the fifth."""

    UNSUBSCRIBE = "UNSUBSCRIBE"
    JOINING = "JOINING"
    STABLE = "STABLE"
    RECONCILE_ASSIGNMENT = "RECONCILE_ASSIGNMENT"
    ACK_ASSIGNMENT = "ACK_ASSIGNMENT"
    LEAVING = "LEAVING"
    """Called UNSUBSCRIBING in the draft's text."""
    FENCED = "FENCED"
    FATAL = "FATAL"


class Draft1Event(enum.StrEnum):
    """The arrows of the first draft carry no labels."""

    ARROW = "(no label)"


D1 = Draft1State
_ARROW = Draft1Event.ARROW

RECONCILIATION_LOOP: tuple[D1, ...] = (D1.JOINING, D1.STABLE, D1.RECONCILE_ASSIGNMENT, D1.ACK_ASSIGNMENT)
"""The first draft's composite state; an arrow from it leaves each state inside."""

DRAFT_1: StateTable[D1, Draft1Event] = StateTable(
    "consumer-member-kip848-draft1",
    source=f"{_SOURCE}, first diagram",
    states=D1,
    initial=D1.UNSUBSCRIBE,
    terminal=(D1.FATAL,),
    transitions=[
        (D1.JOINING, _ARROW, D1.STABLE),
        (D1.JOINING, _ARROW, D1.RECONCILE_ASSIGNMENT),
        (D1.STABLE, _ARROW, D1.RECONCILE_ASSIGNMENT),
        (D1.RECONCILE_ASSIGNMENT, _ARROW, D1.ACK_ASSIGNMENT),
        (D1.ACK_ASSIGNMENT, _ARROW, D1.STABLE),
        (D1.UNSUBSCRIBE, _ARROW, D1.JOINING),
        *((inner, _ARROW, D1.LEAVING) for inner in RECONCILIATION_LOOP),
        *((inner, _ARROW, D1.FENCED) for inner in RECONCILIATION_LOOP),
        *((inner, _ARROW, D1.FATAL) for inner in RECONCILIATION_LOOP),
        (D1.FENCED, _ARROW, D1.JOINING),
        (D1.LEAVING, _ARROW, D1.UNSUBSCRIBE),
    ],
)


class Draft2State(enum.StrEnum):
    """States of the second draft."""

    NOT_IN_GROUP = "NOT_IN_GROUP"
    UNJOINED = "UNJOINED"
    STABLE = "STABLE"
    RECONCILING = "RECONCILING"
    RECONCILIATION_COMPLETE = "RECONCILIATION_COMPLETE"
    RELEASING_ASSIGNMENT = "RELEASING_ASSIGNMENT"
    RELEASING_ASSIGNMENT_COMPLETE = "RELEASING_ASSIGNMENT_COMPLETE"
    FATAL = "FATAL"


class Draft2Event(enum.StrEnum):
    """The labels of the second draft's arrows, in its words."""

    SUBSCRIBE = "Consumer.subscribe()"
    HEARTBEAT_ON_RETRIES = "Heartbeat on retries"
    FIRST_HEARTBEAT = "Heartbeat, epoch = 0"
    NEW_ASSIGNMENT = "new assignment received, trigger callbacks"
    UNSUBSCRIBE = "Consumer.unsubscribe()"
    FENCING_ERROR = "on HB fencing error, reset epoch, trigger callbacks"
    HEARTBEAT = "Heartbeat"
    CALLBACK_COMPLETED = "callback completed"
    FULL_HEARTBEAT = "Send heartbeat w/ full assignment, reset interval timer to heartbeat.interval.ms"
    UNSUBSCRIBE_AFTER_RECONCILIATION = "unsubscribe()"
    ON_LOST_COMPLETED = "'onLost' callback completed"
    OUT_OF_INTERVAL_HEARTBEAT = "Send out-of-interval HB"
    NO_LABEL = "(no label)"


D2 = Draft2State
E2 = Draft2Event

DRAFT_2: StateTable[D2, E2] = StateTable(
    "consumer-member-kip848-draft2",
    source=f"{_SOURCE}, second diagram",
    states=D2,
    initial=D2.NOT_IN_GROUP,
    terminal=(D2.FATAL,),
    transitions=[
        (D2.NOT_IN_GROUP, E2.SUBSCRIBE, D2.UNJOINED),
        (D2.UNJOINED, E2.HEARTBEAT_ON_RETRIES, D2.UNJOINED),
        (D2.UNJOINED, E2.FIRST_HEARTBEAT, D2.STABLE),
        (D2.UNJOINED, E2.NO_LABEL, D2.FATAL),
        (D2.STABLE, E2.NEW_ASSIGNMENT, D2.RECONCILING),
        (D2.STABLE, E2.UNSUBSCRIBE, D2.RECONCILING),
        (D2.STABLE, E2.FENCING_ERROR, D2.RELEASING_ASSIGNMENT),
        (D2.STABLE, E2.NO_LABEL, D2.FATAL),
        (D2.STABLE, E2.HEARTBEAT, D2.STABLE),
        (D2.RECONCILING, E2.HEARTBEAT, D2.RECONCILING),
        (D2.RECONCILING, E2.CALLBACK_COMPLETED, D2.RECONCILIATION_COMPLETE),
        (D2.RECONCILIATION_COMPLETE, E2.FULL_HEARTBEAT, D2.STABLE),
        (D2.RECONCILIATION_COMPLETE, E2.UNSUBSCRIBE_AFTER_RECONCILIATION, D2.UNJOINED),
        (D2.RELEASING_ASSIGNMENT, E2.ON_LOST_COMPLETED, D2.RELEASING_ASSIGNMENT_COMPLETE),
        (D2.RELEASING_ASSIGNMENT_COMPLETE, E2.OUT_OF_INTERVAL_HEARTBEAT, D2.UNJOINED),
        (D2.RELEASING_ASSIGNMENT, E2.NO_LABEL, D2.FATAL),
    ],
)


class DraftDifference(NamedTuple):
    """Steps of our machine, or arrows of a draft, that the other one does not have, and why."""

    reason: str
    steps: tuple[Transition[Any, Any], ...]


class DraftView(NamedTuple):
    """A draft beside our machine."""

    table: StateTable[Any, Any]
    states: Mapping[S, tuple[enum.StrEnum, ...]]
    """The draft's names of each of our states: entered at the first, passed through, left from the last."""
    events: Mapping[enum.StrEnum, tuple[E, ...]]
    """Our events that each label of the draft stands for."""
    differences: tuple[DraftDifference, ...]
    """Steps of our machine that the draft does not have."""
    untaken: tuple[DraftDifference, ...]
    """Arrows of the draft that our machine does not take."""


def _steps(*rows: tuple[Any, Any, Any]) -> tuple[Transition[Any, Any], ...]:
    return tuple(Transition(*row) for row in rows)


_LEAVE_EVENTS = (E.UNSUBSCRIBE, E.CLOSE, E.POLL_TIMED_OUT)

_BOTH_LACK: tuple[DraftDifference, ...] = (
    DraftDifference(
        "The drafts have no poll time-out: a member that left for it waits for the next poll, then rejoins.",
        _steps((S.LEAVING, E.LEAVE_BUILT, S.STALE), (S.STALE, E.POLLED, S.JOINING)),
    ),
    DraftDifference(
        "The drafts have no close: one without a membership still waits for callbacks that run.",
        _steps((S.UNSUBSCRIBED, E.CLOSE, S.PREPARE_LEAVING)),
    ),
    DraftDifference(
        "The drafts let a fenced member only rejoin; one that unsubscribes meanwhile stays out.",
        _steps((S.FENCED, E.UNSUBSCRIBE, S.UNSUBSCRIBED), (S.FENCED, E.CLOSE, S.UNSUBSCRIBED)),
    ),
    DraftDifference(
        "Heartbeats go on while reconciling, so the target can be replaced by one that is owned already.",
        _steps((S.RECONCILING, E.TARGET_OWNED, S.STABLE)),
    ),
    DraftDifference(
        "A pass may end with a newer target, or with topics whose names are unknown: more to do.",
        _steps(
            (S.ACKNOWLEDGING, E.TARGET_RECEIVED, S.RECONCILING),
            (S.ACKNOWLEDGING, E.ACKNOWLEDGED, S.RECONCILING),
        ),
    ),
    DraftDifference(
        "Heartbeats go on until everything is released, and they can meet a fatal error.",
        _steps((S.PREPARE_LEAVING, E.FATAL_ERROR, S.FATAL)),
    ),
    DraftDifference(
        "Kafka's client declares these arrows; neither it nor this machine uses them.",
        _steps(
            (S.UNSUBSCRIBED, E.FATAL_ERROR, S.FATAL),
            (S.PREPARE_LEAVING, E.FENCED, S.FENCED),
            (S.LEAVING, E.FENCED, S.FENCED),
            (S.LEAVING, E.FATAL_ERROR, S.FATAL),
        ),
    ),
)

VIEW_1 = DraftView(
    table=DRAFT_1,
    states={
        S.UNSUBSCRIBED: (D1.UNSUBSCRIBE,),
        S.JOINING: (D1.JOINING,),
        S.RECONCILING: (D1.RECONCILE_ASSIGNMENT,),
        S.ACKNOWLEDGING: (D1.ACK_ASSIGNMENT,),
        S.STABLE: (D1.STABLE,),
        S.PREPARE_LEAVING: (D1.LEAVING,),
        S.LEAVING: (D1.LEAVING,),
        S.FENCED: (D1.FENCED,),
        S.FATAL: (D1.FATAL,),
        S.STALE: (),
    },
    events={_ARROW: tuple(E)},
    differences=_BOTH_LACK,
    untaken=(),
)

VIEW_2 = DraftView(
    table=DRAFT_2,
    states={
        S.UNSUBSCRIBED: (D2.NOT_IN_GROUP,),
        S.JOINING: (D2.UNJOINED,),
        S.RECONCILING: (D2.RECONCILING,),
        S.ACKNOWLEDGING: (D2.RECONCILIATION_COMPLETE,),
        S.STABLE: (D2.STABLE,),
        # Unsubscribing is a reconciliation towards nothing in the second draft.
        S.PREPARE_LEAVING: (D2.RECONCILING,),
        S.LEAVING: (D2.RECONCILIATION_COMPLETE,),
        S.FENCED: (D2.RELEASING_ASSIGNMENT, D2.RELEASING_ASSIGNMENT_COMPLETE),
        S.FATAL: (D2.FATAL,),
        S.STALE: (),
    },
    events={
        E2.SUBSCRIBE: (E.SUBSCRIBED,),
        E2.HEARTBEAT_ON_RETRIES: (),
        E2.FIRST_HEARTBEAT: (E.TARGET_OWNED,),
        E2.NEW_ASSIGNMENT: (E.TARGET_RECEIVED,),
        E2.UNSUBSCRIBE: (E.UNSUBSCRIBE, E.CLOSE),
        E2.FENCING_ERROR: (E.FENCED,),
        E2.HEARTBEAT: (),
        E2.CALLBACK_COMPLETED: (E.PASS_FINISHED, E.RELEASED),
        E2.FULL_HEARTBEAT: (E.ACKNOWLEDGED,),
        E2.UNSUBSCRIBE_AFTER_RECONCILIATION: (E.UNSUBSCRIBE, E.CLOSE, E.LEAVE_BUILT),
        E2.ON_LOST_COMPLETED: (E.RELEASED,),
        E2.OUT_OF_INTERVAL_HEARTBEAT: (E.RELEASED,),
        E2.NO_LABEL: (E.FATAL_ERROR,),
    },
    differences=(
        *_BOTH_LACK,
        DraftDifference(
            "The second draft passes through STABLE; the answer to a join carries the assignment at once.",
            _steps((S.JOINING, E.TARGET_RECEIVED, S.RECONCILING)),
        ),
        DraftDifference(
            "The second draft fences in STABLE only; a session can end at any time.",
            _steps(*((state, E.FENCED, S.FENCED) for state in (S.JOINING, S.RECONCILING, S.ACKNOWLEDGING))),
        ),
        DraftDifference(
            "The second draft fails in UNJOINED and STABLE only; every heartbeat can meet a fatal error.",
            _steps(*((state, E.FATAL_ERROR, S.FATAL) for state in (S.RECONCILING, S.ACKNOWLEDGING))),
        ),
        DraftDifference(
            "The second draft cannot unsubscribe before the first answer, when the coordinator may know us.",
            _steps(*((S.JOINING, event, S.PREPARE_LEAVING) for event in _LEAVE_EVENTS)),
        ),
        DraftDifference(
            "The second draft drops a reconciliation's result without callbacks; what is owned is revoked.",
            _steps(*((S.ACKNOWLEDGING, event, S.PREPARE_LEAVING) for event in _LEAVE_EVENTS)),
        ),
        DraftDifference(
            "The second draft has no poll time-out.",
            _steps(
                (S.STABLE, E.POLL_TIMED_OUT, S.PREPARE_LEAVING),
                (S.PREPARE_LEAVING, E.POLL_TIMED_OUT, S.LEAVING),
            ),
        ),
        DraftDifference(
            "The second draft ends in UNJOINED, which would join again; who unsubscribed is in no group.",
            _steps((S.LEAVING, E.LEAVE_BUILT, S.UNSUBSCRIBED), (S.LEAVING, E.FENCED, S.UNSUBSCRIBED)),
        ),
        DraftDifference(
            "The second draft does not say what ends a reconciliation that nobody has to be told of.",
            _steps(
                (S.PREPARE_LEAVING, E.RELEASED, S.UNSUBSCRIBED),
                (S.PREPARE_LEAVING, E.FENCED, S.UNSUBSCRIBED),
            ),
        ),
    ),
    untaken=(
        DraftDifference(
            "Unsubscribing from a finished reconciliation gives up what it assigned before it leaves.",
            _steps((D2.RECONCILIATION_COMPLETE, E2.UNSUBSCRIBE_AFTER_RECONCILIATION, D2.UNJOINED)),
        ),
        DraftDifference(
            "A fenced member sends no heartbeats, so it meets no error before it has joined again.",
            _steps((D2.RELEASING_ASSIGNMENT, E2.NO_LABEL, D2.FATAL)),
        ),
    ),
)

VIEWS: tuple[DraftView, ...] = (VIEW_1, VIEW_2)
