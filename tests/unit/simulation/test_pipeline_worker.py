"""What a worker makes of one run, whatever that run does; and which files are traces."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.simulation import run as run_module
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.pipeline import runs
from fencepost.simulation.pipeline.runs import (
    JobSpec,
    Limit,
    RunGivenUp,
    TimeLimitReached,
    child_for,
    run_one,
)
from fencepost.simulation.pipeline.tasks import Task, cells_of, parse_grid
from fencepost.simulation.pipeline.worker import PartFiles, recover
from fencepost.simulation.run import RunResult
from fencepost.simulation.trace.parquet import SCHEMA
from fencepost.simulation.trace.schema import Row

ROW = Row(1, 0, "simulated", "g", "", "run.start", "", "", -1, -1, (), "", "steady 7")


def orders(*, trace_violations: bool = True, limit: float = 60.0) -> JobSpec:
    return JobSpec(
        cells=cells_of(["steady"], {"members": ["2"], "duration": ["150s"]}),
        tasks=(),
        root="",
        generation=0,
        time_limit_s=limit,
        trace_violations=trace_violations,
    )


def one(told: JobSpec, *, traced: bool, seed: int = 7) -> tuple[dict[str, Any], list[pa.RecordBatch]]:
    return run_one(told, told.cells[0], Task(0, seed, traced))


def test_a_run_becomes_a_summary_and_a_trace() -> None:
    told = orders()
    row, trace = one(told, traced=True)
    assert row["run_id"] == told.cells[0].run_id(7)
    assert json.loads(row["parameters"]) == {"members": "2", "duration": "150s"}
    assert (row["members"], row["error"], row["violations"], row["traced"]) == (2, None, 0, True)
    table = pa.Table.from_batches(trace)
    assert table.schema.equals(SCHEMA)
    assert set(table.column("run_id").to_pylist()) == {row["run_id"]}
    assert table.column("seq").to_pylist() == sorted(table.column("seq").to_pylist())


def test_without_a_trace_the_digest_is_the_same() -> None:
    told = orders()
    assert one(told, traced=False)[0]["digest"] == one(told, traced=True)[0]["digest"]
    assert one(told, traced=False)[1] == []


def test_an_exception_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the wheels came off")

    monkeypatch.setattr(run_module, "run", broken)
    row, trace = one(orders(), traced=True)
    assert row["error"].splitlines()[-1] == "RuntimeError: the wheels came off"
    assert (row["violations"], row["traced"], trace) == (0, False, [])


def test_an_exception_of_the_simulated_is_a_row_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the wheels came off")

    monkeypatch.setattr("fencepost.simulation.kernel.network.Network.deliver", broken)
    row, trace = one(orders(), traced=True)
    assert "test_pipeline_worker.py" in row["error"]
    assert row["error"].splitlines()[-1] == "RuntimeError: the wheels came off"
    assert (row["violations"], row["traced"], trace) == (0, False, [])


def test_an_exception_that_a_violation_leads_to_leaves_it_one() -> None:
    """This bug gives two members a partition, which the next record of the first one can't follow."""
    (cell,) = cells_of(["churn"], parse_grid(["members=60", "partitions=600", "mutant=owner-by-epoch"]))
    row, trace = one(msgspec.structs.replace(orders(), cells=(cell,)), traced=False)
    assert (row["invariant"], row["error"], row["traced"]) == ("one-owner", None, True)
    told = pa.Table.from_batches(trace).to_pylist()
    assert [each["error"] for each in told if each["kind"] == "violation"][-1] == "raised InconsistentRecord"


def test_a_run_that_takes_too_long_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, **__: object) -> None:
        while True:
            time.perf_counter()

    monkeypatch.setattr(run_module, "run", endless)
    row, _ = one(orders(limit=0.05), traced=False)
    assert row["error"].startswith("took longer than 0.05 s; then it was at test_pipeline_worker.py:")


def test_the_limit_rings_again_if_it_is_swallowed() -> None:
    swallowed = []

    def stubborn() -> None:
        while True:
            try:
                while True:
                    time.perf_counter()
            except TimeLimitReached:
                if swallowed:
                    raise
                swallowed.append(1)

    with pytest.raises(TimeLimitReached), Limit(0.01)():
        stubborn()
    assert swallowed == [1]


@pytest.mark.parametrize("after", ["goes on", "raises"])
def test_a_run_that_swallows_its_limit_counts_as_one_that_took_too_long(
    after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stubborn(*_: object, **__: object) -> RunResult:
        try:
            while True:
                time.perf_counter()
        except TimeLimitReached:
            if after == "raises":
                raise RuntimeError("my own timeout") from None
        return result(1)

    monkeypatch.setattr(run_module, "run", stubborn)
    row, _ = one(orders(limit=0.01), traced=False)
    assert row["error"].startswith("took longer than 0.01 s")
    assert row["violations"] == 0


def result(seed: int, *violations: Violation) -> RunResult:
    return RunResult(
        scenario="steady",
        seed=seed,
        members=2,
        partitions=18,
        virtual_seconds=1.0,
        wall_seconds=0.1,
        events=1,
        heartbeats=1,
        rebalances=0,
        converged=True,
        violations=list(violations),
        digest="d",
    )


# -- a process of its own ---------------------------------------------------------------------------------


def busy() -> None:
    while True:
        try:
            while True:
                time.perf_counter()
        except BaseException:
            continue


def stuck_in_c() -> None:
    pickle.loads(pickle.dumps(Slow()))


class Slow:
    """Takes for ever inside of one call to C, which lets no handler of Python's run."""

    def __reduce__(self) -> Any:
        return max, (range(10**18),)


def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def exit_at_once() -> None:
    os._exit(7)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("misdeed", "told"),
    [
        (busy, "took longer than 0.2 s and could not be interrupted; then it was at test_.*, in busy"),
        (
            stuck_in_c,
            "took longer than 0.2 s and could not be interrupted; then it was at test_.*, in stuck_in_c",
        ),
        (segfault, "its process died of SIGSEGV; then it was at test_.*, in segfault"),
        (exit_at_once, "its process ended with exit code 7$"),
    ],
)
def test_what_hangs_or_dies_costs_one_run(
    misdeed: Callable[[], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(scenario: Any, seed: int, trace: Any = None, **_: Any) -> RunResult:
        if seed == 2:
            misdeed()
        return result(seed)

    monkeypatch.setattr(run_module, "run", run)
    monkeypatch.setattr(runs, "GRACE_S", 2.0)
    patient, given = orders(), orders(limit=0.2)
    rows = []
    with child_for(patient) as child:
        for seed in (1, 2, 3):
            child.job = given if seed == 2 else patient  # a busy machine may take its time to fork
            rows.append(child.run(Task(0, seed, False))[0])
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert re.match(told, rows[1]["error"]), rows[1]["error"]
    assert rows[1]["run_id"] == given.cells[0].run_id(2)


@pytest.mark.processes
def test_a_run_that_is_not_finished_in_time_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(scenario: Any, seed: int, trace: Any = None, **_: Any) -> RunResult:
        if seed == 2:
            stuck_in_c()
        return result(seed)

    monkeypatch.setattr(run_module, "run", run)
    with child_for(orders()) as child:
        with pytest.raises(RunGivenUp):
            child.run(Task(0, 2, False), time.time() + 0.2)
        assert child.run(Task(0, 1, False), time.time() + 60)[0]["error"] is None


@pytest.mark.processes
def test_a_hand_answers_as_the_run_itself_does() -> None:
    told = orders()
    with child_for(told) as child:
        there, trace = child.run(Task(0, 7, True))
    here, kept = one(told, traced=True)
    assert {**there, "wall_seconds": 0} == {**here, "wall_seconds": 0}
    assert pa.Table.from_batches(trace).equals(pa.Table.from_batches(kept))
    with pytest.raises(ProcessLookupError):
        os.kill(child._child, 0)


# -- parts ------------------------------------------------------------------------------------------------


def test_runs_are_on_disk_as_soon_as_they_are_finished(tmp_path: Path) -> None:
    for folder in ("runs", "traces"):
        (tmp_path / folder).mkdir()
    told = orders()
    parts = PartFiles(tmp_path, "part-000-000000")
    for seed in (1, 2):
        parts.add(*one(told, traced=seed == 1, seed=seed))
    (journal,) = (tmp_path / "runs").iterdir()
    damaged = journal.read_bytes() + (1000).to_bytes(8) + b"half a run"  # written when the machine went down
    parts.flush()
    for path in tmp_path.glob("*/part*"):
        path.unlink()
    journal.write_bytes(damaged)

    recover(tmp_path)
    (runs,) = (tmp_path / "runs").iterdir()
    table = pq.read_table(runs)
    assert table.column("seed").to_pylist() == [1, 2]
    (traces,) = (tmp_path / "traces").iterdir()
    assert set(pq.read_table(traces).column("run_id").to_pylist()) == {told.cells[0].run_id(1)}
    assert PartFiles(tmp_path, "part-000-000000").finished == set(table.column("run_id").to_pylist())


def test_a_journal_beside_its_part_is_no_second_one(tmp_path: Path) -> None:
    for folder in ("runs", "traces"):
        (tmp_path / folder).mkdir()
    told = orders()
    with PartFiles(tmp_path, "part-000-000000") as parts:
        parts.add(*one(told, traced=False, seed=1))
        (journal,) = (tmp_path / "runs").iterdir()
        kept = journal.read_bytes()
    journal.write_bytes(kept)  # killed between the part's writing and the journal's removal
    recover(tmp_path)
    (part,) = (tmp_path / "runs").iterdir()
    assert pq.read_table(part).num_rows == 1


@pytest.mark.parametrize(("kept", "calls"), [(True, 2), (False, 1)])
def test_a_violating_run_is_traced_by_running_it_again(
    monkeypatch: pytest.MonkeyPatch, kept: bool, calls: int
) -> None:
    made = []

    def violating(scenario: Any, seed: int, trace: Any = None, **_: Any) -> RunResult:
        made.append(trace)
        if trace is not None:
            trace.write([ROW])
        broken = Violation(invariant="one owner", seq=1, t_us=0, message="two of them")
        return result(seed, broken)

    monkeypatch.setattr(run_module, "run", violating)
    row, trace = one(orders(trace_violations=kept), traced=False)
    assert (len(made), len(trace), row["traced"]) == (calls, calls - 1, kept)
    assert (row["violations"], row["invariant"], row["message"]) == (1, "one owner", "two of them")
