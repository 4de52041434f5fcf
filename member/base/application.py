"""The state of a member's application: its polls, and its rebalance callbacks."""

from __future__ import annotations

from typing import Any

from fencepost.member.base.actions import CallbackKind
from fencepost.member.base.config import ConsumerConfig


class Polls:
    """The poll state of the application: in poll or not, with the timer that runs while it is not."""

    __slots__ = ("_config", "deadline_ms", "in_poll", "waits_for_next")

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self.in_poll = False
        self.deadline_ms: int | None = None
        """Time at which the application has been out of poll for too long; None in poll and before the first
        poll."""
        self.waits_for_next = False
        """A callback raised: its work is retried when the application polls again."""

    def begin(self) -> None:
        """Enter poll: the timer stops."""
        self.in_poll = True
        self.deadline_ms = None
        self.waits_for_next = False

    def end(self, now_ms: int) -> None:
        """Leave poll: the timer starts."""
        self.in_poll = False
        self.deadline_ms = now_ms + self._config.max_poll_interval_ms

    def expired(self, now_ms: int) -> bool:
        """Return true if the application has been out of poll for too long: then only a leave is sent."""
        return self.deadline_ms is not None and now_ms >= self.deadline_ms


class RebalanceCallbacks:
    """The callback that runs, and the one that gives everything up as soon as no other callback runs."""

    __slots__ = ("release", "running")

    def __init__(self) -> None:
        self.running: Any = None
        """The callback that runs, with its token and the protocol's own data."""
        self.release: CallbackKind | None = None
        """The callback with which everything owned has to be given up."""

    def ended(self, token: int) -> Any:
        """Return the callback that runs if it has this token, and forget it; otherwise None."""
        callback = self.running
        if callback is None or callback.token != token:
            return None
        self.running = None
        return callback

    def take_release(self) -> CallbackKind | None:
        """Return the callback that gives everything up, and forget it."""
        kind, self.release = self.release, None
        return kind
