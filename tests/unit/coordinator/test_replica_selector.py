"""Which replica a consumer is told to fetch from (KIP-392)."""

from __future__ import annotations

import pytest

from fencepost.coordinator.config import ReplicaSelector, replica_selector_from
from fencepost.coordinator.protocol.cluster import Node
from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.coordinator.protocol.logs import NO_REPLICA
from fencepost.coordinator.protocol.topics import Topic
from fencepost.coordinator.server.cluster import KafkaCluster

NODES = tuple(
    Node(node_id=node_id, host="h", port=1, rack=rack)
    for node_id, rack in ((1, "a"), (2, "b"), (3, "b"), (4, None))
)
TOPIC = Topic(topic_id="t", name="t", partitions=1)
AWARE = ReplicaSelector.RACK_AWARE


@pytest.mark.parametrize(
    ("selector", "rack", "in_sync", "leader", "preferred"),
    [
        (AWARE, "b", (1, 2), 1, 2),
        (AWARE, "b", (1, 2, 3), 1, 3),
        (AWARE, "b", (2, 3), 2, NO_REPLICA),
        (AWARE, "a", (1, 2), 1, NO_REPLICA),
        (AWARE, "a", (1, 2), 2, 1),
        (AWARE, "z", (1, 2), 1, NO_REPLICA),
        (AWARE, "", (1, 4), 1, NO_REPLICA),
        (AWARE, "b", (1,), 1, NO_REPLICA),
        (ReplicaSelector.LEADER, "b", (1, 2), 1, NO_REPLICA),
        (None, "b", (1, 2), 1, NO_REPLICA),
    ],
)
def test_a_follower_in_the_client_s_rack_is_preferred_to_a_leader_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    selector: ReplicaSelector | None,
    rack: str,
    in_sync: tuple[int, ...],
    leader: int,
    preferred: int,
) -> None:
    cluster = KafkaCluster()
    cluster.nodes, cluster.replica_selector = NODES, selector
    monkeypatch.setattr(cluster, "in_sync_ids", lambda topic, partition: in_sync)
    monkeypatch.setattr(cluster, "leader_id", lambda topic, partition: leader)
    assert cluster.preferred_read_replica(TOPIC, 0, rack) == preferred


def test_the_selector_is_a_class_of_kafka_s() -> None:
    properties = {"replica.selector.class": f" {AWARE} ", "other": 1}
    assert replica_selector_from(properties) is AWARE
    assert properties == {"other": 1}
    assert replica_selector_from(properties) is None
    with pytest.raises(FencepostError, match=r"replica\.selector\.class: 'mine' is unknown, expected org"):
        replica_selector_from({"replica.selector.class": "mine"})
