"""`fencepost simulate --failure`, `replay` and `shrink`: the way from a red run to a small test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from fencepost.simulation.cli import main
from tests.forks import LOOP_SCOPE, PYTEST, run_forked

RUN = ("simulate", "scale-up-and-down", "--mutant", "target-told-early", "--seed", "0")
CRASH = ("simulate", "crash-and-return", "--mutant", "sessions-never-end", "--seed", "0")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("kept") / "failure.json"
    assert main([*RUN, "--failure", str(file)]) == 1
    return file


@pytest.fixture
def failure(kept: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(kept, tmp_path))


def test_a_failed_run_says_how_to_make_it_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "failure.json"
    assert main([*RUN, "--failure", str(file)]) == 1
    said = capsys.readouterr().out
    assert f"make it small: fencepost shrink {file}" in said
    assert "--mutant target-told-early" in said


def test_a_page_that_cannot_be_written_costs_nothing_else(tmp_path: Path, capsys, monkeypatch):
    """What is in the way may come while the run goes on, such as a disk that fills up."""
    monkeypatch.setattr("secrets.token_hex", lambda _: "x" * 300)
    file = tmp_path / "failure.json"
    report = str(tmp_path / "page.html")
    assert main([*RUN, "--failure", str(file), "--report", report, "--json"]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["violations"]
    assert "page.html: cannot be written: File name too long" in said.err
    assert main(["replay", str(file), "--json"]) == 1


def test_a_failure_that_cannot_be_written_costs_nothing_else(tmp_path: Path, capsys):
    file = tmp_path / ("f" * 254)  # leaves no room for the name that a file has before it is whole
    file.write_text("an earlier one")
    assert main([*RUN, "--failure", str(file), "--json"]) == 3
    said = capsys.readouterr()
    assert json.loads(said.out)["violations"]
    assert said.err == f"fencepost simulate: {file}: cannot be written: file name too long\n"
    assert file.read_text() == "an earlier one"


@pytest.mark.processes
def test_failures_are_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    library = Path(str(resources.files("fencepost.simulation.scenarios") / "library"))
    text = (library / "scale-up-and-down.toml").read_text(encoding="utf-8")
    scenario, file = tmp_path / "scenario.toml", tmp_path / "failure.json"
    scenario.write_text(f'name = "größer"\n{text}', encoding="utf-8")
    program = "import sys; from fencepost.simulation.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["simulate", str(scenario), *RUN[2:], "--failure", str(file)]
    plain = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=plain, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "größer" in file.read_text(encoding="utf-8")
    assert main(["replay", str(file), "--json"]) == 1


@pytest.mark.processes
def test_from_a_failed_run_to_a_small_test(failure: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(failure), "--json"]) == 1
    first = json.loads(capsys.readouterr().out)
    assert main(["shrink", str(failure), "--json"]) == 0
    small = json.loads(capsys.readouterr().out)
    assert small["before"]["members"] == first["members"] == 3
    assert (small["after"]["members"], small["after"]["disturbances"]) == (2, 0)
    assert small["invariant"] in {violation["invariant"] for violation in small["violations"]}
    assert small["whole"] is True
    assert main(["replay", small["out"]]) == 1
    assert small["invariant"] in capsys.readouterr().out
    case = Path(small["test"])
    assert case.parent == failure.parent
    done = run_forked([*PYTEST, *LOOP_SCOPE, "-q", "-o", "addopts=", str(case)], failure.parent)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


def test_people_see_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failure, small = tmp_path / "failure.json", tmp_path / "s.json"
    assert main([*CRASH, "--failure", str(failure)]) == 1
    assert main(["shrink", str(failure), "--out", str(small), "--tries", "9"]) == 0
    said = capsys.readouterr().out
    assert "gone-members in crash-and-return, seed 0" in said
    assert "member-crash" in said
    assert f"fencepost replay {small}" in said
    assert "9 runs were not enough: --tries allows more" in said


@pytest.mark.parametrize(
    ("name", "option"), [("failure-small.json", "--out"), ("test_{}_holds_in_{}_0.py", "--test")]
)
def test_an_earlier_result_stays(failure: Path, name, option, capsys):
    words = [json.loads(failure.read_text())[key].replace("-", "_") for key in ("invariant", "name")]
    earlier = failure.with_name(name.format(*words))
    earlier.write_text("earlier")
    assert main(["shrink", str(failure)]) == 2
    assert f"{earlier}: already exists: name another file with {option}" in capsys.readouterr().err
    assert earlier.read_text() == "earlier"


def test_a_healthy_run_keeps_nothing(tmp_path: Path) -> None:
    file = tmp_path / "failure.json"
    assert main(["simulate", "steady", "--duration", "1m", "--set", "quiet=50s", "--failure", str(file)]) == 0
    assert not file.exists()
