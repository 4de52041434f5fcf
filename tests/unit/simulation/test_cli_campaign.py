"""`fencepost campaign`, `analyze` and `mutants`: what they hand on, print and answer; without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fencepost.simulation.cli.campaign
import fencepost.simulation.lab.hunt
import fencepost.simulation.pipeline.analyze
import fencepost.simulation.world.spread
from fencepost.simulation.cli import main
from fencepost.simulation.lab.hunt import MutantResult
from fencepost.simulation.mutants.registry import MUTANTS
from fencepost.simulation.pipeline.campaign import CampaignResult
from fencepost.simulation.pipeline.spec import CampaignSpec
from fencepost.simulation.scenarios.load import library

TABLES = {
    "runs": [{"scenario": "steady", "parameters": "{}", "runs": 4, "failed": 0}],
    "downtime": [{"scenario": f"s{n}", "parameters": "", "median": 1.5, "cause": None} for n in range(12)],
    "violations": [],
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    """Stands in for the campaign, and keeps what it was called with."""
    kept: list[tuple[Any, dict[str, Any]]] = []

    def carry_out(spec: CampaignSpec, **options: Any) -> CampaignResult:
        kept.append((spec, options))
        failed = 1 if spec.seeds == (1,) else 0
        violations = 2 if spec.seeds == (2,) else 0
        return CampaignResult(
            runs=4,
            failed=failed,
            violations=violations,
            wall_seconds=1.5,
            out=str(options["out_dir"]),
            report=str(options["out_dir"] / "page.html"),
            tables=TABLES,
        )

    monkeypatch.setattr(fencepost.simulation.cli.campaign, "carry_out", carry_out)
    return kept


def test_a_campaign_gets_its_options(calls, tmp_path: Path, capsys):
    out = tmp_path / "new" / "out"
    words = ["steady", "swarm", "--seeds", "7", "--grid", "members=2,4", "--grid", "partitions=8", "--resume"]
    assert main(["campaign", *words, "--master", "local[1]", "--out", str(out)]) == 0
    [(spec, options)] = calls
    assert [(cell.name, cell.parameters) for cell in spec.cells] == [
        (name, {"members": members, "partitions": "8"})
        for name in ("steady", "swarm")
        for members in ("2", "4")
    ]
    assert spec.seeds == tuple(range(7))
    assert (spec.traces, spec.time_limit_s) == ("sample", 600.0)
    assert options["master"] == "local[1]"
    assert options["out_dir"] == out
    assert options["report"] is None
    assert options["resume"] is True
    shown = capsys.readouterr().out
    assert "4 runs in 2 s, 0 failed, 0 violations" in shown
    assert str(out / "page.html") in shown
    assert "and 2 more" in shown


def test_without_scenarios_the_whole_library_runs(calls, tmp_path: Path):
    assert main(["campaign", "--out", str(tmp_path)]) == 0
    spec = calls[0][0]
    assert [cell.name for cell in spec.cells] == [entry.name for entry in library()]
    assert spec.seeds == tuple(range(100))


def test_a_campaign_is_read_from_a_file_and_options_go_before_it(calls, tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text('scenarios = ["steady"]\nseeds = 5\ntraces = "all"\n[grid]\nmembers = [2, 3]\n')
    words = ["--out", str(tmp_path / "out")]
    assert main(["campaign", str(file), *words]) == 0
    assert (
        main(["campaign", str(file), *words, "--seeds", "3..4", "--traces", "none", "--time-limit", "2m"])
        == 0
    )
    (first, second) = (spec for spec, _ in calls)
    assert [cell.parameters for cell in first.cells] == [{"members": "2"}, {"members": "3"}]
    assert (first.seeds, first.traces, first.time_limit_s) == (tuple(range(5)), "all", 600.0)
    assert (second.seeds, second.traces, second.time_limit_s) == ((3, 4), "none", 120.0)


@pytest.mark.parametrize("seed", ["1..1", "2..2"])
@pytest.mark.usefixtures("calls")
def test_failed_runs_and_violations_give_exit_1(seed, tmp_path: Path, capsys):
    assert main(["campaign", "steady", "--seeds", seed, "--out", str(tmp_path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert {"runs", "failed", "violations", "wall_seconds", "out", "report"} <= set(document)


def test_analyze_prints_tables_or_one_document(monkeypatch, tmp_path: Path, capsys):
    kept = []

    def analyze(path: Path, **options: Any) -> Any:
        kept.append((path, options))
        return TABLES

    monkeypatch.setattr(fencepost.simulation.pipeline.analyze, "analyze", analyze)
    page = tmp_path / "page.html"
    assert main(["analyze", "traces", "--report", str(page), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"tables": TABLES, "report": str(page), "source": "a trace"}
    assert kept[0][0] == Path("traces")
    assert kept[0][1]["report"] == page
    assert main(["analyze", "traces"]) == 0
    shown = capsys.readouterr().out
    assert "median" in shown
    assert "1.50 s" in shown
    assert "parameters" not in shown
    assert "violations" not in shown


@pytest.mark.parametrize(("caught", "code"), [(True, 0), (False, 1)])
def test_mutants_tell_who_caught_what(caught, code, monkeypatch, capsys):
    def hunt(mutant: Any, seeds: Sequence[int], **_: Any) -> MutantResult:
        hits = len(seeds) if caught else 0
        return MutantResult(
            mutant=mutant.name,
            caught=caught,
            seeds=len(seeds),
            hits=hits,
            share=hits / len(seeds),
            share_low=0.0,
            share_high=1.0,
            by=("one-owner",),
        )

    monkeypatch.setattr(fencepost.simulation.lab.hunt, "hunt", hunt)
    monkeypatch.setattr(fencepost.simulation.world.spread, "child_count", lambda *_: 1)
    assert main(["mutants", "--seeds", "3", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert list(document) == list(MUTANTS)
    for result in document.values():
        assert result["caught"] is caught
        assert (result["hits"], result["seeds"]) == (3 if caught else 0, 3)
        assert result["by"] == ["one-owner"]
    name = next(iter(MUTANTS))
    assert main(["mutants", name]) == code
    shown = capsys.readouterr().out
    assert name in shown
    assert ("caught" if caught else "missed") in shown
    assert list(MUTANTS)[1] not in shown


def test_a_hunt_tells_how_far_it_is_while_a_program_waits(monkeypatch, capsys):
    def hunt(mutant: Any, seeds: Sequence[int], **_: Any) -> MutantResult:
        return MutantResult(
            mutant=mutant.name, caught=True, seeds=3, hits=3, share=1.0, share_low=0.0, share_high=1.0
        )

    monkeypatch.setattr(fencepost.simulation.lab.hunt, "hunt", hunt)
    monkeypatch.setattr(fencepost.simulation.world.spread, "child_count", lambda *_: 1)
    monkeypatch.delenv("FENCEPOST_PROGRESS", raising=False)
    first, second = list(MUTANTS)[:2]
    assert main(["mutants", first, second, "--seeds", "3", "--json"]) == 0
    shown = capsys.readouterr()
    assert list(json.loads(shown.out)) == [first, second]
    assert shown.err == "hunting 1/2\nhunting 2/2\n"


def test_options_of_automatic_mutants_go_with_them_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "--sample", "3"]) == 2
    assert "--sample: needs --automatic" in capsys.readouterr().err
    assert main(["mutants", "--automatic", "--list", "--sample", "2", "coordinator.sac"]) == 0
    assert "coordinator.sac" in capsys.readouterr().out
