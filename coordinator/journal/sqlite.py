"""The journal in a file: an SQLite database that holds what was acknowledged, whatever ends the process.

Records are rows in the order of their numbers; an outcome's rows go into one transaction, and a transaction
is on disk before `flush` returns (WAL, synchronous FULL). Each row has a checksum over its number, its
outcome and its record, and one row of totals has the count and the sum of all checksums: so a row that was
altered, moved or lost is noticed on load. Compaction removes, a few with each flush, rows whose key has a
newer one, and tombstones with them: the file stays within a few times the size of what is true.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from fencepost.coordinator.journal import wal
from fencepost.coordinator.journal.encoding import (
    BrokenJournal,
    BrokenRecord,
    JournalKey,
    JournalRecord,
    decode_any,
    encode,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError

APPLICATION_ID: Final = 0x66656E63
"""Says that a database is a journal, and none of another program."""
FORMAT: Final = 1
MAGIC: Final = b"SQLite format 3\0"
HEADER_BYTES: Final = 100
_MODULUS: Final = 1 << 62
_MIN_GARBAGE: Final = 1_024
_CLEANED_AT_ONCE: Final = 256
_WAL_BYTES: Final = 4 << 20

# A row's outcome is the number of the outcome's last row, whether compaction left that one or not.
SCHEMA: Final = (
    "CREATE TABLE record (number INTEGER PRIMARY KEY, outcome INTEGER, checksum INTEGER, data BLOB)",
    "CREATE TABLE batch (number INTEGER PRIMARY KEY, topic TEXT, place INTEGER, checksum INTEGER, data BLOB)",
    "CREATE TABLE total (name TEXT PRIMARY KEY, rows INTEGER, digest INTEGER) WITHOUT ROWID",
    "INSERT INTO total VALUES ('record', 0, 0), ('batch', 0, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)


class JournalFailed(EnvironmentLacks):
    """The disk did not take what was written: nothing of it may be acknowledged."""


def record_checksum(number: int, outcome: int, data: bytes) -> int:
    """What a row of `record` is checked by."""
    return zlib.crc32(data, zlib.crc32(b"%d %d " % (number, outcome)))


def batch_checksum(number: int, topic: str, place: int, data: bytes) -> int:
    """What a row of `batch` is checked by."""
    return zlib.crc32(data, zlib.crc32(b"%d %s %d " % (number, topic.encode("utf-8", "replace"), place)))


class SqliteJournal:
    """Records in one file, which no other process can open meanwhile.

    `append` writes nothing yet: `on_pending` is told once, and `flush` brings all that was appended since to
    the disk in one transaction. Without `on_pending` each append is flushed at once.

    :raises BrokenJournal: if the file is no journal, or a damaged one.
    :raises EnvironmentLacks: if the file can't be opened, written, or is in use.
    """

    def __init__(self, path: Path, on_pending: Callable[[], None] | None = None) -> None:
        self.path = path
        self.on_pending = on_pending
        self._newest: dict[JournalKey, tuple[int, int]] = {}
        """Number and checksum of the row that is true for a key."""
        self._garbage: list[tuple[int, int]] = []
        self._new: list[tuple[int, int, int, bytes]] = []
        self._new_batches: list[tuple[int, str, int, int, bytes]] = []
        self._dropped: list[tuple[str, int, int]] = []
        self._rows: dict[str, int] = {}
        self._digests: dict[str, int] = {}
        self._next = {"record": 1, "batch": 1}
        self._database = _open(path)
        try:
            self._load()
        except BaseException:
            self._database.close()
            raise

    def _load(self) -> None:
        try:
            for name, rows, digest in self._database.execute("SELECT name, rows, digest FROM total"):
                self._rows[name], self._digests[name] = rows, digest
            found = self._database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise BrokenJournal(f"journal {self.path}: {found.splitlines()[-1]}{_HINT}")
            rows, digest = 0, 0
            for number, checksum, record in self._checked_records():
                self._keep(number, checksum, record)
                rows, digest = rows + 1, digest + checksum
            self._compare("record", rows, digest)
            rows, digest = 0, 0
            for number, checksum in self._checked_batches():
                self._next["batch"] = number + 1
                rows, digest = rows + 1, digest + checksum
            self._compare("batch", rows, digest)
        except (sqlite3.Error, OverflowError) as error:
            raise BrokenJournal(f"journal {self.path}: {error}{_HINT}") from error

    def _compare(self, name: str, rows: int, digest: int) -> None:
        if (rows, digest % _MODULUS) != (self._rows.get(name), self._digests.get(name)):
            raise BrokenJournal(
                f"journal {self.path}: {rows} rows in table {name}, expected {self._rows.get(name)} "
                f"with the digest {self._digests.get(name)}{_HINT}"
            )

    def _checked_records(self) -> Iterator[tuple[int, int, JournalRecord]]:
        last = 0
        for number, outcome, checksum, data in self._database.execute(
            "SELECT number, outcome, checksum, data FROM record ORDER BY number"
        ):
            try:
                yield number, checksum, checked_record(number, outcome, checksum, data)
            except BrokenRecord as error:
                raise BrokenJournal(
                    f"journal {self.path}: record {number}, the one after record {last}: {error}{_HINT}"
                ) from error
            last = number

    def _checked_batches(self) -> Iterator[tuple[int, int]]:
        for number, topic, place, checksum, data in self._database.execute(
            "SELECT number, topic, place, checksum, data FROM batch ORDER BY number"
        ):
            if not is_checked_batch(number, topic, place, checksum, data):
                raise BrokenJournal(f"journal {self.path}: record batch {number} fails its checksum{_HINT}")
            yield number, checksum

    def _keep(self, number: int, checksum: int, record: JournalRecord) -> None:
        """What was true for the record's key is garbage now, and a tombstone with it."""
        old = self._newest.pop(record.key, None)
        if old is not None:
            self._garbage.append(old)
        if record.value is None:
            self._garbage.append((number, checksum))
        else:
            self._newest[record.key] = number, checksum
        self._next["record"] = number + 1

    @property
    def is_pending(self) -> bool:
        """Whether something was appended that is not on disk yet."""
        return bool(self._new or self._new_batches or self._dropped)

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Take one outcome; all of it comes to the disk, or none.

        :raises JournalFailed: if it is flushed at once, and that failed.
        """
        if not records:
            return
        told = self.is_pending
        outcome = self._next["record"] + len(records) - 1
        for record in records:
            number, data = self._next["record"], encode(record)
            checksum = record_checksum(number, outcome, data)
            self._new.append((number, outcome, checksum, data))
            self._keep(number, checksum, record)
        self._pending(told)

    def append_batch(self, topic_id: str, partition: int, batch: bytes) -> None:
        """Take a batch of records of a partition's log, as it is in the log."""
        told = self.is_pending
        number = self._next["batch"]
        self._next["batch"] = number + 1
        checksum = batch_checksum(number, topic_id, partition, batch)
        self._new_batches.append((number, topic_id, partition, checksum, batch))
        self._pending(told)

    def drop_batches(self, topic_id: str, partition: int, before: int) -> None:
        """Forget the batches of a partition whose base offset is lower."""
        told = self.is_pending
        self._dropped.append((topic_id, partition, before))
        self._pending(told)

    def _pending(self, told: bool) -> None:
        if self.on_pending is None:
            self.flush()
        elif not told:
            self.on_pending()

    def flush(self) -> None:
        """Bring all that was appended to the disk, in one transaction.

        :raises JournalFailed: if the disk did not take it. The journal is of no use then.
        """
        if not self.is_pending:
            return
        execute, executemany = self._database.execute, self._database.executemany
        try:
            execute("BEGIN IMMEDIATE")
            if self._new:
                executemany("INSERT INTO record VALUES (?, ?, ?, ?)", self._new)
                self._count("record", [row[2] for row in self._new], 1)
                self._clean(len(self._new))
            if self._new_batches:
                executemany("INSERT INTO batch VALUES (?, ?, ?, ?, ?)", self._new_batches)
                self._count("batch", [row[3] for row in self._new_batches], 1)
            for dropped in self._dropped:
                self._drop(*dropped)
            executemany(
                "UPDATE total SET rows = ?, digest = ? WHERE name = ?",
                [(self._rows[name], self._digests[name], name) for name in self._rows],
            )
            execute("COMMIT")
        except sqlite3.Error as error:
            raise JournalFailed(
                f"journal {self.path} can't be written: {error}; make room, start again"
            ) from error
        self._new, self._new_batches, self._dropped = [], [], []

    def _count(self, name: str, checksums: Sequence[int], sign: int) -> None:
        self._rows[name] += sign * len(checksums)
        self._digests[name] = (self._digests[name] + sign * sum(checksums)) % _MODULUS

    def _clean(self, appended: int) -> None:
        """Remove more rows than came, once half of them are garbage: the work is spread, the file bounded."""
        if len(self._garbage) <= max(_MIN_GARBAGE, len(self._newest)):
            return
        at_once = max(_CLEANED_AT_ONCE, 4 * appended)
        gone, self._garbage = self._garbage[:at_once], self._garbage[at_once:]
        self._delete(gone)

    def _delete(self, rows: Sequence[tuple[int, int]]) -> None:
        self._database.executemany("DELETE FROM record WHERE number = ?", [(number,) for number, _ in rows])
        self._count("record", [checksum for _, checksum in rows], -1)

    def _drop(self, topic_id: str, partition: int, before: int) -> None:
        found = self._database.execute(
            "SELECT number, checksum, substr(data, 1, 8) FROM batch WHERE topic = ? AND place = ?",
            (topic_id, partition),
        )
        gone = [
            (number, checksum) for number, checksum, start in found if int.from_bytes(start, "big") < before
        ]
        self._database.executemany("DELETE FROM batch WHERE number = ?", [(number,) for number, _ in gone])
        self._count("batch", [checksum for _, checksum in gone], -1)

    def compact(self) -> None:
        """Keep the newest record of each key, and no tombstones; the file gives back what it does not need.

        :raises JournalFailed: if the disk did not take it.
        """
        self.flush()
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._delete(self._garbage)
            self._database.execute(
                "UPDATE total SET rows = ?, digest = ? WHERE name = 'record'",
                (self._rows["record"], self._digests["record"]),
            )
            self._database.execute("COMMIT")
            self._database.execute("VACUUM")
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise JournalFailed(
                f"journal {self.path} can't be written: {error}; make room, start again"
            ) from error
        self._garbage = []

    def __iter__(self) -> Iterator[JournalRecord]:
        """All records that are on disk, in order."""
        for _, _, record in self._checked_records():
            yield record

    def __len__(self) -> int:
        """How many records are on disk."""
        return self._rows["record"]

    @property
    def keeps_batches(self) -> bool:
        """Whether there is any batch of a partition's log."""
        return self._rows["batch"] > 0

    def batches_of_logs(self) -> Iterator[tuple[str, int, bytes]]:
        """Topic id, partition and batch, of all batches on disk in the order in which they were appended."""
        yield from self._database.execute("SELECT topic, place, data FROM batch ORDER BY number")

    def close(self) -> None:
        """Flush, and let go of the file.

        :raises JournalFailed: if the disk did not take the rest.
        """
        try:
            self.flush()
        finally:
            self._database.close()


_HINT: Final = "; --journal-repair keeps what comes before, after a backup"


def checked_record(number: int, outcome: object, checksum: object, data: object) -> JournalRecord:
    """The record of a row.

    :raises BrokenRecord: if the row is not as it was written.
    """
    if not isinstance(data, bytes) or not isinstance(outcome, int):
        raise BrokenRecord("it is not of the types that were written")
    if record_checksum(number, outcome, data) != checksum:
        raise BrokenRecord("it fails its checksum")
    return decode_any(data)


def is_checked_batch(number: int, topic: object, place: object, checksum: object, data: object) -> bool:
    """Whether a row of `batch` is as it was written."""
    return (
        isinstance(topic, str)
        and isinstance(place, int)
        and isinstance(data, bytes)
        and batch_checksum(number, topic, place, data) == checksum
    )


def _open(path: Path) -> sqlite3.Connection:
    """The database, made if there is none, locked, and checked to be a journal."""
    _check_place(path)
    try:
        fresh = not path.exists() or path.stat().st_size == 0
        if not fresh:
            _check_beginning(path)
        expected = wal.committed_frames(path)
        database = connect(path)
    except OSError as error:
        raise EnvironmentLacks(f"journal {path}: {(error.strerror or str(error)).lower()}") from error
    try:
        _check_kind(path, database, fresh)
        wal.check(path, database, expected)
    except sqlite3.Error as error:
        database.close()
        raise _foreseen(path, error) from error
    except BaseException:
        database.close()
        raise
    return database


def _check_place(path: Path) -> None:
    """SQLite would say of a wrong path that it can't open it, and no more."""
    if path.is_dir():
        raise FencepostError(f"journal {path}: is a directory, expected a file")
    if not path.parent.is_dir():
        there = "is no directory" if path.parent.exists() else "does not exist"
        raise FencepostError(f"journal {path}: {path.parent} {there}")


def _check_beginning(path: Path) -> None:
    with path.open("rb") as file:
        if never_a_journal(file.read(HEADER_BYTES)):
            raise BrokenJournal(f"journal {path}: this is no journal")


def never_a_journal(beginning: bytes) -> bool:
    """Whether a file with that beginning was none, even before it was damaged."""
    return not beginning.startswith(MAGIC) and beginning[68:72] != APPLICATION_ID.to_bytes(4, "big")


def connect(path: Path) -> sqlite3.Connection:
    """A connection that no other process can have at the same time, once it was used.

    :raises EnvironmentLacks: if the file can't be opened, or is in use.
    :raises BrokenJournal: if it is no database.
    """
    try:
        database = sqlite3.connect(path, isolation_level=None, timeout=0.2, check_same_thread=False)
    except sqlite3.Error as error:
        raise _foreseen(path, error) from error
    try:
        for pragma in ("locking_mode = EXCLUSIVE", "synchronous = FULL"):
            database.execute(f"PRAGMA {pragma}")
    except sqlite3.Error as error:
        database.close()
        raise _foreseen(path, error) from error
    return database


def _check_kind(path: Path, database: sqlite3.Connection, fresh: bool) -> None:
    if fresh:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA:
            database.execute(statement)
        database.execute("COMMIT")
    else:
        (kind,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if kind != APPLICATION_ID:
            raise BrokenJournal(f"journal {path}: this is an SQLite database of another program")
        if version != FORMAT:
            raise BrokenJournal(f"journal {path}: format {version} is unknown, {FORMAT} was expected")
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise BrokenJournal(f"journal {path}: journal mode {mode}, expected wal{_HINT}")
    database.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    database.execute("BEGIN IMMEDIATE")
    database.execute("COMMIT")


def _foreseen(path: Path, error: sqlite3.Error) -> FencepostError:
    """What an error of SQLite means to a user."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return EnvironmentLacks(f"journal {path} is in use by another process: stop it, or take another file")
    if primary in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}:
        return EnvironmentLacks(f"journal {path}: {error}; may it be written? Else take another file")
    if primary in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
        return EnvironmentLacks(f"journal {path}: {error}; make room for it, or take another file")
    return BrokenJournal(f"journal {path}: {error}{_HINT}")
