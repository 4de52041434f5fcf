"""The folder of a followed topic: rows, one file per batch; counts of skipped records; Spark's checkpoint.

OUT/following.json           the topic
OUT/traces/batch-N.parquet   rows of batch N, sorted by run; missing if it had no rows
OUT/batches/N.json           numbers of rows and of skipped records
OUT/checkpoint               Spark's progress
OUT/lock                     held by the process that follows

After a crash, Spark may write a batch again without knowing whether it was written. The batch replaces its
earlier file, so each record counts once, whenever the process was killed.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.reading import read_file
from fencepost.simulation.pipeline.traces import TRACES
from fencepost.simulation.pipeline.whole_files import whole_file

if TYPE_CHECKING:
    import pyarrow as pa


class Following(msgspec.Struct, frozen=True):
    """The topic that a folder follows."""

    kafka: str
    topic: str
    topic_id: str | None = None
    """The topic's id: another topic may have the same name by now."""


class Counts(msgspec.Struct, frozen=True):
    """The counts of one batch."""

    rows: int
    skipped: dict[str, int] = {}
    """Number of skipped records, by the reason."""


class LiveFolder:
    """The files of one topic.

    :raises FencepostError: if the folder belongs to another topic, or can't be read or written.
    """

    def __init__(self, path: Path, following: Following) -> None:
        self.path = path
        self._traces, self._batches = path / TRACES, path / "batches"
        self._counted: dict[int, Counts] = {}
        self._rows, self._skipped = 0, Counter[str]()
        with contextlib.ExitStack() as on_failure:
            try:
                for each in (self._traces, self._batches):
                    each.mkdir(parents=True, exist_ok=True)
                lock = on_failure.enter_context((path / "lock").open("w"))
                self._claim(following, lock)
                for file in self._batches.glob("*.json"):
                    self._count(int(file.stem), msgspec.json.decode(read_file(file), type=Counts))
            except BlockingIOError:
                raise FencepostError(f"--out {path}: another process follows a topic into it") from None
            except (msgspec.DecodeError, ValueError) as error:
                raise FencepostError(f"--out {path}: what is in batches can't be read ({error})") from None
            except OSError as error:
                why = (error.strerror or type(error).__name__).lower()
                raise FencepostError(f"--out {path}: cannot be written: {why}") from error
            self._lock = on_failure.pop_all()

    @property
    def traces(self) -> Path:
        """The folder with the rows."""
        return self._traces

    @property
    def checkpoint(self) -> Path:
        """The folder in which Spark keeps its progress."""
        return self.path / "checkpoint"

    def offsets(self) -> dict[int, int]:
        """Return the offset up to which each partition was read and written; empty before the first batch."""
        commits = (self.checkpoint / "commits").glob("*")
        numbers = [int(file.name) for file in commits if file.name.isdecimal()]
        if not numbers:
            return {}
        # The last line is the source's: {"TOPIC": {"PARTITION": OFFSET}}.
        written = read_file(self.checkpoint / "offsets" / str(max(numbers))).splitlines()[-1]
        (of_topic,) = msgspec.json.decode(written, type=dict[str, dict[int, int]]).values()
        return of_topic

    @property
    def files(self) -> list[Path]:
        """Return the files with rows, in the order of their batches."""
        return sorted(self._traces.glob("batch-*.parquet"))

    def write(self, number: int, rows: pa.Table, skipped: dict[str, int]) -> None:
        """Write a batch, or write it again."""
        from pyarrow import parquet

        target = self._traces / f"batch-{number:08}.parquet"
        if len(rows):
            with whole_file(target) as unfinished:
                parquet.write_table(rows.sort_by([("run_id", "ascending"), ("seq", "ascending")]), unfinished)
        else:
            target.unlink(missing_ok=True)
        counts = Counts(len(rows), skipped)
        with whole_file(self._batches / f"{number:08}.json") as unfinished:
            unfinished.write_bytes(msgspec.json.encode(counts))
        self._count(number, counts)

    def counts(self) -> Counts:
        """Return the counts of all batches together."""
        return Counts(self._rows, {reason: n for reason, n in sorted(self._skipped.items()) if n})

    def _count(self, number: int, counts: Counts) -> None:
        before = self._counted.get(number, Counts(0))
        self._counted[number] = counts
        self._rows += counts.rows - before.rows
        self._skipped.subtract(before.skipped)
        self._skipped.update(counts.skipped)

    def close(self) -> None:
        """Release the folder for other processes."""
        self._lock.close()

    def __enter__(self) -> LiveFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _claim(self, following: Following, lock: IO[str]) -> None:
        if os.name != "nt":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file = self.path / "following.json"
        if not file.exists():
            if any(self._traces.iterdir()):
                raise FencepostError(f"--out {self.path}: holds other traces: expected a new folder")
            with whole_file(file) as unfinished:
                unfinished.write_bytes(msgspec.json.encode(following))
            return
        try:
            found = msgspec.json.decode(read_file(file), type=Following)
        except msgspec.DecodeError as error:
            raise FencepostError(f"{file}: can't be read ({error})") from None
        if found.topic != following.topic or found.topic_id != following.topic_id:
            what = f"topic {found.topic}"
            if found.topic == following.topic:
                what = f"another topic of the name {found.topic}, since deleted"
            raise FencepostError(f"--out {self.path}: is of {what}, at {found.kafka}: expected a new folder")
