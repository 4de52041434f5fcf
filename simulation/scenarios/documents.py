"""Tells the kind of a TOML file by its keys: a scenario, a campaign or a plan. No key states the kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.scenarios.kinds import AnyScenario

Document: TypeAlias = Literal["scenario", "campaign", "plan"]

KEYS: Final[Mapping[Document, frozenset[str]]] = {
    "scenario": frozenset(
        field.encode_name for kind in get_args(AnyScenario) for field in msgspec.structs.fields(kind)
    )
    | {"protocol"},
    "campaign": frozenset(
        {"title", "scenarios", "seeds", "traces", "time_limit", "set", "grid", "options"},
    ),
    "plan": frozenset(
        {"event", "members", "partitions", "start_up", "zone_latency", "batch", "at_once", "protocol"}
        | {"assignor", "session_timeout", "heartbeat_interval", "static", "rate", "headroom"}
        | {"poll", "surge", "kill", "config"}
    ),
}
"""Top-level keys of each kind."""

_TAKEN_BY: Final[Mapping[Document, str]] = {
    "scenario": "`fencepost simulate` takes it, and `campaign` for many seeds",
    "campaign": "`fencepost campaign` takes it",
    "plan": "`fencepost plan` takes it",
}


def document_of(tables: Mapping[str, Any], expected: Document) -> Document:
    """Return the kind that has most of the file's keys. The expected kind wins a tie; other keys are mistakes
    then."""
    return max((expected, *KEYS), key=lambda each: len(tables.keys() & KEYS[each]))


def check_document(tables: Mapping[str, Any], expected: Document, source: str) -> None:
    """Refuse a file of another kind.

    :raises FencepostError: with the command that takes it.
    """
    found = document_of(tables, expected)
    if found != expected:
        raise FencepostError(f"{source}: expected a {expected}, and this is a {found}: {_TAKEN_BY[found]}")
