"""Passes a member driver's notifications on to the observers of the world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost.coordinator.protocol.classic import JoinGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Request, Response

if TYPE_CHECKING:
    from fencepost.simulation.kafka.member import MemberHost
    from fencepost.simulation.kafka.world import KafkaWorld


class SimulatedMemberObserver:
    """One process's observer. It ignores notifications after the end of the process."""

    def __init__(self, world: KafkaWorld, host: MemberHost) -> None:
        self._host = host
        self._name = host.name
        self._generation = host.generation
        self._loop = world.loop
        hooks = world.hooks
        self._states = hooks["on_member_state"]
        self._requests = hooks["on_member_request"]
        self._responses = hooks["on_member_response"]
        self._callbacks = hooks["on_callback"]
        self._commits = hooks["on_commit"]

    def on_state(self, event: str, source: str, target: str) -> None:
        """Pass on a transition of the machine."""
        if self._generation == self._host.generation:
            for hook in self._states:
                hook(self._name, event, source, target, self._loop.now_us)

    def on_request(self, request: Request) -> None:
        """Pass on a request that was sent."""
        for hook in self._requests:
            hook(self._name, request, self._loop.now_us)

    def on_response(self, request: Request, response: Response | Exception) -> None:
        """Pass on the response to a request, or its failure. A classic member learns its id this way."""
        if (
            type(response) is JoinGroupResponse
            and response.member_id
            and response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED)
        ):
            self._host.known_as(response.member_id)
        for hook in self._responses:
            hook(self._name, request, response, self._loop.now_us)

    def on_callback(self, kind: str, phase: str, partitions: tuple[TopicPartition, ...]) -> None:
        """Pass on the begin or end of a rebalance callback."""
        if self._generation == self._host.generation:
            for hook in self._callbacks:
                hook(self._name, kind, phase, partitions, self._loop.now_us)

    def on_commit(self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception) -> None:
        """Pass on the response to a commit, or its failure."""
        if self._generation == self._host.generation:
            for hook in self._commits:
                hook(self._name, request, response, self._loop.now_us)
