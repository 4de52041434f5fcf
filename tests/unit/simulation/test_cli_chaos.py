"""`fencepost chaos`: what it says and answers; runs themselves are in tests/conformance."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from fencepost.simulation.cli import main
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.lab.chaos import run as chaos_run
from fencepost.simulation.lab.chaos.result import ChaosResult, Skipped
from fencepost.simulation.lab.clusters.cluster import RealCluster

RESULT = ChaosResult(
    scenario="steady",
    seed=4,
    members=6,
    partitions=18,
    virtual_seconds=60.0,
    wall_seconds=66.0,
    events=1_000,
    heartbeats=900,
    rebalances=3,
    converged=True,
    violations=[],
    digest="d1",
    records_sent=500,
    records_lost=0,
    records_duplicated=7,
    client="fencepost",
    cluster="127.0.0.1:9",
    nodes=1,
    speed=8.0,
    skipped=[Skipped(kind="broker-pause", times=2, reason="the cluster is not ours")],
)
ROW = (1, 0, "real", "g", "", "run.start", "", "", -1, -1, (), "", "steady 4")


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch):
    """Lets a run answer with this instead of taking place."""
    answered: dict[str, Any] = {"result": RESULT, "error": None}

    async def run_real(scenario, seed, cluster, *, trace=None, progress=None, **settings):
        answered["asked"] = (scenario.name, seed, cluster, settings)
        if trace is not None:
            trace.write([ROW])
        if answered["error"] is not None:
            raise answered["error"]
        return answered["result"]

    monkeypatch.setattr(chaos_run, "run_real", run_real)
    return answered


WORDS = ["chaos", "steady", "--cluster", "127.0.0.1:9", "--seed", "4"]


def test_json_has_the_keys_of_simulate_and_the_records(answer, capsys):
    assert main([*WORDS, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == msgspec.to_builtins(RESULT)
    assert {"scenario", "seed", "digest", "records_sent", "records_lost", "records_duplicated"} <= told.keys()
    assert answer["asked"] == (
        "steady",
        4,
        "127.0.0.1:9",
        {"client": "fencepost", "duration_us": 60_000_000, "keep_in": None},
    )


def test_people_are_told_what_was_skipped_and_how_fast_it_was(answer, capsys):
    assert main([*WORDS, "--duration", "40s"]) == 0
    out = capsys.readouterr().out
    assert "5 min 00 s of the scenario were played 8.0 times as fast" in out
    assert "broker-pause" in out
    assert "the cluster is not ours" in out
    assert "500 acknowledged, 7 processed again" in out
    assert (
        "Again:  fencepost chaos steady --cluster 127.0.0.1:9 --client fencepost --seed 4 --duration 40s"
        in out
    )
    assert answer["asked"][3]["duration_us"] == 40_000_000


def test_the_command_for_another_time_has_all_of_a_cluster_that_is_started(answer, monkeypatch, capsys):
    async def started(self):
        return self

    monkeypatch.setattr(RealCluster, "__aenter__", started)
    assert main(["chaos", "steady", "--kafka", "4.4.0"]) == 0
    told = "fencepost chaos steady --cluster jvm --nodes 3 --profile fast --kafka 4.4.0 --client fencepost"
    assert told in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "change",
    [
        {"records_lost": 1},
        {"violations": [Violation(invariant="one-claimant", seq=3, t_us=1, message="two of them")]},
    ],
)
def test_a_lost_record_and_a_violation_give_exit_1(answer, capsys, change):
    answer["result"] = msgspec.structs.replace(RESULT, **change)
    assert main(WORDS) == 1
    if "violations" in change:
        assert "two of them" in capsys.readouterr().out


def test_trace_and_page_are_written(answer, capsys, tmp_path: Path):
    trace, page = tmp_path / "t.parquet", tmp_path / "t.html"
    assert main([*WORDS, "--trace", str(trace), "--report", str(page)]) == 0
    assert pq.read_table(trace).column("detail").to_pylist() == ["steady 4"]
    assert "steady" in page.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.html", "t.parquet"]


def test_the_page_tells_of_records_and_of_what_was_skipped_as_the_terminal_does(answer, tmp_path: Path):
    page = tmp_path / "t.html"
    assert main([*WORDS, "--report", str(page)]) == 0
    run = re.search(r'id="run-0"[^>]*>([^<]*)<', page.read_text())
    assert run is not None
    facts = dict(json.loads(gzip.decompress(base64.b64decode(run[1])))["facts"])
    assert facts["time"] == "1 min 00 s, 1 min 06 s with start and end"
    assert facts["played on"] == "one broker (127.0.0.1:9)"
    assert facts["records lost"] == "0"
    assert facts["skipped"] == "broker-pause 2 times"
    assert "virtual time" not in facts


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a defect")])
@pytest.mark.parametrize("before", [[], [b"older"]])
def test_a_run_that_fails_leaves_traces_as_they_were(answer, tmp_path: Path, error: BaseException, before):
    answer["error"] = error
    trace = tmp_path / "t.parquet"
    for content in before:
        trace.write_bytes(content)
    if isinstance(error, KeyboardInterrupt):
        assert main([*WORDS, "--trace", str(trace)]) == 130
    else:
        with pytest.raises(RuntimeError):
            main([*WORDS, "--trace", str(trace)])
    assert [path.read_bytes() for path in tmp_path.iterdir()] == before


def test_confluent_is_missed_before_anything_is_started(monkeypatch, capsys):
    monkeypatch.setattr("fencepost.simulation.lab.chaos.playable.find_spec", lambda name: None)
    assert main([*WORDS, "--client", "confluent"]) == 3
    assert "pip install confluent-kafka" in capsys.readouterr().err
