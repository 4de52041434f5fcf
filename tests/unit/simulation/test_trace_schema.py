"""The trace's columns and kinds are declared once, and all forms of a trace derive from the declaration."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fencepost.simulation.run import run
from fencepost.simulation.scenarios.load import load_any
from fencepost.simulation.trace.documents import VERSION, TracedRow, decode
from fencepost.simulation.trace.schema import COLUMNS, Row, RowKind, kinds_of
from tests.unit.simulation.kept_rows import KeptRows

DOCS = Path(__file__).parents[3] / "docs"

WITH_A_COLUMN_MORE = """
import importlib.util, json, sys
from typing import Annotated, NamedTuple
from fencepost.simulation.trace import schema

column = schema.TraceColumn(schema.TEXT, "The colour of the event.")
fields = [(name, hint) for name, hint in schema.Row.__annotations__.items()]
vars(schema)["Row"] = NamedTuple("Row", [*fields, ("colour", Annotated[str, column])])
schema.Row.__module__ = schema.__name__
vars(schema)["COLUMNS"] = schema.columns_of(schema.Row)
vars(schema)["TRACE_DDL"] = schema.ddl_of(schema.COLUMNS)

from pyarrow import parquet
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.traces import find_traces
from fencepost.simulation.report.model import TracedRun
from fencepost.simulation.report.timeline import encode_run
from fencepost.simulation.trace.documents import decode, encode
from fencepost.simulation.trace.parquet import ParquetTrace
from pathlib import Path

folder, docs = map(Path, sys.argv[1:])
row = schema.Row(1, 5, "w", "g", "member-1", "host", "", "", -1, -1, (), "", "start", "red")
document = encode("run", row)
assert json.loads(document)["colour"] == "red"
assert decode(document).row == row
with ParquetTrace(folder / "trace.parquet", "run") as trace:
    trace.write([row])
assert parquet.read_table(folder / "trace.parquet")["colour"].to_pylist() == ["red"]
assert find_traces(folder).rows == 1
page = encode_run(TracedRun(run_id="run", title="", rows=[row]))
assert page["strings"][page["columns"]["colour"][0]] == "red"
assert "`colour` string" in schema.TRACE_DDL

sys.path.insert(0, str(docs))
import generate
assert "| `colour` | string | all | The colour of the event. |" in list(generate.columns())

table = parquet.read_table(folder / "trace.parquet")
parquet.write_table(table.drop_columns(["colour"]), folder / "old.parquet")
try:
    find_traces(folder)
except FencepostError as error:
    assert "the column colour is missing" in str(error)
else:
    raise AssertionError("a trace without the column was accepted")
"""


@pytest.mark.processes
def test_a_column_that_is_added_to_the_declaration_is_in_every_form(tmp_path):
    program = (
        "from fencepost.coordinator.protocol.errors import FencepostError as schema_error\n"
        + WITH_A_COLUMN_MORE
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path, DOCS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "scenario",
    [
        "churn",
        "classic-rolling-deploy",
        "lossy-network",
        "sac-churn",
        "slow-callbacks-and-poll-timeouts",
        "streams-failures",
    ],
)
def test_rows_fill_only_the_columns_that_their_kind_declares(scenario):
    kept = KeptRows()
    run(load_any(scenario), 1, trace=kept)
    declared = {column: set(kinds_of(column)) for column in COLUMNS}
    for row in kept:
        for name in Row._fields[4:]:
            if getattr(row, name) != COLUMNS[name].type.blank:
                assert RowKind(row.kind) in declared[name], (name, row)  # type: ignore[call-arg]


def test_every_kind_declares_columns_that_there_are():
    for kind in RowKind:
        assert kind.columns.keys() <= COLUMNS.keys()
        assert kind.event.endswith(".")


@pytest.mark.parametrize("missing", ["kind", "run_id", "seq", "t_us", "world"])
def test_a_document_without_what_every_row_has_is_refused(missing: str) -> None:
    document = {"v": VERSION, "run_id": "r", "seq": 1, "t_us": 0, "world": "real", "kind": "run.end"}
    assert isinstance(decode(json.dumps(document).encode()), TracedRow)
    del document[missing]
    assert isinstance(decode(json.dumps(document).encode()), str)
