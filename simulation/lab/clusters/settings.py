"""The properties of our brokers: one source for the JVM runner, the docker runner and docker-compose.yml.

Names and defaults are Kafka's (documentation, Broker Configs). Every node is broker and controller (KRaft),
and has three listeners: CLIENTS, which alone is meant for clients and for a proxy in front, BROKERS and
CONTROLLER.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from fencepost.coordinator.protocol.errors import FencepostError
from fencepost.simulation.lab.clusters.ports import LOOPBACK
from fencepost.simulation.lab.clusters.processes import ProcessIdentity

KafkaVersion: TypeAlias = Literal["4.3.1", "4.4.0"]
KAFKA_VERSION: KafkaVersion = "4.3.1"
"""The default version."""
NEWEST_KAFKA: KafkaVersion = "4.4.0"

Profile: TypeAlias = Literal["fast", "stock"]
"""The speed at which the cluster notices things: `stock` as Kafka ships, `fast` as tests can wait."""

GROUP_PROTOCOLS = ("consumer", "share", "streams")


class ListenerAddress(NamedTuple):
    """A listener: what it binds to (an empty host is every interface), and where others reach it."""

    bind_host: str
    bind_port: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """HOST:PORT, as others reach it."""
        return f"{self.host}:{self.port}"


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its three listeners and, with the JVM runner, its process."""

    node_id: int
    clients: ListenerAddress
    brokers: ListenerAddress
    controller: ListenerAddress
    process: ProcessIdentity | None = None

    @classmethod
    def on_loopback(cls, node_id: int, ports: Sequence[int]) -> NodeState:
        """Return a node whose listeners have these three ports of loopback."""
        clients, brokers, controller = (ListenerAddress(LOOPBACK, port, LOOPBACK, port) for port in ports)
        return cls(node_id=node_id, clients=clients, brokers=brokers, controller=controller)


def broker_properties(
    node: NodeState,
    nodes: Sequence[NodeState],
    profile: Profile,
    log_dir: str,
    *,
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the properties of one node, `more` over the profile's; times are in milliseconds."""
    return {
        **_place(node, nodes, log_dir),
        **_replication(len(nodes)),
        "auto.create.topics.enable": "false",
        # The default is a quarter of the heap, for logs that a test never fills.
        "log.cleaner.dedupe.buffer.size": "2097152",
        **(_FAST if profile == "fast" else {}),
        **(more or {}),
    }


def _place(node: NodeState, nodes: Sequence[NodeState], log_dir: str) -> dict[str, str]:
    listeners = {"CLIENTS": node.clients, "BROKERS": node.brokers, "CONTROLLER": node.controller}
    return {
        "node.id": str(node.node_id),
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{each.node_id}@{each.controller.address}" for each in nodes),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "BROKERS",
        "listeners": ",".join(
            f"{name}://{each.bind_host}:{each.bind_port}" for name, each in listeners.items()
        ),
        "advertised.listeners": ",".join(
            f"{name}://{each.address}" for name, each in listeners.items() if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "log.dirs": log_dir,
    }


def _replication(nodes: int) -> dict[str, str]:
    """Return the replication: three nodes lose nothing acknowledged with one of them; one node has one
    replica."""
    copies, needed = str(min(nodes, 3)), str(min(nodes, 2))
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": needed,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": needed,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": needed,
    }


def _fast() -> dict[str, str]:
    quick = {
        # A killed broker counts as dead, and may register again, after three seconds instead of nine.
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "100",
        "group.streams.initial.rebalance.delay.ms": "0",
        # Otherwise the controller writes twice a second that nothing happened: a third of what an idle node
        # takes.
        "metadata.max.idle.interval.ms": "0",
    }
    for protocol in GROUP_PROTOCOLS:
        quick |= {
            f"group.{protocol}.min.heartbeat.interval.ms": "50",
            f"group.{protocol}.heartbeat.interval.ms": "100",
            f"group.{protocol}.min.session.timeout.ms": "100",
            f"group.{protocol}.session.timeout.ms": "2000",
            f"group.{protocol}.assignment.interval.ms": "0",
        }
    return quick


_FAST = _fast()


def property_texts(properties: Mapping[str, bool | float | str]) -> dict[str, str]:
    """Return values as Kafka's files have them.

    :raises FencepostError: if one is neither text nor a number nor a truth value.
    """
    if not isinstance(properties, Mapping):
        raise FencepostError(f"properties={properties!r}: expected a mapping of values by Kafka's names")
    for name, value in properties.items():
        if not isinstance(value, bool | int | float | str):
            raise FencepostError(f"properties: {name}={value!r}: expected text, a number, True or False")
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in properties.items()
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """Return properties as a server.properties file; backslashes are Java's escape there."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in properties.items())
