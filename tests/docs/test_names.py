"""What the docs name of the code is there under that name."""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

from fencepost.simulation.trace.schema import RowKind

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"`((?:fencepost\.)?(?:coordinator|member|simulation)(?:\.\w+)+)`")
KINDS = {kind.value for kind in RowKind}
NAMES = sorted(
    (page.name, name)
    for page in DOCS.rglob("*.md")
    for name in set(NAME.findall(page.read_text(encoding="utf-8"))) - KINDS
)


@pytest.mark.parametrize(("page", "name"), NAMES)
def test_a_name_is_there(page: str, name: str) -> None:
    pkgutil.resolve_name(f"fencepost.{name.removeprefix('fencepost.')}")


def test_pages_name_something() -> None:
    assert len(NAMES) > 10
