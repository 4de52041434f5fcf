"""Leaders, in-sync replicas and records of single partitions, as a test changes them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.server.leaders import EpochStarts

pytestmark = pytest.mark.real


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3) as running:
        running.create_topic("orders", 2, replicas=3)
        yield running


def described(kafka: EmbeddedKafka) -> tuple[int, list[int]]:
    """The leader of orders-0 and its in-sync replicas, as a client sees them."""
    found = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics("orders", timeout=60)
    one = found.topics["orders"].partitions[0]
    return one.leader, list(one.isrs)


def test_a_leader_moves_and_its_partition_alone(kafka: EmbeddedKafka) -> None:
    cluster = kafka.endpoint.brokers.cluster
    topic = cluster.image.by_name["orders"]
    assert [kafka.move_leader("orders", 0), kafka.move_leader("orders", 0, to=1)] == [2, 1]
    assert [cluster.leader_epoch(topic, number) for number in (0, 1)] == [2, 0]
    kafka.stop_broker(2)
    assert kafka.move_leader("orders", 0) == 3
    assert described(kafka) == (3, [1, 3])


def test_the_epoch_of_the_only_replica_rises(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("single", 1, replicas=1)
    cluster = kafka.endpoint.brokers.cluster
    leader = cluster.leader_id(cluster.image.by_name["single"], 0)
    assert kafka.move_leader("single", 0) == leader
    assert cluster.leader_epoch(cluster.image.by_name["single"], 0) == 1


def test_in_sync_replicas_shrink_and_grow(kafka: EmbeddedKafka) -> None:
    kafka.set_in_sync("orders", 0, brokers=[1, 3])
    assert described(kafka) == (1, [1, 3])
    assert kafka.move_leader("orders", 0) == 3, "2 may lack records"
    with pytest.raises(FencepostError, match="broker 2 has no running in-sync replica; expected one of"):
        kafka.move_leader("orders", 0, to=2)
    assert kafka.move_leader("orders", 0) == 1
    kafka.stop_broker(1)
    assert described(kafka) == (3, [3])
    kafka.set_in_sync("orders", 0, brokers=[2, 3])
    assert described(kafka) == (3, [2, 3])


def test_too_few_in_sync_replicas_refuse_a_producer_that_waits_for_all(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("safe", replicas=3, config={"min.insync.replicas": 2})
    kafka.create_topic("single", replicas=1, config={"min.insync.replicas": 2})

    def delivered(topic: str, acks: str) -> str:
        errors: list[Any] = []
        config = {"bootstrap.servers": kafka.bootstrap_servers, "acks": acks, "retries": 0}
        producer = Producer(config | {"message.timeout.ms": 20_000})
        producer.produce(topic, b"x", partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        return "" if errors[0] is None else errors[0].name()

    leader = kafka.move_leader("safe", 0)
    kafka.set_in_sync("safe", 0, brokers=[leader])
    assert delivered("safe", "all") == "NOT_ENOUGH_REPLICAS"
    assert delivered("safe", "1") == ""
    kafka.set_in_sync("safe", 0, brokers=[leader, leader % 3 + 1])
    assert delivered("safe", "all") == ""
    assert delivered("single", "all") == "", "a topic can't need more than it has"


def test_many_values_are_produced_in_pieces(kafka: EmbeddedKafka) -> None:
    """Other work of the brokers has its turns; each record has its place."""
    turns: list[float] = []

    async def produced() -> list[Any]:
        task = asyncio.ensure_future(
            kafka.endpoint.logs.produce(
                "orders",
                [str(number) for number in range(20_000)],
                key=None,
                partition=0,
                headers=(),
                timestamp_ms=1,
            )
        )
        while not task.done():
            turns.append(time.thread_time())
            await asyncio.sleep(0)
        return task.result()

    records = kafka.thread.submit(produced()).result(60)
    assert [each.offset for each in records] == list(range(20_000))
    assert len(turns) > 20
    assert [each.value for each in kafka.records("orders", 0)] == [b"%d" % each for each in range(20_000)]


def test_a_truncation_that_is_refused_is_no_event(kafka: EmbeddedKafka) -> None:
    before = kafka.last_event
    with pytest.raises(FencepostError):
        kafka.truncate("orders", 0, 5)
    assert kafka.last_event == before


def test_a_producer_follows_its_leader(kafka: EmbeddedKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    for number in range(6):
        producer.produce("orders", str(number), partition=0)
        producer.flush(0.01)
        kafka.move_leader("orders", 0)
    assert producer.flush(30) == 0
    assert [each.value for each in kafka.records("orders", 0)] == [b"%d" % number for number in range(6)]


def test_a_consumer_finds_out_that_its_records_are_gone(kafka: EmbeddedKafka) -> None:
    for value in "abcde":
        kafka.produce("orders", value, partition=0)
    settings = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 200,
    }
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe(["orders"])
        read: list[tuple[int, bytes]] = []

        def has(value: bytes) -> bool:
            if (message := consumer.poll(0.1)) is not None and message.error() is None:
                read.append((message.offset(), message.value()))
            return bool(read) and read[-1][1] == value

        while not has(b"e"):
            pass
        assert kafka.truncate("orders", 0, 2) == 2
        assert described(kafka) == (2, [2])
        kafka.produce("orders", "new", partition=0)
        while not has(b"new"):
            pass
        assert read[-1] == (2, b"new")
    assert [each.value for each in kafka.records("orders", 0)] == [b"a", b"b", b"new"]


def test_a_producer_whose_batch_is_gone_is_no_duplicate(kafka: EmbeddedKafka) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True})
    producer.produce("orders", "one", partition=0)
    producer.flush(30)
    log = kafka.endpoint.brokers.cluster.log(kafka.endpoint.brokers.cluster.image.by_name["orders"], 0)
    (batch,) = log._batches
    kafka.truncate("orders", 0, 0)
    assert log.append(bytes(batch)) == 0
    assert len(log._batches) == 1


def test_epochs_end_with_their_records() -> None:
    epochs = EpochStarts()
    for epoch, offset in ((0, 0), (1, 3), (4, 7)):
        epochs.begin(epoch, offset)
    epochs.end_at(3)
    assert (epochs.latest, epochs.at(9)) == (0, 0)


@pytest.mark.parametrize(
    ("do", "told"),
    [
        (
            lambda kafka: kafka.move_leader("orders", 0, to=7),
            "orders-0: broker 7 has no running in-sync replica; expected one of [1, 2, 3] (truncate lets one",
        ),
        (
            lambda kafka: kafka.truncate("orders", 0, 0, to=7),
            "orders-0: broker 7 has no running replica; exp",
        ),
        (lambda kafka: kafka.set_in_sync("orders", 0, brokers=1), "brokers=1: expected a list of broker ids"),
        (lambda kafka: kafka.set_in_sync("orders", 0, brokers=[[1]]), "brokers=[1]: expected a whole number"),
        (lambda kafka: kafka.move_leader("orders", 2), "topic 'orders' has partitions 0 to 1, not 2"),
        (lambda kafka: kafka.set_in_sync("orders", 0, brokers=[2]), "brokers=[2]: expected some of the"),
        (lambda kafka: kafka.set_in_sync("orders", 0, brokers=[1, 9]), "brokers=[1, 9]: expected some of"),
        (lambda kafka: kafka.truncate("orders", 0, 1), "offset 1 is not within 0 to 0"),
        (lambda kafka: kafka.truncate("other", 0, 1), "there is no topic 'other'; there are orders"),
    ],
)
def test_what_cannot_be_done(kafka: EmbeddedKafka, do: Callable[[EmbeddedKafka], object], told: str) -> None:
    with pytest.raises(FencepostError) as wrong:
        do(kafka)
    assert str(wrong.value).startswith(told)
    assert described(kafka) == (1, [1, 2, 3])


def test_records_in_a_journal_are_not_truncated(tmp_path: Path) -> None:
    with EmbeddedKafka(topics=["orders"], journal=tmp_path / "journal") as kafka:
        kafka.produce("orders", "a")
        with pytest.raises(FencepostError, match="records in a journal can't be truncated"):
            kafka.truncate("orders", 0, 0)
