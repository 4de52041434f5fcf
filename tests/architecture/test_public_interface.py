"""What `import fencepost` gives: names that are there for Python and for type checkers, and cost little."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import fencepost
from fencepost.coordinator.codec.registry import ApiKey, api_name
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.embedded.names import ApiName, ErrorName

ROOT = Path(__file__).parents[2]
PROMISED = {
    *("AsyncEmbeddedKafka", "Campaign", "EmbeddedKafka", "EmbeddedRabbitStream", "EnvironmentLacks"),
    *("FencepostError", "KIP848Consumer", "SingleActiveConsumer", "StreamsApp", "__version__"),
    *("load", "simulate"),
}


def declared() -> dict[str, str]:
    """The names that type checkers see, with their modules."""
    tree = ast.parse((ROOT / "public" / "__init__.py").read_text())
    block = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    found = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fencepost."):
            for alias in node.names:
                assert alias.asname == alias.name, f"{alias.name} is not marked as exported"
                found[alias.name] = (node.module or "").removeprefix("fencepost.")
    return found


def test_type_checkers_see_what_python_imports() -> None:
    assert declared() == fencepost._MODULES
    assert list(fencepost._MODULES) == sorted(fencepost._MODULES)
    assert set(fencepost.__all__) == {*declared(), "__version__"} >= PROMISED


def test_the_page_of_the_interface_has_every_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(fencepost.__all__)


@pytest.mark.parametrize("name", sorted(fencepost.__all__))
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(fencepost, name)
    assert name in dir(fencepost)
    assert name == "__version__" or (found.__doc__ and found.__module__.startswith("fencepost."))


@pytest.mark.processes
def test_the_import_loads_one_module_of_the_project_and_hardly_any_other() -> None:
    code = "import sys; before = set(sys.modules); import fencepost; print(*sorted({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"__future__", "fencepost"}


@pytest.mark.processes
@pytest.mark.parametrize("words", [["--version"], ["scenarios", "--json"]])
def test_python_dash_m_fencepost_is_the_command(words: list[str]) -> None:
    command = [sys.executable, "-m", "fencepost", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip()


def test_the_names_of_apis_and_errors_are_those_that_are_spoken() -> None:
    assert list(get_args(ApiName)) == sorted(api_name(key) for key in ApiKey)
    assert list(get_args(ErrorName)) == [
        code.name for code in sorted(ErrorCode) if code is not ErrorCode.NONE
    ]
