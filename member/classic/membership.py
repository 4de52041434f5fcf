"""The membership itself: rounds, what is owned, being fenced, leaving; without requests and their answers.

`ClassicMember` (machine.py) is this and the requests.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fencepost.coordinator.protocol.consumer import LeaveGroupRequest
from fencepost.coordinator.protocol.consumer_protocol import ConsumerProtocolAssignment
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition, topic_partitions
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.actions import (
    CallbackKind,
    CommitFinished,
    RunCallback,
)
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commit, CommitKind
from fencepost.member.base.errors import CallbackFailed, FatalMemberError
from fencepost.member.base.leave import CloseOption, Leave
from fencepost.member.base.participant import Participant
from fencepost.member.classic.actions import ClassicMoved, SendGroupRequest
from fencepost.member.classic.assignor import Assignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.states import ACTIVE, CLASSIC_MEMBER
from fencepost.member.classic.states import ClassicMemberEvent as E
from fencepost.member.classic.states import ClassicMemberState as S

Owned = tuple[TopicPartition, ...]


class ReleaseStage(enum.Enum):
    """What has been done about partitions that are given up in a rebalance."""

    NOTHING = "nothing"
    COMMIT = "commit"
    """What was processed is being committed."""
    REVOKE = "revoke"
    """It is committed; on_revoked is next."""
    READY = "ready"
    """on_revoked has ended, or there was nothing to give up."""


class ClassicCallback(NamedTuple):
    """The application's callback that runs."""

    token: int
    kind: CallbackKind
    partitions: Owned
    releases: bool
    """Everything is given up with it."""


class ClassicMembership(Participant):
    """State, generation and assignment of one member, and how they change."""

    __slots__ = (
        "_assignors",
        "_cooperative",
        "_nameless",
        "_rejoin_at_ms",
        "_rejoin_wanted",
        "_stage",
        "_target",
        "config",
        "owned",
        "state",
        "subscription",
    )

    config: ClassicConfig
    _callback: ClassicCallback | None

    def __init__(
        self, group_id: str, config: ClassicConfig, rng: random.Random, assignors: Sequence[Assignor]
    ) -> None:
        super().__init__(group_id, "", config, rng)
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._cooperative = all(assignor.cooperative for assignor in assignors)
        self.state = S.UNSUBSCRIBED
        self.subscription: tuple[str, ...] = ()
        """Topic names, sorted."""
        self.owned: Owned = ()
        """From the begin of on_assigned to the end of on_revoked or on_lost; sorted."""
        self._leave = Leave(Backoff.of(config, rng), self._tokens, self._leave_action)
        self._nameless: int | None = None
        """The first JoinGroup, if the member has left while it was under way: the answer says as whom."""
        self._target: Owned | None = None
        """The assignment that is not taken up yet."""
        self._stage = ReleaseStage.NOTHING
        self._rejoin_wanted = False
        self._rejoin_at_ms: int | None = None

    def _leave_action(self, token: int, request: LeaveGroupRequest) -> SendGroupRequest:
        return SendGroupRequest(token, request, self.config.request_timeout_ms)

    # -- moving ------------------------------------------------------------------------------------------

    def _move(self, event: E, target: S) -> None:
        CLASSIC_MEMBER.check(self.state, event, target)
        self._out.append(ClassicMoved(event, self.state, target))
        self.state = target

    def _become(self, member_id: MemberId, generation: int) -> None:
        """Be this member in this generation; 0 is none."""
        self.member_id = self._commits.member_id = member_id
        self.member_epoch = generation

    def _freeze(self) -> None:
        """Stop what works on the assignment: nothing may be fetched, and no round is gone on with."""
        self._target = None
        self._stage = ReleaseStage.NOTHING
        self._rejoin_wanted = False
        self._rejoin_at_ms = None
        self._commits.abandon()
        self.positions.freeze()
        self._wake = True

    def _fenced(self, *, forget_id: bool) -> None:
        """The coordinator does not know this member in this generation: everything is lost."""
        self._become("" if forget_id else self.member_id, 0)
        self._freeze()
        if self.state is S.PREPARE_LEAVING:
            if self._release is not None or self._close_commit is not None:
                self._release = CallbackKind.LOST
            self._close_commit = None
            self._move(E.FENCED, S.UNSUBSCRIBED)
            return
        self._release = CallbackKind.LOST
        self._move(E.FENCED, S.FENCED)

    def _fail(self, code: ErrorCode, message: str) -> None:
        """Stop for good. What is owned is lost, unless the callback for leaving has begun."""
        if self.state is not S.PREPARE_LEAVING or self._release is not None or self._close_commit is not None:
            self._release = CallbackKind.LOST
        self._close_commit = None
        self._freeze()
        self._leave.cancel()
        self.member_epoch = 0
        self._move(E.FATAL_ERROR, S.FATAL)
        for commit in self._commits.take_all():
            self._out.append(CommitFinished(commit.commit_id, code))
        self._raise(FatalMemberError(code, message), fatal=True)

    # -- leaving -----------------------------------------------------------------------------------------

    def _begin_leaving(self, event: E, now_ms: int) -> None:
        """Leave on purpose: from a group, give everything up first; from nowhere, nothing is to be told."""
        self._leave_wanted = True
        if self.state in (S.FENCED, S.STALE):
            self._move(event, S.UNSUBSCRIBED)
        elif self.state is S.UNSUBSCRIBED and event is E.CLOSE:
            self._move(event, S.PREPARE_LEAVING)
        elif self.state in ACTIVE:
            self._freeze()
            self._move(event, S.PREPARE_LEAVING)
            if event is E.CLOSE and self.config.enable_auto_commit:
                offsets = self.positions.uncommitted(delivered=True)
                if offsets:
                    limit_ms = self._close_commit_limit(now_ms)
                    self._close_commit = self._add_commit(CommitKind.RELEASE, offsets, limit_ms)
                    return
            self._release_for_leaving()

    def _poll_timed_out(self, now_ms: int) -> None:
        """The application does not poll: make room for others now, give everything up afterwards."""
        self._freeze()
        self._build_leave(CloseOption.DEFAULT, now_ms)
        self._release = CallbackKind.LOST
        self._move(E.POLL_TIMED_OUT, S.STALE)

    def _build_leave(self, option: CloseOption, now_ms: int) -> None:
        self._leave_as(self.member_id, option, now_ms)
        self._become("", 0)

    def _leave_as(self, member_id: MemberId, option: CloseOption, now_ms: int) -> None:
        """A dynamic member leaves unless it means to remain; a static one only if it means to."""
        instance_id = self.config.group_instance_id
        stays = CloseOption.REMAIN_IN_GROUP if instance_id is None else CloseOption.LEAVE_GROUP
        if member_id and (option is stays) is (instance_id is not None):
            request = LeaveGroupRequest(group_id=self.group_id, member_id=member_id, instance_id=instance_id)
            self._leave.begin(request, now_ms, self._close_limit(now_ms))

    @property
    def _gives_up(self) -> bool:
        return self.state is S.PREPARE_LEAVING

    @property
    def _has_told(self) -> bool:
        return self._leave.pending is None and self._nameless is None

    def _left(self, now_ms: int) -> None:
        self._build_leave(self._close_option, now_ms)
        self._move(E.RELEASED, S.UNSUBSCRIBED)

    def _give_up_closing(self, now_ms: int) -> None:
        self._nameless = None
        super()._give_up_closing(now_ms)

    # -- rounds ------------------------------------------------------------------------------------------

    def _prepare(self, now_ms: int) -> bool:
        """Before a JoinGroup: commit, and let go of what can't be kept. Whether anything happened."""
        if self._stage in (ReleaseStage.COMMIT, ReleaseStage.READY) or not self.in_poll:
            return False
        if self._cooperative:
            gone = tuple(each for each in self.owned if each.topic not in self.subscription)
        else:
            gone = self.owned
        if self._stage is ReleaseStage.NOTHING:
            # Records that come while the commit is under way would be in no commit (KAFKA-14196).
            self.positions.suspend(gone)
            self._wake = self._wake or bool(gone)
            self._commit_first(now_ms)
            return True
        self._stage = ReleaseStage.READY
        if gone:
            self._run_callback(CallbackKind.REVOKED, gone, releases=gone == self.owned)
        return True

    def _commit_first(self, now_ms: int) -> None:
        offsets = self.positions.uncommitted(delivered=False) if self.config.enable_auto_commit else {}
        if offsets and self.member_epoch > 0:
            self._stage = ReleaseStage.COMMIT
            self._add_commit(CommitKind.RELEASE, offsets, now_ms + self.config.max_poll_interval_ms)
        else:
            self._stage = ReleaseStage.REVOKE

    def _take(self, assignor: Assignor, assignment: ConsumerProtocolAssignment, now_ms: int) -> None:
        """The assignment of a new generation."""
        self._target = tuple(
            partition
            for topic in sorted(assignment.partitions)
            for partition in topic_partitions(topic, assignment.partitions[topic])
        )
        self._stage = ReleaseStage.NOTHING
        delay_ms = assignor.on_assignment(assignment)
        self._rejoin_at_ms = None if delay_ms is None else now_ms + delay_ms
        self._move(E.SYNCED, S.STABLE)

    def _reconcile(self, target: Owned, now_ms: int) -> bool:
        """Take the assignment up; what is taken away is another member's after one more round (KIP-429)."""
        kept = frozenset(target)
        gone = tuple(each for each in self.owned if each not in kept)
        if not gone:
            before = frozenset(self.owned)
            self._stage = ReleaseStage.NOTHING
            self._target = None
            self.owned = target
            added = tuple(each for each in target if each not in before)
            self._run_callback(CallbackKind.ASSIGNED, added, releases=False)
            return True
        if self._stage is ReleaseStage.COMMIT or not self.in_poll:
            return False
        if self._stage is ReleaseStage.NOTHING:
            self._rejoin_wanted = self._cooperative
            self.positions.suspend(gone)
            self._wake = True
            self._commit_first(now_ms)
        else:
            self._run_callback(CallbackKind.REVOKED, gone, releases=gone == self.owned)
        return True

    # -- callbacks ---------------------------------------------------------------------------------------

    def _run_callback(self, kind: CallbackKind, partitions: Owned, *, releases: bool) -> None:
        self._callback = ClassicCallback(next(self._tokens), kind, partitions, releases)
        if kind is CallbackKind.ASSIGNED:
            self.positions.announce(partitions)
        else:
            self.positions.suspend(partitions)
            self._wake = True
        self._out.append(RunCallback(self._callback.token, kind, partitions, releases))

    def _begin_release(self) -> None:
        kind, self._release = self._release, None
        if kind is not None and self.owned:
            self._run_callback(kind, self.owned, releases=True)
        else:
            self._released()

    def _released(self) -> None:
        self.owned = ()
        self.positions.clear()

    def _callback_ended(self, callback: ClassicCallback, error: BaseException | None, now_ms: int) -> None:
        """Keep what the callback did to the owned set; one that raised has done it, too."""
        partitions = callback.partitions
        if error is not None:
            self._raise(CallbackFailed.of(f"on_partitions_{callback.kind}", error))
        if callback.kind is CallbackKind.ASSIGNED:
            self.positions.add(partitions)
            self._next_auto_commit_ms = now_ms + self.config.auto_commit_interval_ms
            self._wake = True
            return
        if callback.releases:
            self._released()
        else:
            gone = frozenset(partitions)
            self.owned = tuple(each for each in self.owned if each not in gone)
            self.positions.remove(partitions)
            self.positions.suspend(())
        self._forget_commits(partitions, now_ms)

    # -- commits -----------------------------------------------------------------------------------------

    def _add_commit(
        self, kind: CommitKind, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline_ms: int
    ) -> Commit:
        commit = Commit(next(self._tokens), kind, offsets, deadline_ms, {})
        self._commits.add(commit)
        return commit

    def _release_committed(self) -> None:
        if self._stage is ReleaseStage.COMMIT:
            self._stage = ReleaseStage.REVOKE
