"""Folders that hold traces, or hold something else: what is read, and what is said."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.cli import main
from fencepost.simulation.pipeline.traces import find_traces, run_schema
from fencepost.simulation.trace.parquet import SCHEMA, ParquetTrace, record_batch
from fencepost.simulation.trace.schema import Row


def write(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    row = Row(1, 0, "simulated", "g", "", "run.start", "", "", -1, -1, (), "", "steady 1")
    with ParquetTrace(path, path.stem) as trace:
        trace.write([row] * 3)
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def without_detail(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["detail", "error"]), path)


def of_text(path: Path) -> None:
    path.write_text("text")


def with_long_epochs(path: Path) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index("member_epoch")
    pq.write_table(table.set_column(at, "member_epoch", table["member_epoch"].cast(pa.int64())), path)


def with_plain_partitions(path: Path) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index("partitions")
    pq.write_table(table.set_column(at, "partitions", pa.array([[1], [2], [3]])), path)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut, "not a readable Parquet file ("),
        (emptied, "not a readable Parquet file (it is empty)"),
        (of_text, "not a readable Parquet file ("),
        (without_detail, "not a trace, the columns error, detail are missing; expected run_id, seq,"),
        (with_long_epochs, "column member_epoch has type int64, expected a whole number of at most 32 bits"),
        (with_plain_partitions, "expected list<struct<topic: string, partition: int32>>"),
    ],
)
def test_one_bad_file_among_good_ones_is_named(
    spoil: Callable[[Path], None], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.parquet")
    bad = write(tmp_path / "b.parquet")
    spoil(bad)
    assert main(["analyze", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"fencepost analyze: {bad}: ")
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_a_flipped_bit_in_any_column_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write(tmp_path / "a.parquet")
    whole = bad.read_bytes()
    group = pq.read_metadata(bad).row_group(0)
    for number in range(group.num_columns):
        damaged = bytearray(whole)
        chunk = group.column(number)
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        damaged[begin + chunk.total_compressed_size - 1] ^= 1
        bad.write_bytes(damaged)
        assert main(["analyze", str(bad)]) == 2, chunk.path_in_schema
        shown = capsys.readouterr()
        assert shown.err.startswith(f"fencepost analyze: {bad}: not a readable Parquet file (")
        assert shown.err.count("\n") == 1


def test_a_file_and_a_folder_are_found(tmp_path: Path) -> None:
    single, nested = write(tmp_path / "one.parquet"), write(tmp_path / "more" / "two.parquet")
    assert find_traces(single).traces == (str(single),)
    assert find_traces(tmp_path).traces == (str(nested), str(single))
    with pytest.raises(FencepostError, match="no such file"):
        find_traces(tmp_path / "missing")


def test_an_empty_folder_holds_no_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(
        f"fencepost analyze: {tmp_path}: has no trace; expected Parquet"
    )


def test_a_campaign_without_traces_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    write(tmp_path / "runs" / "part-001.parquet")
    for _ in range(2):
        with pytest.raises(FencepostError, match="has runs of a campaign and no traces of them"):
            find_traces(tmp_path)
        (tmp_path / "traces").mkdir(exist_ok=True)


def test_traces_without_rows_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.parquet")
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    assert main(["analyze", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"fencepost analyze: {tmp_path}: has no rows to analyse")


def test_files_that_are_being_written_are_left_out(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet")
    (tmp_path / ".b.parquet-77").write_bytes(b"PAR1 and no more")
    (tmp_path / ".c.parquet").write_bytes(b"")
    (tmp_path / "_temporary").mkdir()
    shutil.copy(whole, tmp_path / "_temporary" / "d.parquet")
    found = find_traces(tmp_path)
    assert found.traces == (str(whole),)
    assert found.rows == 3


def campaign(root: Path, *finished: str) -> Path:
    for name in ("part-1.parquet", "part-2.parquet"):
        write(root / "traces" / name)
    (root / "runs").mkdir()
    for name in finished:
        pq.write_table(run_schema().empty_table(), root / "runs" / name)
    return root


def test_of_a_campaign_that_was_killed_the_finished_parts_count(tmp_path: Path) -> None:
    found = find_traces(campaign(tmp_path, "part-2.parquet"))
    assert [Path(path).name for path in found.traces] == ["part-2.parquet"]
    assert [Path(path).name for path in found.runs] == ["part-2.parquet"]


def test_summaries_are_looked_at_too(tmp_path: Path) -> None:
    root = campaign(tmp_path, "part-1.parquet", "part-2.parquet")
    summary = root / "runs" / "part-2.parquet"
    pq.write_table(run_schema().empty_table().drop_columns(["traced"]), summary)
    with pytest.raises(FencepostError) as raised:
        find_traces(root)
    assert str(raised.value).startswith(f"{summary}: not a summary of runs, the column traced is missing")


def test_what_is_expected_is_what_is_written(tmp_path: Path) -> None:
    assert pq.read_schema(write(tmp_path / "a.parquet")).equals(SCHEMA)
    find_traces(tmp_path)


def part(path: Path, run_id: str, *, first: int = 1, rows: int = 3, in_all: str = "") -> Path:
    """A file with rows of a run, numbered from `first` on; and one of another run, if that is named."""
    path.parent.mkdir(parents=True, exist_ok=True)
    row = Row(first, 0, "simulated", "g", "", "run.start", "", "", -1, -1, (), "", "steady 1")
    batch = [row._replace(seq=first + number) for number in range(rows)]
    table = pa.Table.from_batches([record_batch(batch, run_id)])
    if in_all:
        table = pa.concat_tables([table, pa.Table.from_batches([record_batch(batch, in_all)])])
    pq.write_table(table.combine_chunks(), path)
    return path


def test_files_that_hold_the_same_run_are_told_apart_by_their_names(tmp_path: Path) -> None:
    before, after = (
        part(tmp_path / "before.parquet", "r-1", in_all="r-2"),
        part(tmp_path / "after.parquet", "r-1"),
    )
    other = part(tmp_path / "other.parquet", "r-3")
    found = find_traces(tmp_path)
    assert found.names == {str(before): "before", str(after): "after"}
    assert set(found.renamed) == {"r-1@before", "r-2@before", "r-1@after"}
    assert found.place("r-1@after") == ((str(after),), "r-1")
    assert found.place("r-3") == ((str(other),), "r-3")
    assert find_traces(before).renamed == {}


def test_folders_that_hold_the_same_runs_are_told_apart_by_theirs(tmp_path: Path) -> None:
    for folder in ("before", "after"):
        for seed in (1, 2):
            part(tmp_path / folder / f"{seed}.parquet", f"r-{seed}")
    alone = part(tmp_path / "after" / "3.parquet", "r-3")
    found = find_traces(tmp_path)
    assert set(found.names.values()) == {"before", "after"}
    assert found.place("r-3@after") == ((str(alone),), "r-3")
    part(tmp_path / "1.parquet", "r-1")
    assert set(find_traces(tmp_path).names.values()) == {"1", "before/1", "before/2", "after/1", "after/2"}


def test_a_run_that_is_spread_over_files_stays_one(tmp_path: Path) -> None:
    part(tmp_path / "1.parquet", "r-1", in_all="r-2")
    part(tmp_path / "2.parquet", "r-1", first=4, in_all="r-2")
    assert find_traces(tmp_path).renamed == {}
