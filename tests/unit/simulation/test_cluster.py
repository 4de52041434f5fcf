from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata, OffsetCommitRequest, OffsetFetchRequest
from fencepost.member.base.transport import Disconnected, RequestTimedOut
from fencepost.simulation.faults.plan import FaultKind, FaultPlan, PlannedEvent
from fencepost.simulation.kafka.nemesis import GroupNemesis
from fencepost.simulation.kafka.requests import LogOffsets
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kafka.world import KafkaWorld
from fencepost.simulation.kernel.host import Host
from fencepost.simulation.kernel.loop import VirtualLoop
from fencepost.simulation.run import run
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
[network]
latency = "1ms"
"""


@pytest.fixture
async def world() -> KafkaWorld:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    world = KafkaWorld(loads(SCENARIO), 1, loop, members=1)
    world.begin()
    await asyncio.sleep(2)
    return world


def connected(world: KafkaWorld, timeout_s: int) -> SimulatedTransport:
    timeout_us = timeout_s * 1_000_000
    host = Host("tester", world.loop)
    return SimulatedTransport(host, world.network, world.cluster.brokers, first=0, timeout_us=timeout_us)


@pytest.fixture
async def transport(world: KafkaWorld) -> SimulatedTransport:
    transport = connected(world, 30)
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


# -- brokers that die and stand still ----------------------------------------------------------------------


async def test_a_paused_broker_answers_when_it_goes_on(world: KafkaWorld) -> None:
    broker = next(iter(world.cluster.brokers.values()))
    broker.pause()
    asked = connected(world, 5)._ask(LogOffsets((), True))
    await asyncio.sleep(3)
    assert not asked.done()
    broker.resume()
    assert await asked == {}


async def test_a_request_to_a_paused_broker_times_out_at_its_time(world: KafkaWorld) -> None:
    broker = next(iter(world.cluster.brokers.values()))
    broker.pause()
    began = world.now_us
    with pytest.raises(RequestTimedOut):
        await connected(world, 5)._ask(LogOffsets((), True))
    assert world.now_us - began == 5_000_000
    broker.resume()  # the answer comes too late, and goes nowhere
    await asyncio.sleep(1)
    assert world.now_us == began + 6_000_000


async def test_a_paused_coordinator_is_replaced_after_the_failover_time(world: KafkaWorld) -> None:
    leader = world.cluster.leader
    assert leader is not None
    leader.pause()
    await asyncio.sleep(2)
    assert world.cluster.leader is leader
    await asyncio.sleep(3)
    assert world.cluster.leader is not leader
    assert world.cluster.active is not None
    leader.resume()
    assert leader.coordinator is None


async def test_a_short_pause_costs_nobody_the_lead(world: KafkaWorld) -> None:
    leader = world.cluster.leader
    assert leader is not None
    leader.pause()
    await asyncio.sleep(1)
    leader.resume()
    await asyncio.sleep(10)
    assert world.cluster.leader is leader


async def test_the_last_broker_takes_the_group_over_when_it_goes_on(world: KafkaWorld) -> None:
    brokers = list(world.cluster.brokers.values())
    for broker in brokers:
        broker.pause()
    await asyncio.sleep(10)
    with pytest.raises((ProtocolError, RequestTimedOut)) as failed:
        await connected(world, 5).find_coordinator("orders-service")
    assert getattr(failed.value, "code", None) in (None, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    brokers[1].resume()
    await asyncio.sleep(2)
    assert world.cluster.leader is brokers[1]


async def test_a_broker_that_dies_while_paused_comes_back_awake(world: KafkaWorld) -> None:
    broker = next(iter(world.cluster.brokers.values()))
    broker.pause()
    broker.kill()
    broker.resume()
    assert not broker.running
    broker.revive()
    assert broker.running


async def test_a_pause_does_not_end_before_another_that_a_restarted_broker_suffers(world: KafkaWorld) -> None:
    def entry(kind: FaultKind, at_s: int, lasts_s: int) -> PlannedEvent:
        return PlannedEvent(at_us=world.now_us + at_s * 1_000_000, kind=kind, lasts_us=lasts_s * 1_000_000)

    def die(_: object) -> None:
        broker.kill()
        broker.revive()

    entries = entry(FaultKind.BROKER_PAUSE, 0, 20), entry(FaultKind.BROKER_PAUSE, 10, 30)
    plan = FaultPlan(entries=entries, faults_end_us=90_000_000, end_us=100_000_000, members=1)
    GroupNemesis(world, plan).begin()
    broker = next(iter(world.cluster.brokers.values()))
    world.loop.schedule(world.now_us + 5_000_000, die, None)
    await asyncio.sleep(39)
    assert not broker.running
    await asyncio.sleep(2)
    assert broker.running


@pytest.mark.parametrize("lasts_s", [(20, 1), (1, 20)])
async def test_a_group_without_a_coordinator_has_none_for_the_longest_that_was_said(
    world: KafkaWorld, lasts_s: tuple[int, int]
) -> None:
    for each in lasts_s:
        world.cluster.unavailable(each * 1_000_000)
    await asyncio.sleep(19)
    assert world.cluster.leader is None
    await asyncio.sleep(3)
    assert world.cluster.active is not None
    world.cluster.unavailable(1_000_000)
    await asyncio.sleep(3)
    assert world.cluster.active is not None


@pytest.mark.parametrize("kind", [FaultKind.BROKER_CRASH, FaultKind.BROKER_PAUSE])
def test_a_group_outlives_any_broker(kind: FaultKind) -> None:
    scenario = loads(
        'duration = "4m"\n[group]\nmembers = 3\n[[topics]]\nname = "orders"\nrecords_per_second = 2\n'
        f'[[faults]]\nkind = "{kind}"\nevery = "15s"\nlasts = "1s..20s"\n'
    )
    result = run(scenario, 5)
    assert result.violations == []
    assert result.converged
