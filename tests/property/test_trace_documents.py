"""A row of a trace survives its way through a JSON document; whatever else lies in a topic is told apart."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.simulation.trace.documents import NO_DOCUMENT, VERSION, TracedRow, decode, encode
from fencepost.simulation.trace.schema import COLUMNS, Row, RowKind

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.builds(
    Row,
    seq=INT64,
    t_us=INT64,
    world=st.text(),
    group=st.text(),
    actor=st.text(),
    kind=st.sampled_from([kind.value for kind in RowKind]),
    state_from=st.text(),
    state_to=st.text(),
    member_epoch=INT32,
    group_epoch=INT32,
    partitions=st.lists(st.builds(TopicPartition, st.text(), INT32), max_size=4).map(tuple),
    error=st.text(),
    detail=st.text(),
)


@given(st.text(), ROWS)
def test_a_row_comes_back_as_it_was(run_id: str, row: Row) -> None:
    assert decode(encode(run_id, row)) == TracedRow(run_id, row)


@given(st.text(), ROWS)
def test_the_keys_are_the_columns_and_blank_ones_are_left_out(run_id: str, row: Row) -> None:
    document = json.loads(encode(run_id, row))
    assert document.keys() <= {"v", *COLUMNS}
    assert document["v"] == VERSION
    assert ("detail" in document) == (row.detail != "")


@given(st.none() | st.binary() | st.text().map(str.encode) | st.just(b"null") | st.just(b"[1]"))
def test_what_is_no_document_is_told(value: bytes | None) -> None:
    assert isinstance(decode(value), str)


@given(ROWS, st.integers().filter(lambda number: number != VERSION))
def test_another_version_is_told_whatever_it_holds(row: Row, version: int) -> None:
    document = json.loads(encode("r", row)) | {"v": version}
    assert decode(json.dumps(document).encode()) == f"schema version {version}, known is {VERSION}"
    assert decode(b'{"v": %d, "rows": {}}' % version) == f"schema version {version}, known is {VERSION}"


@given(ROWS)
def test_keys_of_tomorrow_are_skipped(row: Row) -> None:
    document = json.loads(encode("r", row)) | {"colour": "red"}
    assert decode(json.dumps(document).encode()) == TracedRow("r", row)


@given(ROWS, st.sampled_from(["run_id", "seq", "t_us", "world", "kind"]))
def test_a_document_with_a_hole_is_none(row: Row, column: str) -> None:
    document = json.loads(encode("r", row))
    del document[column]
    assert decode(json.dumps(document).encode()) == NO_DOCUMENT
    assert decode(json.dumps(document | {column: []}).encode()) == NO_DOCUMENT


@given(st.integers(2**63) | st.integers(max_value=-(2**63) - 1))
def test_numbers_that_no_column_holds_are_refused(number: int) -> None:
    row = Row(1, 1, "w", "g", "", "heartbeat", "", "", -1, -1, (), "", "")
    document = json.loads(encode("r", row)) | {"t_us": number}
    assert decode(json.dumps(document).encode()) == NO_DOCUMENT
