"""What scenarios reach is told by the tables and the rules themselves."""

from __future__ import annotations

import re
from pathlib import Path

from fencepost.simulation.lab.conform.exercised import NAMES
from fencepost.simulation.lab.coverage import coverage_lines, library_coverage
from fencepost.simulation.machines import TABLES

PAGE = Path(__file__).parents[3] / "docs" / "coverage.md"


def test_arrows_and_rules_that_a_scenario_reaches_are_not_missing():
    coverage = library_coverage(seeds=1, scenarios=["operators"])
    missing = {name: arrows for name, arrows, _ in coverage.arrows()}
    assert ("Empty", "group deleted", "Dead") not in missing["consumer-group"]
    assert len(missing["transaction"]) == 19
    assert "describe.state.Stable" not in coverage.missing_rules()
    assert "beat.invalid.GroupId" in coverage.missing_rules()
    text = "\n".join(coverage_lines(coverage))
    assert "| `transaction` | 19 | 0 |" in text
    assert "| beat.invalid.GroupId | ConsumerGroupHeartbeat is refused for its GroupId |" in text


def test_the_page_names_arrows_and_rules_that_there_are():
    text = PAGE.read_text(encoding="utf-8")
    arrows = {(t.name, str(a.source), str(a.event), str(a.target)) for t in TABLES for a in t.transitions}
    named = set(re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE))
    assert named
    assert named <= arrows
    rules = set(re.findall(r"^\| ([a-z_]+\.[\w.+-]+) \|", text, re.MULTILINE))
    assert rules
    assert rules <= set(NAMES)
