"""The heartbeat that a member sends again and again, read once, and its answer, packed once.

In steady state each heartbeat of a connection is, but for its number, the one before.
"""

from __future__ import annotations

from typing import Any

from fencepost.coordinator.codec.consumer import pack_heartbeat
from fencepost.coordinator.codec.framing import response_header
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse

_REMEMBERED_BYTES = 1024
"""Heartbeats above this size are full requests; they are not worth remembering."""


class SteadyHeartbeat:
    """The last heartbeat of a connection."""

    __slots__ = ("_body", "_head", "_reply", "_tail", "request")

    def __init__(self) -> None:
        self._head = self._tail = self._body = b""
        self._reply: ConsumerGroupHeartbeatResponse | None = None
        self.request: Any = None

    def is_again(self, frame: bytes) -> bool:
        """Whether this is the same request."""
        return len(frame) <= _REMEMBERED_BYTES and frame[:4] == self._head and frame[8:] == self._tail

    def remember(self, frame: bytes, request: Any) -> None:
        """Keep a request and what it was read as."""
        if len(frame) <= _REMEMBERED_BYTES:
            self._head, self._tail, self.request = frame[:4], frame[8:], request

    def answer(self, frame: bytes, reply: ConsumerGroupHeartbeatResponse) -> bytes:
        """The coordinator gives the same object while nothing changes: its bytes are kept."""
        if reply is not self._reply:
            self._reply, self._body = reply, pack_heartbeat(reply)
        number = int.from_bytes(frame[4:8], "big", signed=True)
        return response_header(number, len(self._body), flexible=True) + self._body
