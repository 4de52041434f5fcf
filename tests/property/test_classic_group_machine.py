"""Random requests, faults and time against one classic group, judged as in simulated runs."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from fencepost.coordinator.config import GroupCoordinatorConfig
from fencepost.simulation.judge.classic_rounds import ClassicRounds
from tests.property.judged import ClassicClient, ClassicRequests, slots

SLOTS = 5
OFFERS = (("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",))
STATIC = {3: "i3", 4: "i4"}
"""Slots with an instance id."""


class ClassicGroupMachine(ClassicRequests):
    """Members that offer several protocols, in a group that may be full."""

    judge_types = (ClassicRounds,)
    partitions = SLOTS

    def client_of(self, slot: int) -> ClassicClient:
        return ClassicClient(slot, STATIC.get(slot))

    @initialize(members=st.sampled_from([2, 3, 0, 4]), synced=st.booleans())
    def start(self, members: int, synced: bool) -> None:
        """Some have joined already, and got their assignments."""
        self.begin(GroupCoordinatorConfig(group_max_size=4))
        self.clients = [self.client_of(slot) for slot in range(SLOTS)]
        for slot in (*range(members), *range(members)):
            self.join(slot, OFFERS[1], 9)
        self.pass_time(9_000)
        for slot in range(members) if synced else ():
            self.sync(slot)

    @rule(slot=slots, offer=st.sampled_from(OFFERS), version=st.sampled_from([3, 8, 9, 9]))
    def join(self, slot: int, offer: tuple[str, ...], version: int) -> None:
        self.send_join(self.clients[slot], names=offer, version=version)

    @rule(slot=slots)
    def leave(self, slot: int) -> None:
        if self.clients[slot].member_id:
            self.send_leave(self.clients[slot])
            self.restart(slot)


ClassicGroupMachine.TestCase.settings = settings(
    max_examples=2 * settings().max_examples,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestClassicGroup = pytest.mark.timeout(120)(ClassicGroupMachine.TestCase)
