"""Checks of the records in a producer's batch, which are read to the last byte before they are stored.

The rules and their error codes are those of Kafka's LogValidator and DefaultRecord. Some records that Kafka
stores are refused too, because consumers fail on them: uncompressed records whose offsets are not
consecutive, compressed ones with wrong lengths, bytes after a compressed stream, numbers with more bits than
their type, lengths below -1, and attributes of records from 0x80 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from fencepost.coordinator.codec.batches import COMPRESSION, HEADER_BYTES, LOG_APPEND_TIME, BatchHeader
from fencepost.coordinator.codec.compression import opening
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import RecordError, RefusedRecords
from fencepost.coordinator.protocol.slices import LARGE, MEDIUM, Sliced

MAX_RECORDS: Final = 1_000_000
"""The number of records that one batch may have."""
MAX_HEADERS: Final = 100_000
"""The number of headers that one record may have."""
_SLICE_TIMES: Final = 65_536
"""The number of times that one slice compares."""
MAX_RECORD_ERRORS: Final = 1_000
"""The number of refused records that a response names for one batch."""
SLICE_RECORDS: Final = 4_096
"""The number of records, or of their headers, that one slice reads."""
_MEDIUM_RECORDS: Final = 16 * SLICE_RECORDS
INT, LONG = 5, 10
"""Bytes of the longest varint of 32 and of 64 bits."""
_NULL = 1
"""The length -1 in zigzag."""
_LONG_MAX = 2**63 - 1
_NO_TIMESTAMP = -1


class RecordRules(NamedTuple):
    """A topic's rules for each record. Times are in milliseconds."""

    partition: str = ""
    """The partition's name, for messages."""
    needs_key: bool = False
    stamps: bool = False
    """True if the log sets the time, so that the producer's does not matter."""
    now_ms: int | None = None
    """None if timestamps are not checked."""
    before_max_ms: int = _LONG_MAX
    """Maximum age of a record."""
    after_max_ms: int = _LONG_MAX
    """Maximum time by which a record may be ahead of now."""


class _Walked(NamedTuple):
    times: list[int]
    """As they stand there: zigzag, from the batch's base."""
    keyless: list[int]
    """The places of the records without a key."""


class CheckedBatch(NamedTuple):
    """A producer's batch that may be appended."""

    records: bytes | memoryview
    header: BatchHeader
    latest: int
    """The latest time of its records; -1 if no record has a time."""


def checking(batch: bytes | memoryview, header: BatchHeader, rules: RecordRules) -> Sliced[CheckedBatch]:
    """Read the records of a batch whose header was checked.

    A batch of at most `SLICE_RECORDS` records that are not compressed much takes one slice.
    :raises ProtocolError: INVALID_RECORD if they can't be read; UNKNOWN_SERVER_ERROR, as from Kafka, if they
        can't be decompressed, or are compressed and their offsets are not consecutive; MESSAGE_TOO_LARGE if
        they are too many or too large.
    :raises RefusedRecords: INVALID_RECORD or INVALID_TIMESTAMP if some of them break a rule (KIP-467).
    """
    if header.records > MAX_RECORDS:
        reason = f"a batch of {header.records} records, at most {MAX_RECORDS}: send smaller batches"
        raise ProtocolError(ErrorCode.MESSAGE_TOO_LARGE, reason)
    compression = header.attributes & COMPRESSION
    if header.records > SLICE_RECORDS:
        yield MEDIUM if header.records <= _MEDIUM_RECORDS else LARGE
    try:
        if compression:
            data, start = (yield from opening(compression, bytes(batch[HEADER_BYTES:]))), 0
        else:
            data, start = bytes(batch), HEADER_BYTES
        walked, count = _Walked([], []), header.records
        at, read = _walk(data, start, 0, count, walked, is_compressed=bool(compression))
        while read < count:
            yield
            at, read = _walk(data, at, read, count, walked, is_compressed=bool(compression))
    except IndexError:
        raise _invalid("the batch ends within a record") from None
    if at != len(data):
        raise _invalid(f"{len(data) - at} bytes follow the last of {count} records")
    if len(walked.times) <= _SLICE_TIMES:
        different = _times(header, set(walked.times))
        earliest, latest = min(different), max(different)
    else:
        earliest, latest = yield from _range_of(walked.times, header)
    keyless = walked.keyless[:MAX_RECORD_ERRORS] if rules.needs_key else []
    late = {}
    if _may_be_late(earliest, latest, header, rules):
        late = dict(islice(_late(_times(header, walked.times), header, rules), MAX_RECORD_ERRORS))
    if keyless or late:
        text = f"Compacted topic cannot accept message without key in topic partition {rules.partition}"
        errors = late | dict.fromkeys(keyless, text)
        code = ErrorCode.INVALID_TIMESTAMP if late.keys() - set(keyless) else ErrorCode.INVALID_RECORD
        named = islice(sorted(errors.items()), MAX_RECORD_ERRORS)
        raise RefusedRecords(code, tuple(RecordError(*each) for each in named))
    return CheckedBatch(batch, header, max(_NO_TIMESTAMP, latest))


def _range_of(deltas: list[int], header: BatchHeader) -> Sliced[tuple[int, int]]:
    """Return the earliest and the latest time of very many records."""
    found: list[int] = []
    for first in range(0, len(deltas), _SLICE_TIMES):
        yield
        times = _times(header, set(deltas[first : first + _SLICE_TIMES]))
        found += min(times), max(times)
    return min(found), max(found)


def _times(header: BatchHeader, deltas: Iterable[int]) -> list[int]:
    if header.attributes & LOG_APPEND_TIME:
        return [header.max_timestamp for _ in deltas]
    times = [header.base_timestamp + (delta >> 1 ^ -(delta & 1)) for delta in deltas]
    if min(times) >= -(2**63) and max(times) < 2**63:
        return times
    return list(map(in_64_bits, times))


def _may_be_late(earliest: int, latest: int, header: BatchHeader, rules: RecordRules) -> bool:
    if rules.stamps:
        return bool(header.attributes & LOG_APPEND_TIME)
    if rules.now_ms is None:
        return False
    return earliest < rules.now_ms - rules.before_max_ms or rules.now_ms + rules.after_max_ms < latest


def _late(times: list[int], header: BatchHeader, rules: RecordRules) -> Iterator[tuple[int, str]]:
    """Return the records whose times are refused, by their places, and why."""
    now_ms = rules.now_ms or 0
    first, last = now_ms - rules.before_max_ms, now_ms + rules.after_max_ms
    for index, time in enumerate(times):
        offset = header.base_offset + index
        if rules.stamps:
            yield (
                index,
                f"Invalid timestamp type in message with offset {offset}. "
                "Producer should not set timestamp type to LogAppendTime.",
            )
        elif time != _NO_TIMESTAMP and not first <= time <= last:
            yield (
                index,
                f"Timestamp {time} of message with offset {offset} is out of range. "
                f"The timestamp should be within [{in_64_bits(first)}, {in_64_bits(last)}]",
            )


def _walk(  # noqa: C901, PLR0912, PLR0915  # a call for each number would take twice as long
    data: bytes, at: int, first: int, count: int, walked: _Walked, *, is_compressed: bool
) -> tuple[int, int]:
    """Read records from number `first` on; return the place and the number of the first one that is left.

    An IndexError means that the data ends too early. It reads at most `SLICE_RECORDS` records, and fewer if
    they have many headers. Each produced record is read here, so numbers of one byte, and those that often
    have two, are read inline.
    """
    times, keyless = walked
    size = len(data)
    headers = 0
    bad_length = ErrorCode.INVALID_RECORD if is_compressed else ErrorCode.UNKNOWN_SERVER_ERROR
    bad_offset = ErrorCode.UNKNOWN_SERVER_ERROR if is_compressed else ErrorCode.INVALID_RECORD
    for index in range(first, min(first + SLICE_RECORDS, count)):
        length = data[at]
        if length < 0x80:
            at += 1
        elif (second := data[at + 1]) < 0x80:
            length = length & 0x7F | second << 7
            at += 2
        else:
            length, at = varint(data, at, INT, bad_length)
        end = at + (length >> 1)
        if length & 1 or end > size:
            raise _invalid(f"record {index} does not fit into the batch")
        if data[at] > 0x7F:
            raise _invalid(f"record {index} has the attributes {data[at]:#x}")
        at += 1
        time = data[at]
        if time < 0x80:
            at += 1
        elif (second := data[at + 1]) < 0x80:
            time = time & 0x7F | second << 7
            at += 2
        else:
            time, at = varint(data, at, LONG)
        times.append(time)
        delta = data[at]
        if delta < 0x80:
            at += 1
        elif (second := data[at + 1]) < 0x80:
            delta = delta & 0x7F | second << 7
            at += 2
        else:
            delta, at = varint(data, at, INT)
        if delta != index << 1:
            raise ProtocolError(bad_offset, f"record {index} has the offset delta {_signed(delta)}")
        key = data[at]
        if key < 0x80:
            at += 1
        else:
            key, at = varint(data, at, INT)
        if key & 1 == 0:
            at += key >> 1
        elif key == _NULL:
            keyless.append(index)
        else:
            raise _invalid(f"record {index} has a key of {_signed(key)} bytes")
        value = data[at]
        if value < 0x80:
            at += 1
        elif (second := data[at + 1]) < 0x80:
            value = value & 0x7F | second << 7
            at += 2
        else:
            value, at = varint(data, at, INT)
        if value & 1 == 0:
            at += value >> 1
        elif value != _NULL:
            raise _invalid(f"record {index} has a value of {_signed(value)} bytes")
        if data[at]:
            at, number = _behind_headers(data, at, end)
            headers += number
            if headers >= SLICE_RECORDS and at == end:
                return at, index + 1
        else:
            at += 1
        if at != end:
            raise _invalid(f"record {index} has {at - end:+} bytes more than its length says")
    return at, min(first + SLICE_RECORDS, count)


def _behind_headers(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the place behind the headers of a record, and their number."""
    count, at = varint(data, at, INT)
    if count & 1:
        raise _invalid("a record has a negative number of headers")
    if count >> 1 > MAX_HEADERS:
        reason = f"a record has {count >> 1} headers, at most {MAX_HEADERS} are allowed"
        raise ProtocolError(ErrorCode.MESSAGE_TOO_LARGE, reason)
    for _ in range(count >> 1):
        key, at = varint(data, at, INT)
        if key & 1:
            raise _invalid("a record has a header without a name")
        value, at = varint(data, at + (key >> 1), INT)
        if value & 1 == 0:
            at += value >> 1
        elif value != _NULL:
            raise _invalid(f"a record has a header of {_signed(value)} bytes")
        if at > end:
            raise _invalid("a record's headers do not fit into it")
    return at, count >> 1


def varint(data: bytes, at: int, most: int, code: ErrorCode = ErrorCode.INVALID_RECORD) -> tuple[int, int]:
    """Read an unsigned varint of at most that many bytes; return it, and the place after it."""
    number = 0
    for index in range(most):
        byte = data[at + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if number >> (32 if most == INT else 64):
                break
            return number, at + index + 1
    raise ProtocolError(code, "a number within the records has too many bits")


def _signed(zigzag: int) -> int:
    return zigzag >> 1 ^ -(zigzag & 1)


def in_64_bits(number: int) -> int:
    """Return the number as a signed one of 64 bits, as Java's arithmetic does."""
    return (number + 2**63) % 2**64 - 2**63


def _invalid(reason: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_RECORD, reason)
