"""Every scenario of the library: the views of a run are those that plain Python finds in the same rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.simulation.analyses.run_pass import rows_of_task, take_rows
from fencepost.simulation.analyses.run_views import RUN_VIEWS, RunViews, columns_of, version
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import library_names, load_any
from fencepost.simulation.trace.parquet import ParquetTrace
from tests.unit.simulation.analyses import plain_views
from tests.unit.simulation.analyses.plain_arithmetic import told_by

SEED = 4


def rows_of(table: pa.Table, *names: str) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


def in_us(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


@pytest.mark.parametrize("name", library_names())
def test_views_are_what_plain_python_finds(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.parquet"
    with ParquetTrace(path, run_id="run") as trace:
        run(load_any(name), SEED, trace=trace, raises=False)
    table = pq.read_table(path)
    rows = table.to_pylist()
    told = told_by(rows)
    with rows_of_task() as connection:
        take_rows(connection, table.to_reader())
        views = RunViews(connection)
        found = {view: views.view(view) for view in RUN_VIEWS}
    spans = ("group", "begin_us", "end_us", "settled", "cause", "epochs", "heartbeats", "bytes", "begin_seq")
    assert rows_of(found["rebalance"], *spans) == Counter(plain_views.rebalances(rows))
    moves = ("group", "begin_us", "moved", "first", "least")
    assert rows_of(found["move"], *moves) == Counter(plain_views.moves(rows, told))
    recoveries = ("topic", "partition", "from_us", "lag", "caught_up_us", "again")
    assert rows_of(found["recovery"], *recoveries) == Counter(plain_views.recoveries(rows, told))
    assert rows_of(found["stay"], "state", "visits", "us", "max_us") == Counter(plain_views.stays(rows))
    transitions = ("machine", "state_from", "state_to", "stayed_us")
    assert rows_of(found["transition"], *transitions) == Counter(plain_views.transitions(rows))
    (formed,) = found["formation"]["seconds"].to_pylist()
    assert in_us(formed) == plain_views.formation(rows)


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
