"""`Campaign`, for notebooks: what is given is what runs, and its tables are DataFrames."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation import Campaign

DOCS = Path(__file__).parents[3] / "docs/campaign.md"
SCENARIO = 'duration = "150s"\n[[topics]]\nname = "orders"\npartitions = 4\n'


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return str(path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"grid": {"members": [0]}}, "grid: members=0: expected a number from 1"),
        (
            {"options": {"static": {"group.static": "yes"}}},
            "options: static: group.static=yes: expected true",
        ),
        ({"seeds": [-1]}, "seeds: expected at least one, and none below 0"),
        ({"seeds": [4, 2, 4]}, "seeds: 4 is there twice"),
        ({"seeds": "soon"}, "seeds soon: expected how many, or which"),
        ({"seeds": "5..2"}, "seeds 5..2: expected the smaller one first"),
        ({"seeds": 1.5}, "seeds=1.5: expected how many, or which"),
        ({"seeds": ["1"]}, "seeds: expected whole numbers, got '1'"),
        ({"grid": {"members": "10,50"}}, "grid: members='10,50': expected a list of values"),
        ({"grid": {"members": 10}}, "grid: members=10: expected a list of values"),
        ({"options": ["static"]}, "options=['static']: expected settings by the option's name"),
        ({"time_limit": "soon"}, "time_limit soon: expected a duration"),
    ],
)
def test_mistakes_are_told_before_anything_runs(given: dict[str, object], told: str, scenario: str) -> None:
    with pytest.raises(FencepostError) as raised:
        Campaign(scenario, **given)  # type: ignore[arg-type]
    assert str(raised.value).startswith(told)


def test_seeds_are_taken_as_from_the_command_line(scenario: str) -> None:
    assert repr(Campaign(scenario, seeds="10..29")) == "<Campaign: 1 cells, 20 seeds each; not run yet>"


def test_what_has_not_run_has_no_tables(scenario: str) -> None:
    campaign = Campaign(scenario, seeds=3, options={"static": {"group.static": True}, "dynamic": {}})
    assert repr(campaign) == "<Campaign: 2 cells, 3 seeds each; not run yet>"
    assert "not run yet" in campaign._repr_html_()
    with pytest.raises(FencepostError, match="has not run: call run"):
        campaign.table("runs")


def test_a_file_is_a_campaign_too(scenario: str, tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text(f'scenarios = ["{scenario}"]\nseeds = 2\n[grid]\nmembers = [2, 3]\n')
    assert repr(Campaign.from_file(file)) == "<Campaign: 2 cells, 2 seeds each; not run yet>"


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("default")
def test_the_example_of_the_docs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```py\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert "fencepost simulate rolling-deploy" in capsys.readouterr().out
    campaign: Campaign = names["campaign"]

    assert set(campaign.table("runs")["runs"]) == {2}
    assert set(campaign.runs["seed"]) == {0, 1}
    assert "4 runs, 0 failed, 0 violations" in campaign._repr_html_()
    assert campaign.report.is_file()
    violations = campaign.table("violations")
    assert violations.empty
    assert "invariant" in violations.columns

    kept = campaign.trace(campaign.runs.index[0])
    assert list(kept["seq"]) == sorted(kept["seq"])
    assert campaign.dataframe("trace").where(f"run_id = '{campaign.runs.index[0]}'").count() == len(kept)
    assert campaign.dataframe("runs").count() == 2
    for part in campaign.out.glob("traces/*"):
        part.unlink()
    assert campaign.trace(campaign.runs.index[0]).equals(kept)  # simulated again
    for wrong in (campaign.table, campaign.dataframe, campaign.trace):
        with pytest.raises(FencepostError, match="there is no"):
            wrong("nothing")
