"""Directories of traces: finds their files, and checks that these are traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.pipeline.json_lines import as_parquet
from fencepost.simulation.trace.schema import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

RUNS = "runs"
TRACES = "traces"
"""Folders of a campaign."""

NOTE: Final = "campaign.json"
"""The note that identifies a campaign, in its folder."""

LOCK: Final = ".lock"

KEPT = ".views"
"""The folder next to traces that keeps results of analyses; it is not searched for traces."""


def run_schema() -> pa.Schema:
    """Return the schema of summaries, with one row for each run. `error` is the error that ended it; then all
    results are null. `command` repeats it."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("run_id", pa.string(), False),
            pa.field("scenario", pa.string(), False),
            pa.field("parameters", pa.string(), False),
            pa.field("seed", pa.int64(), False),
            ("members", pa.int64()),
            ("partitions", pa.int64()),
            ("virtual_seconds", pa.float64()),
            pa.field("wall_seconds", pa.float64(), False),
            ("events", pa.int64()),
            ("heartbeats", pa.int64()),
            ("rebalances", pa.int64()),
            ("converged", pa.bool_()),
            pa.field("violations", pa.int64(), False),
            ("invariant", pa.string()),
            ("message", pa.string()),
            ("digest", pa.string()),
            pa.field("command", pa.string(), False),
            pa.field("traced", pa.bool_(), False),
            ("error", pa.string()),
        ]
    )


_OF_SUMMARIES: Final = (
    "run_id",
    "scenario",
    "parameters",
    "seed",
    "wall_seconds",
    "heartbeats",
    "converged",
    "violations",
    "traced",
    "error",
)
"""The columns that are read of a campaign's summaries."""


class Renamed(msgspec.Struct, frozen=True):
    """A run whose id is also in other files, for a different run or for the same one."""

    run_id: str
    """The run's id in its files."""
    name: str
    """The name that distinguishes it: its file without the ending, or its folder if that is enough."""
    traces: tuple[str, ...]
    """The files that hold it."""


class TraceFiles(msgspec.Struct, frozen=True):
    """Parquet files of traces, and of run summaries if a campaign wrote them."""

    traces: tuple[str, ...]
    runs: tuple[str, ...] = ()
    renamed: dict[str, Renamed] = {}
    """All runs of files that share a run id with other files, by the new id that distinguishes them."""
    groups: tuple[tuple[str, ...], ...] = ()
    """The groups of files that have rows of the same run; if empty, each file is alone."""
    keep: str = ""
    """The folder for kept results of analyses; empty if there is none, as for a single file."""

    @property
    def names(self) -> dict[str, str]:
        """The names that distinguish files with the same runs, by their paths."""
        return {path: run.name for run in self.renamed.values() for path in run.traces}

    def place(self, run_id: str) -> tuple[tuple[str, ...], str]:
        """Return the files in which a run may be, and its id in these."""
        if (run := self.renamed.get(run_id)) is not None:
            return run.traces, run.run_id
        names = self.names
        return tuple(path for path in self.traces if path not in names), run_id

    @property
    def rows(self) -> int:
        """Number of rows in the traces.

        :raises FencepostError: if a file can't be read.
        """
        return sum(footer(Path(path)).num_rows for path in self.traces)


def find_traces(path: Path) -> TraceFiles:
    """Return the trace files at `path`: the folder of a plan or a campaign, any folder with Parquet files or
    JSON lines, or one file.

    Names that begin with a dot or an underscore are skipped, as in Spark: unfinished files have such names.
    For a campaign that is running or was killed, the finished runs count.

    :raises FencepostError: if there is no such path, or a file is not a trace.
    """
    if not path.exists():
        raise FencepostError(f"{path}: there is no such file or directory")
    path = as_parquet(path)
    runs: list[Path] = []
    if (path / RUNS / TRACES).is_dir():
        path /= RUNS  # a plan's folder: its campaign is in there
    if path.is_file():
        traces = [path]
    elif (path / TRACES).is_dir():
        traces, runs = _parquet_files(path / TRACES), _parquet_files(path / RUNS)
        if (path / RUNS).is_dir():
            finished = {file.name for file in runs}
            traces = [file for file in traces if file.name in finished]
    elif any((path / RUNS).glob("*.parquet")):
        traces = []
    else:
        traces = _parquet_files(path)
    if not traces and any((path / RUNS).glob("*.parquet")):
        raise FencepostError(
            f"{path}: has runs of a campaign and no traces of them; run it with --traces sample or all"
        )
    if not traces:
        raise FencepostError(
            f"{path}: has no trace; expected Parquet files, or JSON lines (*.jsonl), with the columns "
            f"{', '.join(COLUMNS)}"
        )
    from fencepost.simulation.trace.parquet import SCHEMA

    for file in traces:
        _check(file, SCHEMA, "trace")
    summary = run_schema()
    for file in runs:
        _check(file, [summary.field(name) for name in _OF_SUMMARIES], "summary of runs")
    keep = "" if path.is_file() else str((path / TRACES if runs else path) / KEPT)
    if len(traces) == 1 or runs:  # a campaign's worker writes the whole run into one file
        return TraceFiles(tuple(map(str, traces)), tuple(map(str, runs)), keep=keep)
    begins = {file: _begins(file) for file in traces}
    renamed = _renamed(path, begins)
    names = {each: run.name for run in renamed.values() for each in run.traces}
    return TraceFiles(tuple(map(str, traces)), (), renamed, _groups(begins, names), keep)


def check_rows(files: TraceFiles) -> None:
    """Read all rows of traces and summaries, to check the files.

    :raises FencepostError: if a file is damaged.
    """
    import pyarrow as pa
    from pyarrow import parquet

    for path in (*files.traces, *files.runs):
        try:
            with parquet.ParquetFile(path, page_checksum_verification=True) as file:
                for _ in file.iter_batches():
                    pass
        except (pa.ArrowException, OSError) as error:
            raise unreadable(Path(path), error) from error


def _groups(begins: Mapping[Path, Iterable[str]], names: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of files that have rows of the same run; `names` distinguish runs with the same
    id."""
    leads: dict[str, str] = {}

    def lead(path: str) -> str:
        while (further := leads.setdefault(path, path)) != path:
            path = further
        return path

    holders: dict[tuple[str, str], str] = {}
    for file, runs in begins.items():
        path = str(file)
        for run_id in runs:
            leads[lead(path)] = lead(holders.setdefault((run_id, names.get(path, "")), path))
    groups: dict[str, list[str]] = {}
    for file in begins:
        groups.setdefault(lead(str(file)), []).append(str(file))
    return tuple(tuple(group) for group in groups.values())


def _renamed(root: Path, begins: Mapping[Path, dict[str, int]]) -> dict[str, Renamed]:
    """Return the runs of files that share a run id with another file, by new ids.

    A run may be spread over files, but then only one of them has its first row.
    """
    holders: dict[tuple[str, int], list[Path]] = {}
    for file, found in begins.items():
        for begin in found.items():
            holders.setdefault(begin, []).append(file)
    shared = [held for held in holders.values() if len(held) > 1]
    by_folder = all(len({file.parent for file in held} - {root}) == len(held) for held in shared)

    def name(file: Path) -> str:
        place = file.relative_to(root)
        return (place.parent if by_folder else place.with_suffix("")).as_posix()

    clashing = {name(file) for held in shared for file in held}
    renamed: dict[str, Renamed] = {}
    for file, found in begins.items():
        if (its := name(file)) in clashing:
            for run_id in found:
                before = renamed.get(f"{run_id}@{its}")
                more = () if before is None else before.traces
                renamed[f"{run_id}@{its}"] = Renamed(run_id, its, (*more, str(file)))
    return renamed


def _begins(file: Path) -> dict[str, int]:
    """Return the runs of a file, each with the number of its first row in that file."""
    import pyarrow as pa
    from pyarrow import parquet

    found: dict[str, int] = {}
    try:
        with parquet.ParquetFile(file) as trace:
            for number in range(trace.num_row_groups):
                for run_id, seq in _begins_of_group(trace, number):
                    found[run_id] = min(seq, found.get(run_id, seq))
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error
    return found


def _begins_of_group(trace: pq.ParquetFile, number: int) -> Iterable[tuple[str, int]]:
    """Yield the runs of a row group. If it has only one run, its statistics are enough."""
    group = trace.metadata.row_group(number)
    chunks = [group.column(each) for each in range(group.num_columns)]
    statistics = {chunk.path_in_schema: chunk.statistics for chunk in chunks}
    runs, seqs = statistics["run_id"], statistics["seq"]
    if all(each is not None and each.has_min_max for each in (runs, seqs)) and runs.min == runs.max:
        return [(runs.min, seqs.min)]
    rows = trace.read_row_group(number, columns=["run_id", "seq"])
    first = rows.group_by("run_id").aggregate([("seq", "min")])
    return zip(first["run_id"].to_pylist(), first["seq_min"].to_pylist(), strict=True)


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.rglob("*.parquet")
        if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(folder).parts)
    )


def footer(file: Path) -> pq.FileMetaData:
    """Return the metadata in a file's footer.

    :raises FencepostError: if it can't be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_metadata(file)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error


def unreadable(file: Path, error: Exception) -> FencepostError:
    """Return the error of a Parquet file that can't be read."""
    why = "it is empty" if file.stat().st_size == 0 else str(error).splitlines()[0]
    return FencepostError(
        f"{file}: not a readable Parquet file ({why}); expected a finished file: "
        "if its writer was interrupted, remove it"
    )


def _check(file: Path, expected: Iterable[pa.Field], what: str) -> None:
    import pyarrow as pa

    try:
        schema = footer(file).schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise FencepostError(f"{file}: not a {what}: {str(error).splitlines()[0]}") from error
    types = {field.name: field.type for field in expected}
    missing = [name for name in types if name not in schema.names]
    if missing:
        several = len(missing) > 1
        raise FencepostError(
            f"{file}: not a {what}, the column{'s' if several else ''} {', '.join(missing)} "
            f"{'are' if several else 'is'} missing; expected {', '.join(types)}"
        )
    for name, type_ in types.items():
        found = schema.field(name).type
        if not _fits(found, type_):
            raise FencepostError(
                f"{file}: column {name} has type {found}, expected {_in_words(type_)}: "
                "it may come from another version of fencepost"
            )


def _fits(found: pa.DataType, expected: pa.DataType) -> bool:
    """Return true if every value of one type is also a value of the other: other programs write
    traces, too."""
    from pyarrow import types

    if types.is_list(expected):
        is_list = types.is_list(found) or types.is_large_list(found)
        return is_list and _fits(found.value_type, expected.value_type)
    if types.is_struct(expected):
        if not types.is_struct(found) or {each.name for each in found} != {each.name for each in expected}:
            return False
        return all(_fits(found.field(each.name).type, each.type) for each in expected)
    if types.is_string(expected):
        found = found.value_type if types.is_dictionary(found) else found
        return bool(types.is_string(found) or types.is_large_string(found))
    if types.is_integer(expected):
        return bool(types.is_signed_integer(found) and found.bit_width <= expected.bit_width)
    if types.is_floating(expected):
        return str(found) in ("float", "double")
    return bool(found == expected)


def _in_words(type_: pa.DataType) -> str:
    from pyarrow import types

    if types.is_list(type_):
        return f"list<{_in_words(type_.value_type)}>"
    if types.is_struct(type_):
        return f"struct<{', '.join(f'{each.name}: {each.type}' for each in type_)}>"
    if types.is_integer(type_):
        return f"a whole number of at most {type_.bit_width} bits"
    named = {"string": "text", "double": "a floating-point number", "bool": "true or false"}
    return named[str(type_)]
