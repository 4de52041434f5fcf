"""Brokers that die and stand still, in simulation."""

from __future__ import annotations

import asyncio

import pytest

from fencepost.coordinator.protocol.errors import ErrorCode, ProtocolError
from fencepost.member.base.transport import RequestTimedOut
from fencepost.simulation.faults.draw import Draw, DrawnEvent, FaultKind
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


def transport(world: KafkaWorld, timeout_s: float = 5) -> SimulatedTransport:
    host = Host("tester", world.loop)
    return SimulatedTransport(
        host, world.network, world.cluster.brokers, first=0, timeout_us=round(timeout_s * 1_000_000)
    )


async def test_a_paused_broker_answers_when_it_goes_on(world: KafkaWorld) -> None:
    broker = next(iter(world.cluster.brokers.values()))
    broker.pause()
    asked = transport(world)._ask(LogOffsets((), True))
    await asyncio.sleep(3)
    assert not asked.done()
    broker.resume()
    assert await asked == {}


async def test_a_request_to_a_paused_broker_times_out_at_its_time(world: KafkaWorld) -> None:
    broker = next(iter(world.cluster.brokers.values()))
    broker.pause()
    began = world.now_us
    with pytest.raises(RequestTimedOut):
        await transport(world)._ask(LogOffsets((), True))
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
        await transport(world).find_coordinator("orders-service")
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
    def entry(kind: FaultKind, at_s: int, lasts_s: int) -> DrawnEvent:
        return DrawnEvent(at_us=world.now_us + at_s * 1_000_000, kind=kind, lasts_us=lasts_s * 1_000_000)

    def die(_: object) -> None:
        broker.kill()
        broker.revive()

    entries = entry(FaultKind.BROKER_PAUSE, 0, 20), entry(FaultKind.BROKER_PAUSE, 10, 30)
    plan = Draw(entries=entries, faults_end_us=90_000_000, end_us=100_000_000, members=1)
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
