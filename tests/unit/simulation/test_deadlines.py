"""Work of Spark's that ends on time, and work that is tried again: without Spark."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.simulation.live import follow
from fencepost.simulation.pipeline.answer import _in_parts
from fencepost.simulation.pipeline.jobs import OutOfTime, run_job
from fencepost.simulation.pipeline.rounds import RunTimes, TimeLimit
from fencepost.simulation.pipeline.session import retrying, wall_clock
from fencepost.simulation.pipeline.tasks import Task


class HangingSpark:
    """A session whose action ends only when its jobs are cancelled, as on a machine that starts no worker."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        context = SimpleNamespace(cancelJobGroupAndFutureJobs=lambda group: self.cancelled.set())
        tracker = SimpleNamespace(getJobIdsForGroup=lambda group: [])
        self.sparkContext: Any = SimpleNamespace(
            setJobGroup=lambda *args, **named: None,
            statusTracker=lambda: tracker,
            _jsc=SimpleNamespace(sc=lambda: context),
        )


def test_an_action_that_hangs_is_cancelled_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.InheritableThread", threading.Thread)
    spark = HangingSpark()
    with pytest.raises(OutOfTime):
        run_job(spark, "runs", spark.cancelled.wait, until=wall_clock())  # type: ignore[arg-type]
    assert spark.cancelled.is_set()


def test_runs_within_a_time_are_measured_in_parts() -> None:
    names = ["fast", "slow"]
    times = RunTimes({"fast": 1.0, "slow": 100.0}, cores=2)
    tasks = [Task(number, seed, True) for seed in range(4) for number in (0, 1)]
    parts = _in_parts(tasks, names, times, TimeLimit(100.0, 0.0))
    assert [task for part in parts for task in part] == tasks
    assert [len(part) for part in parts] == [2, 2, 2, 2], (
        "40 s of two cores are one slow run, or 40 fast ones"
    )
    assert len(_in_parts(tasks[::2], names, times, TimeLimit(100.0, 0.0))) == 1


@pytest.mark.parametrize(
    ("master", "wanted"),
    [("local[*]", "local[*,4]"), ("local", "local[1,4]"), ("local[2]", "local[2,4]"), ("yarn", "yarn")],
)
def test_a_local_session_tries_tasks_again(master: str, wanted: str) -> None:
    assert retrying(master) == wanted


def session() -> Any:
    return follow._Session(
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        SimpleNamespace(counts=lambda: None),  # type: ignore[arg-type]
        SimpleNamespace(topic="t"),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        window_s=1.0,
    )


def test_a_worker_that_starts_late_is_started_again() -> None:
    late = [
        "Python worker failed to connect back",
        "Timed out while waiting for the Python worker to connect back",
    ]
    late *= 5

    def start() -> str:
        if late:
            raise RuntimeError(f"org.apache.spark.SparkException: {late.pop()}.")
        return "started"

    assert session()._retried(start) == "started"


def test_another_failure_is_not_tried_again() -> None:
    tries: list[int] = []

    def start() -> None:
        tries.append(1)
        raise RuntimeError("no such table")

    with pytest.raises(RuntimeError, match="no such table"):
        session()._retried(start)
    assert len(tries) == 1


def test_starts_have_an_end() -> None:
    def start() -> None:
        raise RuntimeError("Python worker failed to connect back")

    with pytest.raises(RuntimeError, match="connect back"):
        session()._retried(start)
