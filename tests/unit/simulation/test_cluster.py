from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest, OffsetFetchRequest
from fencepost.member.base.transport import Disconnected
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kafka.world import KafkaWorld
from fencepost.simulation.kernel.host import Host
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.scenarios.load import loads

SCENARIO = """
duration = "5m"
[group]
start = "1h"
[[topics]]
name = "orders"
partitions = 4
records_per_second = 4
[cluster]
failover = "3s"
load = "1s"
"""


@pytest.fixture
async def world() -> KafkaWorld:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    world = KafkaWorld(loads(SCENARIO), 1, loop, members=1)
    world.begin()
    await asyncio.sleep(2)
    return world


@pytest.fixture
async def transport(world: KafkaWorld) -> SimulatedTransport:
    host = Host("tester", world.loop)
    transport = SimulatedTransport(host, world.network, world.cluster.brokers, first=0, timeout_us=30_000_000)
    await transport.find_coordinator("orders-service")
    return transport


def join(member_id: str = "m1", epoch: int = 0) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id="orders-service",
        member_id=member_id,
        member_epoch=epoch,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=("orders",),
        topic_partitions={},
    )


async def test_a_member_joins_over_the_network(world, transport):
    response = await transport.send(join(), 30_000)
    assert response.error_code is ErrorCode.NONE
    assert response.assignment == {world.topics.by_name["orders"].topic_id: (0, 1, 2, 3)}


async def test_nothing_is_sent_before_a_coordinator_is_found(world):
    host = Host("tester", world.loop)
    transport = SimulatedTransport(host, world.network, world.cluster.brokers, first=0, timeout_us=1)
    with pytest.raises(Disconnected):
        await transport.send(join(), 30_000)  # type: ignore[misc]


async def test_after_a_move_the_old_host_refuses_the_new_one_loads_and_then_knows_all(world, transport):
    await transport.send(join(), 30_000)
    old = world.cluster.leader
    world.cluster.move()
    assert world.cluster.leader is not old
    assert (await transport.send(join(), 30_000)).error_code is ErrorCode.NOT_COORDINATOR
    await transport.find_coordinator("orders-service")
    assert (await transport.send(join(), 30_000)).error_code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await asyncio.sleep(1)
    keepalive = ConsumerGroupHeartbeatRequest(group_id="orders-service", member_id="m1", member_epoch=2)
    assert (await transport.send(keepalive, 30_000)).error_code is ErrorCode.NONE


async def test_a_crash_breaks_connections_and_another_host_takes_over(world, transport):
    await transport.send(join(), 30_000)
    old = world.cluster.leader
    pending = transport.send(join("m2"), 30_000)
    world.cluster.crash(old)
    with pytest.raises(Disconnected):
        await pending
    codes = []
    while world.cluster.leader is None:
        try:
            await transport.find_coordinator("orders-service")
        except ProtocolError as error:
            codes.append(error.code)
        except Disconnected:
            codes.append(None)  # it asked the host that is down; the next try asks another
        await asyncio.sleep(0.5)
    await transport.find_coordinator("orders-service")
    assert ErrorCode.COORDINATOR_NOT_AVAILABLE in codes
    assert set(codes) <= {ErrorCode.COORDINATOR_NOT_AVAILABLE, None}
    assert 2 < world.now_us / 1_000_000 - 2 < 5
    assert world.cluster.leader is not old
    await asyncio.sleep(1)
    assert list(world.active.groups["orders-service"].members) == ["m1"]


async def test_a_lone_broker_recovers_from_the_journal():
    loop = asyncio.get_running_loop()
    world = KafkaWorld(loads(SCENARIO, overrides=["cluster.brokers=1"]), 1, loop, members=1)
    world.begin()
    await asyncio.sleep(2)
    broker = world.cluster.leader
    broker.step(join())
    before = world.active.hard_state()
    world.cluster.crash(broker)
    await asyncio.sleep(10)
    assert world.active is None
    world.cluster.restart(broker)
    await asyncio.sleep(2)
    assert world.active.hard_state() == before  # type: ignore[attr-defined]


async def test_an_unavailable_group_has_no_coordinator_for_a_while(world, transport):
    world.cluster.unavailable(10_000_000)
    with pytest.raises(ProtocolError, match="no coordinator"):
        await transport.find_coordinator("orders-service")
    await asyncio.sleep(10)
    await transport.find_coordinator("orders-service")


async def test_a_journal_that_fails_changes_nothing(world, transport):
    world.journal.failing += 1
    response = await transport.send(join(), 30_000)
    assert response.error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.active.groups
    world.journal.failing -= 1
    assert (await transport.send(join(), 30_000)).error_code is ErrorCode.NONE


async def test_sessions_end_without_requests(world, transport):
    await transport.send(join(), 30_000)
    await asyncio.sleep(44)
    assert world.active.groups["orders-service"].members
    await asyncio.sleep(2)
    assert not world.active.groups["orders-service"].members


async def test_offsets_and_logs_are_answered(world, transport):
    partition = TopicPartition("orders", 1)
    commit = OffsetCommitRequest(group_id="orders-service", offsets={partition: OffsetAndMetadata(offset=7)})
    assert (await transport.send(commit, 30_000)).errors == {partition: ErrorCode.NONE}
    fetch = OffsetFetchRequest(group_id="orders-service", partitions=(partition,))
    assert (await transport.send(fetch, 30_000)).offsets[partition].offset == 7
    missing = TopicPartition("orders", 9)
    assert await transport.log_offsets([partition, missing], earliest=True) == {partition: 0}
    latest = await transport.log_offsets([partition], earliest=False)
    assert latest[partition] in (2, 3)
    assert await transport.offsets_by_duration([partition, missing], 10_000) == {partition: 0}
    (since,) = (await transport.offsets_by_duration([partition], 1_000)).values()
    assert 0 < since < latest[partition]


async def test_metadata_names_the_topics_there_are(world, transport):
    topic_id = world.topics.by_name["orders"].topic_id
    assert await transport.topic_names([topic_id, "no-such-id"]) == {topic_id: "orders"}
    world.cluster.delete_topic("orders")
    assert await transport.topic_names([topic_id]) == {}


async def test_the_coordinator_hears_of_topics_a_little_later(world, transport):
    await transport.send(join(), 30_000)
    world.cluster.grow_topic("orders", 9)
    assert world.active.image.by_name["orders"].partitions == 4
    await asyncio.sleep(1)
    assert world.active.image.by_name["orders"].partitions == 9


async def test_regular_expressions_are_resolved_in_the_background(world, transport):
    request = ConsumerGroupHeartbeatRequest(
        group_id="orders-service",
        member_id="m1",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_regex="ord.*",
        topic_partitions={},
    )
    response = await transport.send(request, 30_000)
    assert response.assignment == {}
    await asyncio.sleep(2)
    keepalive = ConsumerGroupHeartbeatRequest(
        group_id="orders-service", member_id="m1", member_epoch=response.member_epoch
    )
    response = await transport.send(keepalive, 30_000)
    assert sum(map(len, response.assignment.values())) == 4
