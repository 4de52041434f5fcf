"""The trace of a run on real brokers."""

from __future__ import annotations

from typing import Final

from fencepost.coordinator.classic.states import ClassicGroupState
from fencepost.coordinator.protocol.classic import HeartbeatResponse, JoinGroupRequest
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    LeaveGroupRequest,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.coordinator.protocol.records import GroupMetadataKey
from fencepost.simulation.kernel.observers import StepEvent
from fencepost.simulation.lab.chaos.classic_messages import CLASSIC_REQUESTS, CLASSIC_RESPONSES
from fencepost.simulation.trace.groups import GroupTraceWriter
from fencepost.simulation.trace.schema import RowKind

_PREPARING: Final = str(ClassicGroupState.PREPARING_REBALANCE)
_UNDER_WAY: Final = ErrorCode.REBALANCE_IN_PROGRESS


class RealTraceWriter(GroupTraceWriter):
    """The trace of a real run: heartbeats are written when members get responses, all else as in simulation.

    The log of a classic group shows only the end of a round. A round begins when a member sends what begins
    one. It also begins when a member learns of a round that no process has caused: a session has ended.
    """

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Write an outcome of the log. Between a round's beginning and its record, a classic group only
        commits."""
        active = self.world.active
        is_classic = active is not None and self.world.group_id in active.classic.groups
        if not is_classic or any(isinstance(each.key, GroupMetadataKey) for each in outcome.records):
            super().on_coordinator_step(host, event, outcome, now_us)

    def on_member_request(self, host: str, request: Request, now_us: int) -> None:
        """Begin a round if the member joins or leaves."""
        if isinstance(request, LeaveGroupRequest):
            self._round(host, "leave", now_us)
        elif isinstance(request, JoinGroupRequest) and request.member_id and request.instance_id is None:
            self._round(host, "join", now_us)

    def _round(self, host: str, cause: str, now_us: int) -> None:
        active = self.world.active
        found = None if active is None else active.kinds.find(self.world.group_id)
        if active is None or (found is not None and found[0] is not active.classic):
            return
        generation = 0 if found is None else found[1].generation
        if generation < self._group_epoch or (found is None and cause == "leave"):
            return  # it has begun already
        self._group_epoch = generation + 1
        before, self._group_state = self._group_state, _PREPARING
        self._add(now_us, host, RowKind.GROUP_EPOCH, state_to=_PREPARING, detail=cause)
        self._add(now_us, host, RowKind.GROUP_STATE, state_from=before, state_to=_PREPARING)
        self._raise(_PREPARING)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Write the response to a heartbeat."""
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            super()._heartbeat(request, Outcome(reply=response), now_us)
        elif isinstance(request, CLASSIC_REQUESTS) and isinstance(response, CLASSIC_RESPONSES):
            if isinstance(response, HeartbeatResponse) and response.error_code is _UNDER_WAY:
                self._round(host, "timeout", now_us)
            self._answered(request, response, now_us)

    def _heartbeat(self, event: ConsumerGroupHeartbeatRequest, outcome: Outcome, now_us: int) -> None:
        """Do nothing on the coordinator's side: the row of a heartbeat is written when the member gets the
        response."""
