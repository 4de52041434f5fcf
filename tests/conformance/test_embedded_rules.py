"""Rules about one member reach all that its client sends, whatever the client leaves out of its requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer

from fencepost import EmbeddedKafka, KIP848Consumer

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={"orders": 2}) as running:
        yield running


def consumer(kafka: EmbeddedKafka, **settings: Any) -> Consumer:
    made = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "g",
            "log_level": 0,
            "topic.metadata.refresh.interval.ms": 100,
            "fetch.wait.max.ms": 50,
            **settings,
        }
    )
    made.subscribe(["orders"])
    return made


@pytest.mark.parametrize("api", ["ConsumerGroupHeartbeat", "Fetch", "Metadata"])
@pytest.mark.parametrize("by", ["instance id", "member id", "member"])
def test_librdkafka_is_met_by_each_id(kafka: EmbeddedKafka, api: str, by: str) -> None:
    settings = {"group.protocol": "consumer"}
    with (
        closing(consumer(kafka, **settings, **{"group.instance.id": "one"})) as one,
        closing(consumer(kafka, **settings, **{"group.instance.id": "two"})) as two,
    ):
        while not (one.assignment() and two.assignment()):
            one.poll(0.05)
            two.poll(0.05)
        (member,) = [each for each in kafka.group("g").members() if each.instance_id == "one"]
        who = {"instance id": "one", "member id": member.member_id, "member": member}[by]
        kafka.delay(api, 0.01, who, times=1)
        deadline = time.monotonic() + 60
        while kafka.unmet() and time.monotonic() < deadline:
            one.poll(0.05)
            two.poll(0.05)
        assert kafka.unmet() == []


@pytest.mark.parametrize("api", ["Heartbeat", "Fetch"])
async def test_aiokafka_is_met_by_its_instance_id(kafka: EmbeddedKafka, api: str) -> None:
    made = aiokafka.AIOKafkaConsumer(
        "orders",
        bootstrap_servers=kafka.bootstrap_servers,
        group_id="g",
        group_instance_id="one",
        heartbeat_interval_ms=100,
        fetch_max_wait_ms=50,
    )
    await made.start()
    kafka.delay(api, 0.01, "one", times=1)
    deadline = time.monotonic() + 60
    while kafka.unmet() and time.monotonic() < deadline:
        await made.getmany(timeout_ms=50)
    assert kafka.unmet() == []
    await made.stop()


@pytest.mark.parametrize("api", ["ConsumerGroupHeartbeat", "Fetch"])
async def test_our_consumer_is_met_by_its_instance_id(kafka: EmbeddedKafka, api: str) -> None:
    made = KIP848Consumer(
        "orders", bootstrap_servers=kafka.bootstrap_servers, group_id="g", group_instance_id="one"
    )
    await made.start()
    kafka.delay(api, 0.01, "one", times=1)
    deadline = time.monotonic() + 60
    while kafka.unmet() and time.monotonic() < deadline:
        await made.getmany(timeout_ms=50)
    assert kafka.unmet() == []
    await made.stop()


def test_librdkafka_reads_that_it_has_to_rebootstrap(kafka: EmbeddedKafka) -> None:
    lines: list[str] = []
    logger = logging.Logger("librdkafka")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "g",
        "debug": "metadata",
        "topic.metadata.refresh.interval.ms": 100,
    }
    with closing(Consumer(settings, logger=logger)) as made:
        made.subscribe(["orders"])
        kafka.fail_next("Metadata", "REBOOTSTRAP_REQUIRED")
        deadline = time.monotonic() + 60
        while not any("top level error code 129" in line for line in lines):
            assert time.monotonic() < deadline
            made.poll(0.05)
