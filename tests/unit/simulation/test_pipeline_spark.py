"""Spark for real: campaigns of real runs, interrupts."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.pipeline.analyze import analyze
from fencepost.simulation.pipeline.campaign import CampaignResult, carry_out
from fencepost.simulation.pipeline.jobs import run_job, run_jobs
from fencepost.simulation.pipeline.session import error_text, spark_session
from fencepost.simulation.pipeline.spec import CampaignSpec
from fencepost.simulation.pipeline.tasks import cells_of, parse_grid, seeds_of
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("spark"),
    # Libraries of Spark's own warn of each other's; our code runs in the tests beside this one.
    pytest.mark.filterwarnings("default"),
]


def campaign(scenario: str, seeds: int, words: Iterable[str], out: Path, **options: Any) -> CampaignResult:
    given = {key: options.pop(key) for key in ("traces", "time_limit_s") if key in options}
    spec = CampaignSpec(cells=cells_of([scenario], parse_grid(words)), seeds=seeds_of(seeds), **given)
    return carry_out(spec, out_dir=out, **options)


@pytest.mark.long
def test_a_campaign_runs_everything_once_and_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    words = ["members=2,3", "duration=150s"]
    first = campaign("steady", 2, words, out, traces="none")
    assert (first.runs, first.failed, first.violations) == (4, 0, 0)
    assert first.report == str(out / "report.html")
    assert list((out / "traces").iterdir()) == []
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}

    again = campaign("steady", 4, words, out, traces="all", resume=True, report=tmp_path / "r.html")
    assert (again.runs, again.failed) == (8, 0)
    assert before.items() <= {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}.items()
    summary = pq.read_table(out / "runs").to_pylist()
    assert len({row["run_id"] for row in summary}) == 8
    traced = set(pq.read_table(out / "traces", columns=["run_id"]).column(0).to_pylist())
    assert traced == {row["run_id"] for row in summary if row["traced"]}
    assert {row["seed"] for row in summary if row["traced"]} == {2, 3}
    assert analyze(out, tables="spark") == analyze(out, tables="driver") == again.tables
    compared = {row["measure"]: row for row in again.tables["comparisons"] if row["quantile"] == "p90"}
    assert compared.keys() >= {"formation", "run_downtime"}
    assert {row["parameters"] for row in again.tables["rebalances"]} == {
        '{"duration": "150s", "members": "2"}',
        '{"duration": "150s", "members": "3"}',
    }
    (one,) = (row for row in summary if row["seed"] == 1 and '"3"' in row["parameters"])
    assert one["digest"] == run(load("steady", members=3, duration="150s"), 1).digest
    assert "members=3" in (tmp_path / "r.html").read_text()


def test_mutants_are_killed_and_count_in_no_total(spark: SparkSession, tmp_path: Path) -> None:
    grid = ["mutant=none,refusal-writes,tombstone-needs-a-member", "duration=2m"]
    result = campaign("lossy-network", 3, grid, tmp_path / "out", traces="none")
    assert (result.runs, result.failed, result.violations, result.failures) == (9, 0, 0, [])
    found = {row["mutant"]: row for row in result.tables["mutants"]}
    assert sorted(found) == ["refusal-writes", "tombstone-needs-a-member"]
    row = found["refusal-writes"]
    assert (row["runs"], row["failed"], row["share"]) == (3, 0, row["killed"] / 3)
    assert row["killed"] >= 1
    assert "failed-changes-nothing" in row["invariants"]
    assert sum(each["violations"] for each in result.tables["runs"]) > 0
    page = Path(result.report).read_text()
    assert "Mutants killed" in page
    assert "1 of 2 mutants killed" in page


def test_runs_that_fail_are_rows(spark: SparkSession, tmp_path: Path) -> None:
    result = campaign("steady", 3, (), tmp_path / "out", time_limit_s=0.001)
    assert (result.runs, result.failed, result.violations) == (3, 3, 0)
    assert [row["unconverged"] for row in result.tables["runs"]] == [0]
    page = Path(result.report).read_text()
    assert "took longer than 0.001 s" in page


def endless(spark: SparkSession, tasks: int) -> Any:
    """A job whose tasks sleep for ten minutes."""

    def sleep(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            time.sleep(600)
            yield batch

    return spark.range(0, tasks, 1, tasks).mapInArrow(sleep, "id long").collect()


def assert_no_job_is_left(spark: SparkSession) -> None:
    deadline = time.monotonic() + 60
    while active := spark.sparkContext.statusTracker().getActiveJobsIds():
        assert time.monotonic() < deadline, f"jobs {active} run on"
        time.sleep(0.05)


def test_an_interrupt_cancels_the_jobs(spark: SparkSession) -> None:
    interrupt = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_job(spark, "endless", lambda: endless(spark, 2))
    interrupt.join()
    assert_no_job_is_left(spark)
    # Both cores were busy: this one ends only if their tasks were killed.
    assert run_job(spark, "after", lambda: spark.range(5).count()) == 5
    assert time.monotonic() - began < 300, "the tasks would sleep for 600 s"


def test_progress_is_told_while_a_job_runs(spark: SparkSession) -> None:
    told: list[tuple[int, int]] = []
    run_job(spark, "sum", lambda: spark.range(0, 100, 1, 8).count(), lambda *at: told.append(at))
    assert told
    assert all(0 <= done <= total for done, total in told)


def test_jobs_run_side_by_side_and_are_counted(spark: SparkSession) -> None:
    met = threading.Barrier(2, timeout=60)

    def action(of: int) -> int:
        met.wait()
        return spark.range(of).count()

    more: list[int] = []
    jobs = {f"of {of}": functools.partial(action, of) for of in range(4)}
    assert run_jobs(spark, jobs, advance=more.append, at_once=2) == {f"of {of}": of for of in range(4)}
    assert sum(more) == 4


def test_a_job_that_fails_ends_the_others(spark: SparkSession) -> None:
    submitted = threading.Event()
    begun: list[str] = []

    def fail() -> Any:
        submitted.wait(60)
        raise FencepostError("it cannot be")

    def wait_for_a_job(done: int, total: int) -> None:
        if total:
            submitted.set()

    jobs: dict[str, Callable[[], Any]] = {
        "endless": lambda: endless(spark, 1),
        "fails": fail,
        "never": lambda: begun.append("never"),
    }
    with pytest.raises(FencepostError, match="it cannot be"):
        run_jobs(spark, jobs, wait_for_a_job, at_once=2)
    assert begun == []
    assert submitted.is_set()
    assert_no_job_is_left(spark)


def test_a_job_that_is_submitted_after_another_failed_does_not_run(spark: SparkSession) -> None:
    begun, failed = threading.Event(), threading.Event()
    refused: list[str] = []

    def fail() -> Any:
        assert begun.wait(60)  # what has not begun never does
        failed.set()
        raise FencepostError("it cannot be")

    def late() -> Any:
        begun.set()
        failed.wait(60)
        time.sleep(1)
        try:
            endless(spark, 1)
        except Exception as error:
            refused.append(str(error))
            raise

    with pytest.raises(FencepostError, match="it cannot be"):
        run_jobs(spark, {"late": late, "fails": fail}, at_once=2)
    assert len(refused) == 1
    assert "cancelled" in refused[0]
    assert_no_job_is_left(spark)


def test_the_cause_behind_a_failed_wait_is_told(spark: SparkSession) -> None:
    """Spark wraps an error in a scalar subquery in one that only says that a wait has failed."""

    def fail(batches: Any) -> Any:
        yield from batches
        raise MemoryError("no room")

    failing = spark.range(1).mapInArrow(fail, "id long")
    query = "SELECT (SELECT max(id) FROM {failing}) AS most, id FROM range(1)"
    with pytest.raises(Exception, match="awaitResult") as raised:
        spark.sql(query, failing=failing).collect()
    assert error_text(raised.value) == "MemoryError: no room"


def test_a_master_that_is_none_is_refused() -> None:
    with (
        pytest.raises(FencepostError, match=r"--master nowhere: expected local\[N\]"),
        spark_session("nowhere"),
    ):
        pass


def test_missing_libraries_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EnvironmentLacks, match=r"pip install 'fencepost\[spark\]'"), spark_session():
        pass
