"""Where logs are said to be, and how large: in memory, and in the folder of a journal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.inspection import DescribeLogDirsRequest, LogDir
from fencepost.coordinator.protocol.logs import OfTopic
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.inspection_apis import describe_log_dirs
from fencepost.coordinator.server.storage import Storage
from tests.batches import batch

pytestmark = pytest.mark.real

ASKED: Any = None


def brokers_on(path: Path | None, *, records: bool = True, count: int = 1) -> Brokers:
    storage = None if path is None else Storage(path, keeps_records=records)
    topics = {"orders": 3, "payments": 1}
    return Brokers(topics, config=GroupCoordinatorConfig(), ports=(0,) * count, storage=storage)


def log_of(brokers: Brokers, topic: str, partition: int = 0) -> Any:
    return brokers.cluster.log(brokers.cluster.image.by_name[topic], partition)


def told(brokers: Brokers, node_id: int = 1, *topics: OfTopic[int]) -> LogDir:
    reply = describe_log_dirs(
        brokers.services[node_id - 1], DescribeLogDirsRequest(topics=topics or None), ASKED
    )
    (found,) = reply.log_dirs
    return found


def sizes(found: LogDir) -> dict[tuple[str | None, int], int]:
    return {(topic.name, one.partition): one.size for topic in found.topics for one in topic.partitions}


async def test_logs_in_memory_are_on_no_volume(tmp_path: Path) -> None:
    for path in (None, tmp_path / "journal"):
        async with brokers_on(path, records=False) as brokers:
            found = told(brokers)
            assert (found.path, found.total_bytes, found.usable_bytes) == ("/in-memory", -1, -1)
            assert sizes(found) == dict.fromkeys([*(("orders", n) for n in range(3)), ("payments", 0)], 0)


async def test_a_journal_with_records_is_where_the_logs_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for kept in (0, 1):
        async with brokers_on(Path("journal")) as brokers:
            monkeypatch.chdir("/")
            log = log_of(brokers, "orders", 1)
            log.append(batch(b"x" * 100))
            found = told(brokers)
            assert found.path == str(tmp_path)
            assert 0 < found.usable_bytes <= found.total_bytes == shutil.disk_usage(tmp_path).total
            assert sizes(found)["orders", 1] == log.size == (1 + kept) * len(batch(b"x" * 100))
            monkeypatch.chdir(tmp_path)


async def test_what_was_deleted_does_not_count() -> None:
    async with brokers_on(None) as brokers:
        log = log_of(brokers, "payments")
        for _ in range(3):
            log.append(batch(b"a", b"b"))
        brokers.cluster.delete_records(brokers.cluster.image.by_name["payments"], 0, 3)
        assert sizes(told(brokers))["payments", 0] == 2 * len(batch(b"a", b"b"))
        brokers.cluster.delete_topic(brokers.cluster.image.by_name["payments"])
        assert ("payments", 0) not in sizes(told(brokers))
        assert told(brokers, 1, OfTopic(name="payments", partitions=(0,))).topics == ()


async def test_each_broker_tells_of_the_partitions_that_it_has() -> None:
    async with brokers_on(None, count=3) as brokers:
        brokers.cluster.add_topics({"twice": 3}, replicas=2)
        log_of(brokers, "twice", 1).append(batch(b"x"))
        for node_id in (1, 2, 3):
            has = {
                (topic.name, number)
                for topic in brokers.cluster.image.by_name.values()
                for number in range(topic.partitions)
                if node_id in brokers.cluster.replica_ids(topic, number)
            }
            found = sizes(told(brokers, node_id))
            assert found.keys() == has
            assert found.get(("twice", 1), 0) == (0 if node_id == 1 else len(batch(b"x")))


async def test_a_folder_that_is_gone_is_a_broken_directory(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    folder.mkdir()
    async with brokers_on(folder / "journal") as brokers:
        folder.rename(tmp_path / "away")
        found = told(brokers)
        assert (found.path, found.error_code.name, found.topics) == (str(folder), "KAFKA_STORAGE_ERROR", ())
        (tmp_path / "away").rename(folder)
        assert told(brokers).topics
