"""Nodes that are cut off and come back, with consumers on them."""

from __future__ import annotations

import pytest

from fencepost.coordinator.rabbit_codec import frames
from fencepost.coordinator.rabbit_codec.codes import ResponseCode

OK = ResponseCode.OK
TIMEOUT_MS = 60_000
STEP_DOWN, ACTIVATE = 0, 1


def states(rig) -> dict[int, str]:
    """The status of each consumer of the only group, by the number of its connection."""
    groups = rig.cluster.groups.coordinator.state.groups
    return {
        int(one.connection.partition("@")[0]): str(one.status).lower()
        for group in groups.values()
        for one in group.consumers
    }


@pytest.fixture
def pair(rig):
    """Two consumers of a stream, each on a node of its own; the first one reads."""
    rig.cluster.ports["n2"] = 5553
    rig.streams("s")
    one, two = rig.client(), rig.client(node="n2")
    one.join("s")
    two.join("s")
    assert one.updates() == [ACTIVATE]
    one.answer()
    return one, two


def cut(rig, node: str) -> None:
    rig.cluster.groups.cut(node)
    rig.settle()


def heal(rig, node: str) -> None:
    rig.cluster.groups.heal(node)
    rig.settle()


def test_an_active_consumer_on_a_cut_node_goes_on_and_blocks_its_group(rig, pair):
    one, two = pair
    cut(rig, "n1")
    assert states(rig) == {1: "disconnected_active", 2: "connected_waiting"}
    two.publish("s", b"x")
    assert one.messages() == [b"x"]
    assert two.updates() == []
    heal(rig, "n1")
    assert states(rig) == {1: "connected_active", 2: "connected_waiting"}
    assert (one.updates(), two.updates()) == ([], [])


def test_after_the_timeout_the_group_goes_on_and_all_step_down_on_the_return(rig, pair):
    one, two = pair
    cut(rig, "n1")
    deadline_ms = rig.cluster.groups.coordinator.next_deadline()
    assert deadline_ms == rig.now_ms + TIMEOUT_MS
    rig.now_ms = deadline_ms
    rig.cluster.groups.run_due()
    rig.settle()
    assert states(rig) == {1: "forgotten_active", 2: "connected_active"}
    assert two.updates() == [ACTIVATE]
    two.answer()
    heal(rig, "n1")
    assert (one.updates(), two.updates()) == ([STEP_DOWN], [STEP_DOWN])
    two.answer()
    assert (one.updates(), two.updates()) == ([ACTIVATE], [])
    one.answer()
    one.answer()
    assert states(rig) == {1: "connected_active", 2: "connected_waiting"}


def test_who_dies_on_a_cut_node_is_missed_when_it_is_back(rig, pair):
    one, two = pair
    cut(rig, "n1")
    one.lose()
    assert two.updates() == []
    heal(rig, "n1")
    assert two.updates() == [ACTIVATE]
    assert states(rig) == {2: "connected_active"}


def test_who_asks_the_coordinator_from_a_cut_node_is_hung_up_on(rig, pair):
    one, _ = pair
    other = rig.client()
    cut(rig, "n1")
    other.send(frames.Subscribe(9, 0, "s", properties={"single-active-consumer": "true", "name": "late"}))
    assert other.got == []
    assert other.hung_up == "node n1 is cut off"
    one.send(frames.Unsubscribe(9, 0))
    assert one.hung_up == "node n1 is cut off"


def test_a_deleted_stream_hangs_up_on_consumers_of_a_cut_node(rig, pair):
    one, two = pair
    cut(rig, "n1")
    assert two.code(frames.Delete, "s") is OK
    assert one.hung_up == "node n1 is cut off"
    two.take(frames.MetadataUpdate)
    heal(rig, "n1")
    assert states(rig) == {}


def test_messages_to_a_cut_node_are_lost(rig, pair):
    one, two = pair
    cut(rig, "n2")
    one.lose()
    assert two.updates() == []
    heal(rig, "n2")
    assert two.updates() == [ACTIVATE]


def test_cutting_and_healing_twice_does_no_harm(rig, pair):
    for _ in range(2):
        cut(rig, "n1")
    for _ in range(2):
        heal(rig, "n1")
    assert states(rig) == {1: "connected_active", 2: "connected_waiting"}


def test_metadata_leaves_cut_nodes_out(rig, pair):
    rig.cluster.ports["n3"] = 5554
    client = rig.client()
    answer = client.ask(frames.Metadata, ("s",))
    (place,) = answer.streams
    assert answer.brokers == ((0, "127.0.0.1", 5552), (1, "127.0.0.1", 5553), (2, "127.0.0.1", 5554))
    assert sorted((place.leader, *place.replicas)) == [0, 1, 2]
    cut(rig, f"n{place.leader + 1}")
    (place,) = client.ask(frames.Metadata, ("s",)).streams
    assert (place.leader, len(place.replicas)) == (65535, 2)
