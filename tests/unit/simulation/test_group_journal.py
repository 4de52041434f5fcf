"""What a fetch of `__consumer_offsets` brings, batch by batch."""

from __future__ import annotations

import asyncio
import struct

import pytest

from fencepost import EmbeddedKafka
from fencepost.coordinator.codec.batches import whole_batches
from fencepost.coordinator.codec.group_records import encode_record
from fencepost.coordinator.protocol.errors import EnvironmentLacks, ProtocolError
from fencepost.coordinator.protocol.records import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    Record,
)
from fencepost.simulation.lab.chaos import group_log_tail
from fencepost.simulation.lab.chaos.group_log_tail import GroupLogTail, LogBatch
from tests.batches import NOBODY, batch_of
from tests.waiting import until

COMMIT, ABORT = 1, 0
ATTRIBUTES_AT, LEADER_EPOCH_AT = 21, 12


def batch(
    offset: int, *records: Record, producer_id: int = -1, control: int | None = None, leader_epoch: int = 0
) -> bytes:
    transactional = producer_id >= 0
    if control is None:
        written = [(1_000 + at, *encode_record(record), []) for at, record in enumerate(records)]
    else:
        written = [(1_000, struct.pack(">hh", 0, control), struct.pack(">hi", 0, 0), [])]
    producer = (producer_id, 0, 0) if transactional else NOBODY
    data = bytearray(batch_of(written, producer=producer, transactional=transactional))
    struct.pack_into(">q", data, 0, offset)
    struct.pack_into(">i", data, LEADER_EPOCH_AT, leader_epoch)
    if control is not None:
        data[ATTRIBUTES_AT + 1] |= 0x20
    return bytes(data)


def epoch(number: int, group_id: str = "g") -> Record:
    return Record(ConsumerGroupMetadataKey(group_id), ConsumerGroupMetadataValue(number))


def commit(number: int, group_id: str = "g") -> Record:
    return Record(OffsetCommitKey(group_id, "t", 0), OffsetCommitValue(number, -1, "", 5))


async def read(*data: bytes, position: int = 0) -> tuple[GroupLogTail, list[LogBatch]]:
    journal = GroupLogTail("g", "nowhere:1")
    journal.position = position
    return journal, list(journal._batches(b"".join(data), 3))


async def test_batches_stay_apart_and_have_their_leader() -> None:
    journal, found = await read(
        batch(5, epoch(1), epoch(2, "other"), epoch(3)), batch(8, epoch(4), leader_epoch=7)
    )
    assert [[each.record for each in one.records] for one in found] == [[epoch(1), epoch(3)], [epoch(4)]]
    assert [each.offset for each in found[0].records] == [5, 7]
    assert [(one.leader, one.leader_epoch) for one in found] == [(3, 0), (3, 7)]
    assert journal.position == 9


async def test_what_was_read_already_is_left_out() -> None:
    journal, found = await read(
        batch(0, epoch(1)), batch(1, epoch(2), epoch(3)), batch(3, epoch(4, "other")), position=2
    )
    assert [each.record for one in found for each in one.records] == [epoch(3)]
    assert journal.position == 4


async def test_offsets_of_a_transaction_come_with_its_end() -> None:
    _, found = await read(
        batch(0, commit(1), producer_id=7),
        batch(1, commit(2), producer_id=8),
        batch(2, epoch(9)),
        batch(3, producer_id=8, control=ABORT),
        batch(4, producer_id=7, control=COMMIT),
    )
    assert [[each.record for each in one.records] for one in found] == [[epoch(9)], [commit(1)]]
    assert [one.base_offset for one in found] == [2, 4]


async def test_a_batch_that_is_cut_off_is_read_next_time() -> None:
    whole, more = batch(0, epoch(1)), batch(1, epoch(2))
    journal, found = await read(whole, more[:-1])
    assert len(found) == 1
    assert journal.position == 1


def test_another_format_is_refused() -> None:
    old = bytearray(batch(0, epoch(1)))
    old[16] = 1
    with pytest.raises(ProtocolError, match="format 1"):
        list(whole_batches(bytes(old)))


@pytest.mark.real
@pytest.mark.parametrize(
    ("api", "error", "limit_s", "why"),
    [
        ("ListOffsets", "TOPIC_AUTHORIZATION_FAILED", 30, "allow Read on the topic __consumer_offsets"),
        ("ListOffsets", "NOT_LEADER_OR_FOLLOWER", 0.5, "can't be read within 0.5 s: NOT_LEADER_OR_FOLLOWER"),
        ("Metadata", "TOPIC_AUTHORIZATION_FAILED", 0.5, "the brokers report no partitions"),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE", 0.5, "no broker of .* names its coordinator"),
    ],
)
async def test_a_log_without_a_start_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, api: str, error: str, limit_s: float, why: str
) -> None:
    monkeypatch.setattr(group_log_tail, "_CONNECT_S", limit_s)
    with EmbeddedKafka() as kafka:
        kafka.add_fault("error", api, error=error, times=None)
        async with asyncio.timeout(15):
            with pytest.raises(EnvironmentLacks, match=why):
                await GroupLogTail("g", kafka.bootstrap_servers).__aenter__()


@pytest.mark.real
async def test_a_search_for_the_start_that_is_cancelled_closes_its_connection() -> None:
    with EmbeddedKafka() as kafka:
        kafka.add_fault("silent", "ListOffsets")
        journal = GroupLogTail("g", kafka.bootstrap_servers)
        entering = asyncio.ensure_future(journal.__aenter__())
        await until(lambda: journal._connection is not None)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert journal._connection is None


@pytest.mark.real
async def test_partitions_that_no_broker_reports_yet_are_awaited() -> None:
    with EmbeddedKafka() as kafka:
        kafka.add_fault(
            "error", "Metadata", error="UNKNOWN_TOPIC_OR_PARTITION", topic="__consumer_offsets", times=2
        )
        async with asyncio.timeout(15), GroupLogTail("g", kafka.bootstrap_servers) as journal:
            assert journal.position == 0
            assert journal.failures == 2
