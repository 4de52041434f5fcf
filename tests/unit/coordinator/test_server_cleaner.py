"""What topics' settings do to their logs: records grow old, are too many, or are replaced by newer ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c

from fencepost.coordinator.codec.batches import placed
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.cluster_records import ConfigKey
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.slices import at_once
from fencepost.coordinator.server import cleaner
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.logs import LogSettings, PartitionLog
from tests.batches import NOBODY, batch_of
from tests.waiting import until

pytestmark = pytest.mark.real

COMPRESSIONS = pytest.mark.parametrize("compression", range(5), ids=["none", "gzip", "snappy", "lz4", "zstd"])


def batch(
    *records: tuple[int, bytes | None, bytes | None], compression: int = 0, producer: int = -1
) -> bytes:
    """A batch of (timestamp, key, value)."""
    return batch_of(
        ((*record, [("h", b"1")]) for record in records),
        compression=compression,
        producer=(producer, 0, 0) if producer >= 0 else NOBODY,
        transactional=producer >= 0,
    )


def filled(*batches: bytes) -> PartitionLog:
    log = PartitionLog()
    for each in batches:
        log.append(each)
    return log


def held(log: PartitionLog, offset: int | None = None) -> list[tuple[int, bytes | None, bytes | None]]:
    """(offset, key, value) of what a consumer reads that starts there."""
    start = log.log_start_offset if offset is None else offset
    found = []
    while start < log.high_watermark:
        for one in log.read(start, 1, at_least_one=True).batches:
            for record in MemoryRecords(one).next_batch():
                assert record.headers == [("h", b"1")]
                if record.offset >= start:
                    found.append((record.offset, record.key, record.value))
            behind = int.from_bytes(one[:8], "big") + int.from_bytes(one[23:27], "big") + 1
            assert behind > start, "the reader gets on"
            start = behind
    return found


def compact(log: PartitionLog, now_ms: int = 1_000, lag_ms: int = 0, retention_ms: int = 10_000) -> None:
    at_once(log.compact(now_ms, min_lag_ms=lag_ms, delete_retention_ms=retention_ms))


@COMPRESSIONS
def test_the_newest_record_of_each_key_stays_at_its_offset(compression: int) -> None:
    log = filled(
        batch((1, b"a", b"1"), (2, b"b", b"1"), compression=compression),
        batch((3, b"a", b"2"), compression=compression),
        batch((4, b"a", b"3"), (5, b"c", b"1"), compression=compression),
        batch((6, b"b", b"2"), compression=compression),
    )
    log.append(batch((7, b"c", b"2")))
    compact(log)
    assert held(log) == [(3, b"a", b"3"), (4, b"c", b"1"), (5, b"b", b"2"), (6, b"c", b"2")]
    for offset in range(8):
        assert [each[0] for each in held(log, offset)] == [each for each in (3, 4, 5, 6) if each >= offset]
    assert log.high_watermark == 7
    assert log.size == log.available(0) == sum(map(len, log.read(0, 1 << 20, at_least_one=True).batches))
    log.append(batch((8, b"a", b"4")))
    log.append(batch((9, b"d", b"1")))
    compact(log)
    assert held(log)[:3] == [(5, b"b", b"2"), (6, b"c", b"2"), (7, b"a", b"4")]


def test_tombstones_go_when_they_are_old() -> None:
    log = filled(batch((100, b"a", b"1")), batch((200, b"a", None)), batch((300, b"b", b"1")))
    compact(log, now_ms=200, retention_ms=50)
    assert held(log) == [(1, b"a", None), (2, b"b", b"1")]
    compact(log, now_ms=251, retention_ms=50)
    assert held(log) == [(2, b"b", b"1")]
    assert held(log, 0) == [(2, b"b", b"1")]


def poison(offset: int, compression: int = 4) -> bytes:
    """A stored batch that says that it is compressed, and is not: older journals may hold one."""
    lie = bytearray(batch((1, b"a", b"1"), (1, b"b", b"1")))
    lie[22] = compression
    lie[17:21] = calc_crc32c(bytes(lie[21:])).to_bytes(4, "big")
    return placed(bytes(lie), offset, 0)


@pytest.mark.parametrize("compression", range(1, 5), ids=["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_nobody_can_read_stays_and_the_others_are_compacted(compression: int) -> None:
    log = filled(batch((1, b"a", b"1")))
    log.restore(poison(1, compression))
    for each in (batch((2, b"a", b"2")), batch((3, b"b", b"1")), batch((4, b"c", b"1"))):
        log.append(each)
    assert at_once(log.compact(1_000, min_lag_ms=0, delete_retention_ms=0)) == [1]
    starts = [int.from_bytes(one[:8], "big") for one in log.read(0, 1 << 20, at_least_one=True).batches]
    assert starts == [1, 3, 4, 5]
    assert at_once(log.compact(1_000, min_lag_ms=0, delete_retention_ms=0)) == [], "there is nothing new"
    assert at_once(log.compact(1_000, min_lag_ms=0, delete_retention_ms=0)) == []


def test_records_that_are_too_young_are_left_alone() -> None:
    log = filled(batch((100, b"a", b"1")), batch((200, b"a", b"2")), batch((300, b"a", b"3")))
    compact(log, now_ms=250, lag_ms=100)
    assert len(held(log)) == 3
    compact(log, now_ms=300, lag_ms=100)
    assert held(log) == [(1, b"a", b"2"), (2, b"a", b"3")]


def test_transactions_are_left_alone() -> None:
    """An aborted record must not replace one that counts."""
    log = filled(batch((1, b"a", b"1")), batch((2, b"a", b"2"), producer=7))
    log.end_transaction(7, 0, commit=False, timestamp_ms=3)
    log.append(batch((4, b"b", b"1")))
    before = log.read(0, 1 << 20, at_least_one=True).batches
    compact(log)
    assert log.read(0, 1 << 20, at_least_one=True).batches == before


def test_records_without_a_key_are_refused() -> None:
    log = PartitionLog()
    log.settings = LogSettings(compacts=True)
    with pytest.raises(ProtocolError) as refused:
        log.append(batch((1, b"a", b"1"), (1, None, b"1")))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert log.append(batch((1, b"a", b"1"))) == 0


@COMPRESSIONS
def test_the_log_sets_the_time(compression: int) -> None:
    log = PartitionLog()
    log.settings = LogSettings(stamps=True)
    log.append(batch((1, b"a", b"1"), (2, b"b", b"1"), compression=compression), now_ms=5_000)
    (one,) = log.read(0, 1 << 20, at_least_one=True).batches
    records = MemoryRecords(one).next_batch()
    assert records.validate_crc()
    assert [(record.timestamp, record.timestamp_type) for record in records] == [(5_000, 1)] * 2
    assert at_once(log.offset_for_time(4_999)) == (0, 5_000)
    assert at_once(log.offset_for_time(5_001)) is None


def test_what_is_too_old_or_too_much() -> None:
    log = filled(*(batch((100 * number, b"k", b"v" * 100)) for number in range(1, 6)))
    one = log.size // 5

    def kept(retention_ms: int = -1, retention_bytes: int = -1) -> int:
        return log.retained_from(1_000, retention_ms=retention_ms, retention_bytes=retention_bytes)

    assert (kept(), kept(900), kept(800), kept(799), kept(0)) == (0, 0, 1, 2, 5)
    assert kept(retention_ms=700) == 2
    assert kept(retention_ms=699) == 3
    assert kept(retention_bytes=5 * one) == 0
    assert kept(retention_bytes=2 * one + 1) == 2
    assert kept(retention_bytes=2 * one) == 3
    assert kept(retention_bytes=0) == 5
    log.append(batch((1, b"k", b"v"), producer=7))
    assert kept(retention_bytes=0) == 5, "an open transaction stays"


@pytest.fixture
async def brokers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Brokers]:
    monkeypatch.setattr(cleaner, "INTERVAL_S", 0.005)
    async with Brokers() as running:
        yield running


def configured(brokers: Brokers, topic: str, configs: Mapping[str, str]) -> PartitionLog:
    if topic not in brokers.cluster.image.by_name:
        brokers.cluster.create_topics({topic: 1}, configs)
    else:
        brokers.cluster.set_configs(ConfigKey(ResourceType.TOPIC, topic), configs)
    return brokers.cluster.log(brokers.cluster.image.by_name[topic], 0)


async def test_logs_are_cleaned_while_the_brokers_run(brokers: Brokers) -> None:
    old = configured(brokers, "old", {"retention.ms": "1000"})
    kept = configured(brokers, "kept", {"retention.ms": "1000", "cleanup.policy": "compact"})
    for log in (old, kept):
        log.append(batch((1, b"a", b"1")))
        log.append(batch((2, b"b", b"1")))
        log.append(batch((3, b"b", b"2")))
        log.append(batch((4, b"c", b"1")))
    await until(lambda: old.log_start_offset >= 4 and len(held(kept)) <= 3)
    assert held(old) == []
    assert held(kept) == [(0, b"a", b"1"), (2, b"b", b"2"), (3, b"c", b"1")]
    assert kept.log_start_offset == 0


async def test_a_log_that_can_not_be_cleaned_holds_up_no_other(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = configured(brokers, "broken", {"cleanup.policy": "compact,delete", "retention.ms": "1"})
    poisoned = configured(brokers, "poisoned", {"cleanup.policy": "compact"})
    poisoned.restore(poison(0))
    old = configured(brokers, "old", {"retention.ms": "1000"})
    failed = 0

    def fail(*_: object, **__: object) -> int:
        nonlocal failed
        failed += 1
        raise ZeroDivisionError("as from a library")

    monkeypatch.setattr(type(broken), "compact", fail)
    for log in (broken, poisoned, old):
        log.append(batch((1, b"a", b"1")))
        log.append(batch((2, b"a", b"2")))
    await until(lambda: failed >= 4)
    assert held(old) == []
    brokers.cleaner.run()


async def test_a_setting_acts_from_when_it_is_made(brokers: Brokers) -> None:
    log = configured(brokers, "t", {})
    log.append(batch((1, b"a", b"1")))
    log.append(batch((2, b"a", b"2")))
    brokers.cleaner.run()
    assert len(held(log)) == 2
    configured(brokers, "t", {"retention.bytes": "1"})
    brokers.cleaner.run()
    assert held(log) == [(1, b"a", b"2")]
    configured(brokers, "t", {})
    log.append(batch((3, b"a", b"3")))
    brokers.cleaner.run()
    assert len(held(log)) == 2
