"""Retries wait: a member that is refused, or gets no answer, does not try again at once, again and again."""

from __future__ import annotations

from collections import defaultdict, deque
from functools import partial
from typing import Final

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.simulation.checkers.base import Checker
from fencepost.simulation.kernel.observers import StepEvent

_IN_A_ROW: Final = 6
_AT_LEAST_US: Final = 500_000
"""How long so many attempts take that fail: waits of 100 to 800 ms, spread by a fifth, come between them.

The first retry may go out at once, to another coordinator.
"""
_SEARCH: Final = "FindCoordinator"


class FailedAttempts:
    """One process: when its attempts of each kind failed, since one of them went well."""

    __slots__ = ("_failures",)

    def __init__(self) -> None:
        self._failures: defaultdict[str, deque[int]] = defaultdict(partial(deque, maxlen=_IN_A_ROW))

    def fails(self, kind: str, now_us: int) -> int | None:
        """An attempt failed. How many microseconds the last few took if that is too fast; else None."""
        times = self._failures[kind]
        times.append(now_us)
        took_us = now_us - times[0]
        return took_us if len(times) == _IN_A_ROW and took_us < _AT_LEAST_US else None

    def succeeds(self, kind: str) -> None:
        """One went well, so there is a coordinator, too."""
        for each in (kind, _SEARCH):
            if each in self._failures:
                self._failures[each].clear()


class Retries(Checker):
    """Checks all members of a world."""

    def __init__(self) -> None:
        self._attempts: defaultdict[str, FailedAttempts] = defaultdict(FailedAttempts)

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """A new process has failed at nothing."""
        if what in ("start", "crash"):
            self._attempts.pop(host, None)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """A heartbeat, or a request of a round, was answered, or failed."""
        code = getattr(response, "error_code", ErrorCode.NONE)
        self._ended(
            host, type(request).__name__, now_us, fails=isinstance(response, Exception) or code.retriable
        )

    def on_commit(
        self, host: str, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """A commit was answered, or failed."""
        fails = isinstance(response, Exception) or all(code.retriable for code in response.errors.values())
        self._ended(host, type(request).__name__, now_us, fails=fails)

    def on_member_search(self, host: str, now_us: int) -> None:
        """A search that finds a coordinator which answers is no failure, and is forgotten then."""
        self._ended(host, _SEARCH, now_us, fails=True)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Members do not tell of their questions for offsets; the coordinator has them."""
        if type(event) is OffsetFetchRequest and isinstance(outcome.reply, OffsetFetchResponse):
            name = self.world.hosts_by_member.get(event.member_id or "")
            if name is not None:
                fails = bool(outcome.reply.error_code)
                self._ended(name, type(event).__name__, now_us, fails=fails)

    def _ended(self, host: str, kind: str, now_us: int, *, fails: bool) -> None:
        attempts = self._attempts[host]
        if not fails:
            attempts.succeeds(kind)
        elif (took_us := attempts.fails(kind, now_us)) is not None:
            self.report(
                "retries-back-off",
                f"{host} has sent {_IN_A_ROW} {kind} in vain within {took_us // 1_000} ms",
            )
