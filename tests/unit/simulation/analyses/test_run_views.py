"""The views of a run are those that plain Python finds in the same rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fencepost.simulation.analyses.run_pass import rows_of_task, take_rows
from fencepost.simulation.analyses.run_views import RUN_VIEWS, RunViews, columns_of, version
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.trace.parquet import ParquetTrace
from fencepost.simulation.trace.schema import LOG_WORLD, Row
from tests.unit.simulation.analyses.compared_views import compare_views, table_of

SEED = 4


@pytest.mark.parametrize(  # of the others, test_plain_arithmetic.py says so
    "name",
    ["coordinator-failover", "rolling-migration", "sac-churn", "streams-standby-tasks", "transactions"],
)
def test_views_are_what_plain_python_finds(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.parquet"
    with ParquetTrace(path, run_id="run") as trace:
        run(load_any(name), SEED, trace=trace, raises=False)
    compare_views(pq.read_table(path))


def test_ids_with_a_slash_are_those_of_members_that_are_not_single_active() -> None:
    """As librdkafka makes them; the two have the same text before the slash."""
    moments = [
        (0, "a/1", "host", "", "", "start"),
        (0, "a/1", "member.state", "UNSUBSCRIBED", "JOINING", "heartbeat"),
        (1, "a/2", "host", "", "", "start"),
        (1, "a/2", "member.state", "", "JOINING", "round"),
        (5, "a/1", "member.state", "JOINING", "STABLE", "heartbeat"),
        (7, "a/2", "host", "", "", "crash"),
        (9, "a/1", "host", "", "", "stopped"),
        (20, "", "run.end", "", "", ""),
    ]
    table = table_of(
        Row(seq, at, "embedded", "g", actor, kind, before, after, -1, -1, (), "", detail)
        for seq, (at, actor, kind, before, after, detail) in enumerate(moments)
    )
    compare_views(table)
    with rows_of_task() as connection:
        take_rows(connection, table.to_reader())
        views = RunViews(connection)
        stays = {row["state"]: (row["visits"], row["us"]) for row in views.view("stay").to_pylist()}
        moves = [(row["machine"], row["stayed_us"]) for row in views.view("transition").to_pylist()]
    assert stays == {"JOINING": (2, 5 + 6), "STABLE": (1, 4)}
    assert sorted(moves, key=str) == [("member", 5), ("member", None), ("member", None)]


def test_a_view_has_the_columns_that_are_declared() -> None:
    with rows_of_task() as connection:
        views = RunViews(connection)
        for name in RUN_VIEWS:
            assert views.view(name).column_names == columns_of(name)


def test_the_version_is_that_of_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    before = version()
    version.cache_clear()
    monkeypatch.setitem(RUN_VIEWS, "stay", "state string")  # type: ignore[arg-type]
    try:
        assert version() != before
    finally:
        monkeypatch.undo()
        version.cache_clear()
    assert version() == before


def test_what_kafkas_log_does_not_tell_is_not_claimed() -> None:
    """No judge judges it, and it has no time of joining."""
    moments = [
        (0, "a", "host", "", "", "start"),
        (0, "a", "member.state", "UNSUBSCRIBED", "JOINING", ""),
        (0, "a", "member.state", "JOINING", "STABLE", ""),
        (0, "a", "assignment", "", "STABLE", "a"),
        (9, "a", "member.removed", "", "", "gone"),
        (9, "a", "host", "", "", "stopped"),
    ]
    with rows_of_task() as connection:
        rows = (
            Row(seq, at, LOG_WORLD, "g", actor, kind, before, after, -1, -1, (), "", detail)
            for seq, (at, actor, kind, before, after, detail) in enumerate(moments)
        )
        take_rows(connection, table_of(rows).to_reader())
        views = RunViews(connection)
        assert views.view("situation").to_pylist() == []
        assert [row["state"] for row in views.view("stay").to_pylist()] == ["STABLE"]
        assert [row["stayed_us"] for row in views.view("transition").to_pylist()] == [None, None]
