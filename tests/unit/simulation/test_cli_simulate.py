"""`fencepost simulate` and `fencepost scenarios`: results, files, and what is refused before a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

import fencepost.simulation.run
from fencepost.simulation.cli import main
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.run import RunResult
from fencepost.simulation.scenarios.load import library
from fencepost.simulation.trace.schema import COLUMNS

SHORT = ("simulate", "steady", "--duration", "1m", "--set", "quiet=50s")


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*SHORT, *words, "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    result: dict[str, Any] = json.loads(shown.out)
    return result


def test_options_and_settings_reach_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = simulated(capsys, "--members", "3", "--partitions", "40")
    assert (result["members"], result["partitions"]) == (3, 40)
    assert simulated(capsys, "--set", "group.members=4")["members"] == 4


@pytest.mark.parametrize(("summary", "lines"), [("What it shows.", ["What it shows.", ""]), ("", [""])])
def test_a_scenario_without_a_summary_leaves_no_line_for_it(capsys, summary, lines):
    assert main([*SHORT, "--members", "2", "--set", f"summary={summary}"]) == 0
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown[1 : 1 + len(lines)] == lines
    assert shown[1 + len(lines)].startswith("virtual time")


def test_people_get_the_facts_and_the_command_to_repeat_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--seed", "5", "--members", "2"]) == 0
    out = capsys.readouterr().out
    result = simulated(capsys, "--seed", "5", "--members", "2")
    assert "steady, seed 5" in out
    assert result["digest"] in out
    [command] = [
        line.removeprefix("Again:").strip() for line in out.splitlines() if line.startswith("Again:")
    ]
    assert main([*shlex.split(command)[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["digest"] == result["digest"]


def test_a_group_that_its_applications_keep_moving_is_no_violation_and_is_explained(capsys, tmp_path: Path):
    """Batches of 25 s and a poll interval of 10 s: members leave and come back for ever."""
    overloaded = tmp_path / "overloaded.toml"
    overloaded.write_text(
        'duration = "10m"\n[group]\nmembers = 2\nrebalance_timeout = "10s"\n'
        '[application]\nprocessing = "50ms"\n'
        '[[topics]]\nname = "orders"\npartitions = 4\nrecords_per_second = 100\n'
    )
    assert main(["simulate", str(overloaded)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "settled no violations 0" in shown
    assert "batches that outlast max.poll.interval.ms" in shown


def test_trace_and_report_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, page = tmp_path / "run.parquet", tmp_path / "run.html"
    assert main([*SHORT, "--trace", str(trace), "--report", str(page)]) == 0
    out = capsys.readouterr().out
    assert str(trace) in out
    assert str(page) in out
    rows = pq.read_table(trace)
    assert rows.column_names == list(COLUMNS)
    assert rows["kind"][0].as_py() == "run.start"
    assert rows["kind"][-1].as_py() == "run.end"
    text = page.read_text()
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_a_violation_is_shown_and_gives_exit_1(capsys, monkeypatch):
    honest: Callable[..., RunResult] = fencepost.simulation.run.run
    broken = [
        Violation(invariant="one-owner", seq=number, t_us=1_500_000, message="orders-3 has two owners")
        for number in range(12)
    ]

    def run(*arguments: Any, **options: Any) -> RunResult:
        return msgspec.structs.replace(honest(*arguments, **options), violations=broken)

    monkeypatch.setattr("fencepost.simulation.cli.simulate.run", run)
    assert main([*SHORT]) == 1
    out = capsys.readouterr().out
    assert "orders-3 has two owners" in out
    assert "1.500 s" in out
    assert "and 2 more" in out
    assert main([*SHORT, "--json"]) == 1
    violations = json.loads(capsys.readouterr().out)["violations"]
    assert len(violations) == 12
    assert violations[3] == {
        "invariant": "one-owner",
        "seq": 3,
        "t_us": 1_500_000,
        "message": "orders-3 has two owners",
        "rule": "",
    }


def test_scenarios_lists_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed == [entry._asdict() for entry in library()]
    assert len(listed) >= 8
    assert main(["scenarios"]) == 0
    out = capsys.readouterr().out
    for entry in library():
        assert entry.name in out
        assert entry.summary in out


def test_an_exception_that_ends_a_run_is_its_last_violation(tmp_path: Path, capsys):
    """This bug gives two members a partition, which the next record of the first one can't follow."""
    trace, failure = tmp_path / "t.parquet", tmp_path / "f.json"
    words = ("simulate", "churn", "--members", "60", "--partitions", "600", "--mutant", "owner-by-epoch")
    assert main([*words, "--trace", str(trace), "--failure", str(failure), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    first, last = result["violations"][0], result["violations"][-1]
    assert first["invariant"] == "one-owner"
    assert last["invariant"] == "raised InconsistentRecord"
    assert "cannot be held at epoch" in last["message"]
    assert last["t_us"] == result["virtual_seconds"] * 1e6
    assert not result["converged"]
    rows = pq.read_table(trace).to_pylist()
    assert [row["kind"] for row in rows[-2:]] == ["violation", "run.end"]
    assert rows[-3]["seq"] == last["seq"]
    assert main(["replay", str(failure)]) == 1
    shown = capsys.readouterr().out
    assert "raised InconsistentRecord" in shown
    assert result["digest"] in shown


@pytest.mark.parametrize(
    ("scenario", "part"),
    [
        ("steady", "kernel.network.Network.deliver"),
        ("sac-churn", "sac.world.SacWorld.latency"),
        ("streams-failures", "kernel.network.Network.deliver"),
    ],
)
def test_an_exception_of_the_simulated_is_told_in_all_worlds(scenario, part, monkeypatch):
    from fencepost.simulation.scenarios.load import load_any

    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    loaded = load_any(scenario)
    monkeypatch.setattr(f"fencepost.simulation.{part}", broken)
    with pytest.raises(ZeroDivisionError):
        fencepost.simulation.run.run(loaded, 1)
    result = fencepost.simulation.run.run(loaded, 1, raises=False)
    (violation,) = result.violations
    assert violation.invariant == "raised ZeroDivisionError"
    assert violation.message.startswith("by zero (test_cli_simulate.py:")
    again = fencepost.simulation.run.run(loaded, 1, raises=False)
    assert again.digest == result.digest


def test_a_trace_that_can_not_be_written_is_no_violation() -> None:
    from fencepost.simulation.scenarios.load import load_any

    class Full:
        def write(self, rows: object, /) -> None:
            raise OSError("no space left")

    def torn(share: float) -> None:
        raise BrokenPipeError("nobody looks")

    loaded = load_any("rolling-deploy", members=60)
    with pytest.raises(OSError, match="no space left"):
        fencepost.simulation.run.run(loaded, 1, trace=Full(), raises=False)
    with pytest.raises(BrokenPipeError):
        fencepost.simulation.run.run(loaded, 1, progress=torn, raises=False)
