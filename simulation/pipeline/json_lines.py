"""Traces as files of JSON documents, one row in each line: analyses read a copy of them as Parquet.

A consumer that saves a topic with a trace writes such files.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.trace.documents import TracedRow, decode

SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
_ROWS: Final = 50_000
"""The limit on rows in memory."""


def is_json_lines(path: Path) -> bool:
    """Return true if a file has a name of this form, or begins with a document and not as Parquet does."""
    if not path.is_file():
        return False
    if path.suffix in SUFFIXES:
        return True
    with path.open("rb") as file:
        return file.read(1) == b"{"


def as_parquet(path: Path) -> Path:
    """Return a file or folder with the same traces as Parquet: a copy of JSON lines, until this process ends.

    A folder with none of these files, or with a campaign, is returned as it is.

    :raises FencepostError: if a line is not the document of a row.
    """
    lines = [path] if is_json_lines(path) else _lines_in(path)
    if not lines:
        return path
    folder = Path(tempfile.mkdtemp(prefix="fencepost-lines-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if path.is_file():
        return _converted(path, folder / f"{path.stem}.parquet")
    for file in path.rglob("*.parquet"):
        link = folder / file.relative_to(path)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.absolute())
    for file in lines:
        target = folder / file.relative_to(path).with_suffix(".parquet")
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise FencepostError(f"{file}: {file.stem}.parquet lies beside it: expected one of them")
        _converted(file, target)
    return folder


def _lines_in(folder: Path) -> list[Path]:
    found = (file for suffix in SUFFIXES[:2] for file in folder.rglob(f"*{suffix}") if file.is_file())
    return sorted(
        file for file in found if not any(p.startswith((".", "_")) for p in file.relative_to(folder).parts)
    )


def _converted(source: Path, target: Path) -> Path:
    from pyarrow import parquet

    from fencepost.simulation.trace.parquet import SCHEMA, record_batch

    rows = _rows(source)
    with parquet.ParquetWriter(target, SCHEMA, compression="zstd") as writer:
        while part := list(islice(rows, _ROWS)):
            writer.write_batch(record_batch([each.row for each in part], [each.run_id for each in part]))
    return target


def _rows(source: Path) -> Iterator[TracedRow]:
    try:
        with source.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                found = decode(line)
                if isinstance(found, str):
                    raise FencepostError(
                        f"{source}:{number}: {found}: expected one JSON document of a row in each line"
                    )
                yield found
    except OSError as error:
        raise FencepostError(f"{source}: cannot be read: {(error.strerror or str(error)).lower()}") from error
