"""Brokers of an embedded Kafka that stop and start one by one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fencepost import EmbeddedKafka
from fencepost.coordinator.protocol.consumer import ListGroupsRequest
from fencepost.coordinator.protocol.errors import EnvironmentLacks, FencepostError

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
    metadata = admin.list_topics(timeout=60)
    partitions = metadata.topics["copied"].partitions
    return sorted(metadata.brokers), [
        (each.leader, sorted(each.replicas), sorted(each.isrs)) for _, each in sorted(partitions.items())
    ]


def epoch_of(kafka: EmbeddedKafka, partition: int) -> int:
    cluster = kafka.endpoint.brokers.cluster
    return cluster.leader_epoch(cluster.find("copied", None), partition)


def coordinators(kafka: EmbeddedKafka, name: str) -> tuple[int, int]:
    """The brokers that coordinate a group and a transactional id of that name."""
    brokers = kafka.endpoint.brokers
    return brokers.groups.leader_id(name), brokers.transactions.leader_id(name)


def listed(kafka: EmbeddedKafka) -> dict[int, list[str]]:
    """The groups that each broker lists."""
    groups = kafka.endpoint.brokers.groups

    async def ask() -> dict[int, list[str]]:
        replies = {node_id: groups.ask(ListGroupsRequest(), node_id) for node_id in groups.node_ids}
        return {node_id: [each.group_id for each in reply.groups] for node_id, reply in replies.items()}

    return kafka.thread.submit(ask()).result()


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
    partitions = admin.list_topics("single", timeout=60).topics["single"].partitions
    assert [partitions[number].leader for number in range(3)] == [1, -1, 3]
    assert partitions[1].error is not None
    assert partitions[1].error.name() == "LEADER_NOT_AVAILABLE"


def test_an_added_broker_leads_new_partitions_and_others_by_reassignment(kafka: EmbeddedKafka) -> None:
    nodes, before = described(kafka)
    assert kafka.add_broker(rack="a") == 4
    assert described(kafka) == ([*nodes, 4], before), "replicas stay where they are"
    assert len(kafka.bootstrap_servers.split(",")) == 4
    kafka.create_topic("new", 4)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    assert [each.leader for each in admin.list_topics(timeout=60).topics["new"].partitions.values()] == [
        1,
        2,
        3,
        4,
    ]
    cluster = admin.describe_cluster(request_timeout=60).result()
    assert [(node.id, node.rack) for node in cluster.nodes] == [(1, None), (2, None), (3, None), (4, "a")]
    kafka.reassign_partition("copied", 0, brokers=[4, 1])
    kafka.reassign_partition("copied", 1, brokers=[4])
    assert described(kafka)[1] == [(1, [1, 4], [1, 4]), (4, [4], [4]), before[2]]
    kafka.elect_leaders()
    assert described(kafka)[1][0] == (4, [1, 4], [1, 4])
    assert [epoch_of(kafka, number) for number in range(3)] == [2, 1, 0]


def test_handlers_of_a_broker_end_with_it(kafka: EmbeddedKafka) -> None:
    for _ in range(3):
        kafka.stop_broker(2)
        kafka.start_broker(2)
    assert set(kafka.endpoint.faults._tables) == {1, 2, 3}


def test_a_removed_broker_hands_over_and_is_gone(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("pair", 3, replicas=2)
    kafka.produce("single", "kept", partition=1)
    ports = kafka.bootstrap_servers.split(",")
    kafka.remove_broker(2)
    assert kafka.bootstrap_servers.split(",") == [ports[0], ports[2]]
    host, port = ports[1].split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    everywhere = [1, 3]
    assert described(kafka) == (everywhere, [(leader, everywhere, everywhere) for leader in (1, 3, 3)])
    assert [epoch_of(kafka, number) for number in range(3)] == [1, 1, 1], "each lost a replica"
    pairs = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=60).topics["pair"]
    assert [sorted(each.isrs) for each in pairs.partitions.values()] == [everywhere] * 3
    assert [each.value for each in kafka.records("single", 1)] == [b"kept"]
    kafka.produce("single", "more", partition=1)
    assert kafka.add_broker() == 4, "no id is used again while a higher one is there"


def test_a_stopped_broker_is_removed_if_others_have_its_records(kafka: EmbeddedKafka) -> None:
    kafka.delete_topic("single")
    kafka.stop_broker(2)
    kafka.remove_broker(2)
    assert described(kafka)[0] == [1, 3]
    assert [(row.actor, row.state_to) for row in kafka.events() if row.kind == "fault"] == [
        ("stop_broker", "begin"),
        ("stop_broker", "end"),
        ("remove_broker", "begin"),
    ]


def test_a_port_that_is_taken_leaves_the_brokers_as_they_are(kafka: EmbeddedKafka) -> None:
    before, servers = described(kafka), kafka.bootstrap_servers
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(EnvironmentLacks, match="is taken"):
        kafka.add_broker(port=taken.getsockname()[1])
    assert (described(kafka), kafka.bootstrap_servers) == (before, servers)
    assert kafka.add_broker() == 4


def test_an_added_broker_has_the_listeners_of_the_first() -> None:
    config = {
        "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
    }
    with EmbeddedKafka(config=config) as kafka:
        kafka.add_broker()
        for name, addresses in kafka.listening.items():
            assert kafka.advertised[name] == addresses
            nodes = (
                AdminClient({"bootstrap.servers": addresses.split(",")[1]}).list_topics(timeout=60).brokers
            )
            assert ",".join(f"{nodes[each].host}:{nodes[each].port}" for each in (1, 2)) == addresses


def test_groups_and_transactions_stay_until_they_are_moved() -> None:
    with EmbeddedKafka(topics=["t"]) as kafka:
        kafka.add_broker()
        assert {coordinators(kafka, f"id-{number}") for number in range(9)} == {(1, 1)}
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "id-0", "log_level": 0}
        with closing(Consumer(settings)) as consumer:
            consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
        assert listed(kafka) == {1: ["id-0"], 2: []}
        kafka.move_coordinator("id-0", to=2, load_seconds=0)
        assert coordinators(kafka, "id-0") == (2, 1)
        kafka.remove_broker(1)
        assert coordinators(kafka, "id-0") == (2, 2)
        assert listed(kafka) == {2: ["id-0"]}


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
        (lambda kafka: kafka.remove_broker(4), "there is no broker 4; the brokers are numbered 1, 2, 3"),
        (lambda kafka: kafka.remove_broker([1]), "there is no broker [1]; the brokers are numbered 1, 2, 3"),
        (
            lambda kafka: kafka.remove_broker(3),
            "broker 3 is stopped, and only it has all records of single-2: start it before, or delete the",
        ),
        (lambda kafka: (kafka.stop_broker(1), kafka.remove_broker(2)), "broker 2 is the last running one"),
        (lambda kafka: kafka.add_broker(port=70_000), "port=70000: expected a whole number, 0 to 65535"),
        (lambda kafka: kafka.add_broker(rack=""), "rack '': expected a name or None"),
        (lambda kafka: kafka.reassign_partition("single", 0, brokers=[]), "brokers=[]: expected different"),
        (
            lambda kafka: kafka.reassign_partition("single", 0, brokers=[3]),
            "brokers=[3]: expected different ones of [1, 2], which run",
        ),
        (lambda kafka: kafka.reassign_partition("single", 0, brokers=[1, 1]), "brokers=[1, 1]: expected"),
        (lambda kafka: kafka.reassign_partition("single", 0, brokers=1), "brokers=1: expected a list"),
        (lambda kafka: kafka.reassign_partition("single", 0, brokers="1"), "brokers='1': expected a list"),
        (
            lambda kafka: kafka.reassign_partition("single", 0, brokers=[[1]]),
            "brokers=[1]: expected a whole number, 0 or more",
        ),
        (lambda kafka: kafka.move_leader("single", 2), "single-2: no broker has a running in-sync replica"),
        (
            lambda kafka: kafka.reassign_partition("single", 2, brokers=[1]),
            "single-2 has no leader, so no broker can copy it",
        ),
    ],
)
def test_what_can_t_be_is_refused(
    kafka: EmbeddedKafka, do: Callable[[EmbeddedKafka], object], told: str
) -> None:
    kafka.stop_broker(3)
    with pytest.raises(FencepostError) as wrong:
        do(kafka)
    assert str(wrong.value).startswith(told)
