"""The trace of a real run: heartbeats are seen where members are answered, all else as in simulation."""

from __future__ import annotations

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.simulation.trace.writer import TraceWriter


class RealTraceWriter(TraceWriter):
    """Writes what members and the coordinator's log tell."""

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """A heartbeat was answered."""
        if isinstance(request, ConsumerGroupHeartbeatRequest) and isinstance(
            response, ConsumerGroupHeartbeatResponse
        ):
            super()._heartbeat(request, Outcome(reply=response), now_us)

    def _heartbeat(self, event: ConsumerGroupHeartbeatRequest, outcome: Outcome, now_us: int) -> None:
        """The coordinator's side of a heartbeat: its row is written when the member hears of it."""
