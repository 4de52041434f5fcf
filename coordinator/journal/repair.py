"""Repairs a damaged journal: records before the damage are moved to a new file; the old file is kept."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.coordinator.journal import files, wal
from fencepost.coordinator.journal.encoding import BrokenJournal, BrokenRecord, JournalRecord
from fencepost.coordinator.journal.files import APPLICATION_ID, FORMAT, MAGIC
from fencepost.coordinator.journal.sqlite import SqliteJournal, checked_record, is_checked_batch
from fencepost.coordinator.protocol.errors import FencepostError

Check = Callable[[Iterable[JournalRecord]], None]
"""Loads records in their order; raises FencepostError at the first that can't follow those before it."""

_SAME_IN_ALL: Final = {
    0: MAGIC + bytes((0x10, 0, 2, 2, 0, 64, 32, 32)),
    28: struct.pack(">I", 0),
    44: struct.pack(">I", 4),
    52: struct.pack(">IIII", 0, 1, FORMAT, 0),
    68: struct.pack(">I", APPLICATION_ID),
}
"""Parts of a database's header, by place, that are the same in each journal (SQLite file format, 1.3).

The one at 28 is not, but zero says there that the file has as many pages as it has.
"""
_PAGE_BYTES: Final = 4096


class Repaired(NamedTuple):
    """The result of a repair."""

    backup: Path
    """The unchanged damaged file; its write-ahead log has the same name with `-wal`."""
    records: int
    """Records that were kept, and batches of records."""
    batches: int


class _Row(NamedTuple):
    number: int
    outcome: int
    record: JournalRecord


class _Found(NamedTuple):
    rows: list[_Row]
    batches: list[tuple[str, int, bytes]]
    age: tuple[bool, int]
    """True if it is the whole journal at one time, and the number of records and batches appended by then."""


def repair(path: Path, check: Check) -> Repaired:
    """Replace a journal by one with all outcomes before the first one that is damaged or can't be applied.

    Batches of a partition's log are kept up to the first damaged one. If it fails or is ended at any point,
    the journal is either unchanged or repaired; the damaged files are kept next to it.
    :raises BrokenJournal: if the file was never a journal.
    :raises EnvironmentLacks: if files can't be written.
    """
    new = path.with_name(path.name + ".new")
    try:
        with files.named(path):
            found = _found(path)
            rows = _consistent(found.rows, check)
            _remove(new)
            with closing(SqliteJournal(new, on_pending=lambda: None)) as journal:
                for outcome in _outcomes(rows):
                    journal.append(outcome)
                for batch in found.batches:
                    journal.append_batch(*batch)
            backup = _replace(path, new)
    finally:
        _remove(new)
    return Repaired(backup, len(rows), len(found.batches))


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        wal.beside(path).unlink(missing_ok=True)


def _found(path: Path) -> _Found:
    """Return what can be read with the write-ahead log, or without it if the file is newer than its intact
    part."""
    copy = path.with_name(path.name + ".copy")
    logs = [b""] if wal.is_empty(path) else [wal.beside(path).read_bytes(), b""]
    try:
        return max((_salvage(path, copy, log) for log in logs), key=lambda found: found.age)
    finally:
        _remove(copy)


def _salvage(path: Path, copy: Path, log: bytes) -> _Found:
    """Return what can be read, in order, up to the first part that can't."""
    _remove(copy)
    _copy(path, copy)
    if (taken := wal.contents(log).taken) > 0:
        _write(wal.beside(copy), log[:taken])
    try:
        with closing(SqliteJournal(copy)) as journal:
            age = True, journal.appended
    except BrokenJournal:
        age = False, 0
    try:
        with closing(files.connect(copy)) as database:
            return _Found(list(_rows(database)), list(_batches(database)), age)
    except sqlite3.Error as error:
        files.check_damage(error)
        return _Found([], [], age)


def _copy(path: Path, copy: Path) -> None:
    """Copy the journal with a correct beginning; a page that ends early is filled with zeros."""
    is_lost = not path.exists() and not wal.is_empty(path)
    data = bytearray(b"" if is_lost else path.read_bytes())
    if files.never_a_journal(bytes(data[: files.HEADER_BYTES])):
        raise BrokenJournal(f"journal {path}: this is not a journal; nothing was changed")
    if not _was_a_journal(data[:_PAGE_BYTES]):
        raise BrokenJournal(f"journal {path}: this is a database of another program; nothing was changed")
    if len(data) < _PAGE_BYTES:
        SqliteJournal(copy).close()
        return
    for place, part in _SAME_IN_ALL.items():
        data[place : place + len(part)] = part
    data += bytes(-len(data) % _PAGE_BYTES)
    _write(copy, data)


def _write(path: Path, data: bytes | bytearray) -> None:
    """Write a file that only its owner may read."""
    with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, files.PRIVATE), "wb") as file:
        file.write(data)


def _was_a_journal(page: bytes | bytearray) -> bool:
    """Return true if a database with that first page was a journal, even if one of its marks is damaged."""
    if len(page) < files.HEADER_BYTES or page[68:72] == _SAME_IN_ALL[68]:
        return True
    return int.from_bytes(page[60:64], "big") == FORMAT and b"CREATE TABLE record" in page


def _rows(database: sqlite3.Connection) -> Iterator[_Row]:
    held: list[_Row] = []
    """The outcome that is being read: if the damage may have taken a part of it, no record of it is kept."""
    try:
        for number, outcome, checksum, data in database.execute(
            "SELECT number, outcome, checksum, data FROM record ORDER BY number"
        ):
            row = _Row(number, outcome, checked_record(number, outcome, checksum, data))
            if held and held[0].outcome != outcome:
                yield from held
                held = []
            held.append(row)
    except (BrokenRecord, OverflowError):
        pass
    except sqlite3.Error as error:
        files.check_damage(error)
    if held and held[-1].number == held[-1].outcome:
        yield from held


def _batches(database: sqlite3.Connection) -> Iterator[tuple[str, int, bytes]]:
    broken: set[tuple[str, int]] = set()
    try:
        for number, topic, place, checksum, data in database.execute(
            "SELECT number, topic, place, checksum, data FROM batch ORDER BY number"
        ):
            if not is_checked_batch(number, topic, place, checksum, data):
                broken.add((topic, place))
            elif (topic, place) not in broken:
                yield topic, place, data
    except OverflowError:
        return
    except sqlite3.Error as error:
        files.check_damage(error)


def _consistent(rows: list[_Row], check: Check) -> list[_Row]:
    """Yield as many outcomes as can be applied one after another."""
    while True:
        left = iter(rows)
        try:
            check(row.record for row in left)
        except FencepostError:
            seen = len(rows) - 1 - sum(1 for _ in left)
            bad = rows[seen].outcome
            rows = [row for row in rows[:seen] if row.outcome != bad]
        else:
            return rows


def _outcomes(rows: Iterable[_Row]) -> Iterator[list[JournalRecord]]:
    batch: list[JournalRecord] = []
    outcome = 0
    for row in rows:
        if row.outcome != outcome and batch:
            yield batch
            batch = []
        outcome = row.outcome
        batch.append(row.record)
    if batch:
        yield batch


def _replace(path: Path, new: Path) -> Path:
    """Put the new file in the place of the damaged ones, once their copies are on disk.

    The old log is deleted last: next to the new file it is damage that is noticed, and that a repair finds
    intact.
    """
    number = 1
    while (backup := path.with_name(f"{path.name}.broken-{number}")).exists() or wal.beside(backup).exists():
        number += 1
    try:
        for old, kept in ((path, backup), (wal.beside(path), wal.beside(backup))):
            if old.exists():
                _write(kept, b"")
                shutil.copyfile(old, kept)
                _sync(kept)
        _sync(path.parent)
    except BaseException:
        _remove(backup)
        raise
    new.replace(path)
    _sync(path.parent)
    wal.beside(path).unlink(missing_ok=True)
    _sync(path.parent)
    return backup


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
