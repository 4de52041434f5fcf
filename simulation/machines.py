"""All state machines by name, and their formats for people and for programs."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from fencepost.coordinator.classic.states import CLASSIC_GROUP_TABLE
from fencepost.coordinator.consumer.states import GROUP_TABLE, MEMBER_TABLE
from fencepost.coordinator.protocol.machine import StateTable
from fencepost.coordinator.sac.states import SAC_CONSUMER_TABLE
from fencepost.coordinator.streams.states import STREAMS_GROUP_TABLE, STREAMS_MEMBER_TABLE
from fencepost.coordinator.transactions.states import TRANSACTION_TABLE
from fencepost.member.machines import MACHINES

Table: TypeAlias = StateTable[Any, Any]

TABLES: tuple[Table, ...] = (
    *MACHINES.values(),
    GROUP_TABLE,
    MEMBER_TABLE,
    CLASSIC_GROUP_TABLE,
    STREAMS_GROUP_TABLE,
    STREAMS_MEMBER_TABLE,
    TRANSACTION_TABLE,
    SAC_CONSUMER_TABLE,
)
"""All machines, members first."""


class Arrow(msgspec.Struct, frozen=True):
    """One transition."""

    source: str = msgspec.field(name="from")
    event: str
    target: str = msgspec.field(name="to")


class Refusal(msgspec.Struct, frozen=True):
    """A move that is ignored without an error."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")


class MachineDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A state machine as a document."""

    source: str
    """The document that specifies it."""
    states: tuple[str, ...]
    initial: str
    terminal: tuple[str, ...]
    transitions: tuple[Arrow, ...]
    refused: tuple[Refusal, ...]


def document(table: Table) -> MachineDocument:
    """Return the table as a value for JSON."""
    return MachineDocument(
        source=table.source,
        states=tuple(map(str, table.states)),
        initial=str(table.initial),
        terminal=tuple(map(str, table.terminal)),
        transitions=tuple(Arrow(str(t.source), str(t.event), str(t.target)) for t in table.transitions),
        refused=tuple(Refusal(str(source), str(target)) for source, target in table.refused),
    )


def mermaid(table: Table) -> str:
    """Return the table as a Mermaid state diagram: one arrow for each pair of states, with all its events."""
    labels: dict[tuple[str, str], list[str]] = {}
    for arrow in table.transitions:
        labels.setdefault((str(arrow.source), str(arrow.target)), []).append(str(arrow.event))
    lines = ["stateDiagram-v2", f"    [*] --> {table.initial}"]
    lines += [
        f"    {source} --> {target} : {', '.join(events)}" for (source, target), events in labels.items()
    ]
    lines += [f"    {state} --> [*]" for state in table.terminal]
    return "\n".join(lines) + "\n"


def markdown(tables: tuple[Table, ...] = TABLES) -> str:
    """Return the machines as a page: a heading, the source and a Mermaid diagram for each."""
    return "\n".join(
        f"## {table.name}\n\nSource: {table.source}.\n\n```mermaid\n{mermaid(table)}```\n" for table in tables
    )
