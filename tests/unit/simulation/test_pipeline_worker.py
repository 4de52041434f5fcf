"""What a worker makes of one run, whatever that run does; and which files are traces."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation import run as run_module
from fencepost.simulation.pipeline.plan import Task, cells_of
from fencepost.simulation.pipeline.traces import find_traces
from fencepost.simulation.pipeline.worker import Orders, TimeLimitReached, run_one, time_limit
from fencepost.simulation.run import RunResult
from fencepost.simulation.trace.parquet import SCHEMA, ParquetTrace
from fencepost.simulation.trace.schema import Row
from fencepost.simulation.world.observers import Violation

ROW = Row(1, 0, "simulated", "g", "", "run.start", "", "", -1, -1, (), "", "steady 7")


def orders(*, trace_violations: bool = True, limit: float = 60.0) -> Orders:
    return Orders(
        cells=cells_of(["steady"], {"members": ["2"], "duration": ["150s"]}),
        tasks=(),
        root="",
        generation=0,
        time_limit_s=limit,
        trace_violations=trace_violations,
    )


def one(told: Orders, *, traced: bool, seed: int = 7) -> tuple[dict[str, Any], list[pa.RecordBatch]]:
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


def test_a_run_that_takes_too_long_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object, **__: object) -> None:
        while True:
            time.perf_counter()

    monkeypatch.setattr(run_module, "run", endless)
    row, _ = one(orders(limit=0.05), traced=False)
    assert row["error"] == "took longer than 0.05 s"


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

    with pytest.raises(TimeLimitReached), time_limit(0.01):
        stubborn()
    assert swallowed == [1]


@pytest.mark.parametrize(("kept", "calls"), [(True, 2), (False, 1)])
def test_a_violating_run_is_traced_by_running_it_again(
    monkeypatch: pytest.MonkeyPatch, kept: bool, calls: int
) -> None:
    made = []

    def violating(scenario: Any, seed: int, trace: Any = None) -> RunResult:
        made.append(trace)
        if trace is not None:
            trace.write([ROW])
        broken = Violation(invariant="one owner", seq=1, t_us=0, message="two of them")
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
            violations=[broken],
            digest="d",
        )

    monkeypatch.setattr(run_module, "run", violating)
    row, trace = one(orders(trace_violations=kept), traced=False)
    assert (len(made), len(trace), row["traced"]) == (calls, calls - 1, kept)
    assert (row["violations"], row["invariant"], row["message"]) == (1, "one owner", "two of them")


# -- which files are traces ---------------------------------------------------------------------------------


def trace_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with ParquetTrace(path, "r") as trace:
        trace.write([ROW])
    return path


def test_a_file_a_folder_and_a_campaign_are_found(tmp_path: Path) -> None:
    single = trace_file(tmp_path / "one.parquet")
    assert find_traces(single).traces == (str(single),)
    nested = trace_file(tmp_path / "more/two.parquet")
    trace_file(tmp_path / ".hidden/three.parquet")
    assert find_traces(tmp_path).traces == (str(nested), str(single))
    inside = trace_file(tmp_path / "camp/traces/part.parquet")
    pq.write_table(pa.table({"run_id": ["r"]}), trace_file(tmp_path / "camp/runs/part.parquet"))
    found = find_traces(tmp_path / "camp")
    assert found.traces == (str(inside),)
    assert found.runs == (str(tmp_path / "camp/runs/part.parquet"),)


def test_what_is_no_trace_is_told(tmp_path: Path) -> None:
    with pytest.raises(FencepostError, match="no such file"):
        find_traces(tmp_path / "missing")
    with pytest.raises(
        FencepostError, match="no trace in it; expected Parquet files with the columns run_id"
    ):
        find_traces(tmp_path)
    (tmp_path / "a.parquet").write_text("text")
    with pytest.raises(FencepostError, match=r"a\.parquet: not a readable Parquet file"):
        find_traces(tmp_path)


def test_missing_columns_and_wrong_types_are_named(tmp_path: Path) -> None:
    table = pq.read_table(trace_file(tmp_path / "t.parquet"))
    pq.write_table(table.drop(["actor", "t_us"]), tmp_path / "t.parquet")
    with pytest.raises(FencepostError, match="the columns t_us, actor are missing"):
        find_traces(tmp_path)
    wrong = table.set_column(table.schema.get_field_index("t_us"), "t_us", pa.array(["soon"]))
    pq.write_table(wrong, tmp_path / "t.parquet")
    with pytest.raises(FencepostError, match="column t_us has type string, expected a whole number"):
        find_traces(tmp_path)
