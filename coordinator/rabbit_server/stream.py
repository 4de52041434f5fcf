"""One stream: its chunks in memory, the last ids of publishers, and the stored offsets of consumers."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from fencepost.coordinator.rabbit_codec.base import ChunkEntry
from fencepost.coordinator.rabbit_codec.chunks import write_chunk
from fencepost.coordinator.rabbit_codec.codes import OffsetType, ResponseCode
from fencepost.coordinator.rabbit_codec.fields import WireOffsetSpecification


class RabbitRequestRefused(Exception):
    """A request can't be carried out; the response has this code, and nothing has changed."""

    def __init__(self, message: str, code: ResponseCode = ResponseCode.PRECONDITION_FAILED) -> None:
        super().__init__(message)
        self.code = code


class SacCoordinatorUnreachable(Exception):
    """The coordinator of groups can't be reached from this node: the connection ends, as in RabbitMQ."""


_AGE: Final = re.compile(r"(\d{1,9})([YMDhms])", re.ASCII)
_SECONDS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}
_LOCATORS: Final = frozenset({"client-local", "balanced", "least-leaders", "random"})
_BOUNDS: Final = {
    "max-length-bytes": (0, None),
    "stream-max-segment-size-bytes": (0, 3_000_000_000),
    "initial-cluster-size": (1, None),
    "stream-filter-size-bytes": (16, 255),
}
"""Lowest and highest number of each argument that is one."""
ARGUMENTS: Final = frozenset(_BOUNDS) | {"queue-leader-locator", "max-age"}
"""Those that mean something; others are passed over."""


class Retention(NamedTuple):
    """Bytes and age up to which chunks are kept; None means no limit. The newest chunk is always kept."""

    max_bytes: int | None = None
    max_age_ms: int | None = None

    @staticmethod
    def of(arguments: Mapping[str, str]) -> Retention:
        """Return the retention that a stream's arguments ask for. Unknown arguments are ignored, as in
        RabbitMQ.

        :raises Refused: for a value that RabbitMQ would refuse.
        """
        numbers = {name: _number(name, arguments[name]) for name in _BOUNDS if name in arguments}
        locator = arguments.get("queue-leader-locator", "balanced")
        if locator not in _LOCATORS:
            raise _invalid("queue-leader-locator", locator, f"one of {', '.join(sorted(_LOCATORS))}")
        age = arguments.get("max-age")
        return Retention(numbers.get("max-length-bytes"), None if age is None else _age_ms(age))

    def exceeded(self, size: int, age_ms: int) -> bool:
        """Return true if this size or age exceeds a limit, so that the oldest bytes must be removed."""
        return (self.max_bytes is not None and size > self.max_bytes) or (
            self.max_age_ms is not None and age_ms > self.max_age_ms
        )


def _number(name: str, value: str) -> int:
    low, high = _BOUNDS[name]
    if not value.isascii() or not value.isdecimal() or len(value) > 18:
        raise _invalid(name, value, "a whole number")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise _invalid(name, value, f"{low} to {high}" if high else f"{low} or more")
    return number


def _age_ms(value: str) -> int:
    match = _AGE.fullmatch(value)
    if match is None:
        raise _invalid("max-age", value, "a number and one of Y, M, D, h, m, s")
    return int(match[1]) * _SECONDS[match[2]] * 1000


def _invalid(name: str, value: str, expected: str) -> RabbitRequestRefused:
    return RabbitRequestRefused(f"{name}={value!r}: expected {expected}")


EPOCH: Final = 1
"""Of all chunks: there is one leader, and it never changes."""

MIN_CHUNK_ENTRIES: Final = 32
MAX_CHUNK_ENTRIES: Final = 8192
"""Lowest and highest limit of the entries of one chunk."""


class KeptChunk(NamedTuple):
    """A chunk of a stream."""

    first_offset: int
    timestamp_ms: int
    records: int
    data: bytes
    """All of it, as Deliver carries it."""
    filter_values: frozenset[str | None]
    """The filter values of its messages; None stands for a message without a value, or with an empty one."""

    @property
    def end_offset(self) -> int:
        """The offset behind its last message."""
        return self.first_offset + self.records


class Stream:
    """A stream's log. Readers have chunk numbers; a number that was deleted means the oldest chunk that is
    left."""

    def __init__(self, name: str, arguments: Mapping[str, str]) -> None:
        self.name = name
        self.arguments = {name: value for name, value in arguments.items() if name in ARGUMENTS}
        self._retention = Retention.of(arguments)
        self._chunks: list[KeptChunk] = []
        self._dropped = 0
        self._bytes = 0
        self._chunk_entries = MIN_CHUNK_ENTRIES
        """The most entries that the next chunk gets."""
        self.next_offset = 0
        self.newest_chunk = -1
        """The id of the last chunk that was written, of any kind; -1 before the first."""
        self.sequences: dict[str, int] = {}
        """The highest publishing id of each publisher's reference."""
        self.offsets: dict[str, int] = {}
        """The stored offsets, by the consumer's name."""
        self.readers: dict[Callable[[], None], None] = {}
        """Called when a chunk was appended."""

    # -- writing ----------------------------------------------------------------------------------------

    def append(self, entries: Sequence[ChunkEntry], reference: str, now_ms: int) -> None:
        """Append entries that are not duplicates, in chunks of the sizes that RabbitMQ makes of them.

        From a publisher with a reference, only higher publishing ids are new.
        """
        before, start = self.next_offset, 0
        while start < len(entries):
            batch = entries[start : start + self._chunk_entries]
            start += len(batch)
            self._batched(len(batch))
            if fresh := self._fresh(batch, reference) if reference else batch:
                self._append_chunk(fresh, now_ms)
        if self.next_offset > before:
            self._retain(now_ms)
            for tell in tuple(self.readers):
                tell()

    def _fresh(self, entries: Iterable[ChunkEntry], reference: str) -> list[ChunkEntry]:
        highest = self.sequences.get(reference, -1)
        fresh = []
        for entry in entries:
            if entry.publishing_id > highest:
                highest = entry.publishing_id
                fresh.append(entry)
        self.sequences[reference] = highest
        return fresh

    def _batched(self, commands: int) -> None:
        """Set the limit of the next chunk: doubled after a full one, otherwise halved (gen_batch_server)."""
        is_full = commands >= self._chunk_entries
        limit = self._chunk_entries * 2 if is_full else self._chunk_entries // 2
        self._chunk_entries = min(max(limit, MIN_CHUNK_ENTRIES), MAX_CHUNK_ENTRIES)

    def _append_chunk(self, entries: Sequence[ChunkEntry], now_ms: int) -> None:
        records = sum(entry.records for entry in entries)
        data = write_chunk(self.next_offset, now_ms, EPOCH, [entry.data for entry in entries], records)
        filter_values = frozenset(entry.filter_value or None for entry in entries)
        self._chunks.append(KeptChunk(self.next_offset, now_ms, records, data, filter_values))
        self._bytes += len(data)
        self._written(records)

    def store(self, name: str, offset: int) -> None:
        """Store a consumer's offset. RabbitMQ writes it into the log, where it uses an offset.

        So the offsets of messages have gaps (osiris_writer, chunks of type CHNK_TRK_DELTA).
        """
        self.offsets[name] = offset
        self._batched(1)
        self._written(1)

    def _written(self, offsets: int) -> None:
        self.newest_chunk = self.next_offset
        self.next_offset += offsets

    def _retain(self, now_ms: int) -> None:
        """Drop the oldest chunks, but never the newest one."""
        dropped = 0
        for chunk in islice(self._chunks, len(self._chunks) - 1):
            if not self._retention.exceeded(self._bytes, now_ms - chunk.timestamp_ms):
                break
            self._bytes -= len(chunk.data)
            dropped += 1
        del self._chunks[:dropped]
        self._dropped += dropped

    # -- reading ----------------------------------------------------------------------------------------

    @property
    def chunks(self) -> Sequence[KeptChunk]:
        """All chunks that are left."""
        return self._chunks

    def read(self, number: int) -> tuple[KeptChunk, int] | None:
        """Return the chunk of that number or the oldest one after it, and the next number; None at the
        end."""
        at = max(number - self._dropped, 0)
        return (self._chunks[at], at + self._dropped + 1) if at < len(self._chunks) else None

    def find(self, where: WireOffsetSpecification) -> int:
        """Return the number of the chunk to begin with; past the end, the number of the next chunk."""
        return self._dropped + self._find(where)

    def _find(self, where: WireOffsetSpecification) -> int:
        end = len(self._chunks)
        match where.type:
            case OffsetType.FIRST | OffsetType.NONE:
                return 0
            case OffsetType.LAST:
                return max(end - 1, 0)
            case OffsetType.NEXT:
                return end
            case OffsetType.TIMESTAMP:
                return bisect_left(self._chunks, where.value, key=attrgetter("timestamp_ms"))
            case OffsetType.OFFSET:
                begun = bisect_right(self._chunks, where.value, key=attrgetter("first_offset"))
                # After a chunk's messages, the offset may belong to another kind of chunk, or to none yet.
                return begun if not begun or where.value >= self._chunks[begun - 1].end_offset else begun - 1

    def resolve(self, where: WireOffsetSpecification) -> int:
        """Return the start of the chunk that a specification means now; past the end, the next offset.

        Stored offsets have chunks too (osiris_log, resolve_offset_spec).
        """
        found = self.read(self.find(where))
        begin = self.next_offset if found is None else found[0].first_offset
        match where.type:
            case OffsetType.FIRST:
                return self._first_offset
            case OffsetType.OFFSET:
                return max(self._first_offset, min(begin, where.value))
        return begin

    @property
    def _first_offset(self) -> int:
        """The first offset of the oldest chunk that is left, of any kind."""
        return self._chunks[0].first_offset if self._dropped else 0

    @property
    def stats(self) -> dict[str, int]:
        """The numbers of StreamStats; -1 for those without a value."""
        return {
            "first_chunk_id": min(self._first_offset, self.newest_chunk),
            "last_chunk_id": self.newest_chunk,
            "committed_chunk_id": self.newest_chunk,
            "committed_offset": self.next_offset - 1,
        }
