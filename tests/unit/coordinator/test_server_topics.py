"""Topics that clients create, grow and delete: what is told of them, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import administration, cluster
from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.server import admin_apis, cluster_apis
from fencepost.coordinator.server import cluster as cluster_state
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.cluster import KafkaCluster
from fencepost.coordinator.server.storage import Storage
from tests.growth import assert_linear

pytestmark = pytest.mark.real

ASKED: Any = SimpleNamespace(local_host="127.0.0.1", context=SimpleNamespace(api_version=13), may=None)


@pytest.fixture
async def brokers():
    async with Brokers(
        {"orders": 1, "payments": 2}, config=GroupCoordinatorConfig(), ports=(0, 0, 0)
    ) as found:
        yield found


def create(brokers: Brokers, *topics: administration.NewTopic) -> list[tuple[str, str | None]]:
    request = administration.CreateTopicsRequest(topics=topics)
    found = admin_apis.create_topics(brokers.services[0], request, ASKED).topics
    return [(one.error_code.name, one.error_message) for one in found]


def delete(brokers: Brokers, *topics: cluster.TopicReference) -> tuple[administration.DeletedTopic, ...]:
    request = administration.DeleteTopicsRequest(topics=topics)
    return admin_apis.delete_topics(brokers.services[0], request, ASKED).topics


def grow(brokers: Brokers, topic: str, *hands: tuple[int, ...]) -> tuple[str, str | None]:
    count = brokers.cluster.image.by_name[topic].partitions + max(1, len(hands))
    request = administration.CreatePartitionsRequest(
        topics=(administration.GrownTopic(name=topic, count=count, assignments=hands or None),)
    )
    (found,) = admin_apis.create_partitions(brokers.services[0], request, ASKED).topics
    return found.error_code.name, found.error_message


def replicas(brokers: Brokers, topic: str) -> list[tuple[int, ...]]:
    services = brokers.services[0]
    metadata = cluster_apis.metadata(
        services, cluster.MetadataRequest(topics=(cluster.TopicReference(name=topic),)), ASKED
    )
    described = cluster_apis.describe_topic_partitions(
        services, cluster.DescribeTopicPartitionsRequest(topics=(topic,), partition_limit=100), ASKED
    )
    assert metadata.topics[0].partitions == described.topics[0].partitions
    assert all(one.leader_id == one.replicas[0] for one in metadata.topics[0].partitions)
    return [one.replicas for one in metadata.topics[0].partitions]


async def test_a_topic_has_up_to_as_many_replicas_as_there_are_brokers(brokers):
    for factor in (1, 2, 3):
        topic = administration.NewTopic(name=f"times-{factor}", partitions=4, replication_factor=factor)
        assert create(brokers, topic) == [("NONE", None)]
    assert replicas(brokers, "times-1") == [(1,), (2,), (3,), (1,)]
    assert replicas(brokers, "times-2") == [(1, 2), (2, 3), (3, 1), (1, 2)]
    assert replicas(brokers, "times-3") == [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3)]
    assert create(brokers, administration.NewTopic(name="times-4", partitions=1, replication_factor=4)) == [
        (
            "INVALID_REPLICATION_FACTOR",
            "Unable to replicate the partition 4 time(s): The target replication factor of 4 cannot be "
            "reached because only 3 broker(s) are registered or some brokers have all their log directories "
            "cordoned.",
        )
    ]
    assert create(brokers, administration.NewTopic(name="default", partitions=1)) == [("NONE", None)]
    assert replicas(brokers, "default") == [(1,)]


async def test_new_partitions_have_as_many_replicas_as_the_others(brokers):
    assert create(
        brokers, administration.NewTopic(name="by-hand", assignments=((0, (3, 1)), (1, (1, 2))))
    ) == [("NONE", None)]
    assert grow(brokers, "by-hand") == grow(brokers, "by-hand", (2, 3)) == ("NONE", None)
    assert [len(each) for each in replicas(brokers, "by-hand")] == [2, 2, 2, 2]
    assert grow(brokers, "by-hand", (2,)) == (
        "INVALID_REPLICA_ASSIGNMENT",
        "The manual partition assignment includes a partition with 1 replica(s), but this is not consistent "
        "with previous partitions, which have 2 replica(s).",
    )
    uneven = administration.NewTopic(name="uneven", assignments=((0, (3, 1)), (1, (1, 2, 3))))
    assert create(brokers, uneven)[0][0] == "INVALID_REPLICA_ASSIGNMENT"


async def test_partitions_are_where_they_were_placed_by_hand(brokers):
    by_hand = administration.NewTopic(name="by-hand", assignments=((1, (1, 2)), (0, (3, 1))))
    assert create(brokers, by_hand) == [("NONE", None)]
    assert replicas(brokers, "by-hand") == [(3, 1), (1, 2)]
    assert grow(brokers, "by-hand") == ("NONE", None)
    assert grow(brokers, "by-hand", (2, 1), (3, 2)) == ("NONE", None)
    placed_by_number = (3, 1)
    assert replicas(brokers, "by-hand") == [(3, 1), (1, 2), placed_by_number, (2, 1), (3, 2)]
    assert grow(brokers, "payments", (1,)) == ("NONE", None)
    assert replicas(brokers, "payments") == [(1,), (2,), (1,)]


async def test_a_partition_is_served_by_the_leader_that_was_chosen(brokers):
    create(brokers, administration.NewTopic(name="by-hand", assignments=((0, (3,)),)))
    topic = brokers.cluster.image.by_name["by-hand"]
    brokers.services[2].log(topic, 0)
    with pytest.raises(ProtocolError, match="by-hand-0 is led by broker 3, this is 1"):
        brokers.services[0].log(topic, 0)


async def test_replicas_outlive_a_restart_as_far_as_there_are_brokers(tmp_path):
    def started(count: int) -> Brokers:
        return Brokers(ports=(0,) * count, storage=Storage(tmp_path / "journal", keeps_records=False))

    async with started(3) as before:
        assert create(before, administration.NewTopic(name="kept", partitions=1, replication_factor=3)) == [
            ("NONE", None)
        ]
        by_hand = administration.NewTopic(name="by-hand", assignments=((0, (3, 2)), (1, (3, 1))))
        assert create(before, by_hand) == [("NONE", None)]
    async with started(3) as again:
        assert replicas(again, "kept") == [(1, 2, 3)]
        assert replicas(again, "by-hand") == [(3, 2), (3, 1)]
    async with started(2) as fewer:
        assert replicas(fewer, "kept") == [(1, 2)]
        assert replicas(fewer, "by-hand") == [(2,), (1,)]


async def test_a_name_may_not_differ_from_another_in_its_dots_alone(brokers):
    brokers.cluster.create_topics({"a.b": 1})
    for name in ("a_b", "a.b"):
        with pytest.raises(ProtocolError, match=r"collides with existing topic: a\.b|already exists"):
            brokers.cluster.create_topics({name: 1})
    brokers.cluster.create_topics({"ab": 1})


async def test_a_topic_that_is_named_twice_stays(brokers):
    orders = brokers.cluster.image.by_name["orders"]
    by_name, by_id = cluster.TopicReference(name="orders"), cluster.TopicReference(topic_id=orders.topic_id)
    for twice in ((by_name, by_name), (by_id, by_name), (by_id, by_id)):
        (answer,) = delete(brokers, *twice)
        assert answer.error_code.name == "INVALID_REQUEST"
        assert brokers.cluster.image.by_name["orders"] is orders
    found = delete(brokers, by_name, cluster.TopicReference(name="payments"))
    assert [one.error_code.name for one in found] == ["NONE", "NONE"]
    assert not brokers.cluster.image.by_name


async def test_the_work_of_a_request_grows_as_the_number_of_its_topics_does(brokers):
    services = brokers.services[0]._replace(turns=None)

    def run(size: int) -> Any:
        topics = tuple(administration.NewTopic(name=f"of.{size}.{number}") for number in range(size))
        return lambda: admin_apis.create_topics(
            services, administration.CreateTopicsRequest(topics=topics), ASKED
        )

    assert_linear(run, 100)
    assert len(brokers.cluster.image.by_name) == 2 + 8 + 100 + 200


def test_partitions_of_the_cluster_are_counted_again_only_after_a_change(monkeypatch):
    cluster, counts = KafkaCluster(), []
    monkeypatch.setattr(cluster_state, "MAX_CLUSTER_PARTITIONS", 10)
    monkeypatch.setattr(
        cluster_state, "sum", lambda numbers: counts.append(sum(numbers)) or counts[-1], raising=False
    )

    def is_full_at(partitions: int) -> None:
        for _ in range(3):
            cluster.check_room(partitions - 1)
            with pytest.raises(ProtocolError, match=f"{11 - partitions} partitions exist"):
                cluster.check_room(partitions)

    cluster.add_topics({"a": 4})
    is_full_at(7)
    cluster.add_topics({"b": 3})
    is_full_at(4)
    cluster.grow_topic(cluster.image.by_name["b"], 5)
    is_full_at(2)
    cluster.delete_topic(cluster.image.by_name["a"])
    is_full_at(6)
    assert counts == [4, 7, 9, 5]
