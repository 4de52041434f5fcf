"""Rooms and names: a public class name is used once, and no file is tiny with one importer."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, files, nodes, tree

SMALL_FILE = 40

USED_TWICE = {
    # RabbitMQ's and Kafka's protocols both have these responses.
    "MetadataResponse",
    "SaslAuthenticateResponse",
    "SaslHandshakeResponse",
}
"""Public class names that stand for two things. The list may only shrink."""

SMALL_WITH_ONE_IMPORTER: set[str] = set()
"""Modules under 40 lines that one other module imports. The list may only shrink."""


def modules() -> Iterator[tuple[str, Path]]:
    """Yield all modules of the product by their dotted names."""
    for path in files():
        yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def test_a_public_class_name_is_used_once() -> None:
    found = defaultdict(list)
    for name, path in modules():
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    twice = {name: places for name, places in found.items() if len(places) > 1}
    assert twice.keys() == USED_TWICE, {name: twice.get(name) for name in twice.keys() ^ USED_TWICE}


def imported_by() -> dict[str, set[str]]:
    """The modules that import each module."""
    known = dict(modules())
    importers: dict[str, set[str]] = defaultdict(set)
    for name, path in known.items():
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fencepost."):
                module = (node.module or "").removeprefix("fencepost.")
                for alias in node.names:
                    inner = f"{module}.{alias.name}"
                    importers[inner if inner in known else module].add(name)
    return importers


def test_no_small_file_has_one_importer() -> None:
    importers = imported_by()
    small = {
        name
        for name, path in modules()
        if path.read_text().count("\n") < SMALL_FILE
        and path.stem not in ("__init__", "__main__")
        and len(importers[name]) == 1
    }
    assert small == SMALL_WITH_ONE_IMPORTER


@pytest.mark.processes
def test_the_other_pythons_tests_exist() -> None:
    script = (ROOT / ".ci" / "other-python").read_text()
    listed = re.search(r"^tests=\(\n(.*?)^\)", script, re.MULTILINE | re.DOTALL)
    assert listed is not None
    echo = ["bash", "-c", f"echo {' '.join(listed[1].split())}"]
    paths = subprocess.run(echo, capture_output=True, text=True, check=True).stdout.split()
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
