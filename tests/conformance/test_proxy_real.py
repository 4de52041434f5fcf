"""Real clients through the proxy, before our broker and before three of Kafka's: unchanged, and disturbed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator

import aiokafka
import aiokafka.errors
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.server.brokers import Broker
from fencepost.simulation.kafka.requests import moves_epoch
from fencepost.simulation.kernel.rules import (
    Corrupt,
    Damage,
    Delay,
    Direction,
    Matching,
    Throttle,
    cutting,
    dropping,
)
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.proxy.exchange import UnreadFrame
from fencepost.simulation.lab.proxy.proxy import Address
from tests.conformance.proxied import PATIENCE_S, Site, site_before
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

FETCH, HEARTBEAT = 1, 68
CONFIG = GroupCoordinatorConfig(
    group_consumer_min_session_timeout_ms=100,
    group_consumer_session_timeout_ms=2_000,
    group_consumer_min_heartbeat_interval_ms=50,
    group_consumer_heartbeat_interval_ms=100,
    group_consumer_assignment_interval_ms=0,
)


def addresses(cluster: RealCluster) -> dict[int, Address]:
    return {node.node_id: (node.clients.host, node.clients.port) for node in cluster.state.nodes}


@pytest.fixture
async def kafka(three: RealCluster) -> AsyncIterator[Site]:
    async with site_before(addresses(three)) as site:
        yield site


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.processes)])
def real_cluster(request: pytest.FixtureRequest) -> RealCluster | None:
    """Kafka's brokers; None stands for ours, which runs in the test's own loop."""
    return request.getfixturevalue("three") if request.param == "kafka" else None


@pytest.fixture
async def site(real_cluster: RealCluster | None) -> AsyncIterator[Site]:
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
    described = await asyncio.to_thread(lambda: site.admin.describe_cluster().result(60))
    assert {(one.host, one.port) for one in described.nodes} == brokers
    kinds = {type(request) for _, _, request, _ in site.seen.requests}
    assert kinds >= {ConsumerGroupHeartbeatRequest, OffsetCommitRequest, UnreadFrame}
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


@pytest.mark.long
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


@pytest.mark.long
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
            found = site.admin.describe_consumer_groups([group])[group].result(60)
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


@pytest.mark.long
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
        pytest.param("confluent", Direction.REQUEST, {FETCH}, id="fetches", marks=pytest.mark.long),
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
            lambda _, damage=damage: Corrupt(damage),  # type: ignore[misc]
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
