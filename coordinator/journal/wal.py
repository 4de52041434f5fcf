"""The part of a write-ahead log that SQLite reads, and the part that it would silently leave out.

SQLite reads the log up to the first frame that fails its checksum, and does not report the rest: it can't
distinguish a transaction that was never finished from one that was damaged later. This module can. Each
transaction is on disk before the next one begins. So a crash leaves at most one after the place where the log
breaks off (SQLite file format, 4 The Write-Ahead Log). The files are only read: a refusal changes none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from fencepost.coordinator.journal.encoding import HINT, BrokenJournal

_HEADER: Final = struct.Struct(">IIIIIIII")
_FRAME: Final = struct.Struct(">IIIIII")
_CHECKED: Final = 8
"""Number of bytes of a frame's header that its checksum covers, in addition to the page."""
_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
_WORD: Final = 0xFFFFFFFF


class Contents(NamedTuple):
    """The contents of a log."""

    is_readable: bool
    """True if its header can be trusted; without it SQLite reads nothing."""
    taken: int = 0
    """Number of bytes that SQLite reads: up to the end of the last transaction before the first bad frame."""
    bad: int = 0
    """The number of the first bad frame, from 1."""
    lost: int = 0
    """Number of transactions of the log's present run that end after it."""


class _Frame(NamedTuple):
    page: int
    ends: bool
    """True if it ends a transaction."""
    is_of_run: bool
    """True if it was written since the log was last restarted."""
    stated: tuple[int, int]
    at: int


def beside(path: Path) -> Path:
    """Return the log of a database."""
    return path.with_name(path.name + "-wal")


def is_empty(path: Path) -> bool:
    """Return true if a database's log is not there, or holds not even one frame.

    :raises OSError: if that can't be found out.
    """
    log = beside(path)
    return not log.exists() or log.stat().st_size < _HEADER.size + _FRAME.size


def contents(data: bytes) -> Contents:
    """Return the contents of a log's bytes."""
    if len(data) < _HEADER.size + _FRAME.size:
        return Contents(is_readable=True)
    magic, _, page_size, _, *_, first, second = _HEADER.unpack_from(data)
    order = _MAGIC.get(magic)
    if order is None or not 512 <= page_size <= 65_536:
        return Contents(is_readable=False)
    checksum = _checksum((0, 0), data[: _HEADER.size - 8], order)
    if checksum != (first, second):
        return Contents(is_readable=False)
    taken = _HEADER.size
    pages: set[int] = set()
    """Pages of the transaction that is being read; no page is in it twice, except the one that ends it."""
    frames = _frames(data, page_size)
    for number, frame in enumerate(frames, 1):
        start = frame.at + _FRAME.size
        checksum = _checksum(checksum, data[frame.at : frame.at + _CHECKED], order)
        checksum = _checksum(checksum, data[start : start + page_size], order)
        if not frame.is_of_run or not frame.page or checksum != frame.stated:
            return Contents(True, taken, number, _lost([frame, *frames], pages))
        pages.add(frame.page)
        if frame.ends:
            taken = start + page_size
            pages.clear()
    return Contents(True, taken)


def _frames(data: bytes, page_size: int) -> Iterator[_Frame]:
    _, _, _, _, *run, _, _ = _HEADER.unpack_from(data)
    step = _FRAME.size + page_size
    for at in range(_HEADER.size, len(data) - step + 1, step):
        page, pages, salt_1, salt_2, first, second = _FRAME.unpack_from(data, at)
        yield _Frame(page, pages != 0, [salt_1, salt_2] == run, (first, second), at)


def _lost(frames: list[_Frame], pages: set[int]) -> int:
    """Return the number of transactions among frames. The end of one may be damaged itself, so a page may
    appear again."""
    lost = 0
    for frame in frames:
        if not frame.is_of_run:
            continue
        if frame.ends or frame.page in pages:
            lost += 1
            pages.clear()
        if not frame.ends:
            pages.add(frame.page)
    return lost


def _checksum(before: tuple[int, int], data: bytes, order: str) -> tuple[int, int]:
    """Return the checksum of these bytes, after the checksum of what came before."""
    first, second = before
    for one, other in struct.iter_unpack(order + "II", data):
        first = (first + one + second) & _WORD
        second = (second + other + first) & _WORD
    return first, second


def check(path: Path) -> None:
    """Check that SQLite would not leave out a part of a database's log that was on disk.

    :raises BrokenJournal: if it would.
    :raises OSError: if the log can't be read.
    """
    found = contents(beside(path).read_bytes())
    if not found.is_readable:
        raise BrokenJournal(
            f"journal {path}-wal: its header is damaged; --journal-repair makes a backup and drops it"
        )
    if found.lost > 1:
        raise BrokenJournal(
            f"journal {path}-wal: frame {found.bad} is damaged, and {found.lost} transactions from there on "
            f"can't be read{HINT}"
        )
