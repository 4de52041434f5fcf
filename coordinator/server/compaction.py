"""One compaction of a log, in slices: find the newest record of each key, and remove the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fencepost.coordinator.codec.record_checks import SLICE_RECORDS
from fencepost.coordinator.codec.record_contents import OpenedBatch, StoredRecord, keeping, opened
from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.slices import Sliced

MAX_KEYS: Final = 1_000_000
"""The number of keys that one pass remembers. A log with more keys takes several passes."""
_RECORD_BYTES: Final = 256
"""Bytes that take as long to decompress as one record takes to read, at least."""


class Compaction:
    """Compacts closed batches in passes; each pass remembers keys from where the previous one ended.

    A tombstone that is older than `tombstones_from_ms` is removed.
    """

    def __init__(self, tombstones_from_ms: int) -> None:
        self.has_tombstones = False
        """True if a tombstone is left that a later compaction will remove."""
        self.unreadable: set[int] = set()
        """The base offsets of batches that can't be read; they are kept."""
        self._tombstones_from_ms = tombstones_from_ms
        self._newest: dict[bytes, int] = {}
        self._end: int | None = None
        """The offset at which this pass ends; None for the end of the batches."""
        self._work = 0

    def remember(self, closed: Sequence[bytes], start: int) -> Sliced[int | None]:
        """Note the newest offset of each key from `start` on; return the offset at which the next pass
        starts.

        It is None after the last batch.
        """
        self._newest, self._end = {}, None
        for batch in closed:
            found = yield from self._opened(batch)
            if found is None or found.header.base_offset + found.header.last_offset_delta < start:
                continue
            try:
                for records in found.records():
                    for record in records:
                        if record.offset < start or record.key is None:
                            continue
                        if len(self._newest) >= MAX_KEYS and record.key not in self._newest:
                            self._end = record.offset
                            return self._end
                        self._newest[record.key] = record.offset
                    if self._is_long(len(records)):
                        yield
            except ProtocolError:
                self.unreadable.add(found.header.base_offset)
        return None

    def replace(self, closed: Sequence[bytes]) -> Sliced[dict[int, bytes | None]]:
        """Return the batches that lose records, by their base offsets; None for a batch that loses all
        records."""
        replaced: dict[int, bytes | None] = {}
        for batch in closed:
            found = yield from self._opened(batch)
            if found is None:
                continue
            base_offset = found.header.base_offset
            if self._end is not None and base_offset >= self._end:
                break
            try:
                kept = yield from keeping(found, self._stays)
            except ProtocolError:
                self.unreadable.add(base_offset)
                continue
            if kept is not batch:
                replaced[base_offset] = kept
            if self._is_long(found.header.records):
                yield
        return replaced

    def _stays(self, record: StoredRecord) -> bool:
        if self._end is not None and record.offset >= self._end:
            return True
        if record.key is None or self._newest.get(record.key, record.offset) != record.offset:
            return False
        if record.is_tombstone:
            if record.timestamp < self._tombstones_from_ms:
                return False
            self.has_tombstones = True
        return True

    def _opened(self, batch: bytes) -> Sliced[OpenedBatch | None]:
        base_offset = int.from_bytes(batch[:8])
        if base_offset in self.unreadable:
            return None
        try:
            found = yield from opened(batch)
        except ProtocolError:
            self.unreadable.add(base_offset)
            return None
        if self._is_long(len(found.data) // _RECORD_BYTES):
            yield
        return found

    def _is_long(self, records: int) -> bool:
        """Count work, and return true if other work should run now."""
        self._work += records
        if self._work < SLICE_RECORDS:
            return False
        self._work = 0
        return True
