"""Which addresses the clients of each listener receive."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from fencepost.coordinator.protocol.errors import EnvironmentLacks, ErrorCode, FencepostError
from fencepost.coordinator.server.brokers import Brokers
from fencepost.coordinator.server.topic_configs import BrokerConfig
from tests.unit.coordinator.wire.raw_client import REQUIRED, Wire, nested

pytestmark = pytest.mark.real

TWO = {
    "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
    "advertised.listeners": "INTERNAL://kafka:9092,EXTERNAL://localhost:19092",
    "listener.security.protocol.map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
}
METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER, DESCRIBE_PARTITIONS = 3, 10, 60, 75
WITHOUT_OPERATIONS = {
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


async def call(brokers: Brokers, name: str, key: int, version: int, /, **fields: Any) -> Any:
    """One request to the first broker's listener of this name."""
    port = int(brokers.listening[name].split(",")[0].rpartition(":")[2])
    return await (await Wire.to(brokers, port=port)).ask(key, version, **fields)


def serving(properties: dict[str, Any], count: int = 1) -> Brokers:
    return Brokers(
        {"orders": 2 * count},
        ports=(0,) * count,
        listeners=BrokerConfig.from_properties(properties).listeners,
    )


async def test_a_client_receives_the_addresses_of_its_listener() -> None:
    async with serving({**TWO, "node.id": "7"}) as brokers:
        for name, address in (("INTERNAL", ("kafka", 9092)), ("EXTERNAL", ("localhost", 19092))):
            metadata = await call(
                brokers, name, METADATA, 9, topics=None, include_cluster_authorized_operations=False
            )
            assert [(each.host, each.port) for each in metadata.brokers] == [address]
            assert (metadata.brokers[0].node_id, metadata.controller_id) == (7, 7)
            assert {one.leader_id for one in metadata.topics[0].partitions} == {7}
            found = await call(brokers, name, FIND_COORDINATOR, 4, coordinator_keys=("g",))
            assert [(one.host, one.port, one.node_id) for one in found.coordinators] == [(*address, 7)]
            cluster = await call(
                brokers, name, DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False
            )
            assert [(each.host, each.port) for each in cluster.brokers] == [address]
        assert brokers.bootstrap_servers == "kafka:9092"


async def test_several_brokers_have_a_list_each() -> None:
    properties = {
        "listeners": ["A://127.0.0.1:0", "A://127.0.0.1:0"],
        "advertised.listeners": "A://one:1; A://two:0",
        "listener.security.protocol.map": "A:PLAINTEXT",
        "node.id": 3,
    }
    async with serving(properties, 2) as brokers:
        metadata = await call(
            brokers, "A", METADATA, 9, topics=None, include_cluster_authorized_operations=False
        )
        assert [(each.node_id, each.host, each.port) for each in metadata.brokers] == [
            (3, "one", 1),
            (4, "two", brokers.ports[1]),  # port 0 stands for the port that is listened on
        ]
        await brokers.stop_broker(4)
        await brokers.start_broker(4)
        assert brokers.advertised == {"A": f"one:1,two:{brokers.ports[1]}"}


async def test_a_listener_that_is_not_advertised_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka 4.3.1: its clients receive no brokers, and no leaders or coordinators."""
    async with serving({**TWO, "advertised.listeners": "INTERNAL://kafka:9092"}) as brokers:
        monkeypatch.delitem(REQUIRED, METADATA)  # version 5 has no such field
        for version, code, fields in (
            (5, ErrorCode.LEADER_NOT_AVAILABLE, {}),
            (9, ErrorCode.LISTENER_NOT_FOUND, WITHOUT_OPERATIONS),
        ):
            metadata = await call(brokers, "EXTERNAL", METADATA, version, topics=None, **fields)
            assert metadata.brokers == ()
            assert {(one.leader_id, one.error_code) for one in metadata.topics[0].partitions} == {(-1, code)}
        found = await call(brokers, "EXTERNAL", FIND_COORDINATOR, 4, coordinator_keys=("g",))
        assert [one.error_code for one in found.coordinators] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        cluster = await call(
            brokers, "EXTERNAL", DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False
        )
        assert (cluster.controller_id, cluster.brokers) == (-1, ())
        topic = nested(DESCRIBE_PARTITIONS, 0, "TopicRequest", name="orders")
        described = await call(
            brokers, "EXTERNAL", DESCRIBE_PARTITIONS, 0, topics=(topic,), response_partition_limit=10
        )
        assert {(one.leader_id, one.error_code) for one in described.topics[0].partitions} == {
            (-1, ErrorCode.NONE)
        }


async def test_describing_a_broker_shows_its_listeners() -> None:
    async with serving({**TWO, "node.id": 7}) as brokers:
        described = brokers.cluster.listener_settings[7]
        ports = [address.rpartition(":")[2] for address in brokers.listening.values()]
        assert described == {
            "listeners": f"INTERNAL://127.0.0.1:{ports[0]},EXTERNAL://127.0.0.1:{ports[1]}",
            "advertised.listeners": TWO["advertised.listeners"],
            "listener.security.protocol.map": TWO["listener.security.protocol.map"],
        }


def listens(port: int) -> bool:
    """True if some program listens at this port."""
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


async def test_a_broker_whose_second_port_is_taken_starts_later() -> None:
    two = ";".join([TWO["listeners"]] * 2)
    async with serving({**TWO, "listeners": two, "advertised.listeners": two}, count=2) as brokers:
        await brokers.stop_broker(2)
        first, second = (each.socket.port for each in brokers._listeners[2])
        with socket.create_server(("127.0.0.1", second)):
            with pytest.raises(EnvironmentLacks, match=f"port {second} on 127.0.0.1 is taken"):
                await brokers.start_broker(2)
            assert not listens(first)
        await brokers.start_broker(2)
        assert listens(first)
        await brokers.stop_broker(2)
        assert not listens(first)


@pytest.mark.parametrize("what", ["start", "add"])
async def test_brokers_that_close_leave_no_port_open(what: str) -> None:
    brokers = Brokers({"orders": 2}, ports=(0, 0), host="localhost")
    await brokers.start()
    ports = list(brokers.ports)
    await brokers.stop_broker(2)
    change = brokers.start_broker(2) if what == "start" else brokers.add_broker(ports.pop())
    changing = asyncio.ensure_future(change)
    await asyncio.sleep(0)
    await brokers.close()
    await changing
    assert not any(map(listens, brokers.ports))
    for refused in (brokers.start_broker(2), brokers.add_broker(), brokers.stop_broker(1)):
        with pytest.raises(FencepostError, match="the brokers are closed: start new ones"):
            await refused


async def test_a_broker_that_starts_is_stopped_afterwards() -> None:
    async with serving({}, count=2) as brokers:
        await brokers.stop_broker(2)
        await asyncio.gather(brokers.start_broker(2), brokers.stop_broker(2))
        assert brokers.cluster.stopped == {2}
        assert not listens(brokers.ports[1])
