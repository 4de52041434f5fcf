"""The outside world of a member's driver: a way to the coordinator, and a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from fencepost.coordinator.protocol.ids import TopicId, TopicPartition
from fencepost.coordinator.protocol.outcome import Request, Response

T_co = TypeVar("T_co", covariant=True)


class TransportError(Exception):
    """A request got no response; it may or may not have been carried out."""


class Disconnected(TransportError):
    """The connection was lost, or could not be made, before the response came."""


class RequestTimedOut(TransportError):
    """No response came within the request's time."""


class Reply(Protocol[T_co]):
    """A response to a request, now or later: the methods of an asyncio.Future that are used, which is one."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Call back with this reply once it is there, on the running event loop and not at once."""

    def cancelled(self) -> bool:
        """Return true if it was given up."""

    def exception(self) -> BaseException | None:
        """Return the exception if the request failed; raise asyncio.CancelledError if it was given up."""

    def result(self) -> T_co:
        """Return the response; raise the exception if there is one."""


class Transport(Protocol):
    """The way from one member to its cluster. One transport serves one member."""

    def send(self, request: Request, timeout_ms: int) -> Reply[Response]:
        """Send a group request to the coordinator that `find_coordinator` found last.

        The reply fails with TransportError. Requests on one connection are answered in order.
        """

    def find_coordinator(self, group_id: str) -> Reply[None]:
        """Look the group's coordinator up; later requests go there.

        The reply fails with TransportError, or with ProtocolError if the cluster refuses.
        """

    def topic_names(self, topic_ids: Iterable[TopicId]) -> Reply[Mapping[TopicId, str]]:
        """Look up names of topics in fresh metadata; ids that the cluster does not know are missing."""

    def log_offsets(
        self, partitions: Iterable[TopicPartition], *, earliest: bool
    ) -> Reply[Mapping[TopicPartition, int]]:
        """Look up the first (earliest) or next (latest) offset of each partition's log."""

    def offsets_by_duration(
        self, partitions: Iterable[TopicPartition], duration_ms: int
    ) -> Reply[Mapping[TopicPartition, int]]:
        """Find the first record of each log that is not older, by the wall clock, or the end of the log."""

    def close(self) -> None:
        """Give the connections up; outstanding requests fail with Disconnected."""


class TimerHandle(Protocol):
    """A timer that can be cancelled."""

    def cancel(self) -> None:
        """Do nothing if it has run already."""


class Clock(Protocol):
    """A host's clock: the running loop's in the real world; in a simulation, hosts freeze and their clocks
    drift."""

    def now_ms(self) -> int:
        """Return milliseconds since an arbitrary moment, never going back."""

    def call_at(self, when_ms: int, callback: Callable[..., Any], *args: Any) -> TimerHandle:
        """Run the callback at that time of this clock, not before."""
