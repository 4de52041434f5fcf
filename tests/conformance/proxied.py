"""A proxy before brokers, what crosses it, and clients of either make that read until they are stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost import KIP848Consumer
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.simulation.kernel.rules import Direction
from fencepost.simulation.lab.proxy.observer import ProxyObserver
from fencepost.simulation.lab.proxy.proxy import Address, Proxy
from tests.waiting import until

PATIENCE_S = 40.0


class Crossings(ProxyObserver):
    """What crossed the proxy, and what was lost."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, object, int]] = []
        self.responses: list[tuple[str, object, Any]] = []
        self.losses: list[tuple[str, Direction, object]] = []

    def on_request(self, member: str, broker: str, request: object, t_us: int) -> None:
        self.requests.append((member, broker, request, t_us))

    def on_response(self, member: str, broker: str, request: object, response: object, t_us: int) -> None:
        self.responses.append((member, request, response))

    def on_loss(self, member: str, broker: str, direction: Direction, request: object, t_us: int) -> None:
        self.losses.append((member, direction, request))

    def epochs(self, member: str) -> list[int]:
        """What the member was told, each epoch once in a row."""
        told = [
            response.member_epoch
            for name, request, response in self.responses
            if name == member and isinstance(request, ConsumerGroupHeartbeatRequest)
        ]
        return [epoch for index, epoch in enumerate(told) if index == 0 or told[index - 1] != epoch]


class Site:
    """The proxy before brokers of either make, and clients that know nothing but the proxy."""

    def __init__(self, proxy: Proxy, seen: Crossings, upstreams: dict[int, Address]) -> None:
        self.proxy, self.seen, self.upstreams = proxy, seen, upstreams
        self.servers = proxy.bootstrap_servers
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    async def topic(self, partitions: int = 3) -> str:
        """A new topic that every broker leads a part of."""
        name = f"topic-{uuid.uuid4().hex[:8]}"
        copies = len(self.upstreams)

        def create() -> None:
            try:
                self.admin.create_topics([NewTopic(name, partitions, copies)])[name].result(30)
            except KafkaException as error:  # the answer was lost with a broker, and the client asked again
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                found = self.admin.list_topics(name, 60).topics[name].partitions
                if len(found) == partitions and all(one.leader > 0 for one in found.values()):
                    return
                time.sleep(0.05)
            raise AssertionError("the topic did not come up")

        await asyncio.to_thread(create)
        return name

    async def produce(self, topic: str, values: Iterable[int], size: int = 0, **settings: Any) -> None:
        """Numbers as text, to all partitions, acknowledged."""
        failed: list[Any] = []
        settings = {"client.id": "producer", "log_level": 0, "acks": "all", **settings}
        producer = Producer({"bootstrap.servers": self.servers, **settings})

        def run() -> None:
            for value in values:
                producer.produce(
                    topic,
                    str(value).rjust(size).encode(),
                    key=str(value).encode(),
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                producer.poll(0)
            assert producer.flush(PATIENCE_S) == 0

        await asyncio.to_thread(run)
        assert failed == []

    @contextlib.asynccontextmanager
    async def consumer(self, make: str, topic: str, name: str = "m1", **settings: Any) -> AsyncIterator[Any]:
        """A KIP-848 member of either make that gathers what it reads."""
        gathering = (Confluent if make == "confluent" else Ours)(self, topic, name, settings)
        await gathering.start()
        try:
            yield gathering
        finally:
            await gathering.stop()

    def strangers(self) -> set[int]:
        """Local ports of this process's connections to brokers that are not the proxy's."""
        ports = {port for _, port in self.upstreams.values()}
        own = set()
        for one in list(self.proxy._connections):
            transport = one._server.transport
            if transport is not None:
                own.add(transport.get_extra_info("sockname")[1])
        return {local for local, remote in connections_of_this_process() if remote in ports} - own


def connections_of_this_process() -> Iterator[tuple[int, int]]:
    """Local and remote ports of its established TCP connections."""
    inodes = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(entry))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "01" and f"socket:[{fields[9]}]" in inodes:
            yield int(fields[1].split(":")[1], 16), int(fields[2].split(":")[1], 16)


class Gathering:
    """Reads until it is stopped; a value may come twice where faults say so."""

    def __init__(self, site: Site, topic: str, name: str, settings: dict[str, Any]) -> None:
        self.site, self.topic, self.name, self.settings = site, topic, name, settings
        self.values: Counter[int] = Counter()

    async def has(self, values: Iterable[int]) -> None:
        wanted = set(values)
        await until(lambda: wanted <= self.values.keys(), found=self.values.keys)


class Ours(Gathering):
    async def start(self) -> None:
        self.consumer = KIP848Consumer(
            self.topic,
            bootstrap_servers=self.site.servers,
            group_id=self.site.group,
            client_id=self.name,
            auto_offset_reset="earliest",
            **{"request_timeout_ms": 2_000, "enable_auto_commit": False, **self.settings},
        )
        await self.consumer.start()
        self.task = asyncio.create_task(self.gather())

    async def gather(self) -> None:
        async for record in self.consumer:
            self.values[int(record.value)] += 1

    async def commit(self) -> None:
        await self.consumer.commit()

    async def stop(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.consumer.stop()


class Confluent(Gathering):
    async def start(self) -> None:
        self.ended, self.turn = threading.Event(), threading.Lock()
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.site.servers,
                "group.id": self.site.group,
                "group.protocol": "consumer",
                "client.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "socket.timeout.ms": 2_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                **self.settings,
            }
        )
        self.consumer.subscribe([self.topic])
        self.task = asyncio.create_task(asyncio.to_thread(self.gather))

    def gather(self) -> None:
        while not self.ended.is_set():
            with self.turn:
                messages = self.consumer.consume(500, 0.1)
            for message in messages:
                if message.error() is None:
                    self.values[int(message.value())] += 1
            time.sleep(0.001)  # whoever waits for a turn gets one

    async def commit(self) -> None:
        """In between: librdkafka does not commit while another thread waits for messages."""

        def commit() -> None:
            with self.turn:
                self.consumer.commit(asynchronous=False)

        await asyncio.to_thread(commit)

    async def stop(self) -> None:
        self.ended.set()
        await self.task
        await asyncio.to_thread(self.consumer.close)


@contextlib.asynccontextmanager
async def site_before(upstreams: dict[int, Address]) -> AsyncIterator[Site]:
    seen = Crossings()
    async with Proxy(upstreams, rng=random.Random(3), observer=seen) as proxy:
        yield Site(proxy, seen, upstreams)
