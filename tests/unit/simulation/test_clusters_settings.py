"""The properties of brokers, and the compose file that is made from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.rabbit_server.handshake import RABBITMQ_VERSION
from fencepost.simulation.lab.clusters import compose
from fencepost.simulation.lab.clusters.jvm import jvm_nodes
from fencepost.simulation.lab.clusters.settings import (
    KAFKA_VERSION,
    NodeState,
    Profile,
    broker_properties,
    properties_text,
)

COMPOSE_FILE = Path(__file__).parents[3] / "docker-compose.yml"
ADDRESSES = ("controller.quorum.voters", "listeners", "advertised.listeners", "log.dirs")
"""What may differ between a process here and a container."""


def nodes(count: int) -> list[NodeState]:
    return [*jvm_nodes(count, None)]


def properties(count: int, profile: Profile = "fast", node_id: int = 1) -> dict[str, str]:
    made = nodes(count)
    return broker_properties(made[node_id - 1], made, profile, "/data")


def services(text: str) -> dict[str, str]:
    """The text of each service of a compose file."""
    body = text.partition("\nservices:\n")[2]
    parts = re.split(r"^  ([\w-]+):(?: &\w+)?\n", body, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def settings_of(service: str) -> dict[str, str]:
    """A service's variables under the names that the image makes of them."""
    variables = re.findall(r'^      KAFKA_(\w+): "(.*)"$', service, re.MULTILINE)
    return {name.lower().replace("_", "."): value for name, value in variables}


def test_docker_compose_yml_is_what_the_settings_make() -> None:
    written = COMPOSE_FILE.read_text(encoding="utf-8").partition("  # generated: Kafka\n")[2]
    assert written.partition("  # end\n")[0] == compose.repository_services(), "run: make docs"


@pytest.mark.parametrize(
    ("name", "count", "node_id"), [("kafka", 1, 1)] + [(f"kafka-{n}", 3, n) for n in (1, 2, 3)]
)
def test_a_container_has_the_settings_of_a_process(name: str, count: int, node_id: int) -> None:
    container = settings_of(services(COMPOSE_FILE.read_text(encoding="utf-8"))[name])
    process = properties(count, node_id=node_id)
    assert container.keys() == process.keys()
    for key in container.keys() - set(ADDRESSES):
        assert container[key] == process[key], key
    assert container["controller.quorum.voters"].count("@") == count


def test_containers_are_pinned_checked_and_on_loopback() -> None:
    found = services(COMPOSE_FILE.read_text(encoding="utf-8"))
    kafka = ["kafka", "kafka-1", "kafka-2", "kafka-3"]
    assert list(found) == [*kafka, "fencepost", "rabbitmq", "spark-master", "spark-worker"]
    published = []
    for name, text in found.items():
        if name.startswith("kafka"):
            assert f"image: apache/kafka:{KAFKA_VERSION}\n" in text
            assert "healthcheck:" in text
            published += re.findall(r'^      - "(\S+):(\d+):9092"$', text, re.MULTILINE)
            assert ("profiles: [three]" in text) == (name != "kafka")
        elif name == "fencepost":
            assert "profiles: [fencepost]" in text
            ports = re.findall(r'^      - "([\d.:]+)"$', text, re.MULTILINE)
            assert ports == ["127.0.0.1:29092:29092", "127.0.0.1:9644:9644"]
        elif name == "rabbitmq":
            assert f"image: rabbitmq:{RABBITMQ_VERSION}\n" in text
            assert "healthcheck:" in text
            assert "profiles: [rabbitmq]" in text
            assert re.findall(r'^      - "(\S+)"$', text, re.MULTILINE) == ["127.0.0.1:5552:5552"]
        else:
            assert "profiles: [spark]" in text or "<<: *spark" in text
    assert published == [("127.0.0.1", port) for port in ("9092", "19092", "19093", "19094")]


@pytest.mark.parametrize("cluster_id", [compose.SINGLE_CLUSTER_ID, compose.THREE_CLUSTER_ID])
def test_fixed_cluster_ids_are_kafka_ids(cluster_id: str) -> None:
    assert re.fullmatch(r"\w[\w-]{20}[AQgw]", cluster_id)


def test_no_property_name_is_lost_on_the_way_through_variables() -> None:
    names = properties(3)
    back = [name[6:].lower().replace("_", ".") for name in compose.environment(names)]
    assert back == list(names)


def test_three_nodes_keep_what_was_acknowledged_when_one_is_lost() -> None:
    three, one = properties(3), properties(1)
    for name in three:
        if name.endswith("replication.factor"):
            assert (three[name], one[name]) == ("3", "1")
        if name.endswith(("min.isr", "insync.replicas")):
            assert (three[name], one[name]) == ("2", "1")


def test_the_stock_profile_leaves_groups_and_failure_detection_alone() -> None:
    assert not [name for name in properties(3, "stock") if name.startswith(("group.", "broker."))]


def test_the_fast_profile_is_one_that_kafka_would_accept() -> None:
    fast = {name: value for name, value in properties(1).items() if name.startswith("group.consumer.")}
    config = GroupCoordinatorConfig.from_properties(fast)
    assert config.group_consumer_session_timeout_ms == 2_000
    assert config.group_consumer_heartbeat_interval_ms == 100


def test_listeners_of_a_node_do_not_meet() -> None:
    addresses = [each.address for node in nodes(3) for each in (node.clients, node.brokers, node.controller)]
    assert len(set(addresses)) == 9
    assert {address.partition(":")[0] for address in addresses} == {"127.0.0.1"}


def test_backslashes_are_javas_escape() -> None:
    assert properties_text({"log.dirs": "C:\\data", "a": "b"}) == "log.dirs=C:\\\\data\na=b\n"
