"""The membership itself: joining, reconciling, being fenced, leaving; without requests and their answers.

`ConsumerMember` (machine.py) is this and the requests. The parts that hold rules of their own are apart:
what a heartbeat carries (heartbeats.py), set algebra of a reconciliation (reconciliation.py), positions
and commits, lookups, the leave on its way.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_PARTITIONS,
    STATIC_LEAVE_EPOCH,
    MemberId,
    Partitions,
    TopicPartition,
)
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.actions import (
    ASSIGNED,
    LOST,
    REVOKED,
    CallbackKind,
    CommitFinished,
    RunCallback,
)
from fencepost.member.base.backoff import Backoff
from fencepost.member.base.commits import Commit, CommitKind
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import CallbackFailed, FatalMemberError
from fencepost.member.base.leave import CloseOption, Leave
from fencepost.member.base.lookups import ResolvedTopicNames
from fencepost.member.base.participant import Participant
from fencepost.member.consumer.actions import ConsumerMoved, SendHeartbeat
from fencepost.member.consumer.assignment import intersection, named
from fencepost.member.consumer.heartbeats import Heartbeats
from fencepost.member.consumer.reconciliation import Assignment, Callback, Pass, PassStage
from fencepost.member.consumer.states import ACTIVE, CONSUMER_MEMBER
from fencepost.member.consumer.states import ConsumerMemberEvent as E
from fencepost.member.consumer.states import ConsumerMemberState as S
from fencepost.member.consumer.subscription import NO_SUBSCRIPTION, Subscription


class Membership(Participant):
    """State, epoch and assignment of one member, and how they change."""

    __slots__ = (
        "_announced",
        "_heartbeats",
        "_joins_refused",
        "_may_be_member",
        "_names",
        "_needs_new_poll",
        "_pass",
        "_releases_instance",
        "assignment",
        "instance_holders",
        "state",
        "subscription",
    )

    _callback: Callback | None

    def __init__(
        self, group_id: str, member_id: MemberId, config: ConsumerConfig, rng: random.Random
    ) -> None:
        super().__init__(group_id, member_id, config, rng)
        tokens = self._tokens
        self.state = S.UNSUBSCRIBED
        self.subscription: Subscription = NO_SUBSCRIPTION
        self._announced: Subscription = NO_SUBSCRIPTION
        """The subscription as the coordinator is to know it: it stays as it is while the member leaves."""
        self.assignment = Assignment()
        self._heartbeats = Heartbeats(group_id, member_id, config, Backoff.of(config, rng), tokens)
        self._names = ResolvedTopicNames(Backoff.of(config, rng), tokens)
        self._leave = Leave(Backoff.of(config, rng), tokens, SendHeartbeat)
        self._pass: Pass | None = None
        self._needs_new_poll = False
        """A callback raised: its pass is tried again when the application polls again."""
        self._may_be_member = False
        """A join went out since the member was last known to be out of the group."""
        self._joins_refused = 0
        self.instance_holders = config.instance_holders
        """The member ids under which this process may hold its instance id; the newest one comes last."""
        self._releases_instance = False
        """A leave with epoch -2 is under way, to free the instance id for this member's next join."""

    # -- moving ------------------------------------------------------------------------------------------

    def _move(self, event: E, target: S) -> None:
        CONSUMER_MEMBER.check(self.state, event, target)
        self._out.append(ConsumerMoved(event, self.state, target))
        self.state = target

    def _join(self, event: E, now_ms: int) -> None:
        """Ask to join, with the same member id and epoch 0."""
        self._leave.cancel()
        self._releases_instance = False
        self._announced = self.subscription
        self.member_epoch = JOIN_EPOCH
        self.assignment.forget_target()
        self._names.forget()
        self._heartbeats.begin_join(now_ms)
        self._needs_new_poll = False
        self._next_auto_commit_ms = now_ms + self.config.auto_commit_interval_ms
        self._move(event, S.JOINING)

    def _freeze(self) -> None:
        """Stop what works on the assignment: nothing may be fetched, the pass is abandoned (KAFKA-20332)."""
        self._pass = None
        self._releases_instance = False
        self._commits.abandon()
        self.positions.freeze()
        self._wake = True

    def _fenced(self, now_ms: int) -> None:
        """The coordinator does not know this member (any more): everything is lost."""
        self.member_epoch = JOIN_EPOCH
        self._may_be_member = False
        if self.state is S.PREPARE_LEAVING:
            if self._release is not None or self._close_commit is not None:
                self._release = LOST
            self._close_commit = None
            self._freeze()
            self._move(E.FENCED, S.UNSUBSCRIBED)
            return
        if self.state is S.JOINING:
            self._heartbeats.failed(now_ms)
        self._freeze()
        self._release = LOST
        self._move(E.FENCED, S.FENCED)

    def _fail(self, code: ErrorCode, message: str) -> None:
        """Stop for good. What is owned is lost, unless the callback for leaving has begun."""
        if self.state is not S.PREPARE_LEAVING or self._release is not None or self._close_commit is not None:
            self._release = LOST
        self._close_commit = None
        self._freeze()
        self._leave.cancel()
        self.member_epoch = JOIN_EPOCH
        self._move(E.FATAL_ERROR, S.FATAL)
        for commit in self._commits.take_all():
            self._out.append(CommitFinished(commit.commit_id, code))
        self._raise(FatalMemberError(code, message), fatal=True)

    # -- leaving -----------------------------------------------------------------------------------------

    def _begin_leaving(self, event: E, now_ms: int) -> None:
        """Leave on purpose: from a group, give everything up first; from nowhere, nothing is to be told."""
        self._leave_wanted = True
        if self.state is S.FENCED:
            self._move(event, S.UNSUBSCRIBED)
        elif self.state is S.UNSUBSCRIBED and event is E.CLOSE:
            self._move(event, S.PREPARE_LEAVING)
        elif self.state in ACTIVE:
            self._freeze()
            self._move(event, S.PREPARE_LEAVING)
            if event is E.CLOSE and self.config.enable_auto_commit:
                offsets = self.positions.uncommitted(delivered=True)
                if offsets:
                    self._close_commit = self._add_commit(
                        CommitKind.RELEASE, offsets, self._close_commit_limit(now_ms)
                    )
                    return
            self._release_for_leaving()

    def _poll_timed_out(self, now_ms: int) -> None:
        """The application does not poll: make room for others now, give everything up afterwards."""
        self._freeze()
        self._move(E.POLL_TIMED_OUT, S.PREPARE_LEAVING)
        self._move(E.POLL_TIMED_OUT, S.LEAVING)
        self._build_leave(CloseOption.DEFAULT, now_ms)
        self._move(E.LEAVE_BUILT, S.STALE)
        self._release = LOST

    def _build_leave(self, option: CloseOption, now_ms: int) -> None:
        self._heartbeats.drop_expected_answer()
        epoch = self._leave_epoch(option)
        if self._may_be_member and epoch is not None:
            self._leave.begin(self._leave_request(epoch, self.member_id), now_ms, self._close_limit(now_ms))
        self._may_be_member = False
        self.member_epoch = JOIN_EPOCH
        self.assignment.forget_target()

    def _leave_request(self, epoch: int, member_id: MemberId) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=self.config.group_instance_id,
            client_id=self.config.client_id,
        )

    def _may_hold_instance(self) -> None:
        """Note that the coordinator may have this member, under its instance id."""
        if self.config.group_instance_id is not None and self.instance_holders[-1:] != (self.member_id,):
            others = tuple(each for each in self.instance_holders if each != self.member_id)
            self.instance_holders = (*others, self.member_id)

    def _release_instance(self, now_ms: int) -> None:
        """Free the instance id that this process holds itself, so that the member's next join is accepted.

        Kafka 4.3 refuses the join of a static member that it still has, even under the same member id. This
        happens after a join whose response was lost, and after a fence. The leave names a member id of this
        process, so it cannot free an instance id that another process holds: Kafka refuses such a leave with
        FENCED_INSTANCE_ID.
        """
        self._releases_instance = True
        self._heartbeats.failed(now_ms, wait=False)
        request = self._leave_request(STATIC_LEAVE_EPOCH, self.instance_holders[-1])
        self._leave.begin(request, now_ms, now_ms + self.config.request_timeout_ms)

    def _leave_epoch(self, option: CloseOption) -> int | None:
        if self.config.group_instance_id is None:
            return None if option is CloseOption.REMAIN_IN_GROUP else LEAVE_EPOCH
        return LEAVE_EPOCH if option is CloseOption.LEAVE_GROUP else STATIC_LEAVE_EPOCH

    @property
    def _gives_up(self) -> bool:
        return self.state is S.PREPARE_LEAVING

    def _left(self, now_ms: int) -> None:
        if not self._may_be_member:
            self._build_leave(self._close_option, now_ms)
            self._move(E.RELEASED, S.UNSUBSCRIBED)
            return
        self._move(E.RELEASED, S.LEAVING)
        self._build_leave(self._close_option, now_ms)
        self._move(E.LEAVE_BUILT, S.UNSUBSCRIBED)

    # -- reconciling -------------------------------------------------------------------------------------

    def _take_target(self, received: Partitions) -> None:
        """An assignment came with a response of this join."""
        assignment = self.assignment
        changed = assignment.replace_target(received)
        if self.state is S.JOINING:
            if assignment.target_is_owned:
                assignment.acknowledged_epoch = assignment.local_epoch
                self._heartbeats.joined_owning_nothing(assignment.local_epoch)
                self._move(E.TARGET_OWNED, S.STABLE)
            else:
                self._move(E.TARGET_RECEIVED, S.RECONCILING)
        elif changed and self.state is S.STABLE:
            self._move(E.TARGET_RECEIVED, S.RECONCILING)
        elif changed and self.state is S.ACKNOWLEDGING:
            if assignment.target_is_owned:
                assignment.acknowledged_epoch = assignment.local_epoch
            else:
                self._move(E.TARGET_RECEIVED, S.RECONCILING)
        elif changed and self.state is S.RECONCILING:
            if assignment.target_is_owned and self._pass is None and self._callback is None:
                assignment.acknowledged_epoch = assignment.local_epoch
                self._heartbeats.urgent = True
                self._move(E.TARGET_OWNED, S.STABLE)
            else:
                self._move(E.TARGET_RECEIVED, S.RECONCILING)

    def _reconcile(self, now_ms: int) -> bool:
        """Begin a pass, if there is something to do and it may be done now. Whether anything happened."""
        assignment = self.assignment
        if self._pass is not None or self._callback is not None or self._needs_new_poll:
            return False
        names = self._names
        if names.never_answered(names.unknown(assignment.target or ())):
            return False
        revoked, added = assignment.changes(names.known)
        if not revoked and not added:
            if assignment.acknowledged_epoch == assignment.local_epoch:
                return False
            self._finish_pass(assignment.local_epoch)
            return True
        auto_commit = self.config.enable_auto_commit
        # Who owns nothing has nothing to commit: an application that waits for its partitions need not poll.
        if (revoked or (auto_commit and assignment.owned)) and not self.in_poll:
            return False
        self._pass = Pass(assignment.local_epoch, revoked, added)
        self.positions.suspend(named(revoked, names.known))
        self._wake = self._wake or bool(revoked)
        offsets = self.positions.uncommitted(delivered=False) if auto_commit else {}
        if offsets:
            self._add_commit(CommitKind.RELEASE, offsets, now_ms + self.config.max_poll_interval_ms)
        else:
            self._revoke(self._pass)
        return True

    def _revoke(self, current: Pass) -> None:
        if current.revoked:
            current.stage = PassStage.REVOKE
            self._run_callback(REVOKED, current.revoked, current)
        else:
            self._assign(current)

    def _assign(self, current: Pass) -> None:
        """Take what is still in the target; what a newer one left out may be another member's already."""
        current.stage = PassStage.ASSIGN
        if current.local_epoch != self.assignment.local_epoch:
            current.added = intersection(current.added, self.assignment.target or NO_PARTITIONS)
        if not current.revoked and not current.added:
            self._finish_pass(current.local_epoch)
            return
        self.assignment.begin_assigned(current.added)
        self._run_callback(ASSIGNED, current.added, current)

    def _finish_pass(self, local_epoch: int) -> None:
        self._pass = None
        self.assignment.acknowledged_epoch = local_epoch
        self.positions.suspend(())
        self._move(E.PASS_FINISHED, S.ACKNOWLEDGING)

    # -- callbacks ---------------------------------------------------------------------------------------

    def _run_callback(
        self, kind: CallbackKind, partitions: Partitions, of_pass: Pass | None, *, releases: bool = False
    ) -> None:
        token, names = next(self._tokens), named(partitions, self._names.known)
        self._callback = Callback(token, kind, partitions, names, of_pass, releases=releases)
        if kind is ASSIGNED:
            self.positions.announce(names)
        self._out.append(RunCallback(token, kind, names, releases))

    def _begin_release(self) -> None:
        kind, self._release = self._release, None
        if kind is not None and self.assignment.owned:
            self._run_callback(kind, self.assignment.owned, None, releases=True)
        else:
            self._released()

    def _released(self) -> None:
        self.assignment.forget_owned()
        self.positions.clear()

    def _callback_ended(self, callback: Callback, error: BaseException | None, now_ms: int) -> None:
        """Keep what the callback did to the owned set, then go on with its pass, if that still counts."""
        partitions = callback.names
        if error is not None:
            self._raise(CallbackFailed.of(f"on_partitions_{callback.kind}", error))
        if callback.releases:
            self._released()
            self._forget_commits(partitions, now_ms)
        elif callback.kind is REVOKED:
            self.positions.remove(partitions)
            if error is None:
                self.assignment.end_revoked(callback.partitions)
                self._forget_commits(partitions, now_ms)
            else:
                self.assignment.revoked_raised(callback.partitions)
        elif error is None:
            self.assignment.end_assigned(callback.partitions)
            self.positions.add(partitions)
            self._wake = True
        else:
            self.positions.announce(())
        current = self._pass
        if current is None or current is not callback.of_pass:
            return
        if error is not None:
            self._pass = None
            self._needs_new_poll = True
        elif callback.kind is REVOKED:
            self._assign(current)
        else:
            self._finish_pass(current.local_epoch)
            self._next_auto_commit_ms = now_ms + self.config.auto_commit_interval_ms

    # -- commits -----------------------------------------------------------------------------------------

    def _add_commit(
        self, kind: CommitKind, offsets: Mapping[TopicPartition, OffsetAndMetadata], deadline_ms: int
    ) -> Commit:
        ids = {self._names.known[topic_id]: topic_id for topic_id in self.assignment.owned}
        commit = Commit(next(self._tokens), kind, offsets, deadline_ms, ids)
        self._commits.add(commit)
        return commit

    def _release_committed(self) -> None:
        if self._pass is not None and self._pass.stage is PassStage.COMMIT:
            self._revoke(self._pass)
