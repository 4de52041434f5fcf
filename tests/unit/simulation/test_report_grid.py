"""The grid of a campaign, its charts, and the runs of traces that exist."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.analyses.catalogue import TABLES
from fencepost.simulation.cli import main
from fencepost.simulation.pipeline.analyze import AnalysisResults
from fencepost.simulation.pipeline.reporting import interesting_runs, listed_runs, report_runs
from fencepost.simulation.pipeline.traces import run_schema
from fencepost.simulation.report.figures import charts_of
from fencepost.simulation.report.model import Curve, ReportInput, as_json, grid_of, natural
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load
from fencepost.simulation.trace.parquet import ParquetTrace

QUANTILES = {"count": 5, "median": 1.0, "p90": 2.0, "p99": 3.0, "max": 4.0}


def row(table: str, parameters: dict[str, str], scenario: str = "deploy", **more: Any) -> dict[str, Any]:
    empty = {column.name: None for column in TABLES[table].columns}
    return empty | {"scenario": scenario, "parameters": json.dumps(parameters)} | more


def tables_of(cells: list[dict[str, str]], scenarios: tuple[str, ...] = ("deploy",)) -> dict[str, Any]:
    found: dict[str, Any] = {name: [] for name in TABLES}
    for scenario in scenarios:
        for number, cell in enumerate(cells):
            counts = {"runs": 3, "failed": 0, "violations": number, "unconverged": 0, "traced": 3}
            found["runs"].append(row("runs", cell, scenario, **counts))
            found["rebalances"].append(row("rebalances", cell, scenario, **QUANTILES))
            for cause in ("crash", "all"):
                spread = QUANTILES | {"median": 7.0 if cause == "all" else 9.0, "cause": cause}
                found["downtime"].append(row("downtime", cell, scenario, **spread))
    return found


def charts(tables: dict[str, Any], **more: Any) -> dict[str, Any]:
    data = ReportInput(title="t", source="s", tables=tables, **more)
    return {chart.title: json.loads(chart.json) for chart in charts_of(data)}


def test_axes_are_parameters_with_several_values() -> None:
    cells = [
        {"group.members": members, "duration": duration, "fixed": "1"}
        for members in ("100", "20", "3")
        for duration in ("90s", "10s")
    ]
    grid = grid_of(tables_of(cells))
    assert grid.axes == {"group.members": ["3", "20", "100"], "duration": ["10s", "90s"]}
    first = grid.cells[0]
    assert first.at == {"scenario": "deploy", "group.members": "100", "duration": "90s", "fixed": "1"}
    assert (first.values["rebalance_p99"], first.values["downtime_median"]) == (3.0, 7.0)
    assert first.values["heartbeats"] is None
    assert [cell.values["violations"] for cell in grid.cells] == [0, 1, 2, 3, 4, 5]
    assert set(as_json(grid)["cells"][0]) == {"label", "at", "values", "counts"}
    assert (first.counts["runs"], first.counts["heartbeats"]) == (3, None)


def test_scenarios_are_an_axis_too() -> None:
    assert grid_of(tables_of([{}], ("deploy", "crash"))).axes == {"scenario": ["deploy", "crash"]}
    assert grid_of(tables_of([{}])).axes == {}


def test_numbers_in_texts_sort_as_numbers() -> None:
    assert sorted(("m=10, z=a", "m=9, z=b", "m=10.5", "a"), key=natural) == [
        "a",
        "m=9, z=b",
        "m=10, z=a",
        "m=10.5",
    ]


def test_values_of_one_parameter_are_dots_on_ranges_that_nothing_joins() -> None:
    drawn = charts(tables_of([{"members": "30"}, {"members": "4"}]))
    ranges, *dots = drawn["How long rebalances took, by members"]["data"]
    first, last = ranges["y"][0], ranges["y"][3]
    assert (first.split()[0], last.split()[0]) == ("members=4", "members=30")
    assert ranges["y"] == [first, first, None, last, last, None]
    assert [(each["name"], each["mode"]) for each in dots] == [
        (name, "markers") for name in ("median", "90 %", "99 %", "longest")
    ]
    layout = drawn["How long partitions were down, by members"]["layout"]
    assert layout["yaxis"]["tickangle"] == 0
    assert [each.split()[0] for each in layout["yaxis"]["ticktext"]] == ["members=4", "members=30"]
    assert all(text.split()[1] in {"ms", "s", "min", "h"} for text in layout["xaxis"]["ticktext"])
    assert len(layout["xaxis"]["ticktext"]) == len(layout["xaxis"]["tickvals"]) > 1


@pytest.mark.parametrize(("count", "mode"), [(6, "lines"), (7, "markers")])
def test_many_distributions_get_a_line_each(count: int, mode: str) -> None:
    cells = [{"members": str(n), "zone": str(n)} for n in range(count)]
    curves = tuple(Curve(f"members={n}", 5, tuple(map(float, range(101)))) for n in range(count))
    drawn = charts(tables_of(cells), rebalance_curves=curves)
    assert drawn["How long rebalances took"]["data"][-1]["mode"] == mode


def test_shutdowns_and_gaps_are_drawn_where_there_are_any() -> None:
    tables = tables_of([{}])
    assert not [title for title in charts(tables) if "shut down" in title or "active consumer" in title]
    for name in ("escalations", "sac_gaps"):
        tables[name] = [{"scenario": "streams", "parameters": "{}", "answer": "SHUTDOWN_CLIENT"} | QUANTILES]
    tables["escalations"].append(tables["escalations"][0] | {"answer": "SHUTDOWN_APPLICATION"})
    drawn = charts(tables)
    names = ["streams, SHUTDOWN_APPLICATION", "streams, SHUTDOWN_CLIENT"]
    shown = drawn["How long an application took to shut down"]["data"][1]["y"]
    assert [name.partition(" (")[0] for name in shown] == names
    assert drawn["How long an application took to shut down"]["data"][1]["x"] == [1.0, 1.0]
    assert drawn["How long a stream had no active consumer"]["data"][4]["x"] == [4.0]


def test_runs_are_listed_with_what_shows_them_and_trouble_first() -> None:
    def summary(run_id: str, **more: Any) -> dict[str, Any]:
        given = {"run_id": run_id, "scenario": "s", "parameters": "{}", "rebalances": 1, "heartbeats": 2}
        given |= {"error": None, "violations": 0, "converged": True, "traced": True, "command": "again"}
        return given | more

    listed = listed_runs(
        [
            summary("a"),
            summary("b", converged=False),
            summary("c", violations=1, traced=False),
            summary("d", error="Traceback\nValueError: no"),
        ],
        "some where",
    )
    assert [(each["run_id"], each["outcome"]) for each in listed] == [
        ("b", "did not settle"),
        ("c", "1 violation"),
        ("d", "failed: ValueError: no"),
        ("a", "fine"),
    ]
    assert listed[3]["show"] == "fencepost analyze 'some where' --run a --report a.html"
    assert (listed[1]["show"], listed[1]["again"]) == ("", "again")


def test_runs_worth_a_look_are_of_all_scenarios() -> None:
    tables: dict[str, Any] = {
        "violations": [{"example": "a-1", "invariant": "one-owner"}],
        "longest_rebalances": [{"run_id": "a-2", "seconds": 3.0}, {"run_id": "a-3", "seconds": 2.0}],
    }
    summaries = [
        {"run_id": f"{scenario}-{number}", "scenario": scenario, "events": number, "traced": number < 4}
        for scenario in "abc"
        for number in range(5)
    ]
    assert interesting_runs(AnalysisResults(tables), summaries) == [
        ("a-1", "violates one-owner"),
        ("a-2", "the longest rebalance, 3.00 s"),
        ("b-3", "the most events of b"),
    ]


def test_any_run_of_a_trace_has_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("first", "second"):
        with ParquetTrace(tmp_path / f"{name}.parquet", name) as trace:
            run(load("steady"), 1, trace=trace)
    page = tmp_path / "page.html"
    words = ["analyze", str(tmp_path), "--run", "second", "--run", "first", "--run", "second"]
    assert main([*words, "--report", str(page)]) == 0
    text = page.read_text()
    assert [text.count(f'data-run-id="{name}"') for name in ("first", "second")] == [1, 1]
    assert "<title>2 runs of" in text
    capsys.readouterr()
    assert main(words) == 2
    assert "expected --report F.html" in capsys.readouterr().err
    assert main(["analyze", str(tmp_path), "--run", "third", "--report", str(page)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no run third among its 2 traces: expected a name such as first, second" in said


def test_a_run_without_a_trace_is_told_how_to_get_one(tmp_path: Path) -> None:
    for folder in ("runs", "traces"):
        (tmp_path / folder).mkdir()
    with ParquetTrace(tmp_path / "traces" / "a.parquet", "first") as trace:
        run(load("steady"), 1, trace=trace)
    summary = {"run_id": "second", "scenario": "steady", "parameters": "{}", "seed": 2, "wall_seconds": 1.0}
    summary |= {"heartbeats": 1, "converged": True, "violations": 0, "traced": False, "error": None}
    summary |= {"command": "fencepost simulate steady --seed 2"}
    pq.write_table(pa.Table.from_pylist([summary], schema=run_schema()), tmp_path / "runs" / "a.parquet")
    with pytest.raises(FencepostError, match=r"of second was not kept; .*steady --seed 2 --report F\.html"):
        report_runs(tmp_path, ["second"], tmp_path / "page.html")
