"""Repair of a damaged journal: what comes before the damage goes into a new file; the old one is kept."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.coordinator.journal.encoding import BrokenJournal, BrokenRecord, JournalRecord
from fencepost.coordinator.journal.sqlite import (
    APPLICATION_ID,
    FORMAT,
    HEADER_BYTES,
    MAGIC,
    SqliteJournal,
    checked_record,
    connect,
    is_checked_batch,
    never_a_journal,
)
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError

Check = Callable[[Iterable[JournalRecord]], None]
"""Loads records in their order; raises FencepostError at the first that can't follow those before it."""

_SAME_IN_ALL: Final = {
    0: MAGIC + bytes((0x10, 0, 2, 2, 0, 64, 32, 32)),
    44: struct.pack(">I", 4),
    56: struct.pack(">II", 1, FORMAT),
    68: struct.pack(">I", APPLICATION_ID),
}
"""Parts of a database's header, by place, that are the same in each journal (SQLite file format, 1.3)."""


class Repaired(NamedTuple):
    """What a repair did."""

    backup: Path
    """The damaged file; its write-ahead log has the same name with `-wal`."""
    records: int
    """Records that were kept, and batches of records."""
    batches: int


class _Row(NamedTuple):
    number: int
    outcome: int
    record: JournalRecord


def repair(path: Path, check: Check) -> Repaired:
    """Replace a journal by one with all outcomes before the first that is damaged or can't be applied.

    Batches of a partition's log are kept up to the first damaged one.
    :raises BrokenJournal: if the file was never a journal.
    :raises EnvironmentLacks: if files can't be written.
    """
    copy, new = path.with_name(path.name + ".copy"), path.with_name(path.name + ".new")
    try:
        _remove(copy, new)
        _copy(path, copy)
        rows, batches = _salvage(copy)
        rows = _consistent(rows, check)
        with closing(SqliteJournal(new, on_pending=lambda: None)) as journal:
            for outcome in _outcomes(rows):
                journal.append(outcome)
            for batch in batches:
                journal.append_batch(*batch)
        backup = _replace(path, new)
    except OSError as error:
        raise EnvironmentLacks(f"journal {path}: {(error.strerror or str(error)).lower()}") from error
    finally:
        _remove(copy, new)
    return Repaired(backup, len(rows), len(batches))


def _beside(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
        _beside(path).unlink(missing_ok=True)


def _copy(path: Path, copy: Path) -> None:
    """The journal as it should begin; a page that ends early is filled with zeros."""
    data = bytearray(path.read_bytes())
    if never_a_journal(bytes(data[:HEADER_BYTES])):
        raise BrokenJournal(f"journal {path}: this is no journal; nothing was changed")
    if data[68:72] != _SAME_IN_ALL[68] and data[60:64] != _SAME_IN_ALL[56][4:]:
        raise BrokenJournal(f"journal {path}: this is a database of another program; nothing was changed")
    for place, part in _SAME_IN_ALL.items():
        data[place : place + len(part)] = part
    data += bytes(-len(data) % 4096)
    copy.write_bytes(data)
    if _beside(path).exists():
        shutil.copyfile(_beside(path), _beside(copy))


def _salvage(copy: Path) -> tuple[list[_Row], list[tuple[str, int, bytes]]]:
    """What can be read, in order, until something can't."""
    try:
        database = connect(copy)
    except BrokenJournal:
        return [], []
    try:
        return list(_rows(database)), list(_batches(database))
    finally:
        database.close()


def _rows(database: sqlite3.Connection) -> Iterator[_Row]:
    held: list[_Row] = []
    """The outcome that is being read: where the damage may have taken a part of it, none of it is kept."""
    try:
        for number, outcome, checksum, data in database.execute(
            "SELECT number, outcome, checksum, data FROM record ORDER BY number"
        ):
            row = _Row(number, outcome, checked_record(number, outcome, checksum, data))
            if held and held[0].outcome != outcome:
                yield from held
                held = []
            held.append(row)
    except (sqlite3.Error, BrokenRecord, OverflowError):
        pass
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
    except (sqlite3.Error, OverflowError):
        return


def _consistent(rows: list[_Row], check: Check) -> list[_Row]:
    """As many outcomes as can be applied one after another."""
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
    """Move the damaged files out of the way, and the new one in."""
    number = 1
    while (backup := path.with_name(f"{path.name}.broken-{number}")).exists():
        number += 1
    if _beside(path).exists():
        _beside(path).rename(_beside(backup))
    path.rename(backup)
    new.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return backup
