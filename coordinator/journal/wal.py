"""What SQLite's write-ahead log must hold, to be compared with what SQLite found in it.

SQLite takes the log up to the first frame that fails its checksum, and says nothing about the rest: it can't
tell a transaction that was never finished from one that was damaged afterwards. Here it can be told: each
transaction was on disk before the next began, so a crash leaves at most one behind the place where the log
breaks off (SQLite file format, 4 The Write-Ahead Log).
"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.coordinator.journal.encoding import BrokenJournal

_HEADER: Final = struct.Struct(">IIIIIIII")
_FRAME: Final = struct.Struct(">IIII")
_FRAME_BYTES: Final = 24
_MAGIC: Final = {0x377F0682: "<8I", 0x377F0683: ">8I"}


class Frames(NamedTuple):
    """What a log's file claims to hold, before SQLite read it."""

    commits: tuple[int, ...]
    """Numbers of the frames that end a transaction, from 1."""
    readable: bool
    """Whether its header can be trusted; without it SQLite takes nothing."""


def committed_frames(path: Path) -> Frames:
    """The frames of a database's log that belong to its present run.

    :raises OSError: if it is there and can't be read.
    """
    file = path.with_name(path.name + "-wal")
    if not file.exists():
        return Frames((), readable=True)
    data = file.read_bytes()
    if len(data) < _HEADER.size + _FRAME_BYTES:
        return Frames((), readable=True)
    magic, _, page_size, _, salt_1, salt_2, *stated = _HEADER.unpack_from(data)
    order = _MAGIC.get(magic)
    if order is None or stated != _checksum(data[: _HEADER.size], order) or not 512 <= page_size <= 65_536:
        return Frames((), readable=False)
    commits = []
    step = _FRAME_BYTES + page_size
    for number, at in enumerate(range(_HEADER.size, len(data) - step + 1, step), 1):
        _, pages, *salts = _FRAME.unpack_from(data, at)
        if pages and salts == [salt_1, salt_2]:
            commits.append(number)
    return Frames(tuple(commits), readable=True)


def _checksum(header: bytes, order: str) -> list[int]:
    """The checksum of a header, over all of it but the checksum."""
    first = second = 0
    words = struct.unpack(order, header)
    for one, other in ((words[0], words[1]), (words[2], words[3]), (words[4], words[5])):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return [first, second]


def check(path: Path, database: sqlite3.Connection, expected: Frames) -> None:
    """Compare with what SQLite took, and copy that into the database.

    :raises BrokenJournal: if SQLite left out transactions that were on disk.
    :raises sqlite3.Error: if the database can't be written.
    """
    _, taken, _ = database.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    lost = [number for number in expected.commits if number > taken]
    if not expected.readable:
        raise BrokenJournal(f"journal {path}-wal: its header is damaged; --journal-repair starts without it")
    if len(lost) > 1:
        raise BrokenJournal(
            f"journal {path}-wal: frame {taken + 1} or one behind it is damaged, and {len(lost)} "
            "transactions follow; --journal-repair keeps what comes before, after a backup"
        )
