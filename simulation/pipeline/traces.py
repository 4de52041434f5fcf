"""Directories of traces: which files they hold, and whether those are traces at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.trace.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

RUNS = "runs"
TRACES = "traces"
"""Folders of a campaign."""

_NUMBERS = frozenset({"seq", "t_us", "member_epoch", "group_epoch"})


class TraceFiles(msgspec.Struct, frozen=True):
    """Parquet files of traces, and of run summaries where a campaign wrote them."""

    traces: tuple[str, ...]
    runs: tuple[str, ...] = ()


def find_traces(path: Path) -> TraceFiles:
    """The trace files behind `path`: a campaign's directory, any directory with Parquet files, or one file.

    Names that begin with a dot or an underscore are left out, as Spark does.

    :raises FencepostError: if there is nothing there, or a file is no trace.
    """
    if not path.exists():
        raise FencepostError(f"{path}: there is no such file or directory")
    runs: list[Path] = []
    if path.is_file():
        traces = [path]
    elif (path / TRACES).is_dir():
        traces, runs = _parquet_files(path / TRACES), _parquet_files(path / RUNS)
    else:
        traces = _parquet_files(path)
    if not traces:
        raise FencepostError(
            f"{path}: no trace in it; expected Parquet files with the columns {', '.join(COLUMNS)}"
        )
    for file in traces:
        _check(file)
    return TraceFiles(tuple(map(str, traces)), tuple(map(str, runs)))


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*.parquet")
        if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    )


def _check(file: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(file)
    except (pa.ArrowException, OSError) as error:
        raise FencepostError(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]})") from error
    if missing := [name for name in COLUMNS if name not in schema.names]:
        raise FencepostError(
            f"{file}: not a trace, the column{'s' if len(missing) > 1 else ''} {', '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing; expected {', '.join(COLUMNS)}"
        )
    for name in COLUMNS:
        found = schema.field(name).type
        if not _fits(name, found):
            raise FencepostError(f"{file}: column {name} has type {found}, expected {_expected(name)}")


def _fits(name: str, found: pa.DataType) -> bool:
    from pyarrow import types

    if types.is_dictionary(found):
        found = found.value_type
    if name in _NUMBERS:
        return bool(types.is_integer(found))
    if name == "partitions":
        return bool(
            (types.is_list(found) or types.is_large_list(found))
            and types.is_struct(found.value_type)
            and {found.value_type.field(i).name for i in range(found.value_type.num_fields)}
            == {"topic", "partition"}
        )
    return bool(types.is_string(found) or types.is_large_string(found))


def _expected(name: str) -> str:
    if name in _NUMBERS:
        return "a whole number"
    return "list<struct<topic: string, partition: int>>" if name == "partitions" else "text"
