"""The end of a membership: the work that `unsubscribe` and `close` began, and the leave in flight.

The leave is outside of the state machine, which has left already. It is sent once, and its response does not
matter. Only if it may not have arrived it is sent again, for a bounded time. A member that joins again stops
that: a late leave would remove it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commit
from fencepost.member.base.config import ConsumerConfig

R = TypeVar("R")
A = TypeVar("A")
S = TypeVar("S", bound=enum.StrEnum)
E = TypeVar("E", bound=enum.StrEnum)

_ENDS: Final = (
    ("UNSUBSCRIBED", "CLOSE", "PREPARE_LEAVING"),
    ("FENCED", "UNSUBSCRIBE", "UNSUBSCRIBED"),
    ("FENCED", "CLOSE", "UNSUBSCRIBED"),
    ("PREPARE_LEAVING", "RELEASED", "UNSUBSCRIBED"),
    ("PREPARE_LEAVING", "FENCED", "UNSUBSCRIBED"),
    ("PREPARE_LEAVING", "FATAL_ERROR", "FATAL"),
)
_ENDS_OF_ACTIVE: Final = (
    ("FENCED", "FENCED"),
    ("FATAL_ERROR", "FATAL"),
    ("UNSUBSCRIBE", "PREPARE_LEAVING"),
    ("CLOSE", "PREPARE_LEAVING"),
)


def ends(states: type[S], events: type[E], active: Iterable[S]) -> Iterator[tuple[S, E, S]]:
    """Yield the arrows by which a membership ends in every protocol, for its states and events.

    `active` are the states of a member that is in the group and intends to stay.
    """
    for event, target in _ENDS_OF_ACTIVE:
        yield from ((state, events[event], states[target]) for state in active)
    for source, event, target in _ENDS:
        yield states[source], events[event], states[target]


class CloseOption(enum.Enum):
    """The options of `close` (KIP-1092)."""

    DEFAULT = "default"
    """A dynamic member leaves; a static one keeps its place until its session ends."""
    LEAVE_GROUP = "leave group"
    """Leave for good, static members too."""
    REMAIN_IN_GROUP = "remain in group"
    """Send nothing (a static member: that it comes back); the coordinator keeps the place until the session
    ends."""


class Closing:
    """An `unsubscribe` or `close` that is under way, until the application is notified that it is over."""

    __slots__ = ("_config", "closed", "commit", "deadline_ms", "option", "wanted")

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self.closed = False
        self.wanted = False
        """True if the application waits for the end of a leave."""
        self.option = CloseOption.DEFAULT
        self.deadline_ms: int | None = None
        """The end of the time for closing."""
        self.commit: Commit | None = None
        """The commit that the leave waits for."""

    def begin(self, option: CloseOption, deadline_ms: int) -> None:
        """Close within this time: the member never comes back."""
        self.closed = True
        self.option = option
        self.deadline_ms = deadline_ms

    def limit_ms(self, now_ms: int) -> int:
        """Return the end of the time for a leave that begins now."""
        limit = now_ms + self._config.request_timeout_ms
        return limit if self.deadline_ms is None else min(limit, self.deadline_ms)

    def commit_limit_ms(self, now_ms: int) -> int:
        """Return the end of the time for the commit, which leaves half of it to callbacks and the leave."""
        return now_ms + (self.limit_ms(now_ms) - now_ms) // 2


class Leave(Generic[R, A]):
    """The leave that has not been sent or answered yet, if there is one.

    `send` makes the action that sends a request under a token.
    """

    __slots__ = ("_backoff", "_send", "_tokens", "deadline_ms", "in_flight", "pending", "retry_at_ms")

    def __init__(self, backoff: Backoff, tokens: Iterator[int], send: Callable[[int, R], A]) -> None:
        self._backoff = backoff
        self._tokens = tokens
        self._send = send
        self.pending: R | None = None
        """The request of the leave; None if there is nothing (more) to do."""
        self.in_flight: int | None = None
        self.retry_at_ms = 0
        self.deadline_ms = 0

    def begin(self, request: R, now_ms: int, deadline_ms: int) -> None:
        """Send this as soon as the coordinator is known; give up at the deadline."""
        self.pending = request
        self._backoff.reset()
        self.in_flight = None
        self.retry_at_ms = now_ms
        self.deadline_ms = deadline_ms

    def cancel(self) -> None:
        """Forget it: the coordinator responded, whatever it said, or the leave is not wanted any more."""
        self.pending = None
        self.in_flight = None

    def request(self, now_ms: int) -> A | None:
        """Return the leave, if it has to be sent now."""
        if self.pending is None or self.in_flight is not None or now_ms < self.retry_at_ms:
            return None
        self.in_flight = next(self._tokens)
        return self._send(self.in_flight, self.pending)

    def failed(self, token: int, now_ms: int) -> bool:
        """Send the leave again after the back-off, since it may not have arrived. Return true if this was the
        leave."""
        if token != self.in_flight:
            return False
        self.in_flight = None
        self.retry_at_ms = now_ms + self._backoff.next_ms()
        return True

    def retry_ms(self) -> int | None:
        """Return the time at which to send it (again)."""
        return None if self.pending is None or self.in_flight is not None else self.retry_at_ms

    def expires_ms(self) -> int | None:
        """Return the time at which to give up."""
        return None if self.pending is None else self.deadline_ms
