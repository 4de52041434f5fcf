"""docker-compose.yml, written from the same settings as the JVM runner's properties.

`python -m fencepost.simulation.lab.clusters.compose > docker-compose.yml` renews the repository's file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from fencepost.coordinator.rabbit_server.handshake import RABBITMQ_VERSION
from fencepost.simulation.lab.clusters.settings import (
    KAFKA_VERSION,
    KafkaVersion,
    ListenerAddress,
    NodeAddresses,
    Profile,
    broker_properties,
)

SINGLE_PORT = 9092
THREE_PORTS = (19092, 19093, 19094)
LOG_DIR = "/var/lib/kafka/data"
SINGLE_CLUSTER_ID = "fencepost-single-nodeA"
THREE_CLUSTER_ID = "fencepost-three-nodesA"

_CLIENTS, _BROKERS, _CONTROLLER = 9092, 9093, 9094

_HEAD = """\
# Real Kafka, a real RabbitMQ and a Spark cluster, reachable from this machine only.
#
#   docker compose up --wait                     one node, 127.0.0.1:9092
#   docker compose --profile three up --wait     three nodes, 127.0.0.1:19092,127.0.0.1:19093,127.0.0.1:19094
#   docker compose up --wait rabbitmq            RabbitMQ with streams, 127.0.0.1:5552, guest and guest
#   docker compose --profile spark up --wait     Spark, spark://127.0.0.1:7077 (on Linux)
#   docker compose --profile three --profile rabbitmq --profile spark down --volumes
#
# Written by `python -m fencepost.simulation.lab.clusters.compose` from settings.py beside it; a test compares
# the two.
"""

_RABBITMQ = f"""\
  rabbitmq:
    profiles: [rabbitmq]
    image: rabbitmq:{RABBITMQ_VERSION}
    ports:
      - "127.0.0.1:5552:5552"
    environment:
      RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: "-rabbitmq_stream advertised_host localhost"
    command: >-
      sh -c "rabbitmq-plugins enable --offline rabbitmq_stream
      && exec docker-entrypoint.sh rabbitmq-server"
    healthcheck:
      test: ["CMD", "rabbitmq-diagnostics", "--quiet", "check_port_listener", "5552"]
      interval: 5s
      timeout: 10s
      retries: 12
      start_period: 10s
"""

_SPARK = """\
  # Workers need the same Python and the same libraries as the campaign that sends them work.
  spark-master: &spark
    profiles: [spark]
    image: fencepost-spark
    build:
      context: .
      dockerfile_inline: |
        FROM python:${PYTHON_VERSION:-3.11}-slim
        RUN apt-get update \\
            && apt-get install -y --no-install-recommends default-jre-headless procps \\
            && rm -rf /var/lib/apt/lists/*
        COPY requirements.lock .
        RUN pip install --no-cache-dir --require-hashes -r requirements.lock
    network_mode: host
    command: spark-class org.apache.spark.deploy.master.Master --host 127.0.0.1 --port 7077 --webui-port 8080
    healthcheck:
      test: ["CMD", "python", "-c", "import socket; socket.create_connection(('127.0.0.1', 7077), 2)"]
      interval: 5s
      timeout: 5s
      retries: 12
  spark-worker:
    <<: *spark
    command: spark-class org.apache.spark.deploy.worker.Worker spark://127.0.0.1:7077 --host 127.0.0.1
    depends_on:
      spark-master:
        condition: service_healthy
    healthcheck:
      disable: true
"""


def service(node_id: int) -> str:
    """The name of a node's service, and of its host inside the network."""
    return f"kafka-{node_id}"


def docker_nodes(hosts: Sequence[str], ports: Sequence[int]) -> tuple[NodeAddresses, ...]:
    """Nodes in containers of these names, their client listeners published on these ports of loopback."""
    return tuple(
        NodeAddresses(
            number,
            ListenerAddress("", _CLIENTS, "127.0.0.1", port),
            ListenerAddress("", _BROKERS, host, _BROKERS),
            ListenerAddress("", _CONTROLLER, host, _CONTROLLER),
        )
        for number, (host, port) in enumerate(zip(hosts, ports, strict=True), 1)
    )


def environment(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties as the image takes them: KAFKA_ and the name in capitals, `_` for `.`."""
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in properties.items()}


def compose_file(
    nodes: Sequence[NodeAddresses],
    profile: Profile,
    cluster_id: str,
    *,
    kafka: KafkaVersion,
    more: Mapping[str, str] | None,
) -> str:
    """The file for one cluster of the docker runner, with `more` properties for each node."""
    services = "".join(
        _kafka(service(node.node_id), node, nodes, profile, cluster_id, kafka=kafka, profiles="", more=more)
        for node in nodes
    )
    return f"services:\n{services}"


def repository_file() -> str:
    """The repository's docker-compose.yml."""
    single = docker_nodes(["kafka"], [SINGLE_PORT])
    three = docker_nodes([service(number) for number in (1, 2, 3)], THREE_PORTS)
    parts = [_kafka("kafka", single[0], single, "fast", SINGLE_CLUSTER_ID, profiles="")]
    parts += [
        _kafka(service(node.node_id), node, three, "fast", THREE_CLUSTER_ID, profiles="three")
        for node in three
    ]
    return f"{_HEAD}services:\n{''.join(parts)}{_RABBITMQ}{_SPARK}"


def _kafka(
    name: str,
    node: NodeAddresses,
    nodes: Sequence[NodeAddresses],
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


if __name__ == "__main__":
    sys.stdout.write(repository_file())
