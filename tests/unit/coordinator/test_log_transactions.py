"""Transactions in one log: what is held back, what does not count, and who may write."""

from __future__ import annotations

import pytest
from aiokafka.record.memory_records import MemoryRecords

from fencepost.coordinator.codec.batches import end_marker, is_commit, stored_batch
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.server.logs import PartitionLog
from tests import batches


def batch(*values: bytes, producer: int = -1, epoch: int = 0, sequence: int = -1) -> bytes:
    """In a transaction, if there is a producer."""
    if producer < 0:
        return batches.batch(*values)
    return batches.batch(*values, producer=(producer, epoch, sequence), transactional=True)


def put(log: PartitionLog, *values: bytes, producer: int = -1, epoch: int = 0, sequence: int = -1) -> int:
    return log.append(
        batch(*values, producer=producer, epoch=epoch, sequence=sequence), verify=lambda header: None
    )


def end(log: PartitionLog, producer: int, *, commit: bool, epoch: int = 0) -> None:
    log.end_transaction(producer, epoch, commit=commit, timestamp_ms=2_000)


def told(
    log: PartitionLog, offset: int = 0, max_bytes: int = 1 << 20
) -> tuple[list[int], list[tuple[int, int]]]:
    """Base offsets of what a reader of committed records gets, and the aborted transactions in it."""
    found = log.read(offset, max_bytes, at_least_one=True, committed=True)
    return (
        [stored_batch(one).base_offset for one in found.batches],
        [(one.producer_id, one.first_offset) for one in found.aborted],
    )


def refused(code: ErrorCode):
    return pytest.raises(ProtocolError, check=lambda error: error.code is code)


def test_open_transactions_hold_back_all_that_follows():
    log = PartitionLog()
    put(log, b"before")
    put(log, b"a", b"b", producer=7, sequence=0)
    put(log, b"plain")
    assert (log.high_watermark, log.last_stable_offset) == (4, 1)
    assert told(log) == ([0], [])
    assert log.available(1) > 0
    assert log.available(1, committed=True) == 0
    end(log, 7, commit=True)
    assert (log.high_watermark, log.last_stable_offset) == (5, 5)
    assert told(log) == ([0, 1, 3, 4], [])
    assert len(log.read(0, 1 << 20, at_least_one=True).batches) == 4


def test_the_first_of_several_open_transactions_counts():
    log = PartitionLog()
    put(log, b"a", producer=7, sequence=0)
    put(log, b"b", producer=8, sequence=0)
    put(log, b"c", producer=7, sequence=1)
    assert log.last_stable_offset == 0
    end(log, 7, commit=True)
    assert log.last_stable_offset == 1
    end(log, 8, commit=False)
    assert log.last_stable_offset == log.high_watermark == 5


def test_aborted_transactions_are_told_to_those_who_meet_their_records():
    log = PartitionLog()
    put(log, b"a", producer=7, sequence=0)  # 0
    end(log, 7, commit=False)  # 1
    put(log, b"b", producer=7, sequence=1)  # 2
    put(log, b"c", producer=8, sequence=0)  # 3
    end(log, 8, commit=False)  # 4
    end(log, 7, commit=True)  # 5
    assert told(log)[1] == [(7, 0), (8, 3)]
    assert told(log, offset=1)[1] == [(7, 0), (8, 3)]
    assert told(log, offset=2)[1] == [(8, 3)]
    assert told(log, offset=5)[1] == []
    size = len(batch(b"a", producer=7, sequence=0))
    assert told(log, max_bytes=size) == ([0], [(7, 0)])
    log.delete_records(2)
    assert told(log, offset=2)[1] == [(8, 3)]


def test_markers_are_what_clients_expect():
    marker = end_marker(producer_id=7, producer_epoch=3, commit=False, timestamp_ms=5)
    header = stored_batch(marker)
    assert (header.is_control, header.is_transactional, header.producer_id, header.producer_epoch) == (
        True,
        True,
        7,
        3,
    )
    assert not is_commit(marker)
    assert is_commit(end_marker(producer_id=7, producer_epoch=3, commit=True, timestamp_ms=5))
    records = MemoryRecords(marker)
    read = records.next_batch()
    assert read.is_control_batch
    (record,) = read
    assert (record.key, record.value, record.timestamp) == (b"\0\0\0\0", b"\0\0\0\0\0\0", 5)
    with refused(ErrorCode.INVALID_RECORD):
        PartitionLog().append(marker)


def test_a_batch_outside_of_its_transaction_is_refused_and_asked_about_once():
    log, asked = PartitionLog(), []
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append(batch(b"a", producer=7, sequence=0))
    assert log.high_watermark == 0
    for sequence in (0, 1):
        log.append(batch(b"a", producer=7, sequence=sequence), verify=asked.append)
    assert [header.base_sequence for header in asked] == [0]
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append(batches.batch(b"b", producer=(7, 0, 2)))


def test_a_marker_of_a_newer_epoch_fences_and_begins_anew():
    log = PartitionLog()
    put(log, b"a", producer=7, epoch=0, sequence=0)
    end(log, 7, commit=True, epoch=1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        put(log, b"late", producer=7, epoch=0, sequence=1)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        put(log, b"b", producer=7, epoch=1, sequence=1)
    put(log, b"b", producer=7, epoch=1, sequence=0)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        end(log, 7, commit=False, epoch=0)
    assert log.last_stable_offset == 2


def test_restored_logs_know_their_transactions():
    log, kept = PartitionLog(), []
    log.on_append = kept.append
    put(log, b"a", producer=7, sequence=0)
    end(log, 7, commit=False)
    put(log, b"b", producer=8, sequence=0)
    again = PartitionLog()
    for each in kept:
        again.restore(each)
    assert (again.high_watermark, again.last_stable_offset) == (3, 2)
    assert told(again) == told(log) == ([0, 1], [(7, 0)])
    end(again, 8, commit=True)
    assert again.last_stable_offset == 4
