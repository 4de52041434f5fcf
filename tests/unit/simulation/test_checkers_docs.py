"""docs/invariants.md names every invariant and every mutant, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from fencepost.simulation.checkers.catalogue import INVARIANTS
from fencepost.simulation.mutants.registry import MUTANTS

PAGE = Path(__file__).parents[3] / "docs" / "invariants.md"
ROW = re.compile(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \| (.*) \|$", re.MULTILINE)


def rows():
    return {match[1]: match for match in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def test_every_invariant_has_its_row():
    found = rows()
    assert [name for name in found if name not in MUTANTS] == list(INVARIANTS)
    for name, invariant in INVARIANTS.items():
        assert found[name][2] == invariant.summary
        woken_by = re.findall(r"`([\w-]+)`", found[name][4])
        assert set(woken_by) <= set(MUTANTS)
        assert woken_by


def test_who_wakes_an_invariant_is_caught_by_it():
    """Its own row says so: it is not enough that another checker reports the same bug."""
    found = rows()
    for name in INVARIANTS:
        woken_by = re.findall(r"`([\w-]+)`", found[name][4])
        assert any(f"`{name}`" in found[mutant][4] for mutant in woken_by), name


def test_every_mutant_has_its_row():
    found = rows()
    assert [name for name in found if name in MUTANTS] == list(MUTANTS)
    for name, mutant in MUTANTS.items():
        assert found[name][2] in (mutant.bug, f"*{mutant.bug}*")
        assert found[name][3] == mutant.summary
        reported = set(re.findall(r"`([\w-]+)`", found[name][4]))
        assert reported & set(mutant.expected)
        assert reported <= set(INVARIANTS)
