"""The base of the machines of all members: their shared parts, and how these work together.

Inputs are method calls with the time; each returns the actions that the shell has to carry out, in order.
Nothing here waits: the outcome of an action is fed back as another input, with the action's token.
`deadline_ms` is the time at which `deadline_reached` is due.
"""

from __future__ import annotations

import abc
import enum
import itertools
import random
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicId, TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from fencepost.member.base import errors
from fencepost.member.base.actions import LOST, REVOKED, Actions, CommitFinished, LeaveFinished, Outbox
from fencepost.member.base.application import Polls, RebalanceCallbacks
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commit, CommitKind, Commits
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.leave import CloseOption, Closing, Leave
from fencepost.member.base.lookups import CoordinatorLookup
from fencepost.member.base.positions import Positions


class MemberMachine(abc.ABC):
    """The parts that every member has, and their wiring. A protocol's machine adds its own parts."""

    __slots__ = (
        "callbacks",
        "closing",
        "commits",
        "config",
        "coordinator",
        "deadline_ms",
        "group_id",
        "leave",
        "member_epoch",
        "member_id",
        "out",
        "polls",
        "positions",
        "tokens",
    )

    _ACTIVE: ClassVar[tuple[enum.StrEnum, ...]]
    """States of a member that is in the group and intends to stay."""

    state: enum.StrEnum

    def __init__(
        self, group_id: str, member_id: MemberId, config: ConsumerConfig, rng: random.Random
    ) -> None:
        tokens = self.tokens = itertools.count(1)
        self.group_id = group_id
        self.member_id = member_id
        self.config = config
        self.member_epoch = 0
        """The newest epoch or generation received; 0 while joining and out of the group."""
        self.deadline_ms: int | None = None
        """Time at which `deadline_reached` is due; None: not before another input."""
        self.out = Outbox()
        self.polls = Polls(config)
        self.callbacks = RebalanceCallbacks()
        self.closing = Closing(config)
        self.positions = Positions(group_id, member_id or None, config, Backoff.of(config, rng), tokens)
        self.coordinator = CoordinatorLookup(Backoff.of(config, rng), tokens)
        self.commits = Commits(group_id, member_id, config, Backoff.of(config, rng), tokens)
        self.leave: Leave[Any, Any]
        """The leave in flight, in the protocol's own requests."""

    # -- parts of each protocol --------------------------------------------------------------------------

    @abc.abstractmethod
    def owned_partitions(self) -> tuple[TopicPartition, ...]:
        """Return everything owned, sorted: from the start of on_assigned to the end of on_revoked or lost."""

    @abc.abstractmethod
    def subscribe(self, topics: Iterable[str], pattern: str | None, now_ms: int) -> Actions:
        """Replace the subscription; subscribing to nothing means unsubscribe.

        :raises ValueError: after `close`.
        """

    @abc.abstractmethod
    def request_failed(self, token: int, failure: errors.RequestFailure, now_ms: int) -> Actions:
        """Note that a request of any kind got no response."""

    @abc.abstractmethod
    def deadline_reached(self, now_ms: int) -> Actions:
        """Do everything that is due by now. Do nothing if called too early."""

    @abc.abstractmethod
    def _step(self, now_ms: int) -> Actions:
        """Carry out everything that follows from the last input, and return the actions."""

    @abc.abstractmethod
    def _forget_subscription(self) -> None:
        """Subscribe to nothing."""

    @abc.abstractmethod
    def _begin_leaving(self, now_ms: int, *, closes: bool) -> None:
        """Leave on purpose: a member of a group gives everything up first."""

    @abc.abstractmethod
    def _freeze(self) -> None:
        """Stop the work on the assignment: nothing may be fetched."""

    @abc.abstractmethod
    def _move_to_fatal(self) -> None:
        """Take the arrow to the state of a member that has stopped for good."""

    @abc.abstractmethod
    def _release_committed(self) -> None:
        """Go on: partitions that have to be given up are committed, or could not be."""

    @abc.abstractmethod
    def _callback_ended(self, callback: Any, error: BaseException | None, now_ms: int) -> None:
        """Keep the callback's effect on the owned set, and go on."""

    @abc.abstractmethod
    def _released(self) -> None:
        """Drop all owned partitions."""

    @abc.abstractmethod
    def _left(self, now_ms: int) -> None:
        """Send the leave, if there is a coordinator to notify: everything is given up."""

    @property
    @abc.abstractmethod
    def _gives_up(self) -> bool:
        """True if the member gives everything up before it leaves."""

    @property
    def _has_told(self) -> bool:
        """True if the group has received the leave, or will not receive one."""
        return self.leave.pending is None

    @property
    @abc.abstractmethod
    def _has_failed(self) -> bool:
        """True if the member has stopped for good."""

    def _topic_ids(self) -> Mapping[str, TopicId]:
        """Return the ids of the topics that the member owns, as far as the protocol has them."""
        return {}

    def _nothing_follows(self, now_ms: int) -> bool:
        """Return true if a poll changes no more than the poll timer, which is then done here."""
        return False

    # -- calls of the application ------------------------------------------------------------------------

    def unsubscribe(self, now_ms: int) -> Actions:
        """Give everything up and leave. `LeaveFinished` follows, now or later."""
        self._forget_subscription()
        self._begin_leaving(now_ms, closes=False)
        return self._step(now_ms)

    def close(
        self, now_ms: int, option: CloseOption = CloseOption.DEFAULT, timeout_ms: int = 30_000
    ) -> Actions:
        """Commit, give everything up, leave for good. `LeaveFinished` follows within the time."""
        self._forget_subscription()
        self.closing.begin(option, now_ms + timeout_ms)
        self._begin_leaving(now_ms, closes=True)
        return self._step(now_ms)

    def poll_begin(self, now_ms: int) -> Actions:
        """Begin a poll: the application has processed everything that it was handed before."""
        self.polls.begin()
        self.positions.process()
        if self.positions.undecided:
            self._raise_undecided()
        if (
            self.config.enable_auto_commit
            and now_ms >= self.commits.next_auto_ms
            and self.state in self._ACTIVE
        ):
            self._auto_commit(now_ms)
        elif not self.out.wakes and self._nothing_follows(now_ms):
            return ()
        return self._step(now_ms)

    def poll_end(self, consumed: Mapping[TopicPartition, int], now_ms: int) -> Actions:
        """End a poll: the application got all records before these offsets; the poll timer starts.

        Partitions that are not fetchable (any more) are left unchanged: their records must not be handed
        over.
        """
        self.polls.end(now_ms)
        self.positions.deliver(consumed)
        return () if self._nothing_follows(now_ms) else self._step(now_ms)

    def poll_failed(self, now_ms: int) -> Actions:
        """End a poll with an exception: the application is out of poll, and the poll timer starts."""
        self.polls.end(now_ms)
        return self._step(now_ms)

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None, now_ms: int
    ) -> tuple[int, Actions]:
        """Commit these offsets, or everything that was handed over. `CommitFinished` with this id follows."""
        chosen = self.positions.uncommitted(delivered=True) if offsets is None else offsets
        deadline_ms = now_ms + self.config.default_api_timeout_ms
        commit = self.commits.make(CommitKind.MANUAL, chosen, deadline_ms, self._topic_ids())
        if not chosen or self._has_failed:
            self.commits.drop(commit)
            error = ErrorCode.UNKNOWN_MEMBER_ID if self._has_failed else ErrorCode.NONE
            self._commit_ended(commit, error, now_ms)
        return commit.commit_id, self._step(now_ms)

    def seek(self, partition: TopicPartition, offset: int, now_ms: int) -> Actions:
        """Go on reading from this offset.

        :raises ValueError: if the partition is not owned, or is about to be given up.
        """
        if not self.positions.seek(partition, offset):
            raise ValueError(f"{partition.topic}-{partition.partition} is not assigned")
        self.out.wakes = True
        return self._step(now_ms)

    def offset_out_of_range(self, partition: TopicPartition, now_ms: int) -> Actions:
        """Reset the position by `auto_offset_reset`: the log does not have it (any more)."""
        if not self.positions.reset(partition):
            self.out.raise_to_application(errors.PositionOutOfRange.of(partition))
        return self._step(now_ms)

    def callback_finished(self, token: int, error: BaseException | None, now_ms: int) -> Actions:
        """End the application's callback, with this exception if it raised."""
        callback = self.callbacks.ended(token)
        if callback is None:
            return ()
        self._callback_ended(callback, error, now_ms)
        return self._step(now_ms)

    # -- responses of the cluster ------------------------------------------------------------------------

    def coordinator_found(self, token: int, now_ms: int) -> Actions:
        """Note that the group's coordinator is known."""
        self.coordinator.found(token)
        return self._step(now_ms)

    def coordinator_refused(self, token: int, code: ErrorCode, now_ms: int) -> Actions:
        """Handle the error that the cluster returned instead of the group's coordinator."""
        if self.coordinator.failed(token, now_ms) and not code.retriable:
            if self.state in self._ACTIVE or self._gives_up:
                self._fail(code, "the group's coordinator cannot be looked up")
            else:
                self.leave.cancel()
                for commit in self.commits.take_all():
                    self._commit_ended(commit, code, now_ms)
        return self._step(now_ms)

    def commit_answered(self, token: int, response: OffsetCommitResponse, now_ms: int) -> Actions:
        """Take in the response to an OffsetCommit. A stale epoch does not stop the member's own (KIP-848)."""
        answer = self.commits.answered(token, response, now_ms)
        if answer is not None:
            commit, accepted, error, ended = answer
            self.positions.committed(accepted)
            self.coordinator.note(error, now_ms)
            if ended:
                self._commit_ended(commit, error, now_ms)
        else:
            self.coordinator.note_unwanted(token, response.errors.values(), now_ms)
        return self._step(now_ms)

    def offsets_fetched(self, token: int, response: OffsetFetchResponse, now_ms: int) -> Actions:
        """Take in the response to an OffsetFetch."""
        undecided = self.positions.fetched(token, response, now_ms)
        if undecided is not None:
            self.coordinator.note(response.error_code, now_ms)
            self.out.wakes = True
            self._fetch_ended(response.error_code, undecided)
        return self._step(now_ms)

    def log_offsets_found(self, token: int, offsets: Mapping[TopicPartition, int], now_ms: int) -> Actions:
        """Take in the start offsets of the logs."""
        if self.positions.log_offsets_found(token, offsets, now_ms):
            self.out.wakes = True
        return self._step(now_ms)

    def _work_failed(self, token: int, now_ms: int) -> None:
        """Note that a commit or a lookup of positions got no response."""
        if token == self.positions.fetch_in_flight:
            self.coordinator.lost(now_ms)
            self.positions.failed(token, now_ms)
        elif self.positions.failed(token, now_ms):
            pass
        elif (ended := self.commits.failed(token, now_ms)) is not None:
            self.coordinator.lost(now_ms)
            if ended[1]:
                self._commit_ended(ended[0], ErrorCode.REQUEST_TIMED_OUT, now_ms)

    def _fetch_ended(self, code: ErrorCode, undecided: list[TopicPartition]) -> None:
        """Raise the positions that only the application can decide about."""
        if (
            code
            and not code.retriable
            and code not in (ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
        ):
            self.out.raise_to_application(errors.MemberError(code, "committed offsets cannot be fetched"))
        for partition in undecided:
            self.out.raise_to_application(errors.NoOffsetForPartition.of(partition))

    def _raise_undecided(self) -> None:
        """Raise again, with each poll, what the application has not decided: else these partitions are never
        read."""
        for partition, kind in self.positions.undecided.items():
            self.out.raise_to_application(kind.of(partition))

    # -- commits -----------------------------------------------------------------------------------------

    def _auto_commit(self, now_ms: int) -> None:
        """Commit the processed offsets, unless a commit of the member's own is under way."""
        if self.commits.has_own:
            return
        offsets = self.positions.uncommitted(delivered=False)
        if offsets:
            deadline_ms = now_ms + self.config.request_timeout_ms
            self.commits.make(CommitKind.AUTO, offsets, deadline_ms, self._topic_ids())
        self.commits.delay_auto(now_ms)

    def _commit_ended(self, commit: Commit, error: ErrorCode, now_ms: int) -> None:
        """Go on with the work that waited for it. A failed commit stops neither a rebalance nor a close."""
        if commit.kind is CommitKind.MANUAL:
            self.out.put(CommitFinished(commit.commit_id, error))
        elif commit.kind is CommitKind.AUTO:
            self.commits.auto_ended(error, now_ms)
        elif commit is self.closing.commit:
            self.closing.commit = None
            self._release_for_leaving()
        else:
            self._release_committed()

    def _forget_commits(self, partitions: Iterable[TopicPartition], now_ms: int) -> None:
        """End the commits of partitions that were removed: nothing is left to wait for."""
        for commit in self.commits.forget(partitions):
            self._commit_ended(commit, commit.lateness, now_ms)

    # -- leaving and failing -----------------------------------------------------------------------------

    def _commit_before_leaving(self, now_ms: int) -> bool:
        """Commit everything that was handed over. Return true if there is anything to commit."""
        if not self.config.enable_auto_commit:
            return False
        offsets = self.positions.uncommitted(delivered=True)
        if offsets:
            limit_ms = self.closing.commit_limit_ms(now_ms)
            self.closing.commit = self.commits.make(CommitKind.RELEASE, offsets, limit_ms, self._topic_ids())
        return bool(offsets)

    def _release_for_leaving(self) -> None:
        self.callbacks.release = REVOKED if self.member_epoch > 0 else LOST

    def _lose_what_is_left(self) -> None:
        """Give everything up as lost, unless the callback for leaving has begun."""
        if not self._gives_up or self.callbacks.release is not None or self.closing.commit is not None:
            self.callbacks.release = LOST
        self.closing.commit = None

    def _fail(self, code: ErrorCode, message: str) -> None:
        """Stop for good. The owned partitions are lost."""
        self._lose_what_is_left()
        self._freeze()
        self.leave.cancel()
        self.member_epoch = 0
        self._move_to_fatal()
        for commit in self.commits.take_all():
            self.out.put(CommitFinished(commit.commit_id, code))
        self.out.raise_to_application(errors.FatalMemberError(code, message), fatal=True)

    def _finish_leaving(self) -> None:
        """Notify the application that waits, once callbacks, commits and the leave are over."""
        closing, callbacks = self.closing, self.callbacks
        if not closing.wanted or self._gives_up:
            return
        if callbacks.running is None and callbacks.release is None and self._has_told:
            if closing.closed and self.commits.queue:
                return
            closing.wanted = False
            self.out.put(LeaveFinished())

    def _give_up_closing(self, now_ms: int) -> None:
        """End the time for closing: send the leave once, and wait for nothing."""
        self.closing.deadline_ms = self.closing.commit = None
        self.callbacks.release = self.callbacks.running = None
        self._released()
        for commit in self.commits.take_all():
            if commit.kind is CommitKind.MANUAL:
                self.out.put(CommitFinished(commit.commit_id, ErrorCode.REQUEST_TIMED_OUT))
        if self._gives_up:
            self._left(now_ms)
        if self.coordinator.known:
            self.out.put(self.leave.request(now_ms))
        self.leave.cancel()
        self._finish_leaving()

    def _meet_deadlines(self, now_ms: int) -> None:
        if self.commits.queue:
            for commit in self.commits.expired(now_ms):
                self._commit_ended(commit, ErrorCode.REQUEST_TIMED_OUT, now_ms)
        if self.leave.pending is not None and now_ms >= self.leave.deadline_ms:
            self.leave.cancel()
        if self.closing.deadline_ms is not None and now_ms >= self.closing.deadline_ms:
            self._give_up_closing(now_ms)


class AssignmentSteps:
    """The base of the steps by which a member takes an assignment up, with the parts of its machine that they
    need."""

    __slots__ = ("_callbacks", "_commits", "_config", "_out", "_polls", "_positions", "_tokens")

    def __init__(self, member: MemberMachine) -> None:
        self._config = member.config
        self._tokens = member.tokens
        self._out = member.out
        self._polls = member.polls
        self._callbacks = member.callbacks
        self._positions = member.positions
        self._commits = member.commits
