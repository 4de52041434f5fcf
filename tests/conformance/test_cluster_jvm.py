"""A real Kafka node as a JVM process: it comes up, has KIP-848 on, and comes back from SIGKILL with its data.

Needs Java 17 or newer (a wheel's will do) and Maven, or Kafka in the user's cache; else it is skipped.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost.coordinator.protocol.errors import EnvironmentLacks
from fencepost.simulation.brokers.identity import examine
from fencepost.simulation.lab.clusters.artifacts import Installation, check_jars
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.clusters.processes import Condition

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def maps(pid: int, classes: Path) -> bool:
    """Whether a process maps this file; so it is where there is nothing to map, or no way to see it."""
    seen = Path(f"/proc/{pid}/maps")
    return classes.stat().st_size == 0 or not seen.exists() or str(classes) in seen.read_text()


def wait_until(condition: Callable[[], bool], seconds: float, told: Callable[[], object]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, told()


async def test_the_jars_are_those_whose_checksums_are_on_record(kafka_installation: Installation) -> None:
    check_jars(kafka_installation.jars[0].parent, kafka_installation.version)


def produce(servers: str, values: list[str]) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    failed: list[object] = []
    for value in values:
        producer.produce(
            "orders", value, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert failed == []


class Reader:
    """A consumer with group.protocol=consumer, and the values that it read."""

    def __init__(self, servers: str) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "readers",
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self.consumer.subscribe(["orders"])
        self.values: list[str] = []

    def reads(self, wanted: set[str], seconds: float) -> set[str]:
        """Poll until all wanted values were read; one may come twice, as a rejoin starts at the beginning."""

        def enough() -> bool:
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.append(message.value().decode())
            return wanted <= set(self.values)

        wait_until(enough, seconds, lambda: self.values)
        return set(self.values)

    def waits_for_partitions(self, count: int, seconds: float) -> None:
        """Poll until it owns so many; one that was away for a session begins with none."""

        def enough() -> bool:
            self.consumer.poll(0.1)
            return len(self.consumer.assignment()) == count

        wait_until(enough, seconds, self.consumer.assignment)


def unpacked_libraries(pid: int) -> list[Path]:
    """The native libraries that a node has unpacked from Kafka's jars; none where they can't be seen."""
    seen = Path(f"/proc/{pid}/maps")
    mapped = {line.split()[-1] for line in seen.read_text().splitlines()} if seen.exists() else set()
    return [Path(each) for each in mapped if "lz4-java" in each or "snappyjava" in each]


async def test_one_node_serves_kip_848_survives_being_killed_and_leaves_no_file(
    kafka_installation: Installation,
) -> None:
    async with RealCluster() as cluster:
        servers = cluster.bootstrap_servers
        process = cluster.state.nodes[0].process
        assert process is not None
        assert maps(process.pid, kafka_installation.classes)

        before = await examine(servers, seconds=30)
        assert before.cluster_id == cluster.cluster_id
        assert before.nodes == {1: servers}
        assert [before.features[f"{kind}.version"] for kind in ("group", "streams", "share")] == [1, 1, 1]
        assert cluster.features == before.features

        admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        compressed = NewTopic("orders", 6, config={"compression.type": "lz4"})
        await asyncio.to_thread(admin.create_topics([compressed])["orders"].result, 20)
        reader = Reader(servers)
        try:
            await asyncio.to_thread(produce, servers, ["a", "b"])
            assert await asyncio.to_thread(reader.reads, {"a", "b"}, 60) == {"a", "b"}
            await asyncio.to_thread(reader.waits_for_partitions, 6, 60)

            await cluster.pause(1)
            assert await cluster.conditions() == {1: Condition.PAUSED}
            with pytest.raises(EnvironmentLacks, match="no answer in time"):
                await examine(servers, seconds=0.3)
            await cluster.resume(1)
            assert (await examine(servers, seconds=30)).cluster_id == cluster.cluster_id

            await cluster.kill(1)
            assert await cluster.conditions() == {1: Condition.STOPPED}
            with pytest.raises(EnvironmentLacks, match="no broker answers"):
                await examine(servers)
            await cluster.restart(1)
            assert (await examine(servers, seconds=30)).features == before.features
            await asyncio.to_thread(produce, servers, ["c"])
            assert await asyncio.to_thread(reader.reads, {"a", "b", "c"}, 60) == {"a", "b", "c"}
            process = cluster.state.nodes[0].process
            assert process is not None
            unpacked = unpacked_libraries(process.pid)
            assert unpacked or sys.platform != "linux"
        finally:
            await asyncio.to_thread(reader.consumer.close)
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 30
    assert [path for path in unpacked if path.exists()] == []
    with pytest.raises(EnvironmentLacks):
        await examine(servers)
