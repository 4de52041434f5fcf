"""Consumers read from the follower in their rack, and from the leader when that broker stops (KIP-392)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import aiokafka
import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from confluent_kafka import Consumer

from fencepost import EmbeddedKafka, KIP848Consumer
from fencepost.coordinator.server.fetch import FetchApi
from tests.conformance.test_java_client import Judge

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
LEADER, FOLLOWER, RACK = 1, 3, "c"
COUNT = 20


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    """Three brokers in three racks; the one partition of "orders" is on each, and led by broker 1."""
    config = {"replica.selector.class": RACK_AWARE, "group.consumer.session.timeout.ms": 20_000}
    with EmbeddedKafka(brokers=3, racks=["a", "b", RACK], config=config) as kafka:
        kafka.create_topic("orders", replicas=3)
        yield kafka


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """The number of Fetch requests that each broker received."""
    counts: Counter[int] = Counter()
    original = FetchApi.__call__

    def counted(self, services, request, asked):
        counts[services.node_id] += 1
        return original(self, services, request, asked)

    monkeypatch.setattr(FetchApi, "__call__", counted)
    return counts


def produced(kafka: EmbeddedKafka, run: str) -> set[str]:
    values = [f"{run} {number}" for number in range(COUNT)]
    kafka.produce("orders", *values)
    return set(values)


def check_that_it_follows(
    kafka: EmbeddedKafka, fetches: Counter[int], read: Callable[[set[str]], None]
) -> None:
    """`read` reads until it has all those values."""
    read(produced(kafka, "first"))
    asked_of_the_leader = fetches[LEADER]
    read(produced(kafka, "second"))
    assert fetches[FOLLOWER] > 0
    assert fetches[LEADER] == asked_of_the_leader, "it goes on at the follower"
    assert fetches[2] == 0, "no broker of another rack is asked"
    kafka.stop_broker(FOLLOWER)
    read(produced(kafka, "third"))
    assert fetches[LEADER] > asked_of_the_leader
    assert fetches[2] == 0


async def test_each_replica_answers_a_fetch_and_others_refuse():
    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topic("two", replicas=2)
        kafka.produce("two", "a", "b", partition=0)
        client = AIOKafkaClient(bootstrap_servers=kafka.bootstrap_servers)
        await client.bootstrap()
        client.add_topic("two")
        await client.force_metadata_update()
        codes = {}
        for node in (1, 2, 3):
            request = FetchRequest(
                max_wait_time=0,
                min_bytes=1,
                max_bytes=9999,
                isolation_level=0,
                topics=[("two", [(0, 0, 9999)])],
            )
            answer = await client.send(node, request)
            _, code, *_, records = answer.topics[0][1][0]
            codes[node] = code, bool(records)
        await client.close()
    assert codes == {1: (0, True), 2: (0, True), 3: (6, False)}


def test_confluent_kafka_reads_from_the_follower_in_its_rack(kafka, fetches):
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "g",
        "client.rack": RACK,
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 500,
    }
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])

    def read(wanted: set[str]) -> None:
        missing, deadline = set(wanted), time.monotonic() + 60
        while missing:
            assert time.monotonic() < deadline, (missing, fetches)
            for message in consumer.consume(100, timeout=0.1):
                if message.error() is None:
                    missing.discard(message.value().decode())

    try:
        check_that_it_follows(kafka, fetches, read)
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", [aiokafka.AIOKafkaConsumer, KIP848Consumer])
def test_aiokafkas_fetcher_reads_from_the_follower_in_its_rack(kafka, fetches, kind):
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def started():
        consumer = kind(
            "orders",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="g",
            client_rack=RACK,
            auto_offset_reset="earliest",
            metadata_max_age_ms=1_000,
        )
        await consumer.start()
        return consumer

    consumer = run(started())

    async def until_read(wanted: set[str]) -> None:
        missing = set(wanted)
        while missing:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                missing -= {record.value.decode() for record in records}

    try:
        check_that_it_follows(kafka, fetches, lambda wanted: run(until_read(wanted)))
        if kind is KIP848Consumer:
            group = kafka.endpoint.brokers.groups.shard_of("g").coordinator.groups["g"]
            assert [member.rack_id for member in group.members.values()] == [RACK]
    finally:
        run(consumer.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize("protocol", ["consume", "consume-classic"])
def test_a_java_consumer_reads_from_the_follower_in_its_rack(
    kafka, fetches, java_programs, java_process, protocol
):
    command = java_programs.command("ConsumerJudge")
    judge = Judge(java_process([*command, protocol, kafka.bootstrap_servers, "g", "orders", "one", RACK]))
    check_that_it_follows(kafka, fetches, judge.reads)
    judge.close()
