"""What is inside of producers' batches: refused with the codes that Kafka 4.3 gave for the same bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from aiokafka import codec
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fencepost.coordinator.codec.batches import sent_batch, stored_batch
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.logs import RefusedRecords
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.server.logs import LogSettings, PartitionLog
from tests.batches import batch_of

NOW = 1_700_000_000_000
CODECS: tuple[Callable[[bytes], bytes], ...] = (
    bytes,
    codec.gzip_encode,
    codec.snappy_encode,
    codec.lz4_encode,
    codec.zstd_encode,
)
EACH_CODEC = pytest.mark.parametrize("compression", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])


def number(value: int) -> bytes:
    """A zigzag varint."""
    rest, found = (value << 1 ^ value >> 63) % 2**64, bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def text(data: bytes | None) -> bytes:
    return number(-1) if data is None else number(len(data)) + data


def record(
    delta: int | bytes,
    *,
    time: int = 0,
    key: bytes = text(b"k"),
    value: bytes = text(b"v"),
    headers: bytes = number(0),
    longer: int = 0,
) -> bytes:
    """One record, of parts that may be wrong."""
    place = delta if isinstance(delta, bytes) else number(delta)
    body = b"\0" + number(time) + place + key + value + headers
    return number(len(body) + longer) + body


GOOD = record(0) + record(1) + record(2)


def sealed(data: bytes) -> bytes:
    """The same with the length and the checksum that it should have."""
    changed = bytearray(data)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    struct.pack_into(">I", changed, 17, calc_crc32c(bytes(changed[21:])))
    return bytes(changed)


def batch(
    records: bytes,
    *,
    count: int = 3,
    compression: int = 0,
    attributes: int = 0,
    packed: Callable[[bytes], bytes] | None = None,
    base: int = NOW,
    latest: int | None = None,
) -> bytes:
    times = (base, base if latest is None else latest)
    header = struct.pack(
        ">qiibIhiqqqhii", 0, 0, -1, 2, 0, attributes | compression, count - 1, *times, -1, -1, -1, count
    )
    return sealed(header + (packed or CODECS[compression])(records))


def log_of(**rules: bool | int) -> PartitionLog:
    log = PartitionLog()
    log.settings = LogSettings(**rules)
    return log


def code_of(sent: bytes, log: PartitionLog | None = None, *, now_ms: int | None = NOW) -> ErrorCode:
    """The code of the refusal, after which nothing is stored; NONE if it is stored."""
    log = log or PartitionLog()
    before = log.high_watermark
    try:
        log.append(sent, now_ms=now_ms, name="orders-0")
    except ProtocolError as refused:
        assert log.high_watermark == before
        return refused.code
    return ErrorCode.NONE


def refusal(sent: bytes, log: PartitionLog) -> RefusedRecords:
    with pytest.raises(RefusedRecords) as refused:
        log.append(sent, now_ms=NOW, name="orders-0")
    assert log.high_watermark == 0
    return refused.value


@EACH_CODEC
@pytest.mark.parametrize(
    ("records", "count"),
    [
        (b"\0" * 30, 3),
        (GOOD, 4),
        (GOOD, 2),
        (GOOD + b"xx", 3),
        (record(0, longer=20) + record(1) + record(2), 3),
        (record(0) + record(1) + record(2, longer=1), 3),
        (record(0, longer=-1) + record(1) + record(2), 3),
        (number(-1) + GOOD, 3),
        (number(2**31 - 1) + GOOD, 3),
        (record(b"\x80\x80\x80\x80\x80\0") + record(1) + record(2), 3),
        (record(b"\x80\x80\x80\x80\x70") + record(1) + record(2), 3),
        (record(0, key=number(40) + b"k") + record(1) + record(2), 3),
        (record(0, key=number(2**31 - 1) + b"k") + record(1) + record(2), 3),
        (record(0, key=number(-2)) + record(1) + record(2), 3),
        (record(0, value=number(-5)) + record(1) + record(2), 3),
        (record(0, headers=number(1) + text(b"h") + number(-2)) + record(1) + record(2), 3),
        (record(0, headers=number(-1)) + record(1) + record(2), 3),
        (record(0, headers=number(1_000)) + record(1) + record(2), 3),
        (record(0, headers=number(1) + number(-1) + text(b"v")) + record(1) + record(2), 3),
        (record(0, headers=number(1) + text(b"h") + number(90)) + record(1) + record(2), 3),
    ],
)
def test_records_that_can_not_be_read_are_refused(compression: int, records: bytes, count: int) -> None:
    assert code_of(batch(records, count=count, compression=compression)) is ErrorCode.INVALID_RECORD


@EACH_CODEC
@pytest.mark.parametrize(
    "records",
    [
        GOOD,
        record(b"\x80\0") + record(1) + record(2),
        record(0, key=text(None)) + record(1, value=text(None)) + record(2),
        record(0, headers=number(1) + text(b"\xff\xfe") + text(b"v")) + record(1) + record(2),
        record(0, headers=number(2) + (text(b"h") + text(None)) * 2) + record(1) + record(2),
        record(0, value=text(bytes(200))) + record(1, value=text(bytes(70_000))) + record(2, time=-1_000_000),
    ],
)
def test_whatever_can_be_read_is_stored(compression: int, records: bytes) -> None:
    assert code_of(batch(records, compression=compression)) is ErrorCode.NONE


@pytest.mark.parametrize("deltas", [(0, 1, 5), (0, 0, 2), (1, 0, 2), (-1, 1, 2), (1, 2, 3)])
def test_offsets_are_consecutive(deltas: tuple[int, ...]) -> None:
    records = b"".join(map(record, deltas))
    assert code_of(batch(records)) is ErrorCode.INVALID_RECORD
    assert code_of(batch(records, compression=1)) is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_first_length_that_is_no_number_is_refused_as_kafka_does() -> None:
    assert code_of(batch(b"\xff" * 30)) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert code_of(batch(b"\xff" * 30, compression=1)) is ErrorCode.INVALID_RECORD


@EACH_CODEC
def test_records_that_are_not_compressed_as_the_batch_says_are_refused(compression: int) -> None:
    def cut(data: bytes) -> bytes:
        return CODECS[compression](data)[:-5]

    def broken(data: bytes) -> bytes:
        packed = bytearray(CODECS[compression](data))
        packed[len(packed) // 2 :] = bytes(byte ^ 0x55 for byte in packed[len(packed) // 2 :])
        return bytes(packed)

    expected = ErrorCode.UNKNOWN_SERVER_ERROR if compression else ErrorCode.INVALID_RECORD
    many = b"".join(record(place, value=text(bytes([place] * 9))) for place in range(60))
    for packed in (cut, broken):
        assert code_of(batch(many, count=60, compression=compression, packed=packed)) is expected
    if compression:
        assert code_of(batch(GOOD, compression=compression, packed=bytes)) is expected


def test_what_only_some_clients_can_decompress_is_refused() -> None:
    def with_reserved_flag(data: bytes) -> bytes:
        return (packed := codec.gzip_encode(data))[:3] + b"\x80" + packed[4:]

    def with_long_block(data: bytes) -> bytes:
        packed = bytearray(codec.snappy_encode(data))
        packed[16] = 1
        return bytes(packed)

    for compression, packed in ((1, with_reserved_flag), (2, with_long_block)):
        sent = batch(GOOD, compression=compression, packed=packed)
        assert code_of(sent) is ErrorCode.UNKNOWN_SERVER_ERROR
    for compression in range(1, 5):
        longer = CODECS[compression](GOOD) + b"junk!"
        sent = batch(longer, compression=compression, packed=bytes)
        # More gzip members or LZ4 frames are refused as a whole, before anything is decompressed.
        of_first = ErrorCode.INVALID_RECORD if compression in (1, 3) else ErrorCode.UNKNOWN_SERVER_ERROR
        assert code_of(sent) is of_first


def test_zstd_comes_with_version_7() -> None:
    sent_batch(batch(GOOD, compression=4), 7)
    for other in (batch(GOOD, compression=3), batch(GOOD)):
        sent_batch(other, 3)
    with pytest.raises(ProtocolError) as refused:
        sent_batch(batch(GOOD, compression=4)[:-1] + b"!", 6)
    assert refused.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@EACH_CODEC
def test_each_record_without_a_key_is_named(compression: int) -> None:
    keyless = record(0) + record(1, key=text(None)) + record(2, key=text(None))
    refused = refusal(batch(keyless, compression=compression), log_of(compacts=True))
    reason = "Compacted topic cannot accept message without key in topic partition orders-0"
    assert refused.code is ErrorCode.INVALID_RECORD
    assert [(each.batch_index, each.message) for each in refused.errors] == [(1, reason), (2, reason)]
    assert refused.message == (
        "One or more records have been rejected due to 2 record errors in total, and only showing the first "
        f"three errors at most: [RecordError(batchIndex=1, message='{reason}'), "
        f"RecordError(batchIndex=2, message='{reason}')]"
    )


@EACH_CODEC
def test_each_record_of_another_time_is_named(compression: int) -> None:
    records = record(0, time=3_600_001) + record(1, time=3_600_000) + record(2, time=-1_001)
    refused = refusal(batch(records, compression=compression), log_of(before_max_ms=1_000))
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert refused.message == "One or more records have been rejected due to invalid timestamp"
    assert [each.batch_index for each in refused.errors] == [0, 2]
    assert refused.errors[0].message == (
        f"Timestamp {NOW + 3_600_001} of message with offset 0 is out of range. "
        f"The timestamp should be within [{NOW - 1_000}, {NOW + 3_600_000}]"
    )


def test_a_key_counts_before_a_time() -> None:
    log = log_of(compacts=True)
    both = record(0, key=text(None), time=10**8) + record(1, time=10**8) + record(2)
    assert [each.message[:9] for each in refusal(batch(both), log).errors] == ["Compacted", "Timestamp"]
    assert refusal(batch(both), log).code is ErrorCode.INVALID_TIMESTAMP
    keyless = record(0, key=text(None), time=10**8) + record(1) + record(2)
    assert refusal(batch(keyless), log).code is ErrorCode.INVALID_RECORD


def test_times_are_any_where_nobody_counts_them() -> None:
    late = batch(record(0, time=10**8) + record(1) + record(2))
    assert code_of(late) is ErrorCode.INVALID_TIMESTAMP
    assert code_of(late, log_of(after_max_ms=10**8)) is ErrorCode.NONE
    assert code_of(late, log_of(stamps=True)) is ErrorCode.NONE
    assert code_of(late, now_ms=None) is ErrorCode.NONE
    assert code_of(batch(GOOD, base=-1), log_of(before_max_ms=0)) is ErrorCode.NONE, "they have no time"
    assert code_of(batch(GOOD, base=0), log_of(before_max_ms=0)) is ErrorCode.INVALID_TIMESTAMP
    beyond = record(0) + record(1, time=2**62) + record(2)
    assert code_of(batch(beyond, base=2**62 + 5)) is ErrorCode.INVALID_TIMESTAMP


def test_only_the_log_says_that_it_set_the_time() -> None:
    said = batch(GOOD, attributes=0x08)
    refused = refusal(said, log_of(stamps=True))
    assert refused.code is ErrorCode.INVALID_TIMESTAMP
    assert [each.batch_index for each in refused.errors] == [0, 1, 2]
    log = PartitionLog()
    log.append(said, now_ms=NOW)
    (stored,) = log.read(0, 1, at_least_one=True).batches
    assert stored_batch(stored).attributes == 0


@EACH_CODEC
def test_the_latest_time_of_a_batch_is_that_of_its_records(compression: int) -> None:
    records = record(0) + record(1, time=300) + record(2, time=-7)
    log = PartitionLog()
    log.append(batch(records, compression=compression, latest=5), now_ms=NOW)
    assert at_once(log.offset_of_max_timestamp()) == (1, NOW + 300)
    (stored,) = log.read(0, 1, at_least_one=True).batches
    assert stored_batch(stored).max_timestamp == NOW + 300


def test_records_without_a_time_are_found_and_passed_over() -> None:
    log = PartitionLog()
    log.append(batch(record(0) + record(1, time=11) + record(2, time=5), base=-1, latest=-1))
    assert at_once(log.offset_for_time(5)) == (1, 10)


SOME_RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**40),
        st.none() | st.binary(max_size=100),
        st.none() | st.binary(max_size=300),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
    ),
    min_size=1,
    max_size=100,
)


@given(SOME_RECORDS, st.integers(0, 4))
def test_what_a_client_writes_is_stored_as_it_is(records: list, compression: int) -> None:
    log, sent = PartitionLog(), batch_of(records, compression=compression)
    log.append(sent, now_ms=2**41)
    (stored,) = log.read(0, 1, at_least_one=True).batches
    assert stored[16:] == sent[16:]


@settings(max_examples=6 * settings().max_examples)
@given(
    SOME_RECORDS,
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(21, 10**4), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_what_is_stored_can_be_read(records: list, compression: int, changes: list[tuple[int, int]]) -> None:
    """Wrong bytes with a right checksum: they are refused, or a client reads as many records as there are."""
    changed = bytearray(batch_of([(*each[:3], []) for each in records], compression=compression))
    for place, byte in changes:
        changed[21 + place % (len(changed) - 21)] = byte
    log = PartitionLog()
    assume(code_of(sealed(bytes(changed)), log) is ErrorCode.NONE)
    (stored,) = log.read(0, 1, at_least_one=True).batches
    try:
        found = [one.offset for one in MemoryRecords(stored).next_batch()]
    except UnicodeDecodeError:
        return  # a header's name in other letters, which only this client minds
    assert found == list(range(log.high_watermark))
