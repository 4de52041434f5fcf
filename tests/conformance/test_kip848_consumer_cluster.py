"""KIP848Consumer on three nodes of Kafka: a coordinator's node dies, one stands still, and leaders move."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import aiokafka
import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import ConsumerStoppedError, KafkaError
from confluent_kafka.admin import AdminClient

from fencepost import KIP848Consumer
from fencepost.simulation.lab.clusters.cluster import RealCluster
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(300)]

TopicPartition: TypeAlias = aiokafka.TopicPartition
SECONDS = 100
PARTITIONS = 6


class Owners:
    """Who may read which partition, in the members' own eyes: between on_assigned and the next callback."""

    def __init__(self) -> None:
        self.of: dict[TopicPartition, set[str]] = defaultdict(set)
        self.overlaps: set[tuple[TopicPartition, str]] = set()
        """Partitions that another got while these had them, and have not been told that they lost them."""

    def complete(self) -> bool:
        return [len(names) for names in self.of.values()] == [1] * PARTITIONS


class Listener:
    """Tells the owners of one consumer."""

    def __init__(self, name: str, owners: Owners) -> None:
        self.name, self.owners = name, owners

    def on_partitions_assigned(self, partitions: set[TopicPartition]) -> None:
        for partition in partitions:
            self.owners.overlaps.update((partition, other) for other in self.owners.of[partition])
            self.owners.of[partition].add(self.name)

    def on_partitions_revoked(self, partitions: set[TopicPartition]) -> None:
        for partition in partitions:
            self.owners.of[partition].discard(self.name)

    def on_partitions_lost(self, partitions: set[TopicPartition]) -> None:
        """The coordinator has fenced this one, and may have given its partitions away before it knew."""
        self.owners.overlaps.difference_update((partition, self.name) for partition in partitions)
        self.on_partitions_revoked(partitions)


class Reader:
    """A program that reads for as long as its consumer runs."""

    def __init__(self, servers: str, group: str, name: str, owners: Owners) -> None:
        self.values: Counter[int] = Counter()
        self.consumer = KIP848Consumer(
            group,
            bootstrap_servers=servers,
            group_id=group,
            client_id=name,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            request_timeout_ms=3_000,
            listener=Listener(name, owners),
        )

    async def run(self) -> None:
        with contextlib.suppress(ConsumerStoppedError):
            async for record in self.consumer:
                self.values[int(record.value)] += 1


class Flow:
    """Numbers for all partitions at once, with acks=all; what was acknowledged is kept."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic
        self._numbers = itertools.count(1)
        self.acknowledged: set[int] = set()
        self.ended = False

    async def run(self) -> None:
        settings = {"acks": "all", "request_timeout_ms": 3_000}
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self._servers, **settings) as producer:
            await asyncio.gather(*(self._feed(producer, partition) for partition in range(PARTITIONS)))

    async def _feed(self, producer: aiokafka.AIOKafkaProducer, partition: int) -> None:
        while not self.ended:
            number = next(self._numbers)
            with contextlib.suppress(KafkaError):  # then nobody was promised anything
                await producer.send_and_wait(self._topic, b"%d" % number, partition=partition)
                self.acknowledged.add(number)
            await asyncio.sleep(0.02)


class Stage:
    """Two readers of one topic, a flow of records to it, and the cluster under them."""

    def __init__(self, cluster: RealCluster, name: str) -> None:
        servers = cluster.bootstrap_servers
        self.cluster, self.name, self.owners = cluster, name, Owners()
        self.readers = [Reader(servers, name, each, self.owners) for each in ("one", "two")]
        self.flow = Flow(servers, name)

    def read(self) -> set[int]:
        return {value for reader in self.readers for value in reader.values}

    async def go_on(self) -> None:
        """Until both readers have got records that are produced from now on, and own everything."""
        newest = max(self.flow.acknowledged, default=0)
        await until(
            lambda: (
                all(max(reader.values, default=0) > newest + PARTITIONS for reader in self.readers)
                and self.owners.complete()
            )
        )

    async def coordinator(self) -> int:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.cluster.bootstrap_servers)
        await admin.start()
        try:
            return int(await admin.find_coordinator(self.name))
        finally:
            await admin.close()


@pytest.fixture
async def stage(three: RealCluster) -> AsyncIterator[Stage]:
    stage = Stage(three, f"orders-{uuid.uuid4().hex[:8]}")
    admin = AIOKafkaAdminClient(bootstrap_servers=three.bootstrap_servers)
    await admin.start()
    await admin.create_topics([NewTopic(stage.name, PARTITIONS, 3)])
    await admin.close()
    async with asyncio.timeout(SECONDS):
        for reader in stage.readers:
            await reader.consumer.start()
    tasks = [asyncio.ensure_future(each.run()) for each in (*stage.readers, stage.flow)]  # type: ignore[attr-defined]
    try:
        yield stage
    finally:
        stage.flow.ended = True
        await asyncio.gather(*(reader.consumer.stop() for reader in stage.readers))
        await asyncio.gather(*tasks)


async def disturbed(stage: Stage, disturb: Callable[[], Awaitable[None]]) -> None:
    await stage.go_on()
    await disturb()
    await stage.go_on()
    await until(lambda: len(stage.flow.acknowledged) > 20 * PARTITIONS)
    stage.flow.ended = True
    acknowledged = set(stage.flow.acknowledged)
    await until(lambda: acknowledged <= stage.read())
    await until(stage.owners.complete)
    assert stage.owners.overlaps == set()


async def test_the_coordinator_s_node_is_killed(stage: Stage) -> None:
    node = await stage.coordinator()

    async def kill() -> None:
        await stage.cluster.kill(node)
        await stage.go_on()
        assert await stage.coordinator() != node
        await stage.cluster.restart(node)

    await disturbed(stage, kill)


async def test_a_node_stands_still(stage: Stage) -> None:
    """Long enough for everything that it leads to go elsewhere, the group included."""
    node = await stage.coordinator()

    async def pause() -> None:
        await stage.cluster.pause(node)
        await asyncio.sleep(6)
        await stage.cluster.resume(node)

    await disturbed(stage, pause)


async def test_leaders_move_and_their_nodes_stay(stage: Stage) -> None:
    """A node that leads no more would answer for a follower, and nothing else tells of the move."""
    admin = AdminClient({"bootstrap.servers": stage.cluster.bootstrap_servers, "log_level": 0})

    def leaders() -> dict[int, int]:
        partitions = admin.list_topics(stage.name, 60).topics[stage.name].partitions
        return {number: partition.leader for number, partition in partitions.items()}

    def give_back(preferred: dict[int, int]) -> None:
        partitions = [confluent_kafka.TopicPartition(stage.name, number) for number in preferred]
        while leaders() != preferred:
            admin.elect_leaders(confluent_kafka.ElectionType.PREFERRED, partitions).result(60)

    def known() -> dict[int, int]:
        return {
            each.partition: reader.consumer._client.cluster.leader_for_partition(each)
            for reader in stage.readers
            for each in reader.consumer.assignment()
        }

    async def go_and_come_back() -> None:
        preferred = await asyncio.to_thread(leaders)
        await stage.cluster.kill(1)
        await stage.go_on()
        await until(lambda: 1 not in known().values())
        await stage.cluster.restart(1)
        await asyncio.to_thread(give_back, preferred)
        await until(lambda: known() == preferred)

    await disturbed(stage, go_and_come_back)
