"""Random requests, faults and time against one classic group, judged as in simulated runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.coordinator.protocol import classic
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from tests.property.judged import ClassicClient, ClassicRequests

SLOTS = 5
OFFERS = (("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",))
STATIC = {3: "i3", 4: "i4"}
"""Slots with an instance id."""
slots = st.integers(0, SLOTS - 1)


class ClassicGroupMachine(ClassicRequests):
    """Clients in slots; a slot's client may be another one after a restart."""

    judge_types = (ClassicRounds,)

    @initialize(members=st.sampled_from([2, 3, 0, 4]), synced=st.booleans())
    def start(self, members: int, synced: bool) -> None:
        """Some have joined already, and got their assignments."""
        self.begin(GroupCoordinatorConfig(group_max_size=4))
        self.clients = [ClassicClient(slot, STATIC.get(slot)) for slot in range(SLOTS)]
        for slot in (*range(members), *range(members)):
            self.join(slot, OFFERS[1], 9)
        self.pass_time(9_000)
        for slot in range(members) if synced else ():
            self.sync(slot)

    def hear(self, client: ClassicClient, token: int, reply: Any) -> None:
        if client.token != token:
            return  # it gave that request up
        client.token = None
        if reply.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif reply.error_code is not ErrorCode.NONE:
            self.rejoin(client, reply.error_code)
        elif isinstance(reply, classic.JoinGroupResponse):
            client.member_id, client.generation = reply.member_id, reply.generation
            client.roster = tuple(member.member_id for member in reply.members)
            assert reply.leader == reply.member_id or not client.roster

    @staticmethod
    def rejoin(client: ClassicClient, code: ErrorCode) -> None:
        client.generation = -1
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            client.member_id = ""

    @rule(slot=slots, offer=st.sampled_from(OFFERS), version=st.sampled_from([3, 8, 9, 9]))
    def join(self, slot: int, offer: tuple[str, ...], version: int) -> None:
        self.send_join(self.clients[slot], names=offer, version=version)

    @rule(slot=slots)
    def sync(self, slot: int) -> None:
        self.send_sync(self.clients[slot], SLOTS)

    @rule(slot=slots)
    def beat(self, slot: int) -> None:
        client = self.clients[slot]
        code = self.send_beat(client)
        if code is not ErrorCode.NONE and client.token is None:
            self.rejoin(client, code)

    @rule(slot=slots)
    def leave(self, slot: int) -> None:
        if self.clients[slot].member_id:
            self.send_leave(self.clients[slot])
            self.restart(slot)

    @rule(slot=slots)
    def restart(self, slot: int) -> None:
        self.clients[slot] = ClassicClient(slot, STATIC.get(slot))


ClassicGroupMachine.TestCase.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestClassicGroup = pytest.mark.timeout(120)(ClassicGroupMachine.TestCase)
