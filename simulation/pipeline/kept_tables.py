"""The results of the last analysis of a folder, kept next to the views of its runs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fencepost.coordinator.reading import UnreadableFile, read_file
from fencepost.simulation.analyses.run_views import version
from fencepost.simulation.pipeline.run_files import Source
from fencepost.simulation.pipeline.traces import TraceFiles
from fencepost.simulation.pipeline.whole_files import whole_file

_NAME: Final = "tables.msgpack"
_DIGEST: Final = hashlib.sha256().digest_size

T = TypeVar("T")


class KeptTables:
    """The kept results for files in their present state; results of an earlier state do not count."""

    def __init__(self, files: TraceFiles, sources: Sequence[Source], since_us: int) -> None:
        self._path = Path(files.keep) / _NAME if files.keep and files.traces else None
        states = [(Path(path).name, os.stat(path)) for path in files.runs]
        about = [
            *(version(), _version(), since_us, [each.fingerprint for each in sources]),
            [[name, state.st_size, state.st_mtime_ns] for name, state in states],
        ]
        self._state = hashlib.sha256(json.dumps(about).encode()).digest()

    def read(self, kind: type[T]) -> T | None:
        """Return the results; None if there are none, or the file is damaged."""
        if self._path is None:
            return None
        try:
            data = read_file(self._path, None)
            body = data[2 * _DIGEST :]
            if data[:_DIGEST] != self._state or data[_DIGEST : 2 * _DIGEST] != hashlib.sha256(body).digest():
                return None
            return msgspec.msgpack.decode(body, type=kind)
        except (UnreadableFile, msgspec.DecodeError):
            return None

    def write(self, result: msgspec.Struct) -> None:
        """Keep the results, unless the folder is read-only."""
        if self._path is not None:
            body = msgspec.msgpack.encode(result)
            with contextlib.suppress(OSError), whole_file(self._path) as path:
                path.write_bytes(self._state + hashlib.sha256(body).digest() + body)


@functools.cache
def _version() -> str:
    """Return a version that changes with every file that results depend on."""
    found = hashlib.sha256()
    for each in _sources():
        found.update(each.read_bytes())
    return found.hexdigest()


def _sources() -> Iterator[Traversable]:
    root = resources.files("fencepost.simulation")
    yield from _files(root / "analyses")
    yield from (root / "pipeline" / "analyze.py", root / "report" / "model.py")  # curves and their labels


def _files(folder: Traversable) -> Iterator[Traversable]:
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            yield from _files(each)
        elif each.name.endswith((".py", ".sql")):
            yield each
