"""`fencepost conform`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fencepost.simulation.cli import conform as conform_command
from fencepost.simulation.cli import main
from fencepost.simulation.lab.conform.suite import LeftOut, Report, RuleVerdict, SeenDeviation

VECTORS = Path(__file__).parents[2] / "vectors" / "assignors.jsonl.gz"


def test_recorded_answers_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--vectors", str(VECTORS), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"] > 1_000
    assert report["differences"] == []
    assert {rule["verdict"] for rule in report["rules"]} == {"equal"}


def test_a_difference_is_shown_and_gives_exit_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    lines = (json.loads(line) for line in gzip.decompress(VECTORS.read_bytes()).splitlines())
    sequence = next(line for line in lines if line["assignor"] == "range")
    del sequence["steps"][1:]
    step = sequence["steps"][0]
    giver = next(member for member, held in step["target"].items() if held)
    step["target"][giver] = {}
    file = tmp_path / "wrong.jsonl"
    file.write_text(json.dumps(sequence) + "\n")

    assert main(["conform", "--vectors", str(file)]) == 1
    out = capsys.readouterr().out
    assert "different" in out
    assert "answers compared: 1, differences: 1" in out
    assert main(["conform", "--vectors", str(file), "--json"]) == 1
    [difference] = json.loads(capsys.readouterr().out)["differences"]
    assert difference["rule"] == "range.target"


def test_the_summary_says_how_much_was_tested(capsys: pytest.CaptureFixture[str]) -> None:
    verdicts = [
        RuleVerdict("a.one", "pass", 3),
        RuleVerdict("a.two", "pass", 1),
        RuleVerdict("b", "untested"),
    ]
    report = Report(
        requests=4,
        schedules=1,
        differences=[],
        rules=verdicts,
        deviations=[SeenDeviation("known", 2)],
        left_out=[LeftOut("STREAMS_GROUP_HEARTBEAT 0", 3)],
        unclear=0,
    )
    conform_command._print(report)
    out = capsys.readouterr().out
    assert "rules: 2 pass, 0 differ, 1 untested; 67% tested" in out
    assert "known deviation: known, 2 times" in out
    left_out = "not sent: STREAMS_GROUP_HEARTBEAT 0, 3 times; the broker's ApiVersions does not list it"
    assert left_out in out.replace("\n", " ")
