"""The pages of languages name calls that the control API has, and tests that their examples have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fencepost.simulation.control.openapi import document
from fencepost.simulation.control.operations import operations

PAGES = sorted((Path(__file__).parents[2] / "docs" / "languages").glob("*.md"))
WITH_EXAMPLE = [page for page in PAGES if page.stem != "csharp"]
TEXT = r'"((?:[^"{]|\{[^}]*\})*)"'
POSTED = re.compile(rf"\bPost\(\$?{TEXT}, new \{{ ((?:[^{{}}]|\{{[^}}]*\}})*) \}}\)")
ROW = re.compile(r"^\| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", re.MULTILINE)
READ = re.compile(rf"\bGet\(\$?{TEXT}\)")
ARGUMENTS = {"lose_response", "throttle", "OffsetCommit", "Produce", "protocol"}
"""Words in rows of a table that are arguments, not operations."""
OPENAPI = document(tuple(operations()), has_token=False)


def operation(verb: str, path: str) -> dict[str, Any]:
    """Return the description of an operation, whose variables have other names on a page."""
    found = {re.sub(r"\{.*?\}", "{}", each): item for each, item in OPENAPI["paths"].items()}
    described: dict[str, Any] = found["/" + re.sub(r"\{.*?\}", "{}", path)][verb]
    return described


def test_the_calls_of_the_page_for_c_sharp_are_of_the_control_api() -> None:
    text = next(page for page in PAGES if page.stem == "csharp").read_text(encoding="utf-8")
    posted, read = POSTED.findall(text), READ.findall(text)
    assert len(posted) == len(re.findall(r"\bPost\(", text)) - 1  # all but the declaration
    for path, arguments in posted:
        schema = operation("post", path)["requestBody"]["content"]["application/json"]["schema"]
        known = OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        given = set(re.findall(r"(?:^|, )(\w+)(?= =|,|$)", arguments))
        assert given
        assert given <= set(known["properties"]), (path, given)
        assert set(known.get("required", ())) <= given, (path, given)
    assert read
    for path in read:
        operation("get", path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_ten_cases_of_a_page_call_operations(page: Path) -> None:
    rows = ROW.findall(page.read_text(encoding="utf-8"))
    assert len(rows) == 11  # a heading, and the cases
    names = {path.removeprefix("/").replace("{group}", "ID") for path in OPENAPI["paths"]}
    for case, calls, _ in rows[1:]:
        named = set(re.findall("`(.*?)`", calls)) - ARGUMENTS
        assert named, case
        assert named <= names, case


@pytest.mark.parametrize("page", WITH_EXAMPLE, ids=lambda page: page.stem)
def test_a_page_names_tests_that_its_example_has(page: Path) -> None:
    """Tests of JavaScript have sentences as names, and one of them is made for two cases."""
    tests = "".join(
        path.read_text(encoding="utf-8")
        for path in page.parents[2].joinpath("examples", f"{page.stem}-service").rglob("*[tT]est*")
        if path.is_file() and not {"node_modules", "target"} & set(path.parts)
    )
    named = [
        each
        for row in ROW.findall(page.read_text(encoding="utf-8"))
        for each in re.findall("`(.*?)`", row[2])
    ]
    assert len(named) >= 9
    for name in named:
        assert name in tests or re.sub("fence|expire", "${how}", name) in tests, name
