from __future__ import annotations

import struct

import pytest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.server.logs import PartitionLog
from tests.batches import batch


def read(
    log: PartitionLog, offset: int, max_bytes: int = 1 << 20, *, at_least_one: bool = True
) -> list[tuple[int, bytes]]:
    records = MemoryRecords(b"".join(log.read(offset, max_bytes, at_least_one=at_least_one).batches))
    found = []
    while records.has_next():
        found += [(record.offset, record.value) for record in records.next_batch()]
    return found


def refused(code: ErrorCode):
    return pytest.raises(ProtocolError, check=lambda error: error.code is code)


def test_batches_get_their_offsets_and_come_back():
    log = PartitionLog()
    assert log.append(batch(b"a", b"b")) == 0
    assert log.append(batch(b"c", compression=1)) == 2
    assert log.high_watermark == 3
    assert read(log, 0) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert read(log, 2) == [(2, b"c")]
    assert read(log, 1) == [(0, b"a"), (1, b"b"), (2, b"c")], "the batch that holds the offset comes whole"
    assert read(log, 3) == []


def test_a_read_is_bounded_but_never_stuck():
    log = PartitionLog()
    sizes = [len(batch(b"x" * 100)) for _ in range(3)]
    for _ in sizes:
        log.append(batch(b"x" * 100))
    assert [offset for offset, _ in read(log, 0, sizes[0] * 2)] == [0, 1]
    assert [offset for offset, _ in read(log, 0, sizes[0] * 2 - 1)] == [0]
    assert [offset for offset, _ in read(log, 1, 1)] == [1]
    assert read(log, 1, 1, at_least_one=False) == []
    assert log.available(0) == sum(sizes)
    assert log.available(2) == sizes[0]
    assert log.available(3) == 0


@pytest.mark.parametrize("offset", [-1, 2, 2**62])
def test_an_offset_out_of_range_is_refused(offset):
    log = PartitionLog()
    log.append(batch(b"a"))
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(offset, 100, at_least_one=True)


def patched(data: bytes, at: int, layout: str, value: int) -> bytes:
    mutable = bytearray(data)
    struct.pack_into(layout, mutable, at, value)
    return bytes(mutable)


def sealed(data: bytes) -> bytes:
    """The same with the checksum that it should have."""
    return patched(data, 17, ">I", calc_crc32c(data[21:]))


GOOD = batch(b"a", b"b")


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (GOOD[:60], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:-1], ErrorCode.CORRUPT_MESSAGE),
        (GOOD[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
        (GOOD + GOOD, ErrorCode.INVALID_RECORD),
        (patched(GOOD, 16, ">b", 1), ErrorCode.INVALID_RECORD),
        (patched(GOOD, 8, ">i", -1), ErrorCode.CORRUPT_MESSAGE),
        (sealed(patched(GOOD, 21, ">h", 5)), ErrorCode.UNKNOWN_SERVER_ERROR),
        (sealed(patched(GOOD, 21, ">h", 0x20)), ErrorCode.INVALID_RECORD),
        (sealed(patched(GOOD, 21, ">h", 0x10)), ErrorCode.INVALID_RECORD),
        (sealed(patched(GOOD, 57, ">i", 3)), ErrorCode.INVALID_RECORD),
        (batch(b"x" * 1_048_577), ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_what_is_no_batch_is_refused_and_changes_nothing(records, code):
    log = PartitionLog()
    with refused(code):
        log.append(records)
    assert (log.high_watermark, log.size) == (0, 0)


def test_an_idempotent_batch_is_appended_once():
    log = PartitionLog()
    first, second = batch(b"a", b"b", producer=(7, 0, 0)), batch(b"c", producer=(7, 0, 2))
    assert [log.append(one) for one in (first, second, first, second)] == [0, 2, 0, 2]
    assert log.high_watermark == 3


def test_a_gap_or_an_old_epoch_of_a_producer_is_refused():
    log = PartitionLog()
    log.append(batch(b"a", producer=(7, 1, 0)))
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(batch(b"c", producer=(7, 1, 2)))
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append(batch(b"b", producer=(7, 0, 1)))
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        log.append(batch(b"b", producer=(7, 2, 1)))
    assert log.append(batch(b"b", producer=(7, 2, 0))) == 1
    assert log.append(batch(b"b", producer=(8, 0, 40))) == 2, "nothing is known of another producer"
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        log.append(batch(b"c", producer=(9, -2, 0)))


def test_sequences_wrap():
    log = PartitionLog()
    log.append(batch(b"a", b"b", producer=(7, 0, 2**31 - 2)))
    assert log.append(batch(b"c", producer=(7, 0, 0))) == 2


def test_offsets_by_time():
    log = PartitionLog()
    assert at_once(log.offset_for_time(0)) is None
    assert at_once(log.offset_of_max_timestamp()) is None
    log.append(batch(b"a", b"b", at=1000))
    log.append(batch(b"c", b"d", at=3000, compression=2))
    log.append(batch(b"e", at=2000))
    assert at_once(log.offset_for_time(0)) == (0, 1000)
    assert at_once(log.offset_for_time(1001)) == (1, 1001)
    assert at_once(log.offset_for_time(1002)) == (2, 3000)
    assert at_once(log.offset_for_time(3001)) == (3, 3001)
    assert at_once(log.offset_for_time(3002)) is None
    assert at_once(log.offset_of_max_timestamp()) == (3, 3001)


def test_leader_epochs():
    log = PartitionLog(leader_epoch=2)
    log.append(batch(b"a"))
    log.lead(5)
    log.append(batch(b"b"))
    batches = log.read(0, 200, at_least_one=True).batches
    assert [each[12:16] for each in batches] == [b"\0\0\0\x02", b"\0\0\0\x05"]
    again = PartitionLog()
    for each in batches:
        again.restore(each)
    again.lead(7)
    assert [again.epochs.end(epoch, 2) for epoch in (2, 4, 5, 7)] == [(2, 1), (2, 1), (5, 2), (7, 2)]


def test_watchers_hear_of_appends_and_of_the_end():
    log, heard = PartitionLog(), []
    watcher = lambda of: heard.append(of.high_watermark)  # noqa: E731
    log.add_listener(watcher)
    log.append(batch(b"a"))
    log.close()
    log.remove_listener(watcher)
    log.remove_listener(watcher)
    log.append(batch(b"b"))
    assert heard == [1, 1]
    assert log.is_closed


def test_records_are_deleted_from_the_start_and_offsets_go_on():
    log = PartitionLog()
    for value in (b"a", b"b", b"c"):
        log.append(batch(value, value, at=1000))
    assert log.delete_records(3) == 2, "a batch that is needed in part is kept"
    assert (log.log_start_offset, log.high_watermark) == (3, 6)
    assert [offset for offset, _ in read(log, 3)] == [2, 3, 4, 5]
    with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
        log.read(2, 100, at_least_one=True)
    assert at_once(log.offset_for_time(0)) == (3, 1001)
    assert log.available(3) == log.size == 2 * len(batch(b"b", b"b"))
    assert log.delete_records(1) == 2, "a log does not start earlier again"
    assert log.delete_records(-1) == 6
    assert (log.log_start_offset, log.size, log.available(6)) == (6, 0, 0)
    for wrong in (7, -2):
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.delete_records(wrong)
    assert log.append(batch(b"d")) == 6
    assert read(log, 6) == [(6, b"d")]


def test_a_log_is_restored_from_its_batches():
    log, kept = PartitionLog(), []
    log.on_append = kept.append
    log.append(batch(b"a", b"b", producer=(7, 0, 0)))
    log.append(batch(b"c"))
    again = PartitionLog()
    for each in kept:
        again.restore(each)
    assert read(again, 0) == read(log, 0)
    assert again.append(batch(b"a", b"b", producer=(7, 0, 0))) == 0, "the producer is known"
    assert again.append(batch(b"d", producer=(7, 0, 2))) == 3
    with refused(ErrorCode.CORRUPT_MESSAGE):
        again.restore(kept[0][:-1] + b"!")
