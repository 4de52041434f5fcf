"""Commits that failed: they are made again as long as that may help, and no longer.

Before partitions are released, their commit is answered, and made again while it fails for a while, through
stale epochs too (`commit-before-release`). An application that waits for a commit sees no error that a retry
mends. It sees at once any other error, and the success (`commits-end`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.simulation.judge.base import Finding, OfProcesses, of_process, shown_names
from fencepost.simulation.kernel.observers import MembersWorldView

_OF_TOPIC: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
"""Retriable by name, but no commit waits for a topic (KAFKA-18217)."""


_ACCEPTED: Final = frozenset({ErrorCode.NONE})
_NO_RESPONSE: Final = frozenset({ErrorCode.REQUEST_TIMED_OUT})
_STALE: Final = ErrorCode.STALE_MEMBER_EPOCH
_RECONCILES: Final = "RECONCILING"
_REBALANCING: Final = (_RECONCILES, "UNJOINED", "STABLE")
"""The states in which a member of either protocol releases partitions and stays in its group."""
_LIMIT_US: Final = 60_000_000
"""The time that an application waits for its commit at most: default.api.timeout.ms."""
_CLOCK_US: Final = 10_000
"""Members read a clock of milliseconds, and may have read it before they moved."""


def _mends(code: ErrorCode) -> bool:
    """Return true if the same commit may be successful a little later."""
    return (code.retriable and code not in _OF_TOPIC) or code is ErrorCode.REBALANCE_IN_PROGRESS


class CommitAttempts:
    """One process, and its last commit."""

    def __init__(self, host: str, world: MembersWorldView) -> None:
        self._host = host
        self._commit = world.scenario.application.commit
        release_us = world.scenario.group.rebalance_timeout.us - _CLOCK_US
        self._limit_us = _LIMIT_US if self._commit == "sync" else release_us
        self._last: OffsetCommitRequest | None = None
        self._first_us = 0
        """Time at which the offsets of the last commit were first sent."""
        self._ended_us = -1
        """Time of the response to it; -1 while it is in flight."""
        self._calls_back = False
        self.has_released = False
        """True if a callback ran since the application's last commit ended."""
        self.codes: frozenset[ErrorCode] = frozenset()
        """The errors in that response; one that stands for none if there was no response."""
        self._open: frozenset[TopicPartition] = frozenset()
        """Partitions of the last commit whose offsets may still be committed: no response yet, or one that a
        retry mends."""
        self.state = self._sent_in = ""
        self._since_us = 0

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> None:
        """Note the state: only a member that stays in its group has time."""
        if target != self.state:
            self.state, self._since_us = str(target), now_us

    def takes_request(self, request: object, now_us: int) -> Iterator[Finding]:
        """Check a commit. An application that waits for it makes no other."""
        if not isinstance(request, OffsetCommitRequest) or request.producer_id >= 0:
            return
        last, sent_in, self._sent_in = self._last, self._sent_in, self.state
        again = last is not None and request.offsets.items() <= last.offsets.items()
        failed = self._ended_us >= 0 and bool(self.codes) and not any(map(_mends, self.codes))
        if self._commit != "sync":  # before a release, it waits for the newest epoch, too
            failed = failed and sent_in == self.state == _RECONCILES and _STALE not in self.codes
        if again and failed and not self._calls_back:
            yield "commits-end", f"{self._host} commits again after {self._names}, which nothing mends"
        if not again:
            self._first_us = now_us
        self._last, self._ended_us, self._open = request, -1, frozenset(request.offsets)

    def on_commit(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """Note the response to the last commit."""
        if request is self._last:
            codes = _NO_RESPONSE
            if isinstance(response, OffsetCommitResponse):
                codes = frozenset(response.errors.values())
                failed = response.errors.items() if codes != _ACCEPTED else ()
                self._open &= {each for each, code in failed if _mends(code) or code is _STALE}
            self._ended_us, self.codes = now_us, codes - {ErrorCode.NONE}

    def _gives_up(self, now_us: int) -> bool:
        """Return true if it goes on now because the last commit failed, although there is time."""
        return now_us == self._ended_us and now_us - self._first_us < self._limit_us

    @property
    def _names(self) -> str:
        return ", ".join(sorted(code.name for code in self.codes))

    def on_callback(
        self, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> Iterator[Finding]:
        """Check that each released partition's commit has ended, as far as there is time: accepted, or for
        good. The callback may commit, too, and its partitions leave all commits."""
        if (kind, phase, self._commit) == ("revoked", "begin", "auto"):
            yield from self._releases(partitions, now_us)
        self._calls_back = phase == "begin"
        self.has_released = True
        self._last, self._ended_us, self._open = None, -1, frozenset()

    def _releases(self, partitions: Iterable[TopicPartition], now_us: int) -> Iterator[Finding]:
        early = self._open.intersection(partitions)
        if early and self.state in _REBALANCING and now_us - self._since_us < self._limit_us:
            why = f"after {self._names}" if self._ended_us >= 0 else "before the response to its commit"
            yield (
                "commit-before-release",
                f"{self._host} releases {shown_names(early)} {why}, and commits no more",
            )

    def on_poll(self, phase: str, now_us: int) -> Iterator[Finding]:
        """Check an application that waited for a commit, and polls again: no retry would have helped."""
        if phase != "begin" or self._commit != "sync":
            return
        self._last = None
        if any(map(_mends, self.codes)) and self._gives_up(now_us) and not self._calls_back:
            yield "commits-end", f"{self._host} gives a commit up after {self._names}, which a retry mends"

    def on_commit_told(self, code: ErrorCode, now_us: int) -> Iterator[Finding]:
        """Check the result of the application's commit: it is that of the last request."""
        ended = self._last is not None and self._ended_us >= 0 and not self._calls_back
        is_late = self.has_released and code is _STALE  # a part of it was not committed in time
        if ended and bool(code) != bool(self.codes) and not is_late:
            yield (
                "commits-end",
                f"{self._host} reports {code.name} for a commit to its application, the response was"
                f" {self._names or 'that it is committed'}",
            )
        self._last, self.has_released = None, False


class CommitRetries(OfProcesses[CommitAttempts]):
    """Checks the commits of all members of a world, except those of producers."""

    world: MembersWorldView
    on_callback = of_process(CommitAttempts.on_callback)
    on_commit = of_process(CommitAttempts.on_commit)
    on_commit_told = of_process(CommitAttempts.on_commit_told)
    on_member_state = of_process(CommitAttempts.on_member_state)
    on_poll = of_process(CommitAttempts.on_poll)
    takes_request = of_process(CommitAttempts.takes_request)

    def new(self, host: str) -> CommitAttempts:
        """Return a process that has committed nothing."""
        return CommitAttempts(host, self.world)

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Start afresh with a new process, and after it stood still: only a release before counts then."""
        before = self.processes.pop(host, None)
        if before is not None and what in ("freeze", "thaw"):
            self.processes[host].has_released = before.has_released
