"""Services of compose files, written from the same settings as the JVM runner's properties."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from fencepost.simulation.lab.clusters.ports import LOOPBACK
from fencepost.simulation.lab.clusters.settings import (
    KAFKA_VERSION,
    KafkaVersion,
    ListenerAddress,
    NodeState,
    Profile,
    broker_properties,
)

SINGLE_PORT = 9092
THREE_PORTS = (19092, 19093, 19094)
LOG_DIR = "/var/lib/kafka/data"
SINGLE_CLUSTER_ID = "fencepost-single-nodeA"
THREE_CLUSTER_ID = "fencepost-three-nodesA"

_CLIENTS, _BROKERS, _CONTROLLER = 9092, 9093, 9094


def service(node_id: int) -> str:
    """Return the name of a node's service, and of its host inside the network."""
    return f"kafka-{node_id}"


def docker_nodes(hosts: Sequence[str], ports: Sequence[int]) -> tuple[NodeState, ...]:
    """Return nodes in containers of these names, with client listeners on these ports of loopback."""
    return tuple(
        NodeState(
            node_id=number,
            clients=ListenerAddress("", _CLIENTS, LOOPBACK, port),
            brokers=ListenerAddress("", _BROKERS, host, _BROKERS),
            controller=ListenerAddress("", _CONTROLLER, host, _CONTROLLER),
        )
        for number, (host, port) in enumerate(zip(hosts, ports, strict=True), 1)
    )


def environment(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties as the image takes them: KAFKA_ and the name in capitals, `_` for `.`."""
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in properties.items()}


def compose_file(
    nodes: Sequence[NodeState],
    profile: Profile,
    cluster_id: str,
    *,
    kafka: KafkaVersion,
    more: Mapping[str, str] | None,
) -> str:
    """Return the file for one cluster of the docker runner, with `more` properties for each node."""
    services = "".join(
        _kafka(service(node.node_id), node, nodes, profile, cluster_id, kafka=kafka, profiles="", more=more)
        for node in nodes
    )
    return f"services:\n{services}"


def repository_services() -> str:
    """Return the services of Kafka in the repository's docker-compose.yml, which `make docs` renews."""
    single = docker_nodes(["kafka"], [SINGLE_PORT])
    three = docker_nodes([service(number) for number in (1, 2, 3)], THREE_PORTS)
    parts = [_kafka("kafka", single[0], single, "fast", SINGLE_CLUSTER_ID, profiles="")]
    parts += [
        _kafka(service(node.node_id), node, three, "fast", THREE_CLUSTER_ID, profiles="three")
        for node in three
    ]
    return "".join(parts)


def _kafka(
    name: str,
    node: NodeState,
    nodes: Sequence[NodeState],
    profile: Profile,
    cluster_id: str,
    *,
    kafka: KafkaVersion = KAFKA_VERSION,
    profiles: str,
    more: Mapping[str, str] | None = None,
) -> str:
    properties = broker_properties(node, nodes, profile, LOG_DIR, more=more)
    variables = {"CLUSTER_ID": cluster_id, **environment(properties)}
    lines = [f"  {name}:"]
    lines += [f"    profiles: [{profiles}]"] if profiles else []
    lines += [
        f"    image: apache/kafka:{kafka}",
        "    ports:",
        f'      - "{node.clients.host}:{node.clients.port}:{node.clients.bind_port}"',
        "    environment:",
        # JSON's strings are YAML's too, and $ stands for compose's own variables.
        *(f"      {key}: {json.dumps(value.replace('$', '$$'))}" for key, value in variables.items()),
        "    healthcheck:",
        "      # Through the listener whose advertised address is right inside the container too.",
        f'      test: ["CMD-SHELL", "/opt/kafka/bin/kafka-broker-api-versions.sh --bootstrap-server '
        f'{node.brokers.address} >/dev/null 2>&1"]',
        "      interval: 5s",
        "      timeout: 10s",
        "      retries: 12",
        "      start_period: 10s",
    ]
    return "\n".join(lines) + "\n"
