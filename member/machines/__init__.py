"""All state machines of members, by name; and the tables of other machines, as data next to this module.

The others are the two drafts of the client state machine from which the consumer member grew (Kafka's wiki,
KIP-848 Client State Machine), and the machines of Kafka Streams 4.x. Each file lists every difference from
our machine, with the reason.
"""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

from fencepost.coordinator.protocol.machine import StateTable, Transition
from fencepost.member.classic.states import CLASSIC_MEMBER
from fencepost.member.consumer.states import CONSUMER_MEMBER
from fencepost.member.sac.states import SAC_MEMBER
from fencepost.member.streams.client_states import STREAM_CLIENT
from fencepost.member.streams.heartbeats import STREAMS_MEMBER
from fencepost.member.streams.thread_states import GLOBAL_THREAD, STREAM_THREAD

Table: TypeAlias = StateTable[Any, Any]
Move: TypeAlias = tuple[str, str]
"""From a state to a state, by name."""


class Verdict(enum.StrEnum):
    """The results of a move that a machine is asked for."""

    MADE = "made"
    REFUSED = "refused"
    """Refused without an error, and nothing changes."""
    AN_ERROR = "an error"
    NO_SUCH_STATE = "no such state"


class MachineDifference(NamedTuple):
    """A part that one of two machines has and the other lacks, with the reason."""

    reason: str
    steps: tuple[Any, ...]
    """Transitions; or moves, if the labels of the other machine's arrows are ours."""


class OtherMachine(NamedTuple):
    """The machine of a draft, or of Kafka, next to ours."""

    table: Table
    ours: Table
    differences: tuple[MachineDifference, ...]
    """Steps of our machine that the other one does not have; or moves that only one of them makes."""
    untaken: tuple[MachineDifference, ...]
    """Arrows of the other machine that ours does not take."""
    names: Mapping[str, tuple[str, ...]]
    """Its names of each of our states: entered at the first, passed through, left from the last."""
    events: Mapping[str, tuple[str, ...]]
    """Our events for each of its labels."""


def verdict(table: Table, move: Move) -> Verdict:
    """Return what the machine does when it is asked for this move."""
    if not set(move) <= set(map(str, table.states)):
        return Verdict.NO_SUCH_STATE
    if table.allows(*move):
        return Verdict.MADE
    return Verdict.REFUSED if move in table.refused else Verdict.AN_ERROR


def _read(name: str, ours: Table) -> OtherMachine:
    data: dict[str, Any] = tomllib.loads((resources.files(__name__) / f"{name}.toml").read_text("utf-8"))
    table: Table = StateTable(
        data["name"],
        source=data["source"],
        states=data["states"],
        initial=data["initial"],
        terminal=data["terminal"],
        transitions=map(tuple, data["transitions"]),
        refused=map(tuple, data.get("refused", ())),
    )
    return OtherMachine(
        table,
        ours,
        differences=_differences(data.get("differences", ())),
        untaken=_differences(data.get("untaken", ())),
        names={state: tuple(names) for state, names in data.get("names", {}).items()},
        events={label: tuple(events) for label, events in data.get("events", {}).items()},
    )


def _differences(listed: Any) -> tuple[MachineDifference, ...]:
    return tuple(
        MachineDifference(
            each["reason"],
            tuple(Transition(*row) if len(row) == 3 else tuple(row) for row in each["steps"]),
        )
        for each in listed
    )


DRAFT_1 = _read("kip848-draft1", CONSUMER_MEMBER)
DRAFT_2 = _read("kip848-draft2", CONSUMER_MEMBER)
DRAFTS = (DRAFT_1, DRAFT_2)
KAFKA_4_THREAD = _read("kafka-4-thread", STREAM_THREAD)
KAFKA_4_CLIENT = _read("kafka-4-client", STREAM_CLIENT)

MACHINES: Mapping[str, Table] = {
    table.name: table
    for table in (
        CONSUMER_MEMBER,
        DRAFT_1.table,
        DRAFT_2.table,
        STREAM_THREAD,
        KAFKA_4_THREAD.table,
        GLOBAL_THREAD,
        STREAM_CLIENT,
        KAFKA_4_CLIENT.table,
        SAC_MEMBER,
        CLASSIC_MEMBER,
        STREAMS_MEMBER,
    )
}

OTHERS: Mapping[str, Mapping[str, Table]] = {
    CONSUMER_MEMBER.name: {"kip848-draft1": DRAFT_1.table, "kip848-draft2": DRAFT_2.table},
    STREAM_THREAD.name: {"kafka-4": KAFKA_4_THREAD.table},
    STREAM_CLIENT.name: {"kafka-4": KAFKA_4_CLIENT.table},
}
"""Tables next to those of some machines, under the names of their sources."""
