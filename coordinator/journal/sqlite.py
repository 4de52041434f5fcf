"""The journal in a file: an SQLite database of acknowledged records, which survives any end of the process.

Records are rows in the order of their numbers; an outcome's rows go into one transaction, and a transaction
is on disk before `flush` returns (WAL, synchronous FULL). Each row has a checksum over its number, its
outcome and its record. One row of totals has the count and the sum of all checksums: so a load notices a row
that was altered, moved or lost. Compaction removes rows whose key has a newer row, and tombstones, a few with
each flush. So the file stays within a few times the size of the present state.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from fencepost.coordinator.journal import files, wal
from fencepost.coordinator.journal.encoding import (
    HINT,
    BrokenJournal,
    BrokenRecord,
    JournalKey,
    JournalRecord,
    decode_any,
    encode,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks

_MODULUS: Final = 1 << 62
_MIN_GARBAGE: Final = 1_024
_CLEANED_AT_ONCE: Final = 256


class JournalFailed(EnvironmentLacks):
    """The disk did not accept a write: none of it may be acknowledged."""


def record_checksum(number: int, outcome: int, data: bytes) -> int:
    """Return the checksum of a row of `record`."""
    return zlib.crc32(data, zlib.crc32(b"%d %d " % (number, outcome)))


def batch_checksum(number: int, topic: str, place: int, data: bytes) -> int:
    """Return the checksum of a row of `batch`."""
    return zlib.crc32(data, zlib.crc32(b"%d %s %d " % (number, topic.encode("utf-8", "replace"), place)))


class SqliteJournal:
    """Records in one file, which no other process can open at the same time.

    `append` writes nothing yet: `on_pending` is called once, and `flush` writes all appended records to the
    disk in one transaction. Without `on_pending`, each append is flushed immediately.

    :raises BrokenJournal: if the file is not a journal, or is damaged.
    :raises EnvironmentLacks: if the file can't be opened, written, or is in use.
    """

    def __init__(self, path: Path, on_pending: Callable[[], None] | None = None) -> None:
        self.path = path
        self.on_pending = on_pending
        self._newest: dict[JournalKey, tuple[int, int]] = {}
        """Number and checksum of the row that is true for a key."""
        self._garbage: list[tuple[int, int, int]] = []
        """Number and checksum of rows that are true no more, and the outcome that ended them, in order."""
        self._new: list[tuple[int, int, int, bytes]] = []
        self._new_batches: list[tuple[int, str, int, int, bytes]] = []
        self._dropped: list[tuple[str, int, int]] = []
        self._rows: dict[str, int] = {}
        self._digests: dict[str, int] = {}
        self._next = {"record": 1, "batch": 1}
        self._loaded: list[tuple[str, int, int]] | None = None
        """Names, rows and digests of the tables, after they were checked."""
        self._database = self._open()

    def _open(self) -> sqlite3.Connection:
        """Return the database, which is not written before its whole content was checked."""
        is_there = files.check_beginning(self.path)
        with files.named(self.path):
            if is_there and wal.beside(self.path).exists():
                with files.looked_at(self.path) as database:
                    wal.check(self.path)
                    self._load(database)
            database = files.connect(self.path)
            try:
                if files.is_unmade(database):
                    files.make(database)
                self._load(database)
                files.claim(self.path, database)
            except BaseException:
                database.close()
                raise
        return database

    def _load(self, database: sqlite3.Connection) -> None:
        """Check the whole content, and keep what is needed of it, unless that was just done."""
        if files.is_unmade(database):
            return
        files.check_kind(self.path, database)
        totals = database.execute("SELECT name, rows, digest FROM total").fetchall()
        if totals == self._loaded:
            return
        self._newest, self._garbage, self._next = {}, [], {"record": 1, "batch": 1}
        self._rows = {name: rows for name, rows, _ in totals}
        self._digests = {name: digest for name, _, digest in totals}
        found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise BrokenJournal(f"journal {self.path}: {found.splitlines()[-1]}{HINT}")
        rows, digest = 0, 0
        for number, outcome, checksum, record in self._checked_records(database):
            self._keep(number, outcome, checksum, record)
            rows, digest = rows + 1, digest + checksum
        self._compare("record", rows, digest)
        rows, digest = 0, 0
        for number, checksum in self._checked_batches(database):
            self._next["batch"] = number + 1
            rows, digest = rows + 1, digest + checksum
        self._compare("batch", rows, digest)
        self._loaded = totals

    def _compare(self, name: str, rows: int, digest: int) -> None:
        if (rows, digest % _MODULUS) != (self._rows.get(name), self._digests.get(name)):
            raise BrokenJournal(
                f"journal {self.path}: {rows} rows in table {name}, expected {self._rows.get(name)} "
                f"with the digest {self._digests.get(name)}{HINT}"
            )

    def _checked_records(self, database: sqlite3.Connection) -> Iterator[tuple[int, int, int, JournalRecord]]:
        last = 0
        for number, outcome, checksum, data in database.execute(
            "SELECT number, outcome, checksum, data FROM record ORDER BY number"
        ):
            try:
                yield number, outcome, checksum, checked_record(number, outcome, checksum, data)
            except BrokenRecord as error:
                raise BrokenJournal(
                    f"journal {self.path}: record {number}, the one after record {last}: {error}{HINT}"
                ) from error
            last = number

    def _checked_batches(self, database: sqlite3.Connection) -> Iterator[tuple[int, int]]:
        for number, topic, place, checksum, data in database.execute(
            "SELECT number, topic, place, checksum, data FROM batch ORDER BY number"
        ):
            if not is_checked_batch(number, topic, place, checksum, data):
                raise BrokenJournal(f"journal {self.path}: record batch {number} fails its checksum{HINT}")
            yield number, checksum

    def _keep(self, number: int, outcome: int, checksum: int, record: JournalRecord) -> None:
        """Keep a record as the newest of its key. The key's previous record becomes garbage, and so does a
        tombstone."""
        old = self._newest.pop(record.key, None)
        if old is not None:
            self._garbage.append((*old, outcome))
        if record.value is None:
            self._garbage.append((number, checksum, outcome))
        else:
            self._newest[record.key] = number, checksum
        self._next["record"] = number + 1

    @property
    def is_pending(self) -> bool:
        """True if something was appended that is not on disk yet."""
        return bool(self._new or self._new_batches or self._dropped)

    def append(self, records: Sequence[JournalRecord]) -> None:
        """Add one outcome; it is written to the disk whole or not at all.

        :raises JournalFailed: if it is flushed immediately, and that failed.
        """
        if not records:
            return
        told = self.is_pending
        outcome = self._next["record"] + len(records) - 1
        for record in records:
            number, data = self._next["record"], encode(record)
            checksum = record_checksum(number, outcome, data)
            self._new.append((number, outcome, checksum, data))
            self._keep(number, outcome, checksum, record)
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
                f"journal {self.path} can't be written: {error}; free some disk space and start again"
            ) from error
        self._new, self._new_batches, self._dropped = [], [], []

    def _count(self, name: str, checksums: Sequence[int], sign: int) -> None:
        self._rows[name] += sign * len(checksums)
        self._digests[name] = (self._digests[name] + sign * sum(checksums)) % _MODULUS

    def _clean(self, appended: int) -> None:
        """Remove more rows than were added, once half of the rows are garbage. This spreads the work and
        bounds the file.

        Rows that one outcome ended are removed together: a replay needs all of its tombstones, or none.
        """
        garbage = self._garbage
        if len(garbage) <= max(_MIN_GARBAGE, len(self._newest)):
            return
        count = min(max(_CLEANED_AT_ONCE, 4 * appended), len(garbage))
        while count < len(garbage) and garbage[count][2] == garbage[count - 1][2]:
            count += 1
        gone, self._garbage = garbage[:count], garbage[count:]
        self._delete(gone)

    def _delete(self, rows: Sequence[tuple[int, int, int]]) -> None:
        self._database.executemany("DELETE FROM record WHERE number = ?", [(row[0],) for row in rows])
        self._count("record", [row[1] for row in rows], -1)

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
        """Keep the newest record of each key, and no tombstones; then shrink the file.

        :raises JournalFailed: if the disk did not accept it.
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
                f"journal {self.path} can't be written: {error}; free some disk space and start again"
            ) from error
        self._garbage = []

    def __iter__(self) -> Iterator[JournalRecord]:
        """Yield all records on disk, in order."""
        for _, _, _, record in self._checked_records(self._database):
            yield record

    def __len__(self) -> int:
        """Return the number of records on disk."""
        return self._rows["record"]

    @property
    def appended(self) -> int:
        """Number of records and batches ever appended, including those deleted since."""
        return sum(self._next.values()) - len(self._next)

    @property
    def keeps_batches(self) -> bool:
        """True if there is any batch of a partition's log."""
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


def checked_record(number: int, outcome: object, checksum: object, data: object) -> JournalRecord:
    """Return the record of a row.

    :raises BrokenRecord: if the row differs from what was written.
    """
    if not isinstance(data, bytes) or not isinstance(outcome, int):
        raise BrokenRecord("it is not of the types that were written")
    if record_checksum(number, outcome, data) != checksum:
        raise BrokenRecord("it fails its checksum")
    return decode_any(data)


def is_checked_batch(number: int, topic: object, place: object, checksum: object, data: object) -> bool:
    """Return true if a row of `batch` is unchanged since it was written."""
    return (
        isinstance(topic, str)
        and isinstance(place, int)
        and isinstance(data, bytes)
        and batch_checksum(number, topic, place, data) == checksum
    )
