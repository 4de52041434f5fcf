"""TOML files of three kinds: who is given another one's says whose it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli.entry import main
from fencepost.simulation.pipeline import spec
from fencepost.simulation.pipeline.question import Question
from fencepost.simulation.scenarios.documents import KEYS, document_of
from fencepost.simulation.scenarios.load import LIBRARY, load_any

CAMPAIGN = 'title = "Restarts"\nscenarios = ["rolling-deploy"]\n[grid]\nmembers = [2, 3]\n'
PLAN = 'event = "deploy"\nmembers = 4\n'
SCENARIO = 'duration = "30s"\n[[topics]]\nname = "orders"\n'

TAKEN_BY = {
    CAMPAIGN: "this is a campaign: `fencepost campaign` takes it",
    PLAN: "this is a plan: `fencepost plan` takes it",
    SCENARIO: "this is a scenario: `fencepost simulate` takes it, and `campaign` for many seeds",
}


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        *((each, CAMPAIGN, "scenario") for each in ("simulate", "chaos", "compare")),
        ("simulate", PLAN, "scenario"),
        ("campaign", PLAN, "scenario"),
        ("plan", CAMPAIGN, "plan"),
        ("plan", SCENARIO, "plan"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_command_that_takes_it(
    command: str,
    text: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(text)
    assert main([command, "mine.toml"]) == 2
    told = capsys.readouterr().err
    assert told == f"fencepost {command}: mine.toml: expected a {expected}, and {TAKEN_BY[text]}\n"


def test_a_campaign_from_python_refuses_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SCENARIO)
    with pytest.raises(FencepostError, match="expected a campaign, and this is a scenario"):
        spec.read_campaign(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f'title = "x"\n{SCENARIO}', "title: unknown key"),
        (f"seeds = 3\nmembers = 4\n{SCENARIO}", "unknown key"),
    ],
)
def test_a_key_of_others_makes_no_other_file(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(FencepostError, match=told):
        load_any(path)
    assert not spec.is_campaign_file(str(path))


def test_the_keys_are_those_that_are_read() -> None:
    campaign = {field.name for field in msgspec.structs.fields(spec._File)}
    assert KEYS["campaign"] == campaign
    assert KEYS["plan"] == {field.name for field in msgspec.structs.fields(Question)}
    assert not KEYS["campaign"] & KEYS["scenario"]


def test_an_empty_file_is_what_was_expected() -> None:
    assert document_of({}, "plan") == "plan"
    assert document_of({"protocol": "classic"}, "plan") == "plan"


@pytest.mark.parametrize("path", sorted(LIBRARY.glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_of_the_library_is_one(path: Path) -> None:
    assert document_of(tomllib.loads(path.read_text()), "campaign") == "scenario"
