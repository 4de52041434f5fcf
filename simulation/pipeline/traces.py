"""Directories of traces: which files they hold, and whether those are traces at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.trace.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

RUNS = "runs"
TRACES = "traces"
"""Folders of a campaign."""


class _Kind(NamedTuple):
    """What a column must hold: in words, and by its type."""

    words: str
    fits: Callable[[pa.DataType], bool]


def _is_text(found: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(found):
        found = found.value_type
    return bool(types.is_string(found) or types.is_large_string(found))


def _is_whole(found: pa.DataType, bits: int = 64) -> bool:
    from pyarrow import types

    return bool(types.is_signed_integer(found) and found.bit_width <= bits)


def _is_partitions(found: pa.DataType) -> bool:
    from pyarrow import types

    if not (types.is_list(found) or types.is_large_list(found)) or not types.is_struct(found.value_type):
        return False
    fields = {field.name: field.type for field in found.value_type}
    return (
        fields.keys() == {"topic", "partition"}
        and _is_text(fields["topic"])
        and _is_whole(fields["partition"], 32)
    )


_TEXT: Final = _Kind("text", _is_text)
_LONG: Final = _Kind("a whole number of at most 64 bits", _is_whole)
_INT: Final = _Kind("a whole number of at most 32 bits", lambda found: _is_whole(found, 32))
_FLOAT: Final = _Kind("a floating-point number", lambda found: str(found) in ("float", "double"))
_FLAG: Final = _Kind("true or false", lambda found: str(found) == "bool")
_PARTITIONS: Final = _Kind("list<struct<topic: string, partition: int32>>", _is_partitions)

_TRACE: Final = {name: _TEXT for name in COLUMNS} | {
    "seq": _LONG,
    "t_us": _LONG,
    "member_epoch": _INT,
    "group_epoch": _INT,
    "partitions": _PARTITIONS,
}
_SUMMARY: Final = {
    "run_id": _TEXT,
    "scenario": _TEXT,
    "parameters": _TEXT,
    "seed": _LONG,
    "wall_seconds": _FLOAT,
    "heartbeats": _LONG,
    "converged": _FLAG,
    "violations": _LONG,
    "traced": _FLAG,
    "error": _TEXT,
}
"""What is read of a campaign's summaries."""


class TraceFiles(msgspec.Struct, frozen=True):
    """Parquet files of traces, and of run summaries where a campaign wrote them."""

    traces: tuple[str, ...]
    runs: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows the traces have.

        :raises FencepostError: if a file can't be read.
        """
        return sum(_footer(Path(path)).num_rows for path in self.traces)


def find_traces(path: Path) -> TraceFiles:
    """The trace files behind `path`: a campaign's directory, any directory with Parquet files, or one file.

    Names that begin with a dot or an underscore are left out, as Spark does: so files are called while they
    are written. Of a campaign that is running, or was killed, the runs that are finished count.

    :raises FencepostError: if there is nothing there, or a file is no trace.
    """
    if not path.exists():
        raise FencepostError(f"{path}: there is no such file or directory")
    runs: list[Path] = []
    if path.is_file():
        traces = [path]
    elif (path / TRACES).is_dir():
        traces, runs = _parquet_files(path / TRACES), _parquet_files(path / RUNS)
        if (path / RUNS).is_dir():
            finished = {file.name for file in runs}
            traces = [file for file in traces if file.name in finished]
    else:
        traces = _parquet_files(path)
    if not traces:
        raise FencepostError(
            f"{path}: no trace in it; expected Parquet files with the columns {', '.join(COLUMNS)}"
        )
    for file in traces:
        _check(file, _TRACE, "trace")
    for file in runs:
        _check(file, _SUMMARY, "summary of runs")
    return TraceFiles(tuple(map(str, traces)), tuple(map(str, runs)))


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*.parquet")
        if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    )


def _footer(file: Path) -> pq.FileMetaData:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        why = "it is empty" if file.stat().st_size == 0 else str(error).splitlines()[0]
        raise FencepostError(
            f"{file}: not a readable Parquet file ({why}); expected one that its writer has finished: "
            "if that was interrupted, remove the file"
        ) from error


def _check(file: Path, expected: Mapping[str, _Kind], what: str) -> None:
    import pyarrow as pa

    try:
        schema = _footer(file).schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise FencepostError(f"{file}: not a {what}: {str(error).splitlines()[0]}") from error
    missing = [name for name in expected if name not in schema.names]
    if missing:
        several = len(missing) > 1
        raise FencepostError(
            f"{file}: not a {what}, the column{'s' if several else ''} {', '.join(missing)} "
            f"{'are' if several else 'is'} missing; expected {', '.join(expected)}"
        )
    for name, kind in expected.items():
        found = schema.field(name).type
        if not kind.fits(found):
            raise FencepostError(
                f"{file}: column {name} has type {found}, expected {kind.words}: "
                "it may come from another version of fencepost"
            )
