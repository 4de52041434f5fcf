"""Campaigns in TOML files: what they say is what runs, and each mistake has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.spec import is_campaign_file, read_campaign, value_text
from fencepost.simulation.pipeline.tasks import parse_seeds
from fencepost.simulation.scenarios.values import Duration

SCENARIO = 'duration = "30s"\n[[topics]]\nname = "orders"\npartitions = 4\n'


def write(folder: Path, text: str) -> Path:
    (folder / "small.toml").write_text(SCENARIO)
    path = folder / "grid.toml"
    path.write_text(text)
    return path


def test_a_file_is_scenarios_settings_options_and_a_grid(tmp_path: Path) -> None:
    spec = read_campaign(
        write(
            tmp_path,
            """\
title = "What restarts cost"
scenarios = ["small.toml", "steady"]
seeds = "3..5"
traces = "all"
time_limit = "90s"

[set]
duration = "150s"
network.latency = { median = "2ms", p99 = "20ms" }

[grid]
members = [2, 3]

[[options]]
name = "static"
set.group.static = true

[[options]]
name = "dynamic, short sessions"
set = { "config.group.consumer.session.timeout.ms" = 45000 }
scenario = "small.toml"
""",
        )
    )
    assert (spec.title, spec.seeds, spec.traces, spec.time_limit_s) == (
        "What restarts cost",
        (3, 4, 5),
        "all",
        90.0,
    )
    assert [(cell.name, *cell.parameters.values()) for cell in spec.cells] == [
        ("small", "static", "2"),
        ("small", "static", "3"),
        ("steady", "static", "2"),
        ("steady", "static", "3"),
        ("small", "dynamic, short sessions", "2"),
        ("small", "dynamic, short sessions", "3"),
    ]
    first, last = spec.cells[0], spec.cells[-1]
    assert first.scenario.duration == Duration(150_000_000)
    assert (first.scenario.group.members, first.scenario.group.static) == (2, True)
    assert last.scenario.config == {"group.consumer.session.timeout.ms": 45000}
    assert not last.scenario.group.static
    assert last.command(7) == (
        f"fencepost simulate {tmp_path}/small.toml --seed 7 --duration 150s"
        ' --set \'network.latency={median = "2ms", p99 = "20ms"}\''
        " --set config.group.consumer.session.timeout.ms=45000 --members 3"
    )
    assert len({cell.run_id(0) for cell in spec.cells}) == 6


STEADY = "scenarios = ['steady']\n"

MISTAKES = {
    "scenarios = [": "not TOML",
    "scenarios = " + "[" * 5_000 + "]" * 5_000: "can't be read: tables or lists are nested too deeply",
    "scenario = ['steady']\ngrid = {}": "1: scenario: unknown key; did you mean scenarios?",
    "scenarios = 'steady'": '1: scenarios: expected a list, got "steady"',
    "scenarios = []": "1: scenarios: expected a list of at least 1, got an empty one",
    "scenarios = ['stedy']": "grid.toml:1: scenarios[0]: no scenario 'stedy' in the library, and no such",
    "scenarios = ['steady', 'none.toml']": "grid.toml:1: scenarios[1]: ",
    STEADY + "[[options]]\nname = 'a'\nscenario = 'none.toml'": "grid.toml:4: options[0].scenario: ",
    STEADY + "seeds = 0": "2: seeds: expected a whole number of at least 1, got 0",
    STEADY + "seeds = [1, 'x']": '2: seeds[1]: expected a whole number, got "x"',
    STEADY + "seeds = []": "2: seeds: expected at least one, and none below 0",
    STEADY + "seeds = [3, 5, 5]": "2: seeds: 5 is there twice",
    STEADY + "seeds = '3,5,5'": "2: seeds: 5 is there twice",
    STEADY + "seeds = 'many'": "2: seeds: expected seeds",
    STEADY + "traces = 'some'": "2: traces: expected one of all, sample, failed, none, got 'some'",
    STEADY + "time_limit = '0s'": "2: time_limit: expected more than 0s",
    STEADY + "[grid]\nmembers = 3": "3: grid.members: expected a list, got 3",
    STEADY + "[grid]\nmembers = []": "3: grid.members: expected a list of at least 1, got an empty",
    STEADY + "[grid]\nmembers = [2, 2]": "3: grid.members: a value is there twice",
    STEADY + "[grid]\n\nmembers = [2, 0]": "4: members=0: expected a number from 1",
    STEADY + "[grid]\ngroup.membres = [2]": "3: group.membres=2: unknown key; did you mean members?",
    STEADY + "[grid]\ngroup.static = [2]": "3: group.static=2: expected true or false, got 2",
    STEADY + "[set]\nduration = 'x'": "3: duration=x: expected a duration such as",
    STEADY + "[set]\nmembers = 2\n[grid]\nmembers = [3]": "5: grid.members: is also in [set]",
    STEADY + "[grid]\noption = ['a']": "3: grid.option: no setting has this name",
    STEADY + "[[options]]\nset.members = 1": "2: options[0]: the key name is missing",
    STEADY + "[[options]]\nname = 'a'\nsett = {}": "4: options[0].sett: unknown key",
    STEADY + "[[options]]\nname = 'a'\n[[options]]\nname = 'a'": "5: options[1].name: 'a' is there",
    STEADY + "[[options]]\nname = 'a'\nset.members = 'x'": "4: members=x: expected a number from 1",
    STEADY + "[grid]\nmembers = [1]\n[[options]]\nname = 'a'\nset.members = 2": (
        "6: options[0].set.members: is also in [grid]"
    ),
}


@pytest.mark.parametrize(("text", "told"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_mistake_is_told_with_file_line_and_key(text: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(FencepostError) as raised:
        read_campaign(write(tmp_path, text))
    assert told in str(raised.value)
    assert str(tmp_path) in str(raised.value) or "library" in told
    assert "\n" not in str(raised.value)


def test_without_scenarios_it_is_the_library_unless_options_have_their_own(tmp_path: Path) -> None:
    assert len(read_campaign(write(tmp_path, "[grid]\nduration = ['10m']")).cells) > 10
    own = "[[options]]\nname = 'a'\nscenario = 'steady'\n[[options]]\nname = 'b'\nscenario = 'small.toml'\n"
    assert [cell.name for cell in read_campaign(write(tmp_path, own)).cells] == ["steady", "small"]


def test_a_campaigns_file_is_told_from_a_scenarios(tmp_path: Path) -> None:
    assert is_campaign_file(str(write(tmp_path, "[grid]\nmembers = [1]")))
    assert is_campaign_file(str(write(tmp_path, 'title = "The library"\nseeds = 2')))
    for other in (SCENARIO, "not toml"):
        assert not is_campaign_file(str(write(tmp_path, other)))
    assert not is_campaign_file("steady")
    assert not is_campaign_file(str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (10, "10"),
        (0.5, "0.5"),
        ("range", "range"),
        ("10", '"10"'),
        (" a", '" a"'),
        ("1s..30s", "1s..30s"),
        (["a", 1], '["a", 1]'),
    ],
)
def test_values_are_as_set_takes_them(value: object, text: str) -> None:
    assert value_text(value) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (0, 1, 2)), ("7..9", (7, 8, 9)), ("5, 1,9", (5, 1, 9)), ("4..4", (4,))]
)
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "5..3", "1,,2", "1.5"])
def test_seeds_that_are_none(text: str) -> None:
    with pytest.raises(FencepostError, match=f"--seeds {text}: expected"):
        parse_seeds(text, "--seeds")


def test_a_seed_that_is_given_twice_is_refused_as_values_of_a_grid_are() -> None:
    with pytest.raises(FencepostError, match=r"^--seeds 3,5,05: 5 is there twice$"):
        parse_seeds("3,5,05", "--seeds")
