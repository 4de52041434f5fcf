"""Brokers of an embedded Kafka that stop and start one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.errors import FencepostError

pytestmark = pytest.mark.real


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topic("copied", 3, replicas=3)
        kafka.create_topic("single", 3)
        yield kafka


def described(kafka: EmbeddedKafka) -> tuple[list[int], list[tuple[int, list[int], list[int]]]]:
    """The brokers, and of each partition of "copied" its leader, its replicas and those in sync."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    metadata = admin.list_topics(timeout=20)
    partitions = metadata.topics["copied"].partitions
    return sorted(metadata.brokers), [
        (each.leader, sorted(each.replicas), sorted(each.isrs)) for _, each in sorted(partitions.items())
    ]


def test_replicas_that_run_lead_while_a_broker_is_stopped(kafka: EmbeddedKafka) -> None:
    everywhere = [1, 2, 3]
    before = everywhere, [(leader, everywhere, everywhere) for leader in (1, 2, 3)]
    assert described(kafka) == before
    kafka.stop_broker(2)
    assert described(kafka) == ([1, 3], [(leader, everywhere, [1, 3]) for leader in (1, 3, 3)])
    kafka.start_broker(2)
    assert described(kafka) == (everywhere, [(leader, everywhere, everywhere) for leader in (1, 3, 3)])
    kafka.elect_leaders()
    assert described(kafka) == before


def test_a_partition_without_another_replica_has_no_leader(kafka: EmbeddedKafka) -> None:
    kafka.stop_broker(2)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    partitions = admin.list_topics("single", timeout=20).topics["single"].partitions
    assert [partitions[number].leader for number in range(3)] == [1, -1, 3]
    assert partitions[1].error is not None
    assert partitions[1].error.name() == "LEADER_NOT_AVAILABLE"


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_a_group_and_a_transaction_go_on_without_a_broker(kafka: EmbeddedKafka, node_id: int) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    producer = Producer({**settings, "transactional.id": "t"})
    producer.init_transactions(20)
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["copied"])
    with closing(consumer):
        for run in ("before", "after"):
            producer.begin_transaction()
            for number in range(3):
                producer.produce("copied", f"{run} {number}", partition=number)
            producer.commit_transaction(30)
            read: set[bytes] = set()
            while len(read) < 3:
                message = consumer.poll(30)
                assert message is not None
                if message.error() is None:
                    read.add(message.value())
            assert read == {f"{run} {number}".encode() for number in range(3)}
            consumer.commit(asynchronous=False)
            if run == "before":
                kafka.stop_broker(node_id)
    assert kafka.check() == []


@pytest.mark.parametrize(
    ("do", "told"),
    [
        (lambda kafka: kafka.stop_broker(4), "there is no broker 4; the brokers are numbered 1, 2, 3"),
        (lambda kafka: kafka.stop_broker(True), "there is no broker True"),
        (lambda kafka: kafka.stop_broker("2"), "there is no broker '2'"),
        (lambda kafka: kafka.start_broker(4), "there is no broker 4"),
        (lambda kafka: kafka.start_broker(1), "broker 1 is running already"),
        (lambda kafka: kafka.stop_broker(3), "broker 3 is stopped already"),
        (lambda kafka: (kafka.stop_broker(1), kafka.stop_broker(2)), "broker 2 is the last running one"),
        (lambda kafka: kafka.move_coordinator("g", to=3), "broker 3 is stopped, expected one that runs"),
        (lambda kafka: kafka.create_topic("t", replicas=4), "replicas=4: expected a whole number, 1 to 3"),
    ],
)
def test_what_can_t_be_is_refused(
    kafka: EmbeddedKafka, do: Callable[[EmbeddedKafka], object], told: str
) -> None:
    kafka.stop_broker(3)
    with pytest.raises(FencepostError) as wrong:
        do(kafka)
    assert str(wrong.value).startswith(told)
