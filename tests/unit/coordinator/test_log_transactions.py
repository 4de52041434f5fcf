"""Transactions in one log: what is held back, what does not count, and who may write."""

from __future__ import annotations

import tracemalloc

import pytest
from aiokafka.record.memory_records import MemoryRecords

from fencepost.coordinator.codec.batches import end_marker, is_commit, sent_batch, stored_batch
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.server.logs import PartitionLog
from tests import batches


def batch(*values: bytes, producer: int = -1, epoch: int = 0, sequence: int = -1) -> bytes:
    """In a transaction, if there is a producer."""
    if producer < 0:
        return batches.batch(*values)
    return batches.batch(*values, producer=(producer, epoch, sequence), transactional=True)


def put(log: PartitionLog, *values: bytes, producer: int = -1, epoch: int = 0, sequence: int = -1) -> int:
    return log.append(batch(*values, producer=producer, epoch=epoch, sequence=sequence))


def asks(log: PartitionLog, sequence: int, *, epoch: int = 0, own_epochs: bool = False) -> bool:
    """Whether the coordinator has to be asked about a batch of producer 7."""
    header = sent_batch(batch(b"a", producer=7, epoch=epoch, sequence=sequence), 12)
    return log.producers.needs_verification(header, own_epochs=own_epochs)


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


def test_the_coordinator_is_asked_about_the_first_batch_of_a_transaction():
    log = PartitionLog()
    assert asks(log, 0)
    put(log, b"a", producer=7, sequence=0)
    assert not asks(log, 1)
    with refused(ErrorCode.INVALID_TXN_STATE):
        log.append(batches.batch(b"b", producer=(7, 0, 1)))
    end(log, 7, commit=True, epoch=1)
    assert asks(log, 0, epoch=1)
    with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
        asks(log, 1)


def test_no_batch_comes_before_the_one_that_was_asked_about_first():
    log = PartitionLog()
    assert asks(log, 4)
    assert asks(log, 3)
    assert asks(log, 5)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        put(log, b"b", producer=7, sequence=4)
    put(log, b"a", producer=7, sequence=3)
    put(log, b"b", producer=7, sequence=4)


@pytest.mark.parametrize("own_epochs", [True, False])
def test_where_each_transaction_has_its_epoch_a_producer_begins_at_0(own_epochs):
    log = PartitionLog()
    assert asks(log, 3, own_epochs=own_epochs)
    if own_epochs:
        with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
            put(log, b"a", producer=7, sequence=3)
        assert asks(log, 0, own_epochs=True)
        put(log, b"a", producer=7, sequence=0)
    else:
        put(log, b"a", producer=7, sequence=3)


def test_a_marker_makes_forget_what_was_asked_about():
    log = PartitionLog()
    assert asks(log, 2)
    end(log, 7, commit=False)
    assert asks(log, 3)
    put(log, b"a", producer=8, sequence=0)
    with refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER):
        put(log, b"a", producer=7, sequence=3)
    put(log, b"a", producer=7, sequence=0)


def test_of_an_open_transaction_the_first_records_may_be_deleted():
    log = PartitionLog()
    put(log, b"a", producer=7, sequence=0)
    put(log, b"b", b"c", producer=7, sequence=1)
    log.delete_records(2)
    assert log.last_stable_offset == 2
    assert told(log, offset=2) == ([], [])
    end(log, 7, commit=True)
    assert log.last_stable_offset == log.high_watermark == 4


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


def test_producers_that_never_get_into_the_log_do_not_fill_the_memory():
    log = PartitionLog()
    tracemalloc.start()
    try:
        sizes = []
        for known in (2_000, 20_000):
            for producer in range(known):
                header = sent_batch(batch(b"a", producer=producer, sequence=1), 12)
                assert log.producers.needs_verification(header, own_epochs=True)
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] < sizes[0] + 200_000
