"""Writes the state machines of docs/machines.md: the meaning of each state and event, then the diagram.

The meanings are the docstrings of the enums that declare states and events.
"""

from __future__ import annotations

import ast
import enum
import inspect
import textwrap
from collections.abc import Iterator

from fencepost.simulation.machines import TABLES, Table, mermaid

SAME_AS = {
    "consumer-member-kip848-draft1": "[The drafts](#the-drafts) compares its states with `consumer-member`.",
    "consumer-member-kip848-draft2": "[The drafts](#the-drafts) compares its states with `consumer-member`.",
    "stream-thread-kafka-4": "Its states and events mean the same as those of `stream-thread`.",
    "stream-client-kafka-4": "Its states and events mean the same as those of `stream-client`.",
    "streams-member": "Its states and events mean the same as those of `consumer-member`.",
}
"""Machines whose states and events another part of the page defines."""


def machines() -> Iterator[str]:
    """Write a heading, the source, the terms and a Mermaid diagram for each machine."""
    for table in TABLES:
        yield f"## {table.name}\n\nSource: {table.source}.\n"
        if table.name in SAME_AS:
            yield f"{SAME_AS[table.name]}\n"
        else:
            yield from _terms("state", type(table.states[0]))
            yield from _terms("event", type(table.transitions[0].event))
        yield f"```mermaid\n{mermaid(table)}```\n"
        yield from _refused(table)


def _terms(heading: str, kind: type[enum.Enum]) -> Iterator[str]:
    yield f"| {heading} | meaning |\n|---|---|"
    for member, meaning in meanings(kind).items():
        yield f"| {member} | {meaning} |"
    yield ""


def _refused(table: Table) -> Iterator[str]:
    """List the moves that the machine ignores, by the state they start in."""
    ignored: dict[str, list[str]] = {}
    for source, target in table.refused:
        ignored.setdefault(str(source), []).append(str(target))
    if ignored:
        moves = "; ".join(f"{source} to {', '.join(targets)}" for source, targets in ignored.items())
        yield f"Ignored moves: {moves}.\n"


def meanings(kind: type[enum.Enum]) -> dict[str, str]:
    """Return the docstring of each member of an enum, by the member's value.

    :raises ValueError: if a member has no docstring.
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for assignment, following in zip(body.body, [*body.body[1:], None], strict=True):
        if not isinstance(assignment, ast.Assign) or not isinstance(assignment.targets[0], ast.Name):
            continue
        member = kind[assignment.targets[0].id]
        if not (
            isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            raise ValueError(f"{kind.__name__}.{member.name} has no docstring: write one below it")
        found[str(member.value)] = " ".join(following.value.value.split())
    return found
