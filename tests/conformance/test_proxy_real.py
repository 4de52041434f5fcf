"""Real clients through the proxy, before our broker and before three of Kafka's: unchanged, and disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.server.broker import Broker
from fencepost.member import KIP848Consumer
from fencepost.simulation.clusters.cluster import Cluster
from fencepost.simulation.nodes.requests import moves_epoch
from fencepost.simulation.proxy.exchange import Frame
from fencepost.simulation.proxy.observer import ProxyObserver
from fencepost.simulation.proxy.proxy import Address, Proxy
from fencepost.simulation.world.rules import (
    Corrupt,
    Damage,
    Delay,
    Direction,
    Matching,
    Throttle,
    cutting,
    dropping,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

PATIENCE_S = 40.0
FETCH, HEARTBEAT = 1, 68
CONFIG = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_session_timeout_ms=2_000,
    group_consumer_min_heartbeat_interval_ms=50,
    group_consumer_heartbeat_interval_ms=100,
    group_consumer_assignment_interval_ms=0,
)


class Crossings(ProxyObserver):
    """What crossed the proxy, and what was lost."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, object, int]] = []
        self.responses: list[tuple[str, object, object]] = []
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
                found = self.admin.list_topics(name, 20).topics[name].partitions
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
        await until(lambda: wanted <= self.values.keys(), lambda: f"missing {wanted - self.values.keys()}")


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


async def until(condition: Callable[[], bool], why: Callable[[], str] = lambda: "it did not happen") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, why()
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def site_before(upstreams: dict[int, Address]) -> AsyncIterator[Site]:
    seen = Crossings()
    async with Proxy(upstreams, rng=random.Random(3), observer=seen) as proxy:
        yield Site(proxy, seen, upstreams)


def addresses(cluster: Cluster) -> dict[int, Address]:
    return {node.node_id: (node.clients.host, node.clients.port) for node in cluster.state.nodes}


@pytest.fixture
async def kafka(three: Cluster) -> AsyncIterator[Site]:
    async with site_before(addresses(three)) as site:
        yield site


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.long)])
def real_cluster(request: pytest.FixtureRequest) -> Cluster | None:
    """Kafka's brokers; None stands for ours, which runs in the test's own loop."""
    return request.getfixturevalue("three") if request.param == "kafka" else None


@pytest.fixture
async def site(real_cluster: Cluster | None) -> AsyncIterator[Site]:
    """The same tests before our broker and before Kafka's. No client ever reaches a broker by itself."""
    strangers: set[int] = set()

    async def watch(site: Site) -> None:
        before: set[int] = set()
        while True:
            now = site.strangers()
            strangers.update(now & before)
            before = now
            await asyncio.sleep(0.05)

    async with contextlib.AsyncExitStack() as stack:
        if real_cluster is not None:
            upstreams = addresses(real_cluster)
        else:
            broker = await stack.enter_async_context(Broker({}, config=CONFIG))
            upstreams = {1: ("127.0.0.1", broker.port)}
        site = await stack.enter_async_context(site_before(upstreams))
        watching = asyncio.create_task(watch(site))
        yield site
        watching.cancel()
    assert strangers == set()


BOTH = pytest.mark.parametrize("make", ["ours", "confluent"])


async def test_the_watch_for_strangers_sees_one():
    async with Broker({"one": 1}, config=CONFIG) as broker:
        address = ("127.0.0.1", broker.port)
        async with site_before({1: address}) as site:
            await asyncio.to_thread(site.admin.list_topics, "one", 20)
            _, writer = await asyncio.open_connection(*address)
            local = writer.get_extra_info("sockname")[1]
            await until(lambda: site.strangers() == {local})
            writer.close()
            await writer.wait_closed()


async def test_clients_work_unchanged(site):
    topic = await site.topic(6)
    await site.produce(topic, range(300))
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=site.servers, client_id="aio-producer", enable_idempotence=True
    ) as producer:
        for value in range(300, 350):
            await producer.send_and_wait(topic, str(value).encode(), partition=value % 6)
        brokers = {(node.host, node.port) for node in producer.client.cluster.brokers()}
    assert brokers == {site.proxy.address(node) for node in site.upstreams}
    values = range(350)
    for make in ("confluent", "ours"):
        site.group = f"group-of-{make}"
        async with site.consumer(make, topic, make) as consumer:
            await consumer.has(values)
            assert consumer.values == Counter(values)
            await consumer.commit()
    read = []
    async with aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=site.servers, client_id="aio-consumer", auto_offset_reset="earliest"
    ) as consumer:
        await asyncio.wait_for(consumer.seek_to_beginning(), PATIENCE_S)
        while len(read) < 350:
            batches = await asyncio.wait_for(consumer.getmany(timeout_ms=500), PATIENCE_S)
            read += [int(record.value) for batch in batches.values() for record in batch]
    assert sorted(read) == list(values)
    told = await asyncio.to_thread(site.admin.list_topics, None, 20)
    assert {(one.host, one.port) for one in told.brokers.values()} == brokers
    described = await asyncio.to_thread(lambda: site.admin.describe_cluster().result(20))
    assert {(one.host, one.port) for one in described.nodes} == brokers
    kinds = {type(request) for _, _, request, _ in site.seen.requests}
    assert kinds >= {ConsumerGroupHeartbeatRequest, OffsetCommitRequest, Frame}
    assert {broker for _, broker, _, _ in site.seen.requests} == {f"broker-{node}" for node in site.upstreams}
    commits = [request for _, _, request, _ in site.seen.requests if isinstance(request, OffsetCommitRequest)]
    assert {place.topic for commit in commits for place in commit.offsets} == {topic}


@BOTH
async def test_a_lost_answer_that_moves_the_epoch(site, make):
    """The member does not hear of its new epoch, sends the old one again, and is told again (KIP-848)."""
    topic = await site.topic()
    await site.produce(topic, range(50))
    rule = Matching(
        dropping,
        members={"m1"},
        direction=Direction.RESPONSE,
        kinds=(ConsumerGroupHeartbeatRequest,),
        condition=lambda message: moves_epoch(message.request, message.response),
        limit=1,
    )
    site.proxy.rules.append(rule)
    async with site.consumer(make, topic) as consumer:
        await consumer.has(range(50))
    assert rule.spent
    lost = [
        request
        for member, direction, request in site.seen.losses
        if member == "m1"
        and direction is Direction.RESPONSE
        and isinstance(request, ConsumerGroupHeartbeatRequest)
    ]
    assert lost
    assert lost[0].member_epoch == 0
    joins = [
        request
        for _, _, request, _ in site.seen.requests
        if isinstance(request, ConsumerGroupHeartbeatRequest) and request.member_epoch == 0
    ]
    assert len(joins) >= 2
    assert len({request.member_id for request in joins}) == 1


@BOTH
async def test_connections_that_break(site, make):
    topic = await site.topic()
    async with site.consumer(make, topic) as consumer:
        for number in range(3):
            await site.produce(topic, range(number * 20, number * 20 + 20))
            await until(lambda: site.proxy.cut_all("m1") > 0)
            await consumer.has(range(number * 20 + 20))
        rule = Matching(cutting, members={"m1"}, direction=Direction.RESPONSE, limit=5)
        site.proxy.rules.append(rule)
        await site.produce(topic, range(60, 80))
        await until(lambda: rule.spent)
        await consumer.has(range(80))


@BOTH
async def test_a_request_that_is_lost_without_a_trace(site, make):
    topic = await site.topic()
    await site.produce(topic, range(50))
    async with site.consumer(make, topic) as consumer:
        await consumer.has(range(50))
        rule = Matching(
            dropping,
            members={"m1"},
            direction=Direction.REQUEST,
            kinds=(OffsetCommitRequest,),
            limit=1,
        )
        site.proxy.rules.append(rule)

        def committed() -> int:
            """What the last commit that was answered says; a member that was fenced meanwhile begins anew."""
            answered = [one for _, one, _ in site.seen.responses if isinstance(one, OffsetCommitRequest)]
            return sum(offset.offset for offset in answered[-1].offsets.values()) if answered else 0

        deadline = time.monotonic() + PATIENCE_S
        while committed() < 50:
            assert time.monotonic() < deadline
            with contextlib.suppress(aiokafka.errors.KafkaError, KafkaException):
                await consumer.commit()
            await asyncio.sleep(0.05)
        assert rule.spent


@BOTH
async def test_slow_heartbeats(site, make):
    topic = await site.topic()
    await site.produce(topic, range(50))
    rule = Matching(
        lambda _: Delay(400_000), members={"m1"}, direction=Direction.REQUEST, api_keys={HEARTBEAT}
    )
    site.proxy.rules.append(rule)
    async with site.consumer(make, topic) as consumer:
        await consumer.has(range(50))
        sent = [
            t_us
            for _, _, request, t_us in site.seen.requests
            if isinstance(request, ConsumerGroupHeartbeatRequest)
        ]
        await until(lambda: len(site.seen.epochs("m1")) >= 1)
        assert all(late - early > 350_000 for early, late in itertools.pairwise(sent))
        site.proxy.rules.remove(rule)


@BOTH
async def test_a_member_that_is_cut_off_is_fenced_and_comes_back(site, make):
    topic = await site.topic()
    await site.produce(topic, range(50))
    async with site.consumer(make, topic) as consumer:
        await consumer.has(range(50))
        assert site.seen.epochs("m1")[-1] > 0
        site.proxy.stall("m1")
        group = site.group

        def members() -> int:
            found = site.admin.describe_consumer_groups([group])[group].result(20)
            return len(found.members)

        deadline = time.monotonic() + PATIENCE_S
        while await asyncio.to_thread(members):
            assert time.monotonic() < deadline
        await site.produce(topic, range(50, 100))
        assert len(consumer.values) == 50
        before = len(site.seen.requests)
        site.proxy.resume("m1")
        await consumer.has(range(100))
        await until(
            lambda: any(
                request.member_epoch == 0
                for _, _, request, _ in site.seen.requests[before:]
                if isinstance(request, ConsumerGroupHeartbeatRequest)
            )
        )
        await until(lambda: site.seen.epochs("m1")[-1] > 0)


@BOTH
async def test_a_thin_line(site, make):
    topic = await site.topic(1)
    # A batch comes as a whole, whatever is asked for: it has to be through before the request times out.
    await site.produce(topic, range(300), size=1_000, **{"batch.num.messages": 40})
    rule = Matching(
        lambda _: Throttle(200_000), members={"m1"}, api_keys={FETCH}, direction=Direction.RESPONSE
    )
    site.proxy.rules.append(rule)
    settings = (
        {"max_partition_fetch_bytes": 50_000} if make == "ours" else {"fetch.message.max.bytes": 50_000}
    )
    began = time.monotonic()
    async with site.consumer(make, topic, **settings) as consumer:
        await consumer.has(range(300))
        assert time.monotonic() - began > 1.2
        site.proxy.rules.remove(rule)
        await site.produce(topic, range(300, 320))
        await consumer.has(range(320))


SPOILED = pytest.mark.parametrize(
    ("make", "direction", "api_keys"),
    [
        pytest.param("ours", Direction.RESPONSE, None, id="answers"),
        # librdkafka does not survive spoiled answers: it ends the process.
        pytest.param("confluent", Direction.REQUEST, {FETCH}, id="fetches"),
    ],
)


@SPOILED
async def test_spoiled_messages(site, make, direction, api_keys):
    """Messages that end early or have a wrong length; then all is well again, and others noticed nothing."""
    topic = await site.topic()
    await site.produce(topic, range(50))
    rng = random.Random(5)
    rules = [
        Matching(
            lambda _, damage=damage: Corrupt(damage),
            members={"m1"},
            direction=direction,
            api_keys=api_keys,
            chance=0.5,
            rng=rng,
            limit=2,
        )
        for damage in (Damage.TRUNCATE, Damage.LENGTH)
    ]
    async with site.consumer("confluent", topic, "m2", **{"group.id": "bystanders"}) as bystander:
        async with site.consumer(make, topic) as consumer:
            site.proxy.rules += rules
            await until(lambda: all(rule.spent for rule in rules))
            await site.produce(topic, range(50, 100))
            await consumer.has(range(100))
        await bystander.has(range(100))
        assert all(count == 1 for count in bystander.values.values())


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_a_broker_that_is_killed_and_comes_back(kafka, three):
    topic = await kafka.topic(6)
    async with kafka.consumer("confluent", topic, "c1") as one, kafka.consumer("ours", topic, "c2") as two:
        await kafka.produce(topic, range(100))
        await three.kill(2)
        down = await asyncio.open_connection(*kafka.proxy.address(2))
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(down[0].read(), PATIENCE_S) == b""
        down[1].close()
        await kafka.produce(topic, range(100, 200))
        await three.restart(2)
        await kafka.produce(topic, range(200, 300))
        await until(lambda: set(range(300)) <= (one.values + two.values).keys())
    servers = "{}:{}".format(*kafka.proxy.address(2))
    admin = AdminClient({"bootstrap.servers": servers, "client.id": "admin", "log_level": 0})
    await asyncio.to_thread(admin.list_topics, topic, 20)
    assert "broker-2" in {broker for member, broker, _, _ in kafka.seen.requests if member == "admin"}
