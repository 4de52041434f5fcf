"""The projects in `examples/`: the tests of each pass where a stranger has copied it."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from tests.docs.test_examples import how_to_run
from tests.forks import run_forked

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WITH_PYTEST = sorted(path.parent.name for path in EXAMPLES.glob("*/test_*.py"))


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", WITH_PYTEST)
def test_the_tests_of_an_example_pass(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tests,) = folder.glob("test_*.py")
    tests.write_text(tests.read_text().replace("seeds=20", "seeds=3"))
    result = run_forked([*how_to_run(tests.read_text()), "-q", str(tests)], folder)
    assert result.returncode == 0, result.stdout


def test_each_example_says_how_to_run_it() -> None:
    assert WITH_PYTEST == [
        "confluent-kafka",
        "fastapi-aiokafka",
        "faststream",
        "simulated-service",
        "whole-service",
    ]
    for name in WITH_PYTEST:
        text = (EXAMPLES / name / "README.md").read_text()
        assert "## Run the tests" in text
        assert "## What to look at" in text
        project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())
        assert any(each.startswith("fencepost[embedded") for each in project["dependency-groups"]["test"])


def test_the_index_lists_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text()
    folders = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
    assert [name for name in folders if f"]({name}/README.md)" not in index] == []
