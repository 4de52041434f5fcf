"""The workflow of the examples: the guide shows it, and it uploads the folder that its pytest step writes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.test_examples import examples
from tests.forks import LOOP_SCOPE, PYTEST, run_forked

FILE = Path(__file__).parents[2] / "examples" / "ci-workflow" / "tests.yml"
FAILING = """
import pytest

@pytest.mark.kafka(topics={"orders": 1})
def test_planted(kafka):
    kafka.create_topic("payments")
    raise AssertionError("planted")
"""


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(FILE.read_text())["jobs"].values()
    return job["steps"]


def test_the_workflow_has_what_actions_need() -> None:
    workflow = yaml.safe_load(FILE.read_text())
    assert workflow[True] == ["push"]  # YAML 1.1 reads the key `on` as true
    (job,) = workflow["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert all("@v" in step["uses"] for step in job["steps"] if "uses" in step)


def test_the_guide_shows_the_workflow() -> None:
    shown = [each.text for each in examples("yaml") if each.page == "guides/continuous-integration.md"]
    assert shown == [FILE.read_text()]


@pytest.mark.processes
@pytest.mark.real
@pytest.mark.timeout(120)
def test_a_failed_test_leaves_its_timeline_in_the_folder_that_is_uploaded(tmp_path: Path) -> None:
    (command,) = (step["run"] for step in steps() if step.get("run", "").startswith("pytest "))
    (upload,) = (step for step in steps() if step.get("uses", "").startswith("actions/upload-artifact@"))
    assert upload["if"] == "failure()"
    (tmp_path / "test_planted.py").write_text(FAILING)
    environment = {**os.environ, "PYTEST_XDIST_AUTO_NUM_WORKERS": "1"}
    words = [*PYTEST, *LOOP_SCOPE, *shlex.split(command)[1:]]
    result = run_forked(words, tmp_path, environment=environment, timeout_s=110)
    assert result.returncode == 1, result.stdout
    pages = [path.read_text() for path in (tmp_path / upload["with"]["path"]).glob("*.html")]
    assert len(pages) == 1
    assert "test_planted" in pages[0]
