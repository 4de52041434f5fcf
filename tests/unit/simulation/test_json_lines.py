"""Traces as JSON lines, as docs/traces.md describes them and as a consumer saves a topic."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.pipeline.traces import find_traces
from fencepost.simulation.trace.documents import encode
from fencepost.simulation.trace.parquet import ParquetTrace
from fencepost.simulation.trace.schema import Row

OF_THE_DOCS = (
    '{"v":1,"run_id":"steady-1","seq":9,"t_us":709000,"world":"simulated","kind":"heartbeat","group":"workers",'
    '"actor":"member-1","member_epoch":2,"group_epoch":2,"partitions":[["orders",0],["orders",1]],"detail":"join"}'
)
ROW = Row(
    1, 5, "simulated", "g", "m", "callback.end", "", "", -1, -1, (TopicPartition("orders", 1),), "", "x"
)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.ndjson", "topic.txt"])
def test_a_file_of_documents_is_a_trace(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(f"{OF_THE_DOCS}\n\n{encode('other', ROW).decode()}\n")
    (found,) = find_traces(file).traces
    first, second = pq.read_table(found).to_pylist()
    assert (first["run_id"], first["seq"], first["detail"]) == ("steady-1", 9, "join")
    assert first["partitions"] == [{"topic": "orders", "partition": n} for n in (0, 1)]
    assert (second["run_id"], second["member_epoch"], second["error"]) == ("other", -1, "")


def test_a_folder_may_have_both_forms(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "lines.jsonl").write_text(OF_THE_DOCS)
    with ParquetTrace(tmp_path / "a.parquet", "a") as trace:
        trace.write([ROW])
    files = find_traces(tmp_path)
    assert sorted(pq.read_table(each)["run_id"].to_pylist()[0] for each in files.traces) == ["a", "steady-1"]
    assert files.rows == 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{}", "no document of a trace"),
        (OF_THE_DOCS.replace('"v":1', '"v":2'), "schema version 2, known is 1"),
        ("not JSON", "no document of a trace"),
    ],
)
def test_a_line_that_is_no_row_is_told_with_its_place(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{OF_THE_DOCS}\n{line}\n")
    with pytest.raises(FencepostError) as raised:
        find_traces(file)
    assert str(raised.value).startswith(f"{file}:2: {why}: expected one JSON document")


def test_one_name_in_both_forms_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(OF_THE_DOCS)
    with ParquetTrace(tmp_path / "a.parquet", "a") as trace:
        trace.write([ROW])
    with pytest.raises(FencepostError, match="lies beside it"):
        find_traces(tmp_path)
