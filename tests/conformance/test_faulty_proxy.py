"""Faults of a proxy before our broker and before Kafka's, as clients of three makes meet them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from fencepost.coordinator.codec.batches import checked_batch
from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import logs
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.simulation.lab.proxy.kafka_proxy import KafkaProxy
from tests.conformance.brokers import World
from tests.unit.simulation.wire_member import WireMember

with warnings.catch_warnings(action="ignore"):
    import kafka as kafka_python  # type: ignore[import-untyped]

pytestmark = [pytest.mark.real, pytest.mark.timeout(150)]

PATIENCE_S = 60.0


@pytest.fixture
def proxy(world: World) -> Iterator[KafkaProxy]:
    with KafkaProxy(world.servers) as running:
        yield running
        assert running.unmet() == []


@pytest.fixture
def member(proxy: KafkaProxy, world: World) -> Iterator[WireMember]:
    with contextlib.closing(WireMember(proxy.bootstrap_servers, world.group, "m")) as one:
        yield one


def committed(world: World, topic: str) -> dict[int, int]:
    """The group's offsets, as the broker tells them without the proxy."""
    admin = AdminClient({"bootstrap.servers": world.servers, "log_level": 0})
    asked = [ConsumerGroupTopicPartitions(world.group)]
    found = admin.list_consumer_group_offsets(asked)[world.group].result(60).topic_partitions
    return {each.partition: each.offset for each in found if each.topic == topic}


@contextlib.contextmanager
def confluent(proxy: KafkaProxy, world: World, topic: str, **callbacks: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": proxy.bootstrap_servers,
            "group.id": world.group,
            "group.protocol": "consumer",
            "client.id": "c1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic], **callbacks)
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
    return found


async def test_a_commit_whose_response_is_lost_is_carried_out(world: World, proxy: KafkaProxy) -> None:
    topic = world.topic(1)
    await world.produce(topic, range(3))
    fault = proxy.add_fault("lose_response", "OffsetCommit", group=world.group, client_id="c1")
    with confluent(proxy, world, topic) as consumer:
        assert len(await asyncio.to_thread(read, consumer, 3)) == 3
        consumer.commit(asynchronous=True)
        await fault.met(timeout=PATIENCE_S)
        assert await asyncio.to_thread(committed, world, topic) == {0: 3}


async def test_a_commit_that_fails_in_the_brokers_stead_is_asked_again(
    world: World, proxy: KafkaProxy
) -> None:
    topic = world.topic(1)
    await world.produce(topic, range(3))
    fault = proxy.fail_next("OffsetCommit", "NOT_COORDINATOR", times=2)
    assert fault is None

    def consume() -> None:
        consumer = kafka_python.KafkaConsumer(
            topic,
            bootstrap_servers=proxy.bootstrap_servers,
            group_id=world.group,
            client_id="p1",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        with contextlib.closing(consumer):
            found = 0
            while found < 3:
                found += sum(map(len, consumer.poll(1_000).values()))
            assert committed(world, topic) == {}
            consumer.commit()
        assert committed(world, topic) == {0: 3}

    await asyncio.to_thread(consume)
    assert proxy.faults()[0].met == 2


async def test_a_member_is_fenced_by_a_heartbeat_and_returns(world: World, proxy: KafkaProxy) -> None:
    topic = world.topic(2)
    await world.produce(topic, range(4))
    lost: list[TopicPartition] = []
    gained: list[TopicPartition] = []
    with confluent(
        proxy,
        world,
        topic,
        on_lost=lambda _, partitions: lost.extend(partitions),
        on_assign=lambda _, partitions: gained.extend(partitions),
    ) as consumer:
        assert len(await asyncio.to_thread(read, consumer, 4)) == 4
        fault = proxy.add_fault(
            "error", "ConsumerGroupHeartbeat", error="FENCED_MEMBER_EPOCH", member="c1", group=world.group
        )
        await fault.met(timeout=PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while (len(lost), len(gained)) != (2, 4) and time.monotonic() < deadline:
            await asyncio.to_thread(consumer.poll, 0.1)
        assert (len(lost), len(gained)) == (2, 4)


async def test_a_produce_to_one_partition_fails_and_is_sent_again(world: World, proxy: KafkaProxy) -> None:
    topic = world.topic(2)
    fault = proxy.add_fault(
        "error", "Produce", error="NOT_ENOUGH_REPLICAS", topic=topic, partition=1, times=2
    )
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=proxy.bootstrap_servers, enable_idempotence=True
    ) as producer:
        for number in range(4):
            await producer.send_and_wait(topic, str(number).encode(), partition=number % 2)
    assert fault.state.met == 2
    async with aiokafka.AIOKafkaConsumer(
        bootstrap_servers=proxy.bootstrap_servers, auto_offset_reset="earliest"
    ) as reader:
        partitions = [aiokafka.TopicPartition(topic, each) for each in (0, 1)]
        assert await reader.end_offsets(partitions) == dict.fromkeys(partitions, 2), "each once"


def fetch(member: WireMember, topic: str) -> logs.FetchResponse:
    wanted = logs.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    topics = (logs.OfTopic(name=topic, partitions=(wanted,)),)
    request = logs.FetchRequest(max_wait_ms=2_000, min_bytes=1, max_bytes=100_000, topics=topics)
    reply: logs.FetchResponse = member.ask(ApiKey.FETCH, request, 12)
    return reply


async def test_records_are_damaged_on_their_way(world: World, proxy: KafkaProxy, member: WireMember) -> None:
    topic = world.topic(1)
    await world.produce(topic, range(5))
    proxy.add_fault("corrupt", "Fetch", topic=topic)

    def batch() -> bytes:
        return bytes(fetch(member, topic).topics[0].partitions[0].batches[0])

    damaged, good = batch(), batch()
    assert len(damaged) == len(good)
    with pytest.raises(ProtocolError, match="checksum"):
        checked_batch(first(damaged), 10_000)
    checked_batch(first(good), 10_000)


def first(batches: bytes) -> bytes:
    return batches[: 12 + int.from_bytes(batches[8:12], "big")]


def test_a_client_is_throttled(world: World, proxy: KafkaProxy, member: WireMember) -> None:
    topic = world.topic(1)
    assert member.join(topic).error_code is ErrorCode.NONE
    proxy.add_fault("throttle", "ConsumerGroupHeartbeat", seconds=0.5)
    member.confirm()
    began = time.monotonic()
    assert member.heartbeat().error_code is ErrorCode.NONE
    assert time.monotonic() - began > 0.4


async def test_a_new_session_follows_an_error_of_fetched_partitions(world: World, proxy: KafkaProxy) -> None:
    topic = world.topic(3)
    await world.produce(topic, range(6))
    proxy.add_fault("error", "Fetch", error="NOT_LEADER_OR_FOLLOWER", every=2, times=3)

    def consume() -> set[bytes]:
        consumer = kafka_python.KafkaConsumer(
            topic, bootstrap_servers=proxy.bootstrap_servers, auto_offset_reset="earliest"
        )
        with contextlib.closing(consumer):
            found: set[bytes] = set()
            while len(found) < 6 or proxy.unmet():
                found.update(each.value for some in consumer.poll(500).values() for each in some)
            return found

    assert await asyncio.to_thread(consume) == {str(each).encode() for each in range(6)}


@pytest.mark.processes
def test_the_command_takes_faults_over_http(world: World) -> None:
    topic = world.topic(1)
    options = ["--port", "0", "--control", "0"]
    command = [sys.executable, "-m", "fencepost", "proxy", world.servers, *options]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running,
        contextlib.ExitStack() as last,
    ):
        last.callback(running.kill)
        assert running.stdout is not None
        servers, url = (running.stdout.readline().split()[-1] for _ in range(2))

        def post(path: str, **arguments: Any) -> Any:
            body = json.dumps(arguments).encode()
            with urllib.request.urlopen(f"{url}/{path}", body, timeout=PATIENCE_S) as response:
                return json.loads(response.read())

        member = last.enter_context(contextlib.closing(WireMember(servers, world.group, "m")))
        post("fail_next", api="ConsumerGroupHeartbeat", error="COORDINATOR_LOAD_IN_PROGRESS")
        assert member.join(topic).error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert member.join(topic).error_code is ErrorCode.NONE
        added = post("add_fault", action="disconnect", api="ConsumerGroupHeartbeat", group=world.group)
        with pytest.raises(EOFError):
            member.heartbeat()
        assert post(f"faults/{added['fault']}/wait_met")["is_over"]
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE_S) == 0
