"""Times of members' requests, by what the coordinator had to do before it responded."""

from __future__ import annotations

from typing import Final

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.classic import (
    HeartbeatRequest,
    HeartbeatResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.coordinator.protocol.streams import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)


class RoundTrips:
    """The requests under way, of several members."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, type], tuple[Request, int]] = {}

    def sent(self, host: str, request: Request, now_us: int) -> None:
        """Note that a request goes out. A member has one request of a kind under way at a time."""
        if type(request) in _KINDS:
            self._sent[host, type(request)] = request, now_us

    def answered(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> tuple[int, bool] | None:
        """Return its duration, and whether the log was waited for; None if that is unknown."""
        asked, sent_us = self._sent.pop((host, type(request)), (None, 0))
        written = None if asked is None else is_written(asked, response)
        return None if written is None else (now_us - sent_us, written)


_KINDS: Final = frozenset(
    {consumer.ConsumerGroupHeartbeatRequest, StreamsGroupHeartbeatRequest, HeartbeatRequest, SyncGroupRequest}
)


def is_written(request: Request, response: Response | Exception) -> bool | None:
    """Return true if the coordinator wrote before it responded; None if that is unknown, or it refused."""
    if isinstance(response, Exception) or getattr(response, "error_code", None) is not ErrorCode.NONE:
        return None
    match request, response:
        case (consumer.ConsumerGroupHeartbeatRequest(), consumer.ConsumerGroupHeartbeatResponse()):
            moved, says_nothing = (
                request.member_epoch != response.member_epoch,
                request.topic_partitions is None,
            )
        case (StreamsGroupHeartbeatRequest(), StreamsGroupHeartbeatResponse()):
            moved, says_nothing = request.member_epoch != response.member_epoch, request.active_tasks is None
        case (HeartbeatRequest(), HeartbeatResponse()):
            return False
        case (SyncGroupRequest(assignments=given), SyncGroupResponse()):
            return True if given else None
        case _:
            return None
    return True if moved else False if says_nothing else None
