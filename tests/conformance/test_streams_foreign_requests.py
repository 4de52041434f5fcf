"""The table of other applications is right: each topology and each mistake, at our broker and at Kafka's."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import streams
from fencepost.coordinator.protocol.cluster import FindCoordinatorRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import LEAVE_EPOCH
from fencepost.simulation.brokers.connection import BrokerConnection
from fencepost.simulation.streams.foreign_requests import (
    ForeignTopology,
    foreign_topologies,
    mistakes_of_members,
    mistakes_of_strangers,
)
from tests.conformance.brokers import SECONDS, World

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

PASSING = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}


class Member:
    """The only member of a group, and a connection."""

    def __init__(self, connection: BrokerConnection, group_id: str, topology: streams.Topology) -> None:
        self._connection = connection
        self.join = streams.StreamsGroupHeartbeatRequest(
            group_id=group_id,
            member_id=f"{group_id}-member",
            member_epoch=0,
            rebalance_timeout_ms=60_000,
            topology=topology,
            active_tasks=streams.NO_TASK_IDS,
            standby_tasks=streams.NO_TASK_IDS,
            warmup_tasks=streams.NO_TASK_IDS,
            process_id=f"{group_id}-process",
        )
        self.tasks = streams.Tasks()
        self.epoch = 0
        self.statuses: set[streams.StatusCode] = set()

    async def ask(
        self, request: streams.StreamsGroupHeartbeatRequest
    ) -> streams.StreamsGroupHeartbeatResponse:
        async with asyncio.timeout(SECONDS):
            while True:
                response: Any = await self._connection.ask(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, request)
                if response.error_code not in PASSING:
                    assert isinstance(response, streams.StreamsGroupHeartbeatResponse)
                    return response
                lookup = FindCoordinatorRequest(keys=(self.join.group_id,))
                await self._connection.ask(ApiKey.FIND_COORDINATOR, 4, lookup)
                await asyncio.sleep(0.05)

    async def beat(self, request: streams.StreamsGroupHeartbeatRequest) -> None:
        response = await self.ask(request)
        assert response.error_code is ErrorCode.NONE, response
        self.epoch = response.member_epoch
        if response.tasks is not None:
            self.tasks = response.tasks
        self.statuses = {status.code for status in response.status or ()}

    async def go_on(self) -> None:
        await asyncio.sleep(0.05)
        owned = self.tasks
        await self.beat(
            msgspec.structs.replace(
                self.join,
                member_epoch=self.epoch,
                topology=None,
                active_tasks=owned.active,
                standby_tasks=owned.standby,
            )
        )


async def lived(member: Member, case: ForeignTopology) -> None:
    """What the table says of the topology, and of the mistakes of its member."""
    if case.error:
        assert (await member.ask(member.join)).error_code is case.error, case.name
        return
    await member.beat(member.join)
    expected = set() if case.status is None else {case.status}
    right = streams.Tasks({one: tuple(range(count)) for one, count in sorted(case.tasks.items())})
    async with asyncio.timeout(SECONDS):
        while member.statuses != expected or member.tasks != right:
            await member.go_on()
    for what, request, error in mistakes_of_members(member.join, member.epoch, has_tasks=case.status is None):
        assert (await member.ask(request)).error_code is error, (case.name, what)
    older = streams.Topology(case.epoch - 1, case.subtopologies)
    await member.beat(msgspec.structs.replace(member.join, topology=older))
    assert streams.StatusCode.STALE_TOPOLOGY in member.statuses, case.name
    leave = msgspec.structs.replace(
        member.join,
        member_epoch=LEAVE_EPOCH,
        topology=None,
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
    )
    assert (await member.ask(leave)).error_code is ErrorCode.NONE


async def test_the_table_of_other_applications(world: World) -> None:
    orders, payments = world.topic(2), world.topic(3)
    host, _, port = world.servers.partition(":")
    connection = await BrokerConnection.open(host, int(port), "another")
    try:
        plain = streams.Topology(1, (streams.Subtopology("0", (orders,)),))
        stranger = Member(connection, world.group, plain)
        for what, request, error in mistakes_of_strangers(stranger.join):
            assert (await stranger.ask(request)).error_code is error, what
        for number in range(len(foreign_topologies("", ("orders", 2), ("payments", 3)))):
            group_id = f"{world.group}-{number}"  # and internal topics of its own
            case = foreign_topologies(group_id, (orders, 2), (payments, 3))[number]
            await lived(Member(connection, group_id, case.topology), case)
    finally:
        connection.hang_up()
