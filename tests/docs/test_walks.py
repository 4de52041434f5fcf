"""The walks of the architecture page: each stop names a file and a function that exist, and there are few."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
STOP = re.compile(r"^\d+\. `(?P<file>[\w/]+\.(?:py|sql|js))`(?:, `(?P<name>[\w.]+)`)?: .+", re.MULTILINE)
MOST_STOPS = 12


def walks() -> dict[str, list[re.Match[str]]]:
    """The stops of each section that has some."""
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    found = {section.splitlines()[0]: list(STOP.finditer(section)) for section in sections}
    return {title: stops for title, stops in found.items() if stops}


def names_in(path: Path) -> set[str]:
    """Functions, classes and methods of a file, as `Class.method`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{each.name}" for each in inner)
    return names


def test_there_are_four_walks_of_few_stops() -> None:
    assert len(walks()) == 4
    for title, stops in walks().items():
        assert 4 <= len(stops) <= MOST_STOPS, title
        section = PAGE.split(f"## {title}\n")[1].split("\n## ")[0]
        assert len(re.findall(r"^\d+\. ", section, re.MULTILINE)) == len(stops), (
            f"{title}: a stop is not read"
        )


@pytest.mark.parametrize("title", walks())
def test_each_stop_exists(title: str) -> None:
    for stop in walks()[title]:
        path = ROOT / stop["file"]
        assert path.is_file(), stop[0]
        if stop["name"] is not None and path.suffix == ".py":
            assert stop["name"] in names_in(path), stop[0]


def test_the_page_fits_a_newcomer() -> None:
    assert len(PAGE.splitlines()) <= 160
