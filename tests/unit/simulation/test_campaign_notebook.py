"""`Campaign`, for notebooks: what is given is what runs, and its tables are DataFrames."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fencepost import Campaign
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.analyze import analyze

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
        ({"seeds": "soon"}, "seeds soon: expected seeds"),
        ({"seeds": "5..2"}, "seeds 5..2: expected the smaller one first"),
        ({"seeds": 1.5}, "seeds=1.5: expected seeds"),
        ({"seeds": ["1"]}, "seeds: expected whole numbers, got '1'"),
        ({"grid": {"members": "10,50"}}, "grid: members='10,50': expected a list of values"),
        ({"grid": {"members": 10}}, "grid: members=10: expected a list of values"),
        ({"options": ["static"]}, "options=['static']: expected settings by the option's name"),
        ({"time_limit": "soon"}, "time_limit soon: expected a duration"),
        ({"time_limit": 5}, "time_limit 5: expected a duration"),
        ({"traces": "wrong"}, "traces='wrong': expected one of all, sample, failed, none"),
        ({"traces": "samples"}, "traces='samples': did you mean sample?"),
        ({"traces": None}, "traces=None: expected one of all, sample, failed, none"),
        ({"grid": {"member": [1]}}, "grid: member=1: unknown key; did you mean members?"),
        ({"grid": {"partition": [8]}}, "grid: partition=8: unknown key; did you mean partitions?"),
        ({"grid": {"mutants": ["none"]}}, "grid: mutants=none: unknown key; did you mean mutant?"),
        (
            {"grid": {"zzz": [1]}},
            "grid: zzz=1: unknown key; expected one of members, partitions, duration, mutant, name, summary",
        ),
        (
            {"grid": {"mutant": ["owner-by-epok"]}},
            "grid: mutant=owner-by-epok: there is no mutant owner-by-epok; did you mean owner-by-epoch?",
        ),
        ({"grid": {"option": ["a"]}}, "grid: option=a: no setting has this name"),
        ({"grid": [("members", 1)]}, "grid=[('members', 1)]: expected lists of values by parameter"),
        ({"grid": {"members": []}}, "grid: members: expected at least one value"),
        ({"grid": {"members": [1, 1]}}, "grid: members: a value is there twice"),
        ({"grid": {"members": {1, 2}}}, "grid: members={1, 2}: expected a list of values"),
        ({"grid": {"members": [None]}}, "grid: members=None: expected a number, a text"),
        ({"grid": {1: [1]}}, "grid: expected names of parameters, such as 'members', got 1"),
        ({"options": {"a": 5}}, "options: a: expected its settings, such as {'group.static': True}, got 5"),
        ({"options": {"": {}}}, "options: expected a name for each option, got ''"),
        ({"options": {"a": {7: 1}}}, "options: a: expected names of settings, got 7"),
        ({"options": {"a": {"member": 7}}}, "options: a: member=7: unknown key; did you mean members?"),
        ({"master": 5}, "master=5: expected local[N], local[*]"),
        ({"master": "locl[2]"}, "master=locl[2]: expected local[N], local[*]"),
        ({"out": 5}, "out=5: expected a path"),
        ({"out": ""}, "out='': expected a path"),
        ({"seeds": b"12"}, "seeds=b'12': expected seeds"),
        ({"scenarios": 5}, "scenarios=5: expected names or TOML files"),
        ({"scenarios": [None]}, "scenarios: expected the name of a scenario or a TOML file, got None"),
        (
            {"scenarios": ["stedy"]},
            "no scenario 'stedy' in the library, and no such file; did you mean steady?",
        ),
    ],
)
def test_mistakes_are_told_before_anything_runs(given: dict[str, object], told: str, scenario: str) -> None:
    with pytest.raises(FencepostError) as raised:
        Campaign(**{"scenarios": scenario, **given})  # type: ignore[arg-type]
    assert str(raised.value).startswith(told)


def test_seeds_are_taken_as_from_the_command_line(scenario: str) -> None:
    assert repr(Campaign(scenario, seeds="10..29")) == "<Campaign: 1 cells, 20 seeds each; not run yet>"


def test_what_has_not_run_has_no_tables(scenario: str) -> None:
    campaign = Campaign(scenario, seeds=3, options={"static": {"group.static": True}, "dynamic": {}})
    assert repr(campaign) == "<Campaign: 2 cells, 3 seeds each; not run yet>"
    assert "not run yet" in campaign._repr_html_()
    with pytest.raises(FencepostError, match="has not run: call run"):
        campaign.table("runs")
    for name in ("rebalances", "trace", "runs"):
        with pytest.raises(FencepostError, match=r"^this campaign has not run: call run\(\)$"):
            campaign.dataframe(name)
    with pytest.raises(FencepostError, match=r"^there is no table 'rebalance'; did you mean rebalances\?$"):
        campaign.dataframe("rebalance")


@pytest.mark.parametrize(
    ("path", "given", "told"),
    [
        (5, {}, "path=5: expected a path"),
        ("", {}, "path='': expected a path"),
        ("t", {"only": "runs"}, "only='runs': expected a list of tables"),
        ("t", {"only": ["run"]}, "only: there is no table run; did you mean runs?"),
        ("t", {"report": 5}, "report=5: expected a path"),
        ("t", {"master": 5}, "--master 5: expected local[N]"),
    ],
)
def test_analyze_tells_what_is_wrong_with_an_argument(path: Any, given: dict[str, Any], told: str) -> None:
    with pytest.raises(FencepostError) as raised:
        analyze(path, **given)
    assert str(raised.value).startswith(told)


@pytest.mark.long
@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("spark")
@pytest.mark.filterwarnings("default")
def test_a_campaign_without_traces_has_tables_of_its_runs_only(scenario: str) -> None:
    campaign = Campaign(scenario, seeds=1, traces="none").run(progress=False)
    assert campaign.dataframe("runs").count() == 1
    for name in ("trace", "rebalances"):
        with pytest.raises(FencepostError, match=rf"^{name}: no trace was kept with traces='none'; expected"):
            campaign.dataframe(name)


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
    for part in campaign.out.glob("traces/*.parquet"):
        part.unlink()
    assert campaign.trace(campaign.runs.index[0]).equals(kept)  # simulated again
    for wrong in (campaign.table, campaign.dataframe, campaign.trace):
        with pytest.raises(FencepostError, match="there is no"):
            wrong("nothing")
