"""The state of tasks: an SQLite file for each partition, in a directory that one process has to itself.

    <state directory>/<group>/<topic>-<partition>/store.sqlite

A processing function's changes become durable just before its offsets are committed. With a changelog, they
are in that topic first, and the file knows up to which offset it has the topic. Changes that another process
has added since are read when the partition comes back. Without one, the file knows the offset up to which it
counts; if another process has processed the partition since, it is emptied.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import shutil
import sqlite3
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.errors import StreamsError

Key: TypeAlias = str | bytes | int
Value: TypeAlias = str | bytes | int | float

_TABLES = (
    "CREATE TABLE IF NOT EXISTS entries (key NOT NULL PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), next_offset INTEGER)",
    "CREATE TABLE IF NOT EXISTS checkpoint (one INTEGER PRIMARY KEY CHECK (one = 1), next_offset INTEGER)",
)
_FILE = "store.sqlite"
_LOCK = "lock.sqlite"


def _opened(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        for table in _TABLES:
            database.execute(table)
        database.execute("BEGIN")
    except BaseException:
        database.close()
        raise
    return database


class TaskStore:
    """Keys and values of one partition, for the processing function that gets the store."""

    def __init__(self, folder: Path) -> None:
        self._folder = _made(folder)
        self._changes: dict[Key, Value | None] = {}
        self.is_closed = False
        try:
            self._database = _opened(folder / _FILE)
        except sqlite3.DatabaseError as error:
            message = f"{folder / _FILE} can't be used: {error}; remove it, and start again"
            raise StreamsError(message) from error

    # -- for processing functions ------------------------------------------------------------------------

    def get(self, key: Key) -> Value | None:
        """Return the value of a key; None if it has none.

        :raises TypeError: if it can't be a key.
        :raises ValueError: if it is too large for one.
        """
        _check_key(key)
        row = self._database.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def put(self, key: Key, value: Value) -> None:
        """Give a key a value.

        :raises TypeError: if one of them is of another type; True and False are not allowed.
        :raises ValueError: if a whole number has more than 64 bits, or a float is not a number.
        """
        _check_key(key)
        _check_value(value)
        self._database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (key, value))
        self._changes[key] = value

    def delete(self, key: Key) -> None:
        """Forget a key, if it is stored.

        :raises TypeError: if it can't be a key.
        :raises ValueError: if it is too large for one.
        """
        _check_key(key)
        self._database.execute("DELETE FROM entries WHERE key = ?", (key,))
        self._changes[key] = None

    def items(self) -> Iterator[tuple[Key, Value]]:
        """Return all keys and values: numbers first, then text, then bytes, each in its order."""
        yield from self._database.execute("SELECT key, value FROM entries ORDER BY key")

    def __len__(self) -> int:
        count: int = self._database.execute("SELECT count(*) FROM entries").fetchone()[0]
        return count

    # -- calls of the thread -----------------------------------------------------------------------------

    @property
    def next_offset(self) -> int | None:
        """The offset up to which the entries count; None for a new store."""
        row = self._database.execute("SELECT next_offset FROM position").fetchone()
        return None if row is None else row[0]

    def follow(self, committed: int | None) -> None:
        """Take up work at a committed offset: data that another process has made stale is dropped."""
        if committed is not None and (self.next_offset or 0) < committed:
            self._database.execute("DELETE FROM entries")

    def commit(self, next_offset: int, checkpoint: int | None = None) -> None:
        """Make all changes durable; the changelog has them up to the checkpoint."""
        self._database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (next_offset,))
        if checkpoint is not None:
            self._database.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?)", (checkpoint,))
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")

    # -- its changelog -----------------------------------------------------------------------------------

    def take_changes(self) -> dict[Key, Value | None]:
        """Return the changes since the last call; None stands for a deleted key."""
        changes, self._changes = self._changes, {}
        return changes

    def put_back(self, changes: dict[Key, Value | None]) -> None:
        """Put back changes that were not written to the changelog; newer changes count."""
        self._changes = {**changes, **self._changes}

    @property
    def checkpoint(self) -> int | None:
        """The offset up to which it has all of the changelog; None if that is not known."""
        row = self._database.execute("SELECT next_offset FROM checkpoint").fetchone()
        return None if row is None else row[0]

    def clear(self) -> None:
        """Forget everything."""
        self._database.execute("DELETE FROM entries")

    def restore(self, key: Key, value: Value | None) -> None:
        """Apply a change from the changelog."""
        if value is None:
            self._database.execute("DELETE FROM entries WHERE key = ?", (key,))
        else:
            self._database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (key, value))

    def restored(self, checkpoint: int) -> None:
        """Note that it has all of the changelog up to that offset."""
        self._database.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?)", (checkpoint,))
        self._database.execute("COMMIT")
        self._database.execute("BEGIN")

    def close(self) -> None:
        """Close; changes that were not committed are dropped."""
        self.is_closed = True
        self._database.execute("ROLLBACK")
        self._database.close()
        (self._folder / _FILE).touch()


def _check_key(key: object) -> None:
    # SQLite treats True as 1, and 1.0 too, when it looks something up.
    if isinstance(key, bool) or not isinstance(key, str | bytes | int):
        raise TypeError(f"keys are text, bytes or whole numbers, got {type(key).__name__}")
    _check_bits(key)


def _check_value(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, str | bytes | int | float):
        raise TypeError(f"values are text, bytes, whole numbers or floats, got {type(value).__name__}")
    _check_bits(value)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError("nan can't be stored: SQLite treats it as NULL")


def _check_bits(number: object) -> None:
    if isinstance(number, int) and not -(2**63) <= number < 2**63:
        raise ValueError(f"whole numbers have 64 bits at most, got {number}")


class StateDirectory:
    """The directory of one client. Without a path it is a temporary one, which is deleted with the client.

    :raises ValueError: if the path is a file.
    """

    def __init__(self, path: str | os.PathLike[str] | None, group_id: str) -> None:
        self._temporary = path is None
        if path is not None and Path(path).exists() and not Path(path).is_dir():
            raise ValueError(f"state_dir should be a directory: {os.fspath(path)} is not one")
        self._given = None if path is None else Path(path)
        self._group = urllib.parse.quote(group_id, safe="").replace(".", "%2E")
        self.path: Path | None = None
        """The directory of the stores; None unless it is locked."""
        self._lock: sqlite3.Connection | None = None
        self._open: dict[TopicPartition, TaskStore] = {}
        self._waiting: dict[TopicPartition, set[asyncio.Event]] = {}

    @property
    def locked(self) -> bool:
        """True if this client has locked it."""
        return self._lock is not None

    def lock(self) -> None:
        """Make the directory, and lock it.

        :raises StreamsError: if it can't be written, or if another client has it.
        """
        root = self._given or _temporary_folder()
        try:
            path = _made(root / self._group)
            self._lock = _locked(path / _LOCK)
        except StreamsError:
            if self._temporary:
                shutil.rmtree(root, ignore_errors=True)
            raise
        self.path = path

    def store(self, partition: TopicPartition) -> TaskStore:
        """Return the store of a partition; open it if necessary."""
        store = self._open.get(partition)
        if store is None:
            assert self.path is not None
            store = self._open[partition] = TaskStore(self.path / _folder_of(partition))
        return store

    def is_open(self, partition: TopicPartition) -> bool:
        """Return true if the partition's store is open."""
        return partition in self._open

    def release(self, partition: TopicPartition) -> None:
        """Close a partition's store, if it is open."""
        store = self._open.pop(partition, None)
        if store is not None:
            store.close()
        for waiter in self._waiting.pop(partition, ()):
            waiter.set()

    def tell_when_free(self, partition: TopicPartition, waiter: asyncio.Event) -> None:
        """Set the event when the partition's store, which is open, is closed."""
        self._waiting.setdefault(partition, set()).add(waiter)

    def clean(self, older_than_s: float) -> list[str]:
        """Remove the stores that are not open and were not open for this long; return their names."""
        if self.path is None:
            return []
        kept = {_folder_of(partition) for partition in self._open}
        removed = []
        for folder in sorted(self.path.iterdir()):
            file = folder / _FILE
            if folder.name in kept or not file.is_file():
                continue
            if time.time() - file.stat().st_mtime >= older_than_s:
                shutil.rmtree(folder)
                removed.append(folder.name)
        return removed

    def size(self) -> int:
        """Return the bytes of all open stores, without changes that are not written yet."""
        if self.path is None:
            return 0
        files = (self.path / _folder_of(partition) / _FILE for partition in self._open)
        return sum(file.stat().st_size for file in files if file.is_file())

    def close(self) -> None:
        """Close all open stores, and let others have the directory."""
        for partition in list(self._open):
            self.release(partition)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._temporary and self.path is not None:
            shutil.rmtree(self.path.parent, ignore_errors=True)
        self.path = None


def _folder_of(partition: TopicPartition) -> str:
    return f"{partition.topic}-{partition.partition}"


def _temporary_folder() -> Path:
    """A new one.

    :raises StreamsError: if it can't be made.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="fencepost-streams-"))
    except OSError as error:
        raise StreamsError(f"no temporary folder can be made: {error}; give a state_dir") from error


def _made(folder: Path) -> Path:
    """Make the folder.

    :raises StreamsError: if that is not possible.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        advice = "a shorter group_id" if error.errno == errno.ENAMETOOLONG else "another state_dir"
        raise StreamsError(f"{folder} can't be made: {error.strerror}; give {advice}") from error
    return folder


def _locked(file: Path) -> sqlite3.Connection:
    """Open a connection that has a file to itself.

    :raises StreamsError: if another client has it, or if it can't be used at all.
    """
    lock: sqlite3.Connection | None = None
    try:
        lock = sqlite3.connect(file, isolation_level=None, timeout=0)
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.DatabaseError as error:
        if lock is not None:
            lock.close()
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            message = f"{file.parent} is in use by another client of the group: give each its own state_dir"
        else:
            message = f"{file} can't be used: {error}; remove it, or give a state_dir that can be written"
        raise StreamsError(message) from error
    return lock
