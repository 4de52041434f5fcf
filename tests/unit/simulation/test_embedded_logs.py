"""Leaders, in-sync replicas and records of single partitions, as a test changes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

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
    found = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics("orders", timeout=20)
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
    kafka.stop_broker(1)
    assert described(kafka) == (3, [3])
    kafka.set_in_sync("orders", 0, brokers=[2, 3])
    assert described(kafka) == (3, [2, 3])


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
        (lambda kafka: kafka.move_leader("orders", 0, to=7), "orders-0: broker 7 has no running replica"),
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
