"""Runs next to the driver: without Spark, and until Spark takes over."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.pipeline import campaign, session
from fencepost.simulation.pipeline.campaign import carry_out
from fencepost.simulation.pipeline.early_runs import EarlyRuns
from fencepost.simulation.pipeline.output import CampaignDirectory
from fencepost.simulation.pipeline.runs import JobSpec
from fencepost.simulation.pipeline.session import LOCAL, SessionWhenNeeded, local_cores
from fencepost.simulation.pipeline.spec import CampaignSpec
from fencepost.simulation.pipeline.tasks import Task, cells_of
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.processes

CELLS = cells_of(["steady"], {"duration": ["150s"]})
TASKS = [Task(0, seed, traced=False) for seed in range(5)]


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    directory = CampaignDirectory(tmp_path)
    directory.prepare(CELLS, resume=False)
    return JobSpec(
        cells=CELLS,
        tasks=(),
        root=str(tmp_path),
        generation=0,
        time_limit_s=60.0,
        trace_violations=False,
    )


def seeds(out: Path) -> list[int]:
    return sorted(pq.read_table(out / "runs", columns=["seed"]).column(0).to_pylist())


def test_each_run_is_done_once_and_is_the_run_of_its_seed(job: JobSpec, tmp_path: Path) -> None:
    took: dict[int, float] = {}
    with EarlyRuns(job, 2) as early:
        for tasks in (TASKS[:2], TASKS[2:]):
            assert early.do(tasks, lambda task, seconds: took.update({task.seed: seconds})) == []
            assert seeds(tmp_path) == [task.seed for task in TASKS[: len(took)]]
    rows = pq.read_table(tmp_path / "runs").to_pylist()
    assert {row["seed"]: row["wall_seconds"] for row in rows} == took
    scenario = load("steady", duration="150s")
    assert {row["seed"]: row["digest"] for row in rows} == {seed: run(scenario, seed).digest for seed in took}


def test_runs_under_way_are_finished_after_others_are_left_to_spark(job: JobSpec, tmp_path: Path) -> None:
    ended: list[int] = []
    with EarlyRuns(job, 2) as early:
        left = early.do(TASKS, lambda task, seconds: ended.append(task.seed), leave=lambda: bool(ended))
        begun = [task.seed for task in TASKS if task not in left]
        assert 0 < len(begun) < len(TASKS)
        early.finish(lambda task, seconds: ended.append(task.seed))
        assert sorted(ended) == begun
    assert seeds(tmp_path) == begun


def test_an_interrupt_leaves_the_runs_that_had_ended(job: JobSpec, tmp_path: Path) -> None:
    ended: list[int] = []

    def leave() -> bool:
        if ended:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt), EarlyRuns(job, 2) as early:
        early.do(TASKS, lambda task, seconds: ended.append(task.seed), leave=leave)
    assert seeds(tmp_path) == sorted(ended)
    assert not any(path.name.endswith(".journal") for path in (tmp_path / "runs").iterdir())


def test_runs_that_are_not_finished_in_time_leave_nothing(job: JobSpec, tmp_path: Path) -> None:
    with EarlyRuns(job, 2) as early:
        assert early.do(TASKS, lambda *_: pytest.fail("a run ended"), until=time.time()) == []
        assert not any((tmp_path / "runs").iterdir())
        assert early.do(TASKS[:1], lambda *_: None, until=time.time() + 60) == []
    assert seeds(tmp_path) == [0]


def test_a_short_campaign_needs_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "session_runs", lambda: False)
    for name in ("begin", "get"):
        monkeypatch.setattr(SessionWhenNeeded, name, lambda self: pytest.fail("starts Spark"))
    spec = CampaignSpec(cells=CELLS, seeds=(0, 1, 2), traces="all")
    result = carry_out(spec, out_dir=tmp_path / "out")
    assert (result.runs, result.failed, result.violations) == (3, 0, 0)
    assert result.tables["runs"][0]["traced"] == 3
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_spark_that_does_not_start_takes_nothing_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def opening(master: str, *_: object, **__: object) -> NoReturn:
        tried.append(master)
        raise EnvironmentLacks("Spark did not start")

    monkeypatch.setattr(campaign, "session_runs", lambda: False)
    monkeypatch.setattr(campaign, "SPARK_PAYS_S", 0.0)
    monkeypatch.setattr(session, "spark_session", opening)
    spec = CampaignSpec(cells=CELLS, seeds=tuple(range(40)), traces="none")
    assert carry_out(spec, out_dir=tmp_path).runs == 40
    assert tried == [LOCAL]


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("default")
def test_spark_takes_over_what_is_left(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "session_runs", lambda: False)
    monkeypatch.setattr(campaign, "SPARK_PAYS_S", 0.0)
    spec = CampaignSpec(cells=CELLS, seeds=tuple(range(60)), traces="none")
    result = carry_out(spec, out_dir=tmp_path)
    assert (result.runs, result.failed) == (60, 0)
    assert seeds(tmp_path) == list(range(60))
    parts = Counter("early" in path.name for path in (tmp_path / "runs").glob("*.parquet"))
    assert parts[True]
    assert parts[False], "Spark did some, too"


@pytest.mark.parametrize(
    ("master", "cores"),
    [("local", 1), ("local[3]", 3), ("local[2,4]", 2), (LOCAL, local_cores("local[*,4]"))],
)
def test_a_local_master_says_how_many_runs_there_are_at_once(master: str, cores: int) -> None:
    assert local_cores(master) == cores
