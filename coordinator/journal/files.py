"""A journal's files: which files may be opened, by which process, and how to inspect them without changes.

SQLite merges a write-ahead log into the database, and deletes it, when the last connection that may write is
closed. It also deletes the part of a log that it could not read. So a log is inspected through a connection
that can't write, and no other connection is made before everything was found intact.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from fencepost.coordinator.journal import wal
from fencepost.coordinator.journal.encoding import HINT, BrokenJournal
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.reading import UnreadableFile, check_regular

APPLICATION_ID: Final = 0x66656E63
"""Marks a database as a journal, not one of another program."""
FORMAT: Final = 1
MAGIC: Final = b"SQLite format 3\0"
HEADER_BYTES: Final = 100
PRIVATE: Final = 0o600
"""The mode of a new journal, as of PostgreSQL's files."""
_WAL_BYTES: Final = 4 << 20
_PATIENCE: Final = 0.2
"""Seconds to wait for another process, which may be about to end."""

# A row's outcome is the number of the outcome's last row, even if compaction removed that row.
_SCHEMA: Final = (
    "CREATE TABLE record (number INTEGER PRIMARY KEY, outcome INTEGER, checksum INTEGER, data BLOB)",
    "CREATE TABLE batch (number INTEGER PRIMARY KEY, topic TEXT, place INTEGER, checksum INTEGER, data BLOB)",
    "CREATE TABLE total (name TEXT PRIMARY KEY, rows INTEGER, digest INTEGER) WITHOUT ROWID",
    "INSERT INTO total VALUES ('record', 0, 0), ('batch', 0, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn errors of the system and of SQLite into errors for a user.

    :raises EnvironmentLacks: if a file can't be read or written, or is in use.
    :raises BrokenJournal: if SQLite can't read it.
    """
    try:
        yield
    except OSError as error:
        raise EnvironmentLacks(f"journal {path}: {(error.strerror or str(error)).lower()}") from error
    except sqlite3.Error as error:
        raise _foreseen(path, error) from error
    except OverflowError as error:
        raise BrokenJournal(f"journal {path}: {error}{HINT}") from error


def _foreseen(path: Path, error: sqlite3.Error) -> FencepostError:
    """Return the error that a user gets for an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return EnvironmentLacks(
            f"journal {path} is in use: stop the program that uses it, or choose another file"
        )
    refused = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
    if primary in refused | {sqlite3.SQLITE_IOERR} and not os.access(path.parent, os.W_OK):
        return EnvironmentLacks(
            f"journal {path}: the folder {path.parent} is not writable; SQLite creates files in it: make "
            "it writable, or choose another file"
        )
    if primary in refused:
        return EnvironmentLacks(f"journal {path}: {error}; make it writable, or choose another file")
    if primary in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        return EnvironmentLacks(f"journal {path}: {error}; free some disk space, or choose another file")
    return BrokenJournal(f"journal {path}: {error}{HINT}")


def check_damage(error: sqlite3.Error) -> None:
    """Check that an error is about the content of a file.

    :raises sqlite3.Error: if not.
    """
    if not isinstance(_foreseen(Path(), error), BrokenJournal):
        raise error


def check_beginning(path: Path) -> bool:
    """Check that SQLite may open a file at all; return true if it has content.

    :raises FencepostError: if it can't be a file.
    :raises BrokenJournal: if it is not a journal, or if only a journal's log is left.
    :raises EnvironmentLacks: if it can't be read.
    """
    if path.is_dir():
        raise FencepostError(f"journal {path}: is a directory, expected a file")
    if not path.parent.is_dir():
        there = "is not a directory" if path.parent.exists() else "does not exist"
        raise FencepostError(f"journal {path}: {path.parent} {there}")
    check_regular_files(path)
    with named(path):
        has_log = not wal.is_empty(path)
        is_there = path.exists() and path.stat().st_size > 0
        if is_there:
            with path.open("rb") as file:
                beginning = file.read(HEADER_BYTES)
            if never_a_journal(beginning):
                raise BrokenJournal(f"journal {path}: this is not a journal")
            if len(beginning) < HEADER_BYTES:
                # SQLite regards a file of one byte as empty.
                raise BrokenJournal(f"journal {path}: it ends after {len(beginning)} bytes{HINT}")
        elif has_log:
            lacks = "is empty" if path.exists() else "is missing"
            raise BrokenJournal(f"journal {path}: it {lacks}, but {wal.beside(path).name} is not{HINT}")
    return is_there


def check_regular_files(path: Path) -> None:
    """See that a journal and its log, as far as they exist, are regular files.

    :raises FencepostError: if one is a pipe or a device, which may never end.
    """
    for file in (path, wal.beside(path)):
        try:
            if not file.is_dir():  # opening it fails with the reason
                check_regular(file)
        except UnreadableFile as error:
            raise FencepostError(f"journal {file}: {error.reason}") from None


def never_a_journal(beginning: bytes) -> bool:
    """Return true if a file with that beginning was never a journal, even before it was damaged."""
    is_database = beginning[: len(MAGIC)] == MAGIC[: len(beginning)]
    return not is_database and beginning[68:72] != APPLICATION_ID.to_bytes(4, "big")


@contextmanager
def looked_at(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection that only reads: meanwhile no process can write, and nothing is changed.

    :raises sqlite3.Error: if the file is not a database, can't be opened, or is in use.
    """
    index = path.with_name(path.name + "-shm")
    was_there = index.exists()
    try:
        with closing(_connection(f"{path.absolute().as_uri()}?mode=ro")) as database:
            database.execute("BEGIN")
            database.execute("SELECT 1 FROM sqlite_master").fetchone()
            yield database
    finally:
        if not was_there:
            index.unlink(missing_ok=True)


def connect(path: Path) -> sqlite3.Connection:
    """Open a connection that no other process can have at the same time, once it was used.

    :raises sqlite3.Error: if the file can't be opened, or is not a database.
    """
    with contextlib.suppress(OSError):  # SQLite reports why it can't be created
        # Its log has the same mode. SQLite alone would let all users read the data of groups.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE))
    database = _connection(path.absolute().as_uri())
    try:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA synchronous = FULL")
    except sqlite3.Error:
        database.close()
        raise
    return database


def _connection(uri: str) -> sqlite3.Connection:
    database = sqlite3.connect(
        uri, isolation_level=None, timeout=_PATIENCE, check_same_thread=False, uri=True
    )
    # A schema from a stranger must not call functions with side effects.
    database.execute("PRAGMA trusted_schema = OFF")
    return database


def is_unmade(database: sqlite3.Connection) -> bool:
    """Return true if nothing is in it at all, or a process ended while it made the journal.

    :raises sqlite3.Error: if it is not a database.
    """
    (kind,) = database.execute("PRAGMA application_id").fetchone()
    return kind == 0 and not database.execute("SELECT 1 FROM sqlite_master").fetchall()


def make(database: sqlite3.Connection) -> None:
    """Make a journal of a database in which nothing is.

    :raises sqlite3.Error: if it can't be written.
    """
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        database.execute(statement)
    database.execute("COMMIT")


def check_kind(path: Path, database: sqlite3.Connection) -> None:
    """Check that a database is a journal.

    :raises BrokenJournal: if it is not, or of another version.
    :raises sqlite3.Error: if it is not a database.
    """
    (kind,) = database.execute("PRAGMA application_id").fetchone()
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if kind != APPLICATION_ID:
        raise BrokenJournal(f"journal {path}: this is an SQLite database of another program")
    if version != FORMAT:
        raise BrokenJournal(f"journal {path}: format {version} is unknown, {FORMAT} was expected")
    for kind, name, text in database.execute("SELECT type, name, sql FROM sqlite_master"):
        if kind != "table" or text not in _SCHEMA:
            raise BrokenJournal(
                f"journal {path}: the {kind} {name} is not part of a journal, and could change it{HINT}"
            )


def claim(path: Path, database: sqlite3.Connection) -> None:
    """Make a journal that was found to be whole ready to be written, and its log empty.

    :raises BrokenJournal: if it can't have a log.
    :raises sqlite3.Error: if it can't be written.
    """
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise BrokenJournal(f"journal {path}: journal mode {mode}, expected wal{HINT}")
    database.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    database.execute("BEGIN IMMEDIATE")
    database.execute("COMMIT")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
