from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.trace.parquet import SCHEMA, ParquetTrace
from fencepost.simulation.trace.rows import BATCH_ROWS, TraceRows
from fencepost.simulation.trace.schema import COLUMNS, Row


class Kept:
    def __init__(self) -> None:
        self.batches: list[Sequence[Row]] = []

    def write(self, rows: Sequence[Row], /) -> None:
        self.batches.append(rows)


def fill(recorder: TraceRows, rows: int, changed: int | None = None) -> None:
    for number in range(rows):
        recorder.add(
            number * 10,
            f"member-{number % 7}",
            "heartbeat",
            member_epoch=number,
            partitions=(TopicPartition("orders", number % 3),) if number % 2 else (),
            detail="x" if number == changed else "keepalive",
        )


def test_rows_are_numbered_from_one():
    kept = Kept()
    recorder = TraceRows(world="simulated", group="g", sink=kept)
    fill(recorder, 3)
    recorder.flush()
    assert [row[0] for batch in kept.batches for row in batch] == [1, 2, 3]
    assert recorder.seq == 3
    expected = Row(
        2,
        10,
        "simulated",
        "g",
        "member-1",
        "heartbeat",
        "",
        "",
        1,
        -1,
        (TopicPartition("orders", 1),),
        "",
        "keepalive",
    )
    assert kept.batches[0][1] == expected


def test_memory_stays_flat_batches_are_handed_on():
    kept = Kept()
    recorder = TraceRows(world="simulated", group="g", sink=kept)
    fill(recorder, BATCH_ROWS + 5)
    assert [len(batch) for batch in kept.batches] == [BATCH_ROWS]
    recorder.flush()
    assert [len(batch) for batch in kept.batches] == [BATCH_ROWS, 5]


def test_the_digest_is_that_of_the_rows_with_or_without_a_sink():
    digests = []
    for sink in (None, Kept()):
        recorder = TraceRows(world="simulated", group="g", sink=sink)
        fill(recorder, BATCH_ROWS + 50)
        digests.append(recorder.digest())
    assert digests[0] == digests[1]
    assert len(digests[0]) == 32


@pytest.mark.parametrize("changed", [0, 20, BATCH_ROWS + 49])
def test_one_other_row_gives_another_digest(changed):
    plain, other = (TraceRows(world="simulated", group="g") for _ in range(2))
    fill(plain, BATCH_ROWS + 50)
    fill(other, BATCH_ROWS + 50, changed)
    assert plain.digest() != other.digest()


def test_parquet_holds_what_was_recorded(tmp_path):
    kept = Kept()
    path = tmp_path / "trace.parquet"
    for sink in (kept, ParquetTrace(path, "run-1")):
        recorder = TraceRows(world="simulated", group="g", sink=sink)
        fill(recorder, BATCH_ROWS + 100)
        recorder.flush()
    sink.close()
    file = pq.ParquetFile(path)
    assert file.metadata.num_row_groups == 2
    table = file.read()
    assert table.schema.names == list(COLUMNS)
    assert table.schema.equals(SCHEMA)
    rows = [row for batch in kept.batches for row in batch]
    assert table.column("run_id").unique().to_pylist() == ["run-1"]
    assert table.column("seq").to_pylist() == [row[0] for row in rows]
    assert table.column("partitions").to_pylist() == [[p._asdict() for p in row[10]] for row in rows]
    assert table.column("detail").to_pylist() == [row[12] for row in rows]


def test_a_trace_that_cannot_be_written_says_so(tmp_path):
    with pytest.raises(FencepostError, match="can't be written"):
        ParquetTrace(tmp_path / "no" / "trace.parquet", "run-1")


@pytest.mark.processes
def test_a_disk_that_fills_up_is_told_with_the_name_that_the_trace_will_have(tmp_path):
    """The limit of a process's files is as good as a full disk, and Python ignores its signal."""
    path = tmp_path / "trace.parquet"
    program = (
        "import resource, sys\n"
        "from fencepost.simulation.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["simulate", "rolling-deploy", "--duration", "1h", "--trace", str(path)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.stderr == f"fencepost simulate: the trace {path} can't be written: file too large\n"
    assert done.returncode == 3
    assert list(tmp_path.iterdir()) == []
