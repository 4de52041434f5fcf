"""Brokers of either make as the tests of clients see them, and ours in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import aiokafka
import msgspec
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from fencepost import KIP848Consumer
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH
from fencepost.coordinator.server.brokers import Broker
from fencepost.simulation.lab.clusters.cluster import RealCluster
from tests.unit.simulation.wire_member import WireMember

FAST = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_min_heartbeat_interval_ms=50,
    group_consumer_heartbeat_interval_ms=100,
    group_consumer_assignment_interval_ms=0,
    group_streams_min_session_timeout_ms=100,
    group_streams_min_heartbeat_interval_ms=50,
    group_streams_heartbeat_interval_ms=100,
    group_streams_assignment_interval_ms=0,
    group_streams_initial_rebalance_delay_ms=100,
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=100,
)
"""Kafka's own profile for quick tests, but for the length of sessions."""

SECONDS = 60
"""How long a busy machine may take to what is done at once."""
SESSION_MS = 20_000
"""A client that a busy machine leaves without the processor for seconds is no dead one: it would lose its
partitions, and read again what it had not committed."""


class ServedBroker:
    """A broker that serves from another thread."""

    def __init__(self, topics: dict[str, int], **settings: Any) -> None:
        session_ms = settings.pop("session_ms", SESSION_MS)
        config = msgspec.structs.replace(
            FAST,
            group_consumer_session_timeout_ms=session_ms,
            group_streams_session_timeout_ms=session_ms,
        )
        self.broker = Broker(topics, config=config, **settings)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self.broker:
            self._started.set()
            await self._end.wait()

    def __enter__(self) -> ServedBroker:
        self._thread.start()
        assert self._started.wait(SECONDS), "the broker did not start"
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the broker did not stop"

    @property
    def bootstrap_servers(self) -> str:
        return self.broker.bootstrap_servers

    def look(self, question: Callable[[Broker], Any]) -> Any:
        """Ask the broker something in its own thread."""

        async def ask() -> Any:
            return question(self.broker)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(60)


class World:
    """A broker of either make, as a consumer's tests see it: names of their own, and a judge beside."""

    def __init__(self, broker: ServedBroker | RealCluster) -> None:
        self.broker = broker
        self.is_real = isinstance(broker, RealCluster)
        self.servers = broker.bootstrap_servers
        self.group = f"group-{uuid.uuid4().hex[:8]}-Aa"
        self._admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def topic(self, partitions: int = 4, prefix: str = "topic", *, name: str = "") -> str:
        """A new topic, once the group's coordinator has heard of it."""
        name = name or f"{prefix}-{uuid.uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(60)
        if self.is_real:
            while len(self._admin.list_topics(name, 60).topics[name].partitions) < partitions:
                time.sleep(0.01)
            self.wait_for_coordinator(name, partitions)
        return name

    @property
    def _neighbour(self) -> str:
        """A group with the same coordinator: Java gives Aa and BB the same hash."""
        return self.group.replace("-Aa", "-BB")

    def wait_for_coordinator(self, topic: str, partitions: int) -> None:
        """Until the only member of a group with the same coordinator is given so many of the topic.

        Kafka's coordinators, one a partition of their own topic, hear of topics after the broker that holds
        them, each for itself.
        """
        lookup = FindCoordinatorRequest(keys=(self._neighbour,))
        deadline = time.monotonic() + SECONDS
        with closing(WireMember(self.servers, self._neighbour, "probe")) as member:
            while sum(map(len, ((answer := member.join(topic)).assignment or {}).values())) < partitions:
                assert time.monotonic() < deadline, f"the coordinator does not know {topic}: {answer}"
                # Kafka makes the coordinators when the first client looks for one.
                member.ask(ApiKey.FIND_COORDINATOR, lookup)
                time.sleep(0.01)
            member.heartbeat(LEAVE_EPOCH)

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions."""
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)

    async def produce(self, topic: str, values: Iterable[Any], partition: int | None = None) -> None:
        """Each value as text, to one partition or in turn to all; acknowledged when this returns."""
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self.servers) as producer:
            count = len(await producer.partitions_for(topic))
            sent = [
                await producer.send(
                    topic,
                    str(value).encode(),
                    partition=number % count if partition is None else partition,
                )
                for number, value in enumerate(values)
            ]
            await asyncio.gather(*sent)

    def consumer(self, *topics: str, **settings: Any) -> KIP848Consumer:
        """A consumer of this world's group that starts at the beginning."""
        settings = {"group_id": self.group, "auto_offset_reset": "earliest", **settings}
        return KIP848Consumer(*topics, bootstrap_servers=self.servers, **settings)

    async def described(self) -> dict[str, set[tuple[str, int]]]:
        """What the group's members own, by member id, as librdkafka's admin client is told."""

        def ask() -> dict[str, set[tuple[str, int]]]:
            group = self._admin.describe_consumer_groups([self.group])[self.group].result(60)
            return {
                member.member_id: {(one.topic, one.partition) for one in member.assignment.topic_partitions}
                for member in group.members
            }

        return await asyncio.to_thread(ask)
