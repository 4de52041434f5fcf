"""What a member's driver needs from the outside: a way to the coordinator, and a clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.outcome import Request, Response


class TransportError(Exception):
    """A request got no answer; it may or may not have been carried out."""


class Disconnected(TransportError):
    """The connection was lost, or could not be made, before the answer came."""


class RequestTimedOut(TransportError):
    """No answer came within the request's time."""


class Transport(Protocol):
    """The way from one member to its cluster. One transport serves one member."""

    def send(self, request: Request, timeout_ms: int) -> asyncio.Future[Response]:
        """Send a group request to the coordinator that `find_coordinator` found last.

        The future fails with TransportError. Requests on one connection are answered in order.
        """

    def find_coordinator(self, group_id: str) -> asyncio.Future[None]:
        """Look the group's coordinator up; later requests go there.

        The future fails with TransportError, or with ProtocolError if the cluster refuses.
        """

    def topic_names(self, topic_ids: Iterable[TopicId]) -> asyncio.Future[Mapping[TopicId, str]]:
        """Names of topics, from fresh metadata; ids that the cluster does not know are missing."""

    def log_offsets(
        self, partitions: Iterable[TopicPartition], *, earliest: bool
    ) -> asyncio.Future[Mapping[TopicPartition, int]]:
        """The first (earliest) or next (latest) offset of each partition's log."""

    def close(self) -> None:
        """Give the connections up; outstanding requests fail with Disconnected."""


class TimerHandle(Protocol):
    """A timer that can be taken back."""

    def cancel(self) -> None:
        """Do nothing if it has run already."""


class Clock(Protocol):
    """A host's clock: the running loop's in the real world; in a simulation hosts freeze and drift."""

    def now_ms(self) -> int:
        """Milliseconds since an arbitrary moment, never going back."""

    def call_at(self, when_ms: int, callback: Callable[..., Any], *args: Any) -> TimerHandle:
        """Run the callback at that time of this clock, not before."""
