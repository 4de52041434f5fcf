"""Random requests, faults and time against one classic group, judged as in simulated runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.consumer import LeaveGroupBatchRequest, LeaveGroupRequest
from fencepost.coordinator.protocol.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.judge.classic import ClassicGroupsJudge
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from tests.property.judged import GROUP, JudgedMachine

SLOTS = 5
OFFERS = (("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",))
STATIC = {3: "i3", 4: "i4"}
"""Slots with an instance id."""
SUBSCRIPTION = write_subscription(ConsumerProtocolSubscription(topics=("x",)))
slots = st.integers(0, SLOTS - 1)


def share(number: int) -> bytes:
    return write_assignment(ConsumerProtocolAssignment(partitions={"x": (number,)}))


class Client:
    """What one member knows of itself."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.leads = False
        self.others: tuple[str, ...] = ()
        self.token: int | None = None
        """Its request that waits."""


class ClassicGroupMachine(JudgedMachine):
    """Clients in slots; a slot's client may be another one after a restart."""

    judge_types = (ClassicGroupsJudge, ClassicRounds)

    @initialize(members=st.sampled_from([2, 3, 0, 4]), synced=st.booleans())
    def start(self, members: int, synced: bool) -> None:
        """Some have joined already, and got their assignments."""
        self.begin(GroupCoordinatorConfig(group_max_size=4))
        self.clients = [Client() for _ in range(SLOTS)]
        for slot in (*range(members), *range(members)):
            self.join(slot, OFFERS[1], 9)
        self.pass_time(9_000)
        for slot in range(members) if synced else ():
            self.sync(slot)

    def hear(self, client: Client, token: int, reply: Any) -> None:
        if client.token != token:
            return  # it gave that request up
        client.token = None
        if reply.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif reply.error_code is not ErrorCode.NONE:
            self.rejoin(client, reply.error_code)
        elif isinstance(reply, classic.JoinGroupResponse):
            client.member_id, client.generation = reply.member_id, reply.generation
            client.leads = reply.leader == reply.member_id
            client.others = tuple(member.member_id for member in reply.members)
            assert client.leads or not client.others

    @staticmethod
    def rejoin(client: Client, code: ErrorCode) -> None:
        client.generation = -1
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""

    def token(self, client: Client) -> int:
        self.tokens += 1
        client.token = self.tokens
        return self.tokens

    @rule(slot=slots, offer=st.sampled_from(OFFERS), version=st.sampled_from([3, 8, 9, 9]))
    def join(self, slot: int, offer: tuple[str, ...], version: int) -> None:
        client = self.clients[slot]
        token = self.token(client)
        request = classic.JoinGroupRequest(
            group_id=GROUP,
            member_id=client.member_id,
            instance_id=STATIC.get(slot),
            protocol_type="consumer",
            protocols=tuple(classic.JoinGroupProtocol(name, SUBSCRIPTION) for name in offer),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            api_version=version,
            client_id=f"c{slot}",
            new_member_suffix=str(token),
            token=token,
        )
        self.ask(client, request)

    @rule(slot=slots)
    def sync(self, slot: int) -> None:
        client = self.clients[slot]
        if client.generation < 0 or client.token is not None:
            return
        request = classic.SyncGroupRequest(
            group_id=GROUP,
            generation=client.generation,
            member_id=client.member_id,
            instance_id=STATIC.get(slot),
            assignments={one: share(number) for number, one in enumerate(client.others) if client.leads},
            token=self.token(client),
        )
        self.ask(client, request)

    @rule(slot=slots)
    def beat(self, slot: int) -> None:
        client = self.clients[slot]
        request = classic.HeartbeatRequest(
            group_id=GROUP,
            generation=client.generation,
            member_id=client.member_id,
            instance_id=STATIC.get(slot),
        )
        reply = self.step(request).reply
        assert isinstance(reply, classic.HeartbeatResponse)
        if reply.error_code is not ErrorCode.NONE and client.token is None:
            self.rejoin(client, reply.error_code)

    @rule(slot=slots)
    def leave(self, slot: int) -> None:
        if member_id := self.clients[slot].member_id:
            request = LeaveGroupRequest(group_id=GROUP, member_id=member_id)
            self.step(LeaveGroupBatchRequest(group_id=GROUP, members=(request,)))
            self.restart(slot)

    @rule(slot=slots)
    def restart(self, slot: int) -> None:
        self.clients[slot] = Client()


ClassicGroupMachine.TestCase.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestClassicGroup = pytest.mark.timeout(120)(ClassicGroupMachine.TestCase)
