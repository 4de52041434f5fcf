"""Views of runs that are kept next to traces: what is computed again, and that tables stay the same."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.analyses import driver
from fencepost.simulation.pipeline import analyze as analysis
from fencepost.simulation.pipeline import kept_tables, run_files
from fencepost.simulation.pipeline.analyze import Tables, analyze_files
from fencepost.simulation.pipeline.analyze import analyze as analyze_all
from fencepost.simulation.pipeline.progress import Progress
from fencepost.simulation.pipeline.run_files import Source, dealt, found_views, sharing, sources_of
from fencepost.simulation.pipeline.traces import KEPT, TraceFiles, find_traces, run_schema
from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.trace.parquet import ParquetTrace

pytestmark = pytest.mark.usefixtures("spark")

SOME = ("runs", "rebalances", "sac_gaps")
"""Tables that read all kinds of kept views; the others take longer, and say nothing more about them."""
analyze = functools.partial(analyze_all, only=SOME)


def traced(folder: Path, seed: int, name: str = "rolling-deploy") -> Path:
    path = folder / f"{name}-{seed}.parquet"
    with ParquetTrace(path, run_id=path.stem) as trace:
        run(load_any(name), seed, trace=trace)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("runs")
    return (traced(folder, 1), traced(folder, 2), traced(folder, 1, "sac-churn"))


@pytest.fixture
def folder(tmp_path: Path, runs: tuple[Path, ...]) -> Path:
    for path in runs:
        os.link(path, tmp_path / path.name)
    return tmp_path


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, runs: tuple[Path, ...], spark: object) -> Tables:
    """The tables of the same rows in one file, next to which nothing is kept."""
    path = tmp_path_factory.mktemp("one") / "all.parquet"
    pq.write_table(pa.concat_tables([pq.read_table(each) for each in sorted(runs)]), path)
    tables = analyze(path)
    assert not (path.parent / KEPT).exists()
    assert all(tables[name] for name in SOME)
    return tables


def kept(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in (folder / KEPT).glob("*.parquet")}


def test_a_second_analysis_computes_no_run_again(
    folder: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert analyze(folder) == expected
    before = kept(folder)
    assert before
    monkeypatch.setattr(run_files, "dealt", lambda sources, rows: pytest.fail(f"computes {sources} again"))
    assert analyze(folder) == expected
    assert kept(folder) == before


def test_a_folder_with_more_traces_analyses_the_new_ones_only(
    folder: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = folder / "rolling-deploy-2.parquet"
    held = late.read_bytes()
    late.unlink()
    analyze(folder)
    before = kept(folder)
    late.write_bytes(held)
    computed: list[str] = []

    def dealt_and_noted(sources: list[Source], rows: int) -> list[list[Source]]:
        computed.extend(path for each in sources for path in each.files)
        return dealt(sources, rows)

    monkeypatch.setattr(run_files, "dealt", dealt_and_noted)
    assert analyze(folder) == expected
    assert computed == [str(late)]
    assert before.items() < kept(folder).items()


@pytest.mark.parametrize("how", ["cut", "changed", "empty", "foreign"])
def test_a_damaged_file_of_views_is_made_again(
    folder: Path, expected: Tables, how: str, runs: tuple[Path, ...]
) -> None:
    analyze(folder)
    (path,) = (folder / KEPT).glob("*.parquet")
    data = bytearray(path.read_bytes())
    if how == "cut":
        del data[len(data) // 2 :]
    elif how == "changed":
        data[len(data) // 3] ^= 0xFF
    elif how == "empty":
        data.clear()
    else:
        data[:] = runs[0].read_bytes()
    path.write_bytes(data)
    assert analyze(folder) == expected
    assert not path.exists()
    with sharing(folder / KEPT) as views:
        assert views.taken(sources_of(find_traces(folder)))


def test_views_of_a_changed_or_missing_trace_are_deleted(folder: Path) -> None:
    analyze(folder)
    before = kept(folder)
    (folder / "sac-churn-1.parquet").unlink()
    tables = analyze(folder)
    assert {row["scenario"] for row in tables["runs"]} == {"rolling-deploy"}
    assert not before.keys() & kept(folder).keys()


def test_an_analysis_that_was_killed_leaves_nothing_that_counts(folder: Path, expected: Tables) -> None:
    (folder / KEPT).mkdir()
    half = folder / KEPT / ".half.parquet-1"
    half.write_bytes(b"PAR1")
    assert analyze(folder) == expected
    assert not half.exists()


def test_views_of_another_version_do_not_count(
    folder: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(run_files, "version", lambda: "another")
        analyze(folder)
    before = kept(folder)
    assert analyze(folder) == expected
    assert not before.keys() & kept(folder).keys()


def test_an_analysis_deletes_no_views_that_another_one_is_about_to_read(
    folder: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one finds a trace changed, so the kept file is of no use to it."""
    analyze(folder)
    before = kept(folder)

    @contextlib.contextmanager
    def interrupted(*arguments: Any) -> Iterator[Any]:
        with found_views(*arguments) as views:
            os.utime(folder / "sac-churn-1.parquet", (1, 1))
            patched.undo()
            assert analyze(folder) == expected
            assert before.items() < kept(folder).items()
            yield views

    with monkeypatch.context() as patched:
        patched.setattr(analysis, "found_views", interrupted)
        assert analyze(folder) == expected
    assert analyze(folder) == expected
    assert not before.keys() & kept(folder).keys()


def test_two_analyses_at_the_same_time_give_the_same_tables(folder: Path, expected: Tables) -> None:
    """While a thread analyses a folder again and again, so does another, and finds one more file changed.

    A lock of a file is its opener's, so that threads are to each other as processes are.
    """
    path = folder / "sac-churn-1.parquet"
    with ThreadPoolExecutor() as others:
        other = others.submit(lambda: [analyze(folder) for _ in range(3)])
        while not other.done():
            os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
            assert analyze(folder) == expected
        assert other.result() == 3 * [expected]
    assert analyze(folder) == expected
    with sharing(folder / KEPT) as views:
        assert views.taken(sources_of(find_traces(folder))).keys() == {
            str(path) for path in (folder / KEPT).glob("*.parquet")
        }


def test_a_folder_without_locks_loses_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / KEPT).mkdir()
    useless = folder / KEPT / "old.parquet"
    useless.write_bytes(b"PAR1")

    def no_locks(lock: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        with sharing(folder / KEPT) as views:
            assert not views.taken([])
    assert useless.exists()
    with sharing(folder / KEPT) as views:
        assert not views.taken([])
    assert not useless.exists()


def test_a_run_in_several_files_is_one_source(folder: Path, expected: Tables) -> None:
    path = folder / "rolling-deploy-1.parquet"
    rows = pq.read_table(path)
    path.unlink()
    half = len(rows) // 2
    pq.write_table(rows.slice(0, half), folder / "a.parquet")
    pq.write_table(rows.slice(half), folder / "z.parquet")
    found = sources_of(find_traces(folder))
    assert (str(folder / "a.parquet"), str(folder / "z.parquet")) in [each.files for each in found]
    assert analyze(folder) == expected


def test_files_that_are_large_give_the_same_tables(
    folder: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "MOST_ROWS", 0)
    assert analyze(folder) == expected
    assert not kept(folder)


def test_many_rows_are_analysed_on_spark(
    folder: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analysis, "DRIVER_ROWS", 0)
    monkeypatch.setattr(analysis, "_here", lambda *_, **__: pytest.fail("computes tables in the driver"))
    assert analyze(folder) == expected


@pytest.fixture
def unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that was analysed; whatever computes anything from now on fails."""
    analyze_all(folder)
    for name in ("_here", "_on_spark", "spark_session"):
        monkeypatch.setattr(analysis, name, lambda *_, **__: pytest.fail("computes something"))
    return folder


def test_an_unchanged_folder_has_its_tables_at_once_and_says_so(unchanged: Path, expected: Tables) -> None:
    said: list[str] = []
    report = unchanged / "report.html"
    tables = analyze_all(unchanged, report=report, say=said.append)
    assert said == ["nothing has changed since the last analysis: these are its tables"]
    assert all(tables[name] == expected[name] for name in SOME)
    assert tables["downtime"]
    assert "rolling-deploy" in report.read_text()
    assert analyze(unchanged) == expected


@pytest.mark.parametrize("how", ["trace", "damaged", "version", "asked"])
def test_tables_of_another_state_do_not_count(
    unchanged: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = unchanged / KEPT / "tables.msgpack"
    if how == "trace":
        os.utime(unchanged / "sac-churn-1.parquet", (1, 1))
    elif how == "damaged":
        data = bytearray(path.read_bytes())
        data[-1] ^= 0xFF
        path.write_bytes(data)
    elif how == "version":
        monkeypatch.setattr(kept_tables, "_version", lambda: "another")
    with pytest.raises(pytest.fail.Exception, match="computes something"):
        analyze(unchanged, tables="driver" if how == "asked" else "auto")


def test_the_version_of_kept_tables_follows_all_that_makes_them() -> None:
    names = {each.name for each in kept_tables._sources()}
    assert {"runs.sql", "driver.py", "comparison.py", "analyze.py", "model.py"} <= names


def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "part-1.parquet"
    texts = {each.name: "{}" for each in run_schema() if each.type == "string"}
    rest = {each.name: False if each.type == "bool" else 0 for each in run_schema() if each.name not in texts}
    pq.write_table(pa.Table.from_pylist([{**texts, **rest}], schema=run_schema()), path)
    files = TraceFiles((), (str(path),))
    assert len(analyze_files(pytest.fail, files, Progress()).tables["runs"]) == 1
    damaged = bytearray(path.read_bytes())
    damaged[4:40] = bytes(36)
    path.write_bytes(damaged)
    with pytest.raises(FencepostError, match=f"^{path}: not a readable Parquet file"):
        analyze_files(pytest.fail, files, Progress())


def test_tables_without_room_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MEMORY", "1MB")
    empty = pa.table({"view": pa.array([], pa.string()), "data": pa.array([], pa.binary())})
    with (
        pytest.raises(EnvironmentLacks, match=r"can't be computed in this process .*: make room in"),
        driver.tables_here(empty) as tables,
    ):
        tables.select("SELECT random() AS number FROM range(300000) ORDER BY number")


def test_kept_views_are_enough_for_the_driver(
    folder: Path, expected: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyze(folder)
    monkeypatch.setattr(analysis, "spark_session", lambda *_, **__: pytest.fail("starts Spark"))
    assert analyze(folder) == expected


def test_neighbours_share_a_task_until_it_is_worth_its_start() -> None:
    sources = [Source((f"{number}",), 200_000, f"{number}") for number in range(7)]
    assert [len(task) for task in dealt(sources, 500_000)] == [3, 3, 1]
    assert [each for task in dealt(sources, 500_000) for each in task] == sources
