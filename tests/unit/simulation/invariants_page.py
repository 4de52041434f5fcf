"""The tables of docs/invariants.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "invariants.md"
_ROW = re.compile(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \| (.*) \|$", re.MULTILINE)


def rows() -> dict[str, re.Match[str]]:
    """The rows of invariants and of mutants by name, in their order; groups 2 to 4 are the other columns."""
    return {match[1]: match for match in _ROW.finditer(PAGE.read_text(encoding="utf-8"))}


def names_in(column: str) -> set[str]:
    """The invariants or mutants that are named in a column."""
    return set(re.findall(r"`([\w-]+)`", column))
