"""A campaign's directory: summaries in runs/, traces in traces/, and a note that identifies the campaign.

Files appear whole: they are written under a name that readers skip, then renamed. A part of traces/ counts
only if runs/ has a part of the same name, which is written after it.

Workers of a killed campaign may live a few seconds longer. So every writer holds a shared lock. A campaign
that starts or resumes must hold the lock alone once. No worker of an earlier start begins to write after
that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import UnreadableFile, read_file
from fencepost.simulation.pipeline.tasks import CampaignCell
from fencepost.simulation.pipeline.traces import KEPT, LOCK, NOTE, RUNS, TRACES, TraceFiles, unreadable
from fencepost.simulation.pipeline.whole_files import whole_file

FORMAT: Final = 2
LOCK_SECONDS: Final = 30.0
"""Time that workers of a killed campaign may take to notice, in seconds."""
_LOOK_SECONDS: Final = 0.1
_LISTED: Final = 3


class NotedCell(msgspec.Struct, frozen=True):
    """A cell in the note of a campaign."""

    scenario: str
    source: str
    parameters: dict[str, str]
    settings: dict[str, str]
    fingerprint: str


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The note in a directory that identifies its campaign: cells by the prefix of their run ids."""

    format: int
    generation: int
    """Number of earlier starts of the campaign."""
    cells: dict[str, NotedCell]


class _Format(msgspec.Struct):
    format: int


class CampaignDirectory:
    """The directory `--out` of one campaign."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.generation = 0
        """The number of this start of the campaign, once it is prepared."""
        self._lock: int | None = None

    def prepare(
        self, cells: Sequence[CampaignCell], *, resume: bool, seeds: Sequence[int] | None = None
    ) -> frozenset[str]:
        """Make it ready for these cells, and return the runs that are finished already.

        `seeds` are the campaign's seeds: finished runs must have no other seeds. Failed runs count as
        finished, because they would fail again.

        :raises FencepostError: if it cannot be written, or has contents that must not be mixed with this
            campaign.
        """
        noted: dict[str, NotedCell] = {}
        self.generation = 0
        try:
            if self.root.exists() and not self.root.is_dir():
                raise FencepostError(f"--out {self.root}: is a file, expected a directory")
            if self.root.is_dir() and any(self.root.iterdir()):
                before = self._note(resume)
                noted, self.generation = before.cells, before.generation + 1
                self._check_same(cells, noted)
            for folder in (RUNS, TRACES):
                (self.root / folder).mkdir(parents=True, exist_ok=True)
            with self._alone():
                self._sweep()
                finished = self._finished()
                if seeds is not None:
                    self._check_seeds(cells, seeds, finished)
                cells_noted = noted | {cell.prefix: _noted(cell) for cell in cells}
                note = msgspec.json.encode(Note(FORMAT, self.generation, cells_noted))
                with whole_file(self.root / NOTE) as path:
                    path.write_bytes(msgspec.json.format(note) + b"\n")
        except OSError as error:
            raise FencepostError(
                f"--out {self.root}: cannot be written: {error.strerror or error}"
            ) from error
        return finished

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock alone in the block; afterwards others may write, but none may hold it alone while
        this object lives."""
        if self._lock is None:
            self._lock = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            self._closed = weakref.finalize(self, os.close, self._lock)  # also without `release`
        until = time.monotonic() + LOCK_SECONDS
        while not _locked(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() >= until:
                raise FencepostError(f"--out {self.root}: another campaign is writing to it")
            time.sleep(_LOOK_SECONDS)
        try:
            yield
        finally:
            _locked(self._lock, fcntl.LOCK_SH)

    def release(self) -> None:
        """Release the lock, although this object may live on, as in a traceback."""
        if self._lock is not None:
            self._closed()
            self._lock = None

    def _note(self, resume: bool) -> Note:
        try:
            text = read_file(self.root / NOTE)
            found = msgspec.json.decode(text, type=_Format).format
            note = msgspec.json.decode(text, type=Note) if found == FORMAT else None
        except (UnreadableFile, msgspec.DecodeError) as error:
            if (self.root / NOTE).is_file():
                raise FencepostError(
                    f"--out {self.root}: {NOTE}, which describes its campaign, is damaged: {error}; "
                    "choose another directory"
                ) from None
            raise FencepostError(
                f"--out {self.root}: is not empty and holds no campaign; choose another directory"
            ) from None
        if note is None:
            raise FencepostError(f"--out {self.root}: holds a campaign of another version of fencepost")
        if not resume:
            raise FencepostError(
                f"--out {self.root}: holds a campaign already; continue it with --resume, "
                "or choose another directory"
            )
        return note

    def _check_same(self, cells: Sequence[CampaignCell], noted: dict[str, NotedCell]) -> None:
        for cell in cells:
            before = noted.get(cell.prefix)
            if before is not None and before.fingerprint != cell.fingerprint:
                raise FencepostError(
                    f"--out {self.root}: scenario {cell.name} has changed since this campaign began; "
                    "choose another directory"
                )
        if not noted.keys() <= {cell.prefix for cell in cells}:
            raise FencepostError(
                f"--out {self.root}: holds a campaign of {_listed(noted.values())}, and this is one of "
                f"{_listed(map(_noted, cells))}; choose another directory, or ask for what it holds as well"
            )

    def _check_seeds(
        self, cells: Sequence[CampaignCell], seeds: Sequence[int], finished: frozenset[str]
    ) -> None:
        wanted = {cell.run_id(seed) for cell in cells for seed in seeds}
        more = sorted(finished - wanted)
        if more:
            raise FencepostError(
                f"--out {self.root}: holds {len(more):,} run{'' if len(more) == 1 else 's'} of other seeds, "
                f"such as {more[0]}; choose another directory, or ask for what it holds as well"
            )

    def _sweep(self) -> None:
        """Keep the finished runs of an interrupted campaign, and remove its unfinished files."""
        from fencepost.simulation.pipeline.worker import recover

        recover(self.root)
        for folder in (RUNS, TRACES):
            for path in (self.root / folder).glob(".*"):
                if not path.is_dir():  # one of them keeps the views of runs
                    path.unlink()
        whole = {path.name for path in (self.root / RUNS).glob("*.parquet")}
        for path in (self.root / TRACES).glob("*.parquet"):
            if path.name not in whole:
                path.unlink()

    def _finished(self) -> frozenset[str]:
        import pyarrow as pa
        from pyarrow import parquet

        finished: set[str] = set()
        for path in sorted((self.root / RUNS).glob("*.parquet")):
            try:
                table = parquet.read_table(path, columns=["run_id"])
            except (pa.ArrowException, OSError) as error:
                raise FencepostError(
                    f"{unreadable(path, error)}, and its runs are carried out again"
                ) from error
            finished.update(table.column("run_id").to_pylist())
        return frozenset(finished)

    def failed_runs(self) -> list[dict[str, Any]]:
        """Return summaries of the runs that violated an invariant or raised: run_id, seed, invariant and
        error."""
        from pyarrow import parquet

        columns = ["run_id", "seed", "violations", "invariant", "error"]
        rows = [
            row
            for path in sorted((self.root / RUNS).glob("*.parquet"))
            for row in parquet.read_table(path, columns=columns).to_pylist()
            if row["violations"] or row["error"] is not None
        ]
        return sorted(rows, key=lambda row: str(row["run_id"]))

    def files(self) -> TraceFiles:
        """Return all existing parts."""
        traces, runs = (
            tuple(str(path) for path in sorted((self.root / folder).glob("*.parquet")))
            for folder in (TRACES, RUNS)
        )
        return TraceFiles(traces, runs, keep=str(self.root / TRACES / KEPT))


@contextlib.contextmanager
def writing(root: Path, generation: int) -> Iterator[bool]:
    """Hold the lock while a worker writes. Yield false if it must not write, because the campaign was started
    again."""
    lock = os.open(root / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _locked(lock, fcntl.LOCK_SH)
        yield msgspec.json.decode(read_file(root / NOTE), type=Note).generation == generation
    finally:
        os.close(lock)


def _locked(lock: int, how: int) -> bool:
    """Return true if the lock was acquired. On a file system without locks, it always is."""
    try:
        fcntl.flock(lock, how)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _noted(cell: CampaignCell) -> NotedCell:
    return NotedCell(cell.name, cell.source, cell.parameters, cell.settings, cell.fingerprint)


def _listed(cells: Iterable[NotedCell]) -> str:
    """Return the first cells as text, with the parameters that distinguish them."""
    names = [
        " ".join([cell.scenario, *(f"{key}={value}" for key, value in cell.parameters.items())])
        for cell in cells
    ]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
