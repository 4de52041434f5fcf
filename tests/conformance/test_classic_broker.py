"""The classic protocol and migration request by request, the same at our coordinator and at Kafka's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fencepost.coordinator.codec.registry import ApiKey
from fencepost.coordinator.protocol import classic as c
from fencepost.coordinator.protocol.consumer import LeaveGroupBatchRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.brokers.connection import BrokerConnection
from fencepost.simulation.lab.clusters.cluster import RealCluster
from fencepost.simulation.lab.conform.broker import ReferenceBroker
from fencepost.simulation.lab.conform.scripts import classic
from fencepost.simulation.lab.conform.suite import Suite
from tests.conformance.brokers import World

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


async def test_scripts_of_the_classic_protocol(cluster: RealCluster) -> None:
    judge = await ReferenceBroker.connect(cluster.bootstrap_servers)
    try:
        report = await Suite(judge, "classic", workers=4).run(classic(judge.config), seed=0, requests=0)
    finally:
        await judge.close()
    assert report.differences == []
    parts = ("classic", "group.classic.", "group.none.classic.", "group.consumer.classic.")
    verdicts = {rule.rule: rule.verdict for rule in report.rules if rule.rule.startswith(parts)}
    assert {*verdicts.values()} == {"pass", "untested"}
    assert sum(verdict == "untested" for verdict in verdicts.values()) < 10
    assert verdicts["group.consumer.classic.beat"] == verdicts["group.classic.consumer.beat"] == "pass"
    assert {seen.name for seen in report.deviations} >= {
        "classic-request-repeated",
        "classic-subscription-malformed",
        "classic-sync-left",
        "migration-back-by-static-member",
        "migration-by-static-member",
        "migration-of-two-owners",
    }


class Joiner:
    """A member of the classic protocol, request by request."""

    def __init__(self, connection: BrokerConnection, group_id: str, instance_id: str | None) -> None:
        self._connection = connection
        self._group_id = group_id
        self._instance_id = instance_id
        self.member_id = ""
        self._generation = -1

    async def join(self, rebalance_timeout_ms: int) -> ErrorCode:
        request = c.JoinGroupRequest(
            group_id=self._group_id,
            member_id=self.member_id,
            instance_id=self._instance_id,
            protocol_type="consumer",
            protocols=(c.JoinGroupProtocol("range", b"\0" * 10),),
            session_timeout_ms=20_000,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        reply = await self._connection.ask(ApiKey.JOIN_GROUP, 9, request)
        self.member_id, self._generation = reply.member_id, reply.generation
        return reply.error_code

    async def sync(self) -> ErrorCode:
        reply = await self._connection.ask(
            ApiKey.SYNC_GROUP,
            5,
            c.SyncGroupRequest(protocol_type="consumer", protocol_name="range", **self._position),
        )
        return reply.error_code

    async def beat(self) -> ErrorCode:
        reply = await self._connection.ask(ApiKey.HEARTBEAT, 4, c.HeartbeatRequest(**self._position))
        return reply.error_code

    async def leave(self) -> ErrorCode:
        leaving = LeaveGroupRequest(group_id=self._group_id, instance_id=self._instance_id)
        request = LeaveGroupBatchRequest(group_id=self._group_id, members=(leaving,))
        (left,) = (await self._connection.ask(ApiKey.LEAVE_GROUP, 4, request)).members
        return left.error_code

    async def state(self) -> str:
        request = c.DescribeGroupsRequest(group_ids=(self._group_id,))
        (group,) = (await self._connection.ask(ApiKey.DESCRIBE_GROUPS, 5, request)).groups
        return f"{group.group_state} {len(group.members)}"

    @property
    def _position(self) -> dict[str, Any]:
        return {
            "group_id": self._group_id,
            "generation": self._generation,
            "member_id": self.member_id,
            "instance_id": self._instance_id,
        }


@pytest.fixture
async def joiners(world: World) -> AsyncIterator[list[Joiner]]:
    """Two static members and a dynamic one, which have not joined their group yet."""
    world.topic()  # the coordinator is loaded
    host, port = world.servers.split(":")
    connections = [await BrokerConnection.open(host, int(port), "joiner", 60) for _ in range(3)]
    yield [Joiner(each, world.group, name) for each, name in zip(connections, ("a", "b", None), strict=True)]
    for each in connections:
        each.hang_up()


async def test_no_member_can_sync_without_time_to_rebalance(joiners: list[Joiner]) -> None:
    static, _, dynamic = joiners
    assert await dynamic.join(0) is ErrorCode.MEMBER_ID_REQUIRED
    for member in (static, dynamic):
        assert await member.join(0) is ErrorCode.NONE
        async with asyncio.timeout(60):
            while await member.state() != "Empty 0":
                pass
        assert await member.sync() is ErrorCode.UNKNOWN_MEMBER_ID
        assert await member.beat() is ErrorCode.UNKNOWN_MEMBER_ID


async def test_static_members_that_do_not_rejoin_in_no_time_stay_until_one_of_them_does(
    joiners: list[Joiner],
) -> None:
    one, other, _ = joiners
    assert await one.join(60_000) is await one.sync() is ErrorCode.NONE
    joining = asyncio.create_task(other.join(60_000))
    async with asyncio.timeout(60):
        while await one.beat() is not ErrorCode.REBALANCE_IN_PROGRESS:
            pass
    assert [await one.join(60_000), await joining] == [ErrorCode.NONE] * 2
    assert await asyncio.gather(one.sync(), other.sync()) == [ErrorCode.NONE] * 2
    one.member_id = ""  # it returns as another process, which changes nothing for the group
    assert await one.join(0) is ErrorCode.NONE
    assert await one.sync() is ErrorCode.NONE
    assert await other.leave() is ErrorCode.NONE
    # Each round ends at once, and none has a leader.
    for _ in range(20):
        assert await one.beat() is ErrorCode.REBALANCE_IN_PROGRESS
        assert await one.state() == "PreparingRebalance 1"
    assert await one.join(0) is ErrorCode.NONE
    async with asyncio.timeout(60):
        while await one.state() != "Empty 0":
            pass
    assert await one.sync() is ErrorCode.UNKNOWN_MEMBER_ID
