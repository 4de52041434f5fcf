"""`__consumer_offsets` of our brokers: when it is seen, who leads it, what is in it and what it costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fencepost.coordinator.codec.group_records import decode_record, encode_record
from fencepost.coordinator.codec.record_contents import records_in
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.journal.memory import MemoryJournal
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.errors import ErrorCode, FencepostError, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.topics import OFFSETS_TOPIC
from fencepost.coordinator.protocol.transactions import TransactionEnded
from fencepost.coordinator.server import offsets_topic
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.logs import PartitionLog
from fencepost.coordinator.server.storage import Storage

pytestmark = pytest.mark.real

GROUPS = [f"group-{number}" for number in range(12)]
ORDERS = TopicPartition("orders", 0)


@pytest.fixture
async def brokers() -> AsyncIterator[Brokers]:
    async with Brokers({"orders": 6}, ports=(0, 0, 0)) as three:
        yield three


def commit(brokers: Brokers, group_id: str, offset: int) -> None:
    request = OffsetCommitRequest(
        group_id=group_id,
        member_id="",
        member_epoch=-1,
        instance_id=None,
        offsets={ORDERS: OffsetAndMetadata(offset=offset)},
    )
    reply = brokers.groups.ask(request, brokers.groups.leader_id(group_id))
    assert reply.errors == {ORDERS: ErrorCode.NONE}


def partition_of(brokers: Brokers, group_id: str) -> int:
    """Java's hash of the id, for ids of ASCII."""
    code = 0
    for unit in group_id:
        code = (31 * code + ord(unit)) % 2**32
    return abs(code - 2**32 if code >= 2**31 else code) % brokers.config.offsets_topic_num_partitions


def log_of(brokers: Brokers, group_id: str) -> PartitionLog:
    brokers.cluster.show_offsets_topic()
    return brokers.cluster.log(brokers.cluster.find(OFFSETS_TOPIC, None), partition_of(brokers, group_id))


def positions(log: PartitionLog, offset: int = 0) -> list[int]:
    """The positions that were committed, in the records from an offset on."""
    found = []
    for batch in log.read(offset, 1 << 30, at_least_one=True).batches:
        for each in records_in(batch):
            record = decode_record(each.key, each.value)
            assert isinstance(record, r.Record)
            if each.offset >= offset and isinstance(record.value, r.OffsetCommitValue):
                found.append(record.value.offset)
    return found


async def test_clients_see_it_once_there_are_groups(brokers: Brokers) -> None:
    cluster = brokers.cluster
    assert OFFSETS_TOPIC not in cluster.shown.by_name
    assert all(OFFSETS_TOPIC in host.coordinator.image.by_name for host in brokers.groups.active())
    with pytest.raises(ProtocolError, match="there is no topic '__consumer_offsets'"):
        cluster.find(OFFSETS_TOPIC, None)
    cluster.show_offsets_topic()
    topic = cluster.find(OFFSETS_TOPIC, None)
    assert (topic.partitions, topic.replicas) == (50, 3)
    assert cluster.name_of(topic.topic_id) == OFFSETS_TOPIC
    cluster.create_topics({"more": 1})
    assert list(cluster.shown.by_name) == ["more", "orders", OFFSETS_TOPIC]
    assert list(cluster.image.by_name) == ["more", "orders"]


async def test_the_coordinator_of_a_group_leads_its_partition(brokers: Brokers) -> None:
    cluster, groups = brokers.cluster, brokers.groups
    cluster.show_offsets_topic()
    topic = cluster.find(OFFSETS_TOPIC, None)

    def leaders() -> list[int]:
        found = []
        for group_id in GROUPS:
            state = cluster.leadership(topic, number := partition_of(brokers, group_id))
            assert state.leader_id == groups.leader_id(group_id) == cluster.leader_id(topic, number)
            assert state.leader_id in state.in_sync
            assert state.epoch == cluster.leader_epoch(topic, number)
            found.append(state.epoch)
        return found

    assert set(leaders()) == {0}
    assert {groups.leader_id(group_id) for group_id in GROUPS} == {1, 2, 3}
    groups.move(groups.shard_of(GROUPS[0]), 3)
    assert max(leaders()) == 1
    seen = cluster.shown
    await brokers.stop_broker(2)
    await brokers.stop_broker(3)
    assert {groups.leader_id(group_id) for group_id in GROUPS} == {1}
    assert max(leaders()) == 2
    assert cluster.shown is not seen  # responses that were kept are no longer right
    before = leaders()
    brokers.restart()
    assert leaders() == [epoch + 2 for epoch in before]


async def test_a_log_has_what_was_written_before_and_after_its_first_read(brokers: Brokers) -> None:
    for offset, group_id in enumerate(GROUPS):
        commit(brokers, group_id, offset)
    logs = [log_of(brokers, group_id) for group_id in GROUPS]
    assert sum(log.high_watermark for log in {id(log): log for log in logs}.values()) == len(GROUPS)
    for offset, (group_id, log) in enumerate(zip(GROUPS, logs, strict=True)):
        assert offset in positions(log)
        end = log.high_watermark
        commit(brokers, group_id, 100 + offset)
        assert positions(log, end) == [100 + offset]


async def test_a_log_goes_on_where_another_broker_leads_it(brokers: Brokers) -> None:
    group_id = GROUPS[0]
    commit(brokers, group_id, 1)
    log = log_of(brokers, group_id)
    await brokers.stop_broker(brokers.groups.leader_id(group_id))
    commit(brokers, group_id, 2)
    brokers.restart()
    commit(brokers, group_id, 3)
    assert log_of(brokers, group_id) is log
    assert positions(log) == [1, 2, 3]
    assert [log.epochs.at(offset) for offset in range(3)] == [0, 1, 3]


async def test_nothing_is_encoded_for_nobody(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []
    real = encode_record
    monkeypatch.setattr(offsets_topic, "encode_record", lambda one: encoded.append(one) or real(one))
    commit(brokers, GROUPS[0], 1)
    brokers.cluster.show_offsets_topic()
    commit(brokers, GROUPS[0], 2)
    assert encoded == []
    assert brokers.groups.shard_of(GROUPS[0]) is brokers.groups.shard_of(GROUPS[5])
    log_of(brokers, GROUPS[0])
    assert len(encoded) == 2
    commit(brokers, GROUPS[5], 3)  # of the same shard, in another partition
    assert len(encoded) == 2
    assert positions(log_of(brokers, GROUPS[5])) == [3]


async def test_records_have_the_time_at_which_they_were_written(brokers: Brokers) -> None:
    assert brokers.clock is not None
    times = []
    for offset in range(3):
        commit(brokers, GROUPS[0], offset)
        times.append(brokers.clock.now_ms())
        brokers.clock.advance_to(times[-1] + 60_000)
    (batch,) = log_of(brokers, GROUPS[0]).read(0, 1 << 20, at_least_one=True).batches
    assert [each.timestamp for each in records_in(batch)] == pytest.approx(times, abs=5_000)


async def test_a_large_log_keeps_the_newest_records() -> None:
    config = GroupCoordinatorConfig(offsets_topic_segment_bytes=2_000)
    async with Brokers({"orders": 1}, config=config) as brokers:
        log = log_of(brokers, "g")
        for offset in range(500):
            commit(brokers, "g", offset)
            assert log.size < 4_000
        assert log.log_start_offset == 0
        assert log.high_watermark > 500
        assert positions(log)[-1] == 499
        assert positions(log, 3) == positions(log)


async def test_offsets_of_a_transaction_come_with_its_end() -> None:
    async with Brokers({"orders": 1}) as brokers:
        log = log_of(brokers, "g")
        shard = brokers.groups.shard_of("g")
        key = r.PendingOffsetCommitKey("g", "orders", 0, producer_id=7)
        value = r.PendingOffsetCommitValue(5, 0, "", 0)
        assert shard.host is not None
        shard.host.coordinator.apply_batch((r.Record(key, value),))
        with capture_logs() as logs:
            shard.journal.append((r.Record(key, value),))
            assert log.high_watermark == 0
            shard.host.process(TransactionEnded(group_id="g", producer_id=7, commit=True))
        assert positions(log) == [5]
        assert logs == []


async def test_it_comes_back_from_a_journal_file_with_its_id(tmp_path: Path) -> None:
    ids = set()
    for start in (0, 2):
        storage = Storage(tmp_path / "journal", keeps_records=True)
        async with Brokers({"orders": 1}, storage=storage) as brokers:
            assert (OFFSETS_TOPIC in brokers.cluster.shown.by_name) == bool(start)
            commit(brokers, "g", start)
            log = log_of(brokers, "g")
            commit(brokers, "g", start + 1)
            assert positions(log) == list(range(start + 2))
            ids.add(brokers.cluster.find(OFFSETS_TOPIC, None).topic_id)
            assert list(storage.batches()) == []
    assert len(ids) == 1


async def test_it_is_the_brokers_own(brokers: Brokers) -> None:
    cluster = brokers.cluster
    with pytest.raises(ProtocolError, match="Topic '__consumer_offsets' already exists"):
        cluster.create_topics({OFFSETS_TOPIC: 1})
    cluster.show_offsets_topic()
    topic = cluster.find(OFFSETS_TOPIC, None)
    with pytest.raises(ProtocolError, match="Cannot add partitions to internal topic __consumer_offsets"):
        cluster.grow_topic(topic, 60)
    with pytest.raises(FencepostError, match="already exists"):
        Brokers({OFFSETS_TOPIC: 50})


def test_a_journal_in_memory_knows_when_batches_came() -> None:
    now_ms = 0

    def record(group_id: str, epoch: int) -> r.Record:
        return r.Record(r.ConsumerGroupMetadataKey(group_id), r.ConsumerGroupMetadataValue(epoch))

    journal = MemoryJournal([(record("a", 0),)], now_ms=lambda: now_ms)
    for now_ms in (10, 20, 30):
        journal.append((record("a" if now_ms < 30 else "b", now_ms),))
    assert [time_ms for time_ms, _ in journal.dated()] == [0, 10, 20, 30]
    journal.compact()
    assert list(journal.dated()) == [(20, (record("a", 20),)), (30, (record("b", 30),))]
    journal.truncate(1)
    assert list(journal.dated()) == [(20, (record("a", 20),))]
