"""docs/invariants.md names every invariant and every mutant, and nothing that is not there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from fencepost.simulation.judge.catalogue import INVARIANTS
from fencepost.simulation.mutants.registry import MUTANTS
from tests.unit.simulation.invariants_page import names_in, rows

HISTORIES = ("judge_*", "chaos_retelling", "chaos_streams_retelling", "sac_world")
"""Tests that show judges histories made by hand."""


def test_every_invariant_has_its_row():
    found = rows()
    assert [name for name in found if name not in MUTANTS] == list(INVARIANTS)
    for name, invariant in INVARIANTS.items():
        assert found[name][2] == invariant.summary
        woken_by = names_in(found[name][4])
        assert woken_by <= set(MUTANTS)
        assert woken_by


def test_who_wakes_an_invariant_is_caught_by_it():
    """Its own row says so: it is not enough that another judge reports the same bug."""
    found = rows()
    for name in INVARIANTS:
        for mutant in names_in(found[name][4]):
            assert name in names_in(found[mutant][4]), (name, mutant)
            assert name in MUTANTS[mutant].expected, (name, mutant)


def test_every_mutant_has_its_row():
    found = rows()
    assert [name for name in found if name in MUTANTS] == list(MUTANTS)
    for name, mutant in MUTANTS.items():
        assert found[name][2] in (mutant.bug, f"*{mutant.bug}*")
        assert found[name][3] == mutant.summary
        reported = names_in(found[name][4])
        assert reported & set(mutant.expected)
        assert reported <= set(INVARIANTS)


def expectations(tree: ast.Module) -> Iterator[ast.AST]:
    """What tests compare with when they assert something, what they are parametrised with, and tables."""
    yield from (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            compared = [each for each in ast.walk(node.test) if isinstance(each, ast.Compare)]
            yield from (each for each in compared if not isinstance(each.ops[0], ast.NotEq | ast.NotIn))
        elif isinstance(node, ast.FunctionDef):
            yield from node.decorator_list


def test_every_invariant_is_reported_of_a_history_that_was_made_by_hand():
    """As the page says. What such a test is worth is seen by breaking its judge, not here."""
    here = Path(__file__).parent
    files = [file for pattern in HISTORIES for file in sorted(here.glob(f"test_{pattern}.py"))]
    assert len(files) > len(HISTORIES)
    expected = {
        word
        for file in files
        for part in expectations(ast.parse(file.read_text(encoding="utf-8")))
        for node in ast.walk(part)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in node.value.split()
    }
    assert set(INVARIANTS) - expected == set()
