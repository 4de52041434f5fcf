"""Traces as Arrow and Parquet. Only this module of a simulation needs pyarrow."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.simulation.trace.rows import RowBatch
from fencepost.simulation.trace.schema import COLUMNS, INT, LONG, PARTITIONS, TEXT, ColumnType, Row

_PARTITION = pa.struct([pa.field("topic", pa.string(), False), pa.field("partition", pa.int32(), False)])
_PARTITIONS = pa.list_(pa.field("element", _PARTITION, False))
_TYPES: Final[Mapping[ColumnType, pa.DataType]] = {
    TEXT: pa.string(),
    LONG: pa.int64(),
    INT: pa.int32(),
    PARTITIONS: _PARTITIONS,
}

SCHEMA: pa.Schema = pa.schema(
    [pa.field(name, _TYPES[column.type], nullable=False) for name, column in COLUMNS.items()]
)
"""The columns of a trace, as Arrow has them."""

_TEXTS = [*(field.name for field in SCHEMA if field.type == pa.string()), "partitions.list.element.topic"]
"""Columns that are written with a dictionary. For numbers, a dictionary takes time and mostly more room."""


class ParquetTrace:
    """A Parquet file of one run. Rows are written as they come, one row group per batch.

    `called` is its name in error messages, if the file has another name once it is complete.

    :raises FencepostError: if the file can't be written.
    """

    def __init__(self, path: str | Path, run_id: str, *, called: Path | None = None) -> None:
        self.path = Path(path)
        self._run_id = run_id
        self._called = called or self.path
        try:
            self._writer = pq.ParquetWriter(
                self.path,
                SCHEMA,
                compression="zstd",
                use_dictionary=_TEXTS,
                write_statistics=True,
                write_page_checksum=True,
            )
        except OSError as error:
            raise FencepostError(self._problem(error)) from None

    def write(self, rows: Sequence[Row]) -> None:
        """Write these rows as one row group.

        :raises EnvironmentLacks: if the file can't be written any more, for example because the disk is full.
        """
        try:
            self._writer.write_batch(record_batch(rows, self._run_id))
        except OSError as error:
            raise EnvironmentLacks(self._problem(error)) from None

    def close(self) -> None:
        """Finish the file. It can't be read before.

        :raises EnvironmentLacks: as `write` does.
        """
        try:
            self._writer.close()
        except OSError as error:
            raise EnvironmentLacks(self._problem(error)) from None

    def _problem(self, error: OSError) -> str:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        return f"the trace {self._called} can't be written: {reason}"

    def __enter__(self) -> ParquetTrace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def whole_trace(path: Path, run_id: str) -> Iterator[ParquetTrace]:
    """Yield a trace that is at `path` once the block has ended without an error, and nowhere otherwise.

    :raises FencepostError: if the file can't be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with ParquetTrace(unfinished, run_id, called=path) as trace:
            yield trace
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


class ArrowTrace:
    """A trace in memory, as Arrow: a tenth of its size as rows."""

    def __init__(self, run_id: str) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._run_id = run_id

    def write(self, rows: Sequence[Row], /) -> None:
        """Take a batch."""
        self.batches.append(record_batch(rows, self._run_id))


def record_batch(rows: Sequence[Row], run_id: str | Sequence[str]) -> pa.RecordBatch:
    """Return rows as Arrow, in the order of `SCHEMA`; `run_id` is that of all rows, or one for each.

    Columns are handed over as buffers: `pa.array` examines each value, and imports pandas to do so, which
    takes as long as a small run.
    """
    columns = rows.columns if isinstance(rows, RowBatch) else list(zip(*rows, strict=True))
    columns = columns or [()] * len(Row._fields)
    arrays = [_strings((run_id,) * len(rows) if isinstance(run_id, str) else run_id)]
    for field, values in zip(list(SCHEMA)[1:], columns, strict=True):
        if field.type == _PARTITIONS:
            arrays.append(_partition_lists(values))
        else:
            arrays.append(_strings(values) if field.type == pa.string() else _integers(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _integers(values: Sequence[int], type_: pa.DataType) -> pa.Array:
    numbers = array("q" if type_ == pa.int64() else "i", values)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(numbers)])


def _strings(values: Sequence[str]) -> pa.Array:
    if len(values) > 1 and values.count(values[0]) == len(values):
        return pa.repeat(_strings(values[:1])[0], len(values))
    text = "".join(values)
    data = text.encode()
    lengths = map(len, values) if len(data) == len(text) else (len(value.encode()) for value in values)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(_offsets(lengths)), pa.py_buffer(data))


def _partition_lists(column: Sequence[Sequence[tuple[str, int]]]) -> pa.Array:
    flat: list[Any] = list(chain.from_iterable(chain.from_iterable(column)))
    values = pa.StructArray.from_arrays(
        [_strings(flat[::2]), _integers(flat[1::2], pa.int32())], fields=list(_PARTITIONS.value_type)
    )
    offsets = pa.py_buffer(_offsets(map(len, column)))
    return pa.Array.from_buffers(_PARTITIONS, len(column), [None, offsets], children=[values])


def _offsets(lengths: Iterable[int]) -> array[int]:
    """Return the offsets at which values begin and the last one ends, as Arrow keeps them.

    An array converts unsigned numbers, and those of a list, in half the time. All offsets fit an int32: a
    batch has a few thousand rows.
    """
    return array("I", list(accumulate(lengths, initial=0)))
