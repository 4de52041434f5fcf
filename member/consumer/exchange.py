"""What a member sends, when, and what the answers do to it; between the membership and its inputs."""

from __future__ import annotations

import random

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.member.base.actions import WakeApplication
from fencepost.member.base.backoff import earlier
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import ErrorRule, MemberError, heartbeat_rule
from fencepost.member.consumer import states
from fencepost.member.consumer.actions import (
    Action,
    SendHeartbeat,
)
from fencepost.member.consumer.heartbeats import HeartbeatView
from fencepost.member.consumer.membership import Membership
from fencepost.member.consumer.states import ACTIVE
from fencepost.member.consumer.states import ConsumerMemberEvent as E


class Exchange(Membership):
    """A membership that talks: each step settles what follows from the input, then sends what is due."""

    __slots__ = ("_idle_until_ms", "_keepalive", "_other_deadline_ms")

    def __init__(
        self, group_id: str, member_id: MemberId, config: ConsumerConfig, rng: random.Random
    ) -> None:
        super().__init__(group_id, member_id, config, rng)
        self._keepalive: tuple[SendHeartbeat] | None = None
        """Set while the member is stable and has nothing to say: the heartbeat to repeat."""
        self._other_deadline_ms: int | None = None
        """The earliest deadline but for those of the next heartbeat and of the application's poll."""
        self._idle_until_ms: int | None = None
        """The earliest deadline but for the next heartbeat's."""

    # -- one step ----------------------------------------------------------------------------------------

    def _step(self, now_ms: int) -> tuple[Action, ...]:
        """Let everything follow from what just happened, and hand out the actions."""
        self._meet_deadlines(now_ms)
        heartbeat_due_ms = self._settle(now_ms)
        self._send_others(now_ms)
        self._finish_leaving()
        if self._wake:
            self._wake = False
            self._out.append(WakeApplication())
        self._plan(heartbeat_due_ms)
        actions = tuple(self._out)
        self._out.clear()
        return actions

    def _settle(self, now_ms: int) -> int | None:
        """Move as far as that goes, and send the heartbeat if it is due. When the next one is."""
        while True:
            while self._progress(now_ms):
                pass
            due_ms = self._heartbeat_due_ms(now_ms)
            if due_ms is None or now_ms < due_ms:
                return due_ms
            if not self._send_heartbeat():
                return None

    def _progress(self, now_ms: int) -> bool:
        """One move that needs nothing more from outside. Whether there was one."""
        if self.state in ACTIVE:
            if self._poll_expired(now_ms):
                self._poll_timed_out(now_ms)
                return True
            return self.state is states.RECONCILING and self._reconcile(now_ms)
        if self._callback is not None:
            return False
        if self._release is not None:
            self._begin_release()
        elif self.state is states.FENCED:
            self._join(E.RELEASED, now_ms)
        elif self.state is states.PREPARE_LEAVING and self._close_commit is None:
            self._left(now_ms)
        elif self.state in (states.UNSUBSCRIBED, states.STALE) and self.subscription and self.in_poll:
            self._join(E.SUBSCRIBED if self.state is states.UNSUBSCRIBED else E.POLLED, now_ms)
        else:
            return False
        return True

    # -- sending -----------------------------------------------------------------------------------------

    @property
    def _keeps_session(self) -> bool:
        """Whether heartbeats go out in this state; a member that never joined does not join to leave."""
        return self.state in ACTIVE or (self.state is states.PREPARE_LEAVING and self.member_epoch > 0)

    def _heartbeat_due_ms(self, now_ms: int) -> int | None:
        """When the next heartbeat goes out; None: not before another input."""
        heartbeats = self._heartbeats
        if heartbeats.in_flight is not None or not self._coordinator.known or not self._keeps_session:
            return None
        if self._releases_instance:
            if self._leave.pending is not None:
                return None
            self._releases_instance = False  # no response to the leave in time: the next join decides
        # An active member that has not polled in time is not active any more by now.
        if self.state is states.PREPARE_LEAVING and self._poll_expired(now_ms):
            return None
        return heartbeats.due_ms(now_ms, acknowledges=self.state is states.ACKNOWLEDGING)

    def _send_heartbeat(self) -> bool:
        """Send the heartbeat. Whether that moved the member."""
        self._may_be_member = True
        view = HeartbeatView(
            epoch=self.member_epoch,
            joining=self.state is states.JOINING,
            reconciling=self.state in (states.RECONCILING, states.PREPARE_LEAVING),
            subscription=self._announced,
            local_epoch=self.assignment.acknowledged_epoch,
            owned=self.assignment.claimed if self.state in ACTIVE else self.assignment.owned,
        )
        self._out.append(self._heartbeats.build(view))
        if self.state is not states.ACKNOWLEDGING:
            return False
        self._move(E.ACKNOWLEDGED, states.STABLE if self.assignment.reconciled else states.RECONCILING)
        return True

    def _send_others(self, now_ms: int) -> None:
        """Send what is due but for the heartbeat; see when time alone makes more of it due, or ends it."""
        known, leave, commits = self._coordinator.known, self._leave, self._commits
        deadline = self._close_deadline_ms
        if leave.pending is not None:
            if known:
                self._put(leave.request(now_ms))
                deadline = earlier(deadline, leave.retry_ms())
            deadline = earlier(deadline, leave.expires_ms())
        if commits.queue:
            if known:
                self._put(commits.request(self.member_epoch, now_ms))
                deadline = earlier(deadline, commits.retry_ms())
            deadline = earlier(deadline, commits.expires_ms())
        if not known and self._wants_coordinator:
            self._put(self._coordinator.request(now_ms))
            deadline = earlier(deadline, self._coordinator.retry_ms())
        if self.positions.sought:
            deadline = earlier(deadline, self._ask_for_positions(now_ms))
        if self.state is states.RECONCILING:
            deadline = earlier(deadline, self._ask_for_names(now_ms))
        self._other_deadline_ms = deadline

    def _ask_for_positions(self, now_ms: int) -> int | None:
        """Ask for positions where that is due. When to ask again."""
        positions = self.positions
        deadline: int | None = None
        if self._coordinator.known:
            self._put(positions.fetch_request(self.member_epoch, now_ms))
            deadline = positions.fetch_retry_ms()
        self._put(positions.reset_request(now_ms))
        return earlier(deadline, positions.reset_retry_ms())

    def _ask_for_names(self, now_ms: int) -> int | None:
        """Ask for the target's topics that have no name yet, if that is due. When to ask again."""
        names = self._names
        unknown = names.unknown(self.assignment.target or ())
        if not unknown:
            return None
        self._put(names.request(unknown, now_ms))
        return names.retry_at_ms if names.in_flight is None else None

    @property
    def _wants_coordinator(self) -> bool:
        return (
            self._keeps_session
            or self._leave.pending is not None
            or bool(self._commits.queue)
            or self.positions.wants_fetch()
        )

    # -- answers -----------------------------------------------------------------------------------------

    def _heartbeat_answered(self, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        code = response.error_code
        if code:
            self._heartbeat_refused(code, response.error_message or "", now_ms)
            return
        self._coordinator.answered()
        if response.member_epoch <= 0:
            # No answer to a join or a keepalive; a late one to a leave has this form (KAFKA-19335).
            self._heartbeats.failed(now_ms)
            return
        self._heartbeats.succeeded(response, now_ms)
        self._joins_refused = 0
        self._may_hold_instance()
        self.member_epoch = response.member_epoch
        if response.assignment is not None and self.state in ACTIVE:
            self._take_target(response.assignment)

    def _heartbeat_refused(self, code: ErrorCode, message: str, now_ms: int) -> None:
        rule = heartbeat_rule(code)
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            if self._frees_instance:
                self._coordinator.answered()
                self._release_instance(now_ms)
                return
            if self._count_refusal():
                rule = ErrorRule.RETRY
        elif rule in (ErrorRule.REDISCOVER, ErrorRule.RETRY):
            self._may_hold_instance()  # the coordinator may have written the join before it failed
        if rule is ErrorRule.REDISCOVER:
            self._coordinator.lost(now_ms)
            self._heartbeats.failed(now_ms, wait=False)
            return
        self._coordinator.answered()
        if rule is ErrorRule.FENCED:
            self._fenced(now_ms)
        elif rule is ErrorRule.FATAL:
            self._fail(code, message)
        else:
            self._heartbeats.failed(now_ms)
            if rule is ErrorRule.REPORT:
                self._raise(MemberError(code, message))

    def _count_refusal(self) -> bool:
        """Count a join that another member's instance id refused. True if the settings allow a retry."""
        self._joins_refused += 1
        return self._joins_refused <= self.config.unreleased_instance_id_retries

    @property
    def _frees_instance(self) -> bool:
        """True if this process may hold the instance id that refused its join, so that it can free it."""
        return self.state is states.JOINING and bool(self.instance_holders)

    def _leave_answered(self, token: int, code: ErrorCode, now_ms: int) -> None:
        """Anything but "not here" or "not now" ends the leave, and lets a member that freed its id join."""
        if heartbeat_rule(code) in (ErrorRule.REDISCOVER, ErrorRule.RETRY) and code:
            self._note_coordinator(code, now_ms)
            self._leave.failed(token, now_ms)
            return
        self._leave.answered(token)
        if self._releases_instance:
            self._releases_instance = False
            self._instance_released(code, now_ms)

    def _instance_released(self, code: ErrorCode, now_ms: int) -> None:
        """Join, unless the coordinator says that the instance id is another member's, or refuses for good."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.instance_holders = self.instance_holders[:-1]
            if self.instance_holders:
                return
            if self._count_refusal():
                self._heartbeats.failed(now_ms)
            else:
                instance_id = self.config.group_instance_id
                message = f"another member of the group has the instance id {instance_id}"
                self._fail(ErrorCode.UNRELEASED_INSTANCE_ID, message)
        elif code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self._fail(code, "the instance id that this member holds cannot be released")

    # -- time --------------------------------------------------------------------------------------------

    def _plan(self, heartbeat_due_ms: int | None) -> None:
        """Work out when time alone makes something due, and whether the next heartbeat is a repetition."""
        heartbeats, state = self._heartbeats, self.state
        if (
            state is not states.STABLE
            or not self._coordinator.known
            or heartbeats.urgent
            or heartbeats.has_news(self._announced, self.assignment.acknowledged_epoch, self.assignment.owned)
        ):
            self._keepalive = None
        elif self._keepalive is None or self._keepalive[0].request.member_epoch != self.member_epoch:
            self._keepalive = (heartbeats.keepalive(self.member_epoch),)
        poll = self._poll_deadline_ms if state in ACTIVE else None
        self._idle_until_ms = earlier(self._other_deadline_ms, poll)
        self.deadline_ms = earlier(heartbeat_due_ms, self._idle_until_ms)
