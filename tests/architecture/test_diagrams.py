"""Every machine is collected, and its diagram shows all of it."""

from __future__ import annotations

import importlib
from pathlib import Path

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.simulation.machines import TABLES, document, mermaid

ROOT = Path(__file__).parents[2]


def test_every_table_that_is_declared_is_collected() -> None:
    declared = set()
    for top in ("coordinator", "member", "simulation"):
        for file in sorted((ROOT / top).rglob("*.py")):
            if "StateTable(" in file.read_text():
                name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
                module = importlib.import_module(f"fencepost.{name.removesuffix('.__init__')}")
                values = [getattr(value, "table", value) for value in vars(module).values()]
                declared |= {value.name for value in values if isinstance(value, StateTable)}
    assert {table.name for table in TABLES} == declared


def test_names_are_unique() -> None:
    names = [table.name for table in TABLES]
    assert sorted(names) == sorted(set(names))


def test_a_diagram_shows_every_state_and_every_event() -> None:
    for table in TABLES:
        text = mermaid(table)
        for state in table.states:
            assert str(state) in text
        for arrow in table.transitions:
            line = next(line for line in text.splitlines() if f" {arrow.source} --> {arrow.target} :" in line)
            assert str(arrow.event) in line
        assert len(document(table).transitions) == len(table.transitions)
