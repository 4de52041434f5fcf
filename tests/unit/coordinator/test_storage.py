"""What a cluster keeps in its journal, and that nothing is answered before it is there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.journal.sqlite import JournalFailed
from fencepost.coordinator.protocol.administration import ResourceType
from fencepost.coordinator.protocol.cluster_records import ConfigKey
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest
from fencepost.coordinator.protocol.transactions import AddPartitionsToTxnRequest, InitProducerIdRequest
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.storage import Gate, Storage, repaired
from tests.batches import batch

pytestmark = pytest.mark.real


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def brokers_on(path: Path, topics: dict[str, int] | None = None, *, records: bool = False, count: int = 1):
    return Brokers(topics, ports=(0,) * count, storage=Storage(path, keeps_records=records))


def log_of(brokers: Brokers, topic: str, partition: int = 0):
    return brokers.cluster.log(brokers.cluster.image.by_name[topic], partition)


def commit(offset: int, group_id: str = "g") -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id, offsets={TopicPartition("orders", 0): OffsetAndMetadata(offset=offset)}
    )


@pytest.mark.parametrize("count", [1, 3])
async def test_topics_settings_groups_and_ids_come_back(path, count):
    async with brokers_on(path, {"orders": 3, "gone": 1}, count=count) as first:
        cluster_id, image = first.cluster.cluster_id, first.cluster.image
        first.cluster.set_configs(ConfigKey(ResourceType.TOPIC, "orders"), {"retention.ms": "5"})
        first.cluster.set_configs(ConfigKey(ResourceType.TOPIC, "gone"), {"retention.ms": "5"})
        first.cluster.grow_topic(image.by_name["orders"], 4)
        first.cluster.delete_topic(image.by_name["gone"])
        for number in range(6):
            services = first.services[first.groups.leader_id(f"g{number}") - 1]
            services.ask(commit(number, f"g{number}"))
        ids = {first.cluster.next_producer_id() for _ in range(3)}
        version = first.cluster.image.version
    async with brokers_on(path, count=count) as again:
        cluster = again.cluster
        assert cluster.cluster_id == cluster_id
        assert cluster.image.version == version
        assert list(cluster.image.by_name) == ["orders"]
        assert cluster.image.by_name["orders"].topic_id == image.by_name["orders"].topic_id
        assert cluster.image.by_name["orders"].partitions == 4
        assert cluster.configs == {ConfigKey(ResourceType.TOPIC, "orders"): {"retention.ms": "5"}}
        assert cluster.next_producer_id() not in ids
        held = [shard.coordinator.offsets for shard in again.groups.shards if shard.coordinator]
        assert sorted(group_id for offsets in held for group_id in offsets.group_ids) == [
            f"g{number}" for number in range(6)
        ]


async def test_topics_of_the_command_line_are_had_and_grown_and_never_shrunk(path):
    for count in (3, 3, 5):
        async with brokers_on(path, {"orders": count}) as brokers:
            assert brokers.cluster.image.by_name["orders"].partitions == count
    storage = Storage(path)
    with pytest.raises(FencepostError, match="currently has 5"):
        Brokers({"orders": 4}, storage=storage)
    storage.close()


async def test_records_come_back_if_they_are_kept(path):
    async with brokers_on(path, {"orders": 1, "gone": 1}, records=True) as first:
        for value in (b"a", b"b", b"c"):
            log_of(first, "orders").append(batch(value))
        log_of(first, "gone").append(batch(b"x"))
        first.cluster.delete_records(first.cluster.image.by_name["orders"], 0, 1)
        first.cluster.delete_topic(first.cluster.image.by_name["gone"])
        kept = log_of(first, "orders").read(1, 1 << 20, at_least_one=True)
    storage = Storage(path, keeps_records=True)
    assert len(list(storage.batches())) == 2
    async with Brokers(storage=storage) as again:
        log = log_of(again, "orders")
        assert (log.log_start_offset, log.high_watermark) == (1, 3)
        assert log.read(1, 1 << 20, at_least_one=True) == kept
        again.cluster.delete_records(again.cluster.image.by_name["orders"], 0, -1)
    async with brokers_on(path, records=True) as third:
        log = log_of(third, "orders")
        assert (log.log_start_offset, log.high_watermark) == (3, 3)
        assert log.append(batch(b"d")) == 3
    with pytest.raises(FencepostError, match="start with --journal-records"):
        Storage(path)


async def test_records_are_gone_if_they_are_not_kept(path):
    async with brokers_on(path, {"orders": 1}) as first:
        log_of(first, "orders").append(batch(b"a"))
    async with brokers_on(path) as again:
        assert log_of(again, "orders").high_watermark == 0


async def test_open_transactions_come_back(path):
    async with brokers_on(path, {"orders": 1}) as first:
        ask = first.services[0].transactions.ask
        reply = ask(InitProducerIdRequest(transactional_id="t"), 1)
        producer = {"producer_id": reply.producer_id, "producer_epoch": reply.producer_epoch}
        partition = TopicPartition("orders", 0)
        ask(AddPartitionsToTxnRequest(transactional_id="t", partitions=(partition,), **producer), 1)
        value = first.transactions.coordinator.transactions["t"]
        first.restart()
        assert first.transactions.coordinator.transactions == {"t": value}
    async with brokers_on(path) as again:
        assert again.transactions.coordinator.transactions == {"t": value}


async def test_answers_wait_for_the_flush_of_their_turn():
    events: list[str] = []
    gate = Gate(lambda: events.append("flush"))

    def answer() -> None:
        events.append("answer")

    assert not gate.is_shut
    for _ in range(3):
        gate.shut()
        gate.when_open(answer)
    assert gate.is_shut
    assert events == []
    await asyncio.sleep(0)
    assert events == ["flush", "answer"]
    assert not gate.is_shut
    gate.open()
    assert events == ["flush", "answer"]


def test_without_a_loop_the_flush_is_at_once():
    events: list[str] = []
    gate = Gate(lambda: events.append("flush"))
    gate.shut()
    assert events == ["flush"]
    assert not gate.is_shut


async def test_nothing_is_acknowledged_once_the_disk_is_full(path):
    brokers = brokers_on(path, {"orders": 1})
    await brokers.start()
    host, port = brokers.bootstrap_servers.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await asyncio.sleep(0)
    brokers.storage._journal._database.execute("PRAGMA max_page_count = 1")
    waiting = asyncio.ensure_future(brokers.until_failure())
    for number in range(200):
        brokers.services[0].ask(commit(number, f"group-{number}-{'x' * 200}"))
    with pytest.raises(JournalFailed, match="can't be written: database or disk is full"):
        await waiting
    assert await reader.read() == b""
    writer.close()
    await brokers.close()
    storage = Storage(path)
    assert list(storage) == []
    storage.close()


def test_what_needs_no_repair_is_left_alone_and_what_is_in_use_is_told(path):
    storage = Storage(path)
    with pytest.raises(EnvironmentLacks, match="in use"):
        repaired(path, GroupCoordinatorConfig())
    storage.close()
    before = path.read_bytes()
    assert repaired(path, GroupCoordinatorConfig()) is None
    assert path.read_bytes() == before
