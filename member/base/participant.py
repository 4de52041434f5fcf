"""What a member does whatever its group's protocol is.

That is polls, callbacks, positions, commits, finding the coordinator, and the end of a leave.
"""

from __future__ import annotations

import abc
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from fencepost.member.base.actions import (
    CallbackKind,
    CommitFinished,
    LeaveFinished,
    RaiseToApplication,
)
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commit, CommitKind, Commits
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import MemberError, NoOffsetForPartition, PositionOutOfRange
from fencepost.member.base.leave import CloseOption, Leave
from fencepost.member.base.lookups import CoordinatorLookup
from fencepost.member.base.positions import Positions

Actions: TypeAlias = tuple[Any, ...]
"""What the shell has to carry out, in order: actions of `actions.py`, and those of the protocol."""

REDISCOVER = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Errors after which the coordinator is looked up again."""


class Participant(abc.ABC):
    """The part of a member's machine that knows nothing of joining. A protocol's own part comes on top."""

    __slots__ = (
        "_callback",
        "_close_commit",
        "_close_deadline_ms",
        "_close_option",
        "_commits",
        "_coordinator",
        "_leave",
        "_leave_wanted",
        "_next_auto_commit_ms",
        "_out",
        "_poll_deadline_ms",
        "_release",
        "_tokens",
        "_wake",
        "closed",
        "config",
        "deadline_ms",
        "group_id",
        "in_poll",
        "member_epoch",
        "member_id",
        "positions",
    )

    def __init__(
        self, group_id: str, member_id: MemberId, config: ConsumerConfig, rng: random.Random
    ) -> None:
        tokens = itertools.count(1)
        self.group_id = group_id
        self.member_id = member_id
        self.config = config
        self.member_epoch = 0
        """The newest epoch or generation received; 0 while joining and out of the group."""
        self.closed = False
        self.in_poll = False
        self.positions = Positions(group_id, member_id or None, config, Backoff.of(config, rng), tokens)
        self._tokens = tokens
        self._poll_deadline_ms: int | None = None
        self._out: list[Any] = []
        self._wake = False
        self._coordinator = CoordinatorLookup(Backoff.of(config, rng), tokens)
        self._commits = Commits(group_id, member_id, config, Backoff.of(config, rng), tokens)
        self._leave: Leave[Any, Any]
        """The leave on its way, in the protocol's own requests."""
        self._leave_wanted = False
        self._callback: Any = None
        """The application's callback that runs, with its token and what the protocol knows of it."""
        self._release: CallbackKind | None = None
        """Everything owned is to be given up with this callback, once no other one runs."""
        self._close_commit: Commit | None = None
        self._close_option = CloseOption.DEFAULT
        self._close_deadline_ms: int | None = None
        self._next_auto_commit_ms = 0
        self.deadline_ms: int | None = None
        """When `deadline_reached` is due; None: not before another input."""

    # -- what each protocol has of its own ---------------------------------------------------------------

    @abc.abstractmethod
    def _step(self, now_ms: int) -> Actions:
        """Let everything follow from what just happened, and hand out the actions."""

    @abc.abstractmethod
    def _add_commit(
        self, kind: CommitKind, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline_ms: int
    ) -> Commit:
        """Queue a commit."""

    @abc.abstractmethod
    def _release_committed(self) -> None:
        """What was processed of partitions that are to be given up is committed, or could not be."""

    @abc.abstractmethod
    def _callback_ended(self, callback: Any, error: BaseException | None, now_ms: int) -> None:
        """Keep what the callback did to the owned set, and go on."""

    @abc.abstractmethod
    def _released(self) -> None:
        """Nothing is owned any more."""

    @abc.abstractmethod
    def _left(self, now_ms: int) -> None:
        """Everything is given up: send the leave, if there is anyone to tell."""

    @property
    @abc.abstractmethod
    def _gives_up(self) -> bool:
        """Whether the member gives everything up before it leaves."""

    @property
    def _has_told(self) -> bool:
        """Whether the group was told of the leave, or is not to be."""
        return self._leave.pending is None

    @property
    @abc.abstractmethod
    def _has_failed(self) -> bool:
        """Whether the member has stopped for good."""

    def _forget_commits(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """Commits of partitions that are gone have nothing more to wait for."""
        for commit in self._commits.forget(partitions):
            self._commit_ended(commit, commit.lateness, now_ms)

    # -- what the application does -----------------------------------------------------------------------

    def poll_failed(self, now_ms: int) -> Actions:
        """The application's poll ended with an exception: it is out of poll, and the poll timer starts."""
        self.in_poll = False
        self._poll_deadline_ms = now_ms + self.config.max_poll_interval_ms
        return self._step(now_ms)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, now_ms: int
    ) -> tuple[int, Actions]:
        """Commit these offsets, or everything that was handed over. `CommitFinished` with this id follows."""
        chosen = self.positions.uncommitted(delivered=True) if offsets is None else offsets
        deadline_ms = now_ms + self.config.default_api_timeout_ms
        commit = self._add_commit(CommitKind.MANUAL, chosen, deadline_ms)
        if not chosen or self._has_failed:
            self._commits.drop(commit)
            error = ErrorCode.UNKNOWN_MEMBER_ID if self._has_failed else ErrorCode.NONE
            self._commit_ended(commit, error, now_ms)
        return commit.commit_id, self._step(now_ms)

    def seek(self, partition: TopicPartition, offset: int, now_ms: int) -> Actions:
        """Go on reading from this offset.

        :raises ValueError: if the partition is not owned, or is about to be given up.
        """
        if not self.positions.seek(partition, offset):
            raise ValueError(f"{partition.topic}-{partition.partition} is not assigned")
        self._wake = True
        return self._step(now_ms)

    def offset_out_of_range(self, partition: TopicPartition, now_ms: int) -> Actions:
        """The log does not have the position (any more): start again by `auto_offset_reset`."""
        if not self.positions.reset(partition):
            self._raise(PositionOutOfRange.of(partition))
        return self._step(now_ms)

    def callback_finished(self, token: int, error: BaseException | None, now_ms: int) -> Actions:
        """The application's callback ended, with this exception if it raised."""
        callback = self._callback
        if callback is None or callback.token != token:
            return ()
        self._callback = None
        self._callback_ended(callback, error, now_ms)
        return self._step(now_ms)

    # -- what comes back from the cluster ----------------------------------------------------------------

    def coordinator_found(self, token: int, now_ms: int) -> Actions:
        """The group's coordinator is known."""
        self._coordinator.found(token)
        return self._step(now_ms)

    def commit_answered(self, token: int, response: OffsetCommitResponse, now_ms: int) -> Actions:
        """The coordinator answered an OffsetCommit. A stale epoch leaves the member's own alone (KIP-848)."""
        answer = self._commits.answered(token, response, now_ms)
        if answer is not None:
            commit, accepted, error, ended = answer
            self.positions.committed(accepted)
            self._note_coordinator(error, now_ms)
            if ended:
                self._commit_ended(commit, error, now_ms)
        return self._step(now_ms)

    def offsets_fetched(self, token: int, response: OffsetFetchResponse, now_ms: int) -> Actions:
        """The coordinator answered an OffsetFetch."""
        undecided = self.positions.fetched(token, response, now_ms)
        if undecided is not None:
            self._note_coordinator(response.error_code, now_ms)
            self._wake = True
            self._fetch_ended(response.error_code, undecided)
        return self._step(now_ms)

    def log_offsets_found(self, token: int, offsets: Mapping[TopicPartition, int], now_ms: int) -> Actions:
        """The logs answered where to start."""
        if self.positions.log_offsets_found(token, offsets, now_ms):
            self._wake = True
        return self._step(now_ms)

    def _work_failed(self, token: int, now_ms: int) -> bool:
        """A commit or a question about positions got no answer. Whether it was one."""
        if token == self.positions.fetch_in_flight:
            self._coordinator.lost(now_ms)
            self.positions.failed(token, now_ms)
        elif self.positions.failed(token, now_ms):
            pass
        elif (ended := self._commits.failed(token, now_ms)) is not None:
            self._coordinator.lost(now_ms)
            if ended[1]:
                self._commit_ended(ended[0], ErrorCode.REQUEST_TIMED_OUT, now_ms)
        else:
            return False
        return True

    def _note_coordinator(self, code: ErrorCode, now_ms: int) -> None:
        """The answer to a commit, a fetch or a leave says something about the coordinator, too."""
        if code in REDISCOVER:
            self._coordinator.lost(now_ms)
        elif not code:
            self._coordinator.answered()

    def _fetch_ended(self, code: ErrorCode, undecided: list[TopicPartition]) -> None:
        """Raise what only the application can decide about committed offsets."""
        if (
            code
            and not code.retriable
            and code not in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
        ):
            self._raise(MemberError(code, "committed offsets cannot be fetched"))
        for partition in undecided:
            self._raise(NoOffsetForPartition.of(partition))

    # -- for the protocol's part -------------------------------------------------------------------------

    def _raise(self, error: Exception, *, fatal: bool = False) -> None:
        self._out.append(RaiseToApplication(error, fatal))
        self._wake = True

    def _raise_undecided(self) -> None:
        """Raise again, with each poll, what the application has not decided: else nobody reads there."""
        for partition, kind in self.positions.undecided.items():
            self._raise(kind.of(partition))

    def _put(self, action: object | None) -> None:
        if action is not None:
            self._out.append(action)

    def _poll_expired(self, now_ms: int) -> bool:
        """Whether the application has been out of poll for too long: then nothing but a leave goes out."""
        return self._poll_deadline_ms is not None and now_ms >= self._poll_deadline_ms

    def _auto_commit(self, now_ms: int) -> None:
        """Commit what is processed, unless a commit of the member's own is under way."""
        if self._commits.has_own:
            return
        offsets = self.positions.uncommitted(delivered=False)
        if offsets:
            self._add_commit(CommitKind.AUTO, offsets, now_ms + self.config.request_timeout_ms)
        self._next_auto_commit_ms = now_ms + self.config.auto_commit_interval_ms

    def _commit_ended(self, commit: Commit, error: ErrorCode, now_ms: int) -> None:
        """Go on with whoever waited for it. A failed commit stops neither a rebalance nor a close."""
        if commit.kind is CommitKind.MANUAL:
            self._out.append(CommitFinished(commit.commit_id, error))
        elif commit.kind is CommitKind.AUTO:
            wait_ms = self.config.auto_commit_interval_ms if not error else self.config.retry_backoff_ms
            self._next_auto_commit_ms = now_ms + wait_ms
        elif commit is self._close_commit:
            self._close_commit = None
            self._release_for_leaving()
        else:
            self._release_committed()

    def _release_for_leaving(self) -> None:
        self._release = CallbackKind.REVOKED if self.member_epoch > 0 else CallbackKind.LOST

    def _finish_leaving(self) -> None:
        """Tell the one who waits, once callbacks, commits and the leave are over."""
        if not self._leave_wanted or self._gives_up:
            return
        if self._callback is None and self._release is None and self._has_told:
            if self.closed and self._commits.queue:
                return
            self._leave_wanted = False
            self._out.append(LeaveFinished())

    def _give_up_closing(self, now_ms: int) -> None:
        """The time for closing is over: the leave goes out once, and nobody waits for anything."""
        self._close_deadline_ms = None
        self._release = self._close_commit = self._callback = None
        self._released()
        for commit in self._commits.take_all():
            if commit.kind is CommitKind.MANUAL:
                self._out.append(CommitFinished(commit.commit_id, ErrorCode.REQUEST_TIMED_OUT))
        if self._gives_up:
            self._left(now_ms)
        if self._coordinator.known:
            self._put(self._leave.request(now_ms))
        self._leave.cancel()
        self._finish_leaving()

    def _close_limit(self, now_ms: int) -> int:
        limit = now_ms + self.config.request_timeout_ms
        return limit if self._close_deadline_ms is None else min(limit, self._close_deadline_ms)

    def _close_commit_limit(self, now_ms: int) -> int:
        """A commit that nobody answers leaves half of the time to the callbacks and the leave."""
        return now_ms + (self._close_limit(now_ms) - now_ms) // 2

    # -- time --------------------------------------------------------------------------------------------

    def _meet_deadlines(self, now_ms: int) -> None:
        if self._commits.queue:
            for commit in self._commits.expired(now_ms):
                self._commit_ended(commit, ErrorCode.REQUEST_TIMED_OUT, now_ms)
        if self._leave.pending is not None and now_ms >= self._leave.deadline_ms:
            self._leave.cancel()
        if self._close_deadline_ms is not None and now_ms >= self._close_deadline_ms:
            self._give_up_closing(now_ms)
