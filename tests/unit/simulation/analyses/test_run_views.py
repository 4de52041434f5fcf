"""Every scenario of the library: the views of a run are those that plain Python finds in the same rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fencepost.simulation.analyses.run_pass import rows_of_task
from fencepost.simulation.analyses.run_views import RUN_VIEWS, RunViews, columns_of, version
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import library_names, load_any
from fencepost.simulation.trace.parquet import ParquetTrace
from tests.unit.simulation.analyses.compared_views import compare_views

SEED = 4


@pytest.mark.parametrize("name", library_names())
def test_views_are_what_plain_python_finds(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.parquet"
    with ParquetTrace(path, run_id="run") as trace:
        run(load_any(name), SEED, trace=trace, raises=False)
    compare_views(pq.read_table(path))


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
