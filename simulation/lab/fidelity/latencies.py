"""How long heartbeats take, in any world: what the simulator's latency model is fitted to."""

from __future__ import annotations

from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.simulation.kernel.observers import Observer


class Latencies(Observer):
    """Takes down round trips of heartbeats, in microseconds, from the request to its answer.

    `steady` are those that the coordinator answered from memory, `written` those that made it write: its
    answer to a join, or one with another epoch than the request had, waits until its log is replicated.
    """

    def __init__(self) -> None:
        self.steady: list[int] = []
        self.written: list[int] = []
        self._sent: dict[str, tuple[ConsumerGroupHeartbeatRequest, int]] = {}

    def on_member_request(self, host: str, request: Request, now_us: int) -> None:
        """A member has one heartbeat under way at a time."""
        if type(request) is ConsumerGroupHeartbeatRequest:
            self._sent[host] = (request, now_us)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Take the round trip down, unless the answer was an error or none."""
        asked, sent_us = self._sent.pop(host, (None, 0))
        if asked is None or type(response) is not ConsumerGroupHeartbeatResponse:
            return
        if response.error_code is not ErrorCode.NONE:
            return
        if asked.member_epoch != response.member_epoch:
            self.written.append(now_us - sent_us)
        elif asked.topic_partitions is None:
            self.steady.append(now_us - sent_us)
