"""One member of a consumer group (KIP-848), as a pure state machine.

The application is "in poll" between `poll_begin` and `poll_end`. Out of poll the poll timer runs. A
reconciliation that takes partitions away, or that commits, starts only in poll: there, everything that was
handed over before is processed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import JOIN_EPOCH, MemberId, Partitions, TopicId, TopicPartition
from fencepost.member.base import errors
from fencepost.member.base.actions import ASSIGNED, LOST, Actions
from fencepost.member.base.backoff import Backoff, earlier
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.leave import CloseOption, Leave
from fencepost.member.base.machine import MemberMachine
from fencepost.member.consumer import states
from fencepost.member.consumer.actions import ConsumerMoved, SendHeartbeat
from fencepost.member.consumer.assignment import NO_SUBSCRIPTION, Subscription
from fencepost.member.consumer.heartbeats import Heartbeats, HeartbeatView, HeldInstance
from fencepost.member.consumer.reconciliation import Assignment, Callback, PassResult, Reconciler
from fencepost.member.consumer.states import ACTIVE, CONSUMER_MEMBER
from fencepost.member.consumer.states import ConsumerMemberEvent as E
from fencepost.member.consumer.states import ConsumerMemberState as S


class ConsumerMember(MemberMachine):
    """One member: it wires its heartbeats and its reconciler to the parts that every member has.

    It keeps the given member id for life; the back-off uses the source of randomness.
    """

    __slots__ = (
        "_announced",
        "_idle_until_ms",
        "_keepalive",
        "_other_deadline_ms",
        "heartbeats",
        "instance",
        "reconciler",
        "state",
        "subscription",
    )

    _ACTIVE = ACTIVE

    def __init__(
        self, group_id: str, member_id: MemberId, config: ConsumerConfig, rng: random.Random
    ) -> None:
        super().__init__(group_id, member_id, config, rng)
        tokens = self.tokens
        self.state: S = S.UNSUBSCRIBED
        self.subscription: Subscription = NO_SUBSCRIPTION
        self._announced: Subscription = NO_SUBSCRIPTION
        """The subscription for the coordinator: it stays unchanged while the member leaves."""
        self.heartbeats = Heartbeats(group_id, member_id, config, Backoff.of(config, rng), tokens)
        self.instance = HeldInstance(member_id, config)
        self.leave = Leave(Backoff.of(config, rng), tokens, SendHeartbeat)
        self.reconciler = Reconciler(self, Backoff.of(config, rng))
        self._keepalive: tuple[SendHeartbeat] | None = None
        """Set while the member is stable and has nothing to send: the heartbeat to repeat."""
        self._other_deadline_ms: int | None = None
        """The earliest deadline except those of the next heartbeat and of the application's poll."""
        self._idle_until_ms: int | None = None
        """The earliest deadline except the next heartbeat's."""

    @property
    def assignment(self) -> Assignment:
        """The partitions that the member owns, its target, and what it has acknowledged."""
        return self.reconciler.assignment

    @property
    def instance_holders(self) -> tuple[MemberId, ...]:
        """The member ids under which this process may hold its instance id; the newest one is last."""
        return self.instance.holders

    @property
    def _has_failed(self) -> bool:
        return self.state is S.FATAL

    @property
    def _gives_up(self) -> bool:
        return self.state is S.PREPARE_LEAVING

    def owned_partitions(self) -> tuple[TopicPartition, ...]:
        """Return everything owned, sorted: from the start of on_assigned to the end of on_revoked or lost."""
        return self.reconciler.owned_names()

    def _topic_ids(self) -> Mapping[str, TopicId]:
        return self.reconciler.topic_ids()

    # -- calls of the application ------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None, now_ms: int) -> Actions:
        """Subscribe to these names, to the topics that the pattern matches, or both; to nothing means
        unsubscribe.

        :raises ValueError: after `close`.
        """
        if self.closing.closed:
            raise ValueError("the member is closed")
        subscription = Subscription.of(topics, pattern)
        if not subscription:
            return self.unsubscribe(now_ms)
        if subscription != self.subscription:
            self.subscription = subscription
            if self.state in ACTIVE:
                self._announced = subscription
                self.heartbeats.urgent = True
        return self._step(now_ms)

    def _forget_subscription(self) -> None:
        self.subscription = NO_SUBSCRIPTION

    def _nothing_follows(self, now_ms: int) -> bool:
        if self._keepalive is None or (self.deadline_ms is not None and now_ms >= self.deadline_ms):
            return False
        heartbeats = self.heartbeats
        due = heartbeats.at_ms if heartbeats.in_flight is None else None
        self._idle_until_ms = earlier(self._other_deadline_ms, self.polls.deadline_ms)
        self.deadline_ms = earlier(due, self._idle_until_ms)
        return True

    # -- responses of the cluster ------------------------------------------------------------------------

    def heartbeat_answered(
        self, token: int, response: ConsumerGroupHeartbeatResponse, now_ms: int
    ) -> Actions:
        """Take in the response to a heartbeat."""
        heartbeats = self.heartbeats
        keepalive = self._keepalive
        if (
            keepalive is not None
            and token == heartbeats.in_flight == keepalive[0].token
            and not response.error_code
            and response.assignment is None
            and response.member_epoch > 0
            and response.heartbeat_interval_ms == heartbeats.interval_ms
        ):
            if response.member_epoch != self.member_epoch:
                self.member_epoch = response.member_epoch
                self.coordinator.answered()
                self._keepalive = (heartbeats.keepalive(self.member_epoch),)
            heartbeats.in_flight = None
            due = heartbeats.at_ms = now_ms + heartbeats.interval_ms
            idle_until = self._idle_until_ms
            self.deadline_ms = due if idle_until is None else min(due, idle_until)
            return ()
        if heartbeats.in_flight == token:
            if heartbeats.answered(token) and self._keeps_session:
                self._heartbeat_answered(response, now_ms)
        elif token == self.leave.in_flight:
            self._leave_answered(token, response.error_code, now_ms)
        return self._step(now_ms)

    def request_failed(self, token: int, failure: errors.RequestFailure, now_ms: int) -> Actions:
        """Note that a request of any kind got no response."""
        if token == self.heartbeats.in_flight:
            self.instance.may_be_held()
            self.coordinator.lost(now_ms)
            if self.heartbeats.answered(token):
                self.heartbeats.failed(now_ms)
        elif self.leave.failed(token, now_ms):
            self.coordinator.lost(now_ms)
        elif self.coordinator.failed(token, now_ms) or self.reconciler.names.answered(token, {}, now_ms):
            pass
        else:
            self._work_failed(token, now_ms)
        return self._step(now_ms)

    def topic_names_found(self, token: int, names: Mapping[TopicId, str], now_ms: int) -> Actions:
        """Take in names from fresh metadata; ids without a name are unknown to the cluster."""
        self.reconciler.names.answered(token, names, now_ms)
        return self._step(now_ms)

    def _heartbeat_answered(self, response: ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        code = response.error_code
        if code:
            self._heartbeat_refused(code, response.error_message or "", now_ms)
            return
        self.coordinator.answered()
        if response.member_epoch <= 0:
            # No response to a join or a keepalive; a late response to a leave has this form (KAFKA-19335).
            self.heartbeats.failed(now_ms)
            return
        self.heartbeats.succeeded(response, now_ms)
        self.instance.joined()
        self.member_epoch = response.member_epoch
        if response.assignment is not None and self.state in ACTIVE:
            self._take_target(response.assignment)

    def _heartbeat_refused(self, code: ErrorCode, message: str, now_ms: int) -> None:
        rule = errors.heartbeat_rule(code)
        if code is ErrorCode.UNRELEASED_INSTANCE_ID:
            if self._frees_instance:
                self.coordinator.answered()
                self._release_instance(now_ms)
                return
            if self.instance.count_refusal():
                rule = errors.ErrorRule.RETRY
        elif rule in (errors.ErrorRule.REDISCOVER, errors.ErrorRule.RETRY):
            self.instance.may_be_held()  # the coordinator may have written the join before it failed
        if rule is errors.ErrorRule.REDISCOVER:
            self.coordinator.lost(now_ms)
            self.heartbeats.failed(now_ms, wait=False)
            return
        self.coordinator.answered()
        if rule is errors.ErrorRule.FENCED:
            self._fenced(now_ms)
        elif rule is errors.ErrorRule.FATAL:
            self._fail(code, message)
        else:
            self.heartbeats.failed(now_ms)
            if rule is errors.ErrorRule.REPORT:
                self.out.raise_to_application(errors.MemberError(code, message))

    @property
    def _frees_instance(self) -> bool:
        """True if this process may hold the instance id that refused its join, so that it can free it."""
        return self.state is states.JOINING and bool(self.instance.holders)

    def _release_instance(self, now_ms: int) -> None:
        """Free the instance id that this process holds itself, so that the member's next join is accepted."""
        self.instance.is_released = True
        self.heartbeats.failed(now_ms, wait=False)
        request = self.heartbeats.instance_release(self.instance.holders[-1])
        self.leave.begin(request, now_ms, now_ms + self.config.request_timeout_ms)

    def _leave_answered(self, token: int, code: ErrorCode, now_ms: int) -> None:
        """End the leave after any error except "not here" or "not now"; join if it freed the instance id."""
        if errors.heartbeat_rule(code) in (errors.ErrorRule.REDISCOVER, errors.ErrorRule.RETRY) and code:
            self.coordinator.note(code, now_ms)
            self.leave.failed(token, now_ms)
            return
        self.leave.cancel()
        if self.instance.is_released:
            self.instance.is_released = False
            self._instance_released(code, now_ms)

    def _instance_released(self, code: ErrorCode, now_ms: int) -> None:
        """Join, unless the coordinator responds that the instance id is another member's, or refuses for
        good."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            self.instance.not_held_by_newest()
            if self.instance.holders:
                return
            if self.instance.count_refusal():
                self.heartbeats.failed(now_ms)
            else:
                instance_id = self.config.group_instance_id
                message = f"another member of the group has the instance id {instance_id}"
                self._fail(ErrorCode.UNRELEASED_INSTANCE_ID, message)
        elif code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self._fail(code, "the instance id that this member holds cannot be released")

    # -- moving ------------------------------------------------------------------------------------------

    def _move(self, event: E, target: S) -> None:
        CONSUMER_MEMBER.check(self.state, event, target)
        self.out.put(ConsumerMoved(event, self.state, target))
        self.state = target

    def _move_to_fatal(self) -> None:
        self._move(E.FATAL_ERROR, S.FATAL)

    def _join(self, event: E, now_ms: int) -> None:
        """Join again, with the same member id and epoch 0."""
        self.leave.cancel()
        self.instance.is_released = False
        self._announced = self.subscription
        self.member_epoch = JOIN_EPOCH
        self.assignment.forget_target()
        self.reconciler.names.forget()
        self.heartbeats.begin_join(now_ms)
        self.polls.waits_for_next = False
        self.commits.delay_auto(now_ms)
        self._move(event, S.JOINING)

    def _freeze(self) -> None:
        """Stop the work on the assignment: nothing may be fetched, the pass is abandoned (KAFKA-20332)."""
        self.reconciler.current = None
        self.instance.is_released = False
        self.commits.abandon()
        self.positions.freeze()
        self.out.wakes = True

    def _fenced(self, now_ms: int) -> None:
        """Lose everything: the coordinator does not know this member (any more)."""
        self.member_epoch = JOIN_EPOCH
        self.heartbeats.may_be_member = False
        self._lose_what_is_left()
        if self.state is S.JOINING:
            self.heartbeats.failed(now_ms)
        self._freeze()
        self._move(E.FENCED, S.UNSUBSCRIBED if self._gives_up else S.FENCED)

    # -- leaving -----------------------------------------------------------------------------------------

    def _begin_leaving(self, now_ms: int, *, closes: bool) -> None:
        """Leave on purpose: a member of a group gives everything up first; outside of a group there is
        nothing to send."""
        event = E.CLOSE if closes else E.UNSUBSCRIBE
        self.closing.wanted = True
        if self.state is S.FENCED:
            self._move(event, S.UNSUBSCRIBED)
        elif self.state is S.UNSUBSCRIBED and closes:
            self._move(event, S.PREPARE_LEAVING)
        elif self.state in ACTIVE:
            self._freeze()
            self._move(event, S.PREPARE_LEAVING)
            if not closes or not self._commit_before_leaving(now_ms):
                self._release_for_leaving()

    def _poll_timed_out(self, now_ms: int) -> None:
        """Make room for others now, and give everything up afterwards: the application does not poll."""
        self._freeze()
        self._move(E.POLL_TIMED_OUT, S.PREPARE_LEAVING)
        self._move(E.POLL_TIMED_OUT, S.LEAVING)
        self._build_leave(CloseOption.DEFAULT, now_ms)
        self._move(E.LEAVE_BUILT, S.STALE)
        self.callbacks.release = LOST

    def _build_leave(self, option: CloseOption, now_ms: int) -> None:
        self.heartbeats.drop_expected_answer()
        request = self.heartbeats.leave_request(option)
        if request is not None:
            self.leave.begin(request, now_ms, self.closing.limit_ms(now_ms))
        self.heartbeats.may_be_member = False
        self.member_epoch = JOIN_EPOCH
        self.assignment.forget_target()

    def _left(self, now_ms: int) -> None:
        if not self.heartbeats.may_be_member:
            self._build_leave(self.closing.option, now_ms)
            self._move(E.RELEASED, S.UNSUBSCRIBED)
            return
        self._move(E.RELEASED, S.LEAVING)
        self._build_leave(self.closing.option, now_ms)
        self._move(E.LEAVE_BUILT, S.UNSUBSCRIBED)

    def _released(self) -> None:
        self.reconciler.released()

    # -- reconciling -------------------------------------------------------------------------------------

    def _take_target(self, received: Partitions) -> None:
        """Take the assignment that came with a response of this join."""
        assignment = self.assignment
        changed = assignment.replace_target(received)
        if self.state is S.JOINING:
            if assignment.target_is_owned:
                assignment.acknowledged_epoch = assignment.local_epoch
                self.heartbeats.joined_owning_nothing(assignment.local_epoch)
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
            is_idle = self.reconciler.current is None and self.callbacks.running is None
            if assignment.target_is_owned and is_idle:
                assignment.acknowledged_epoch = assignment.local_epoch
                self.heartbeats.urgent = True
                self._move(E.TARGET_OWNED, S.STABLE)
            else:
                self._move(E.TARGET_RECEIVED, S.RECONCILING)

    def _after_pass(self, result: PassResult) -> bool:
        """Move if the pass is over. Return true if anything happened."""
        if result is PassResult.FINISHED:
            self._move(E.PASS_FINISHED, S.ACKNOWLEDGING)
        return result is not PassResult.NOTHING

    def _release_committed(self) -> None:
        self._after_pass(self.reconciler.committed())

    def _callback_ended(self, callback: Callback, error: BaseException | None, now_ms: int) -> None:
        """Keep the callback's effect on the owned set, then go on with its pass, if that still counts."""
        raised = error is not None
        if error is not None:
            self.out.raise_to_application(errors.CallbackFailed.of(f"on_partitions_{callback.kind}", error))
        gone = self.reconciler.callback_ended(callback, raised=raised)
        if gone:
            self._forget_commits(gone, now_ms)
        result = self.reconciler.go_on(callback, raised=raised)
        self._after_pass(result)
        if result is PassResult.FINISHED and callback.kind is ASSIGNED:
            self.commits.delay_auto(now_ms)

    # -- one step ----------------------------------------------------------------------------------------

    def _step(self, now_ms: int) -> Actions:
        """Carry out everything that follows from the last input, and return the actions."""
        self._meet_deadlines(now_ms)
        heartbeat_due_ms = self._settle(now_ms)
        self._send_others(now_ms)
        self._finish_leaving()
        self._plan(heartbeat_due_ms)
        return self.out.take()

    def _settle(self, now_ms: int) -> int | None:
        """Move as far as possible, and send the heartbeat if it is due. Return the time of the next one."""
        while True:
            while self._progress(now_ms):
                pass
            due_ms = self._heartbeat_due_ms(now_ms)
            if due_ms is None or now_ms < due_ms:
                return due_ms
            if not self._send_heartbeat():
                return None

    def _progress(self, now_ms: int) -> bool:
        """Make one move that needs nothing more from outside. Return true if there was one."""
        if self.state in ACTIVE:
            if self.polls.expired(now_ms):
                self._poll_timed_out(now_ms)
                return True
            return self.state is states.RECONCILING and self._after_pass(self.reconciler.begin(now_ms))
        if self.callbacks.running is not None:
            return False
        if self.callbacks.release is not None:
            self.reconciler.begin_release()
        elif self.state is states.FENCED:
            self._join(E.RELEASED, now_ms)
        elif self.state is states.PREPARE_LEAVING and self.closing.commit is None:
            self._left(now_ms)
        elif self.state in (states.UNSUBSCRIBED, states.STALE) and self.subscription and self.polls.in_poll:
            self._join(E.SUBSCRIBED if self.state is states.UNSUBSCRIBED else E.POLLED, now_ms)
        else:
            return False
        return True

    # -- sending -----------------------------------------------------------------------------------------

    @property
    def _keeps_session(self) -> bool:
        """True if heartbeats are sent in this state; a member that never joined does not join to leave."""
        return self.state in ACTIVE or (self.state is states.PREPARE_LEAVING and self.member_epoch > 0)

    def _heartbeat_due_ms(self, now_ms: int) -> int | None:
        """Return the time at which the next heartbeat is sent; None: not before another input."""
        heartbeats = self.heartbeats
        if heartbeats.in_flight is not None or not self.coordinator.known or not self._keeps_session:
            return None
        if self.instance.is_released:
            if self.leave.pending is not None:
                return None
            self.instance.is_released = False  # no response to the leave in time: the next join decides
        # An active member that has not polled in time is not active any more by now.
        if self.state is states.PREPARE_LEAVING and self.polls.expired(now_ms):
            return None
        return heartbeats.due_ms(now_ms, acknowledges=self.state is states.ACKNOWLEDGING)

    def _send_heartbeat(self) -> bool:
        """Send the heartbeat. Return true if that moved the member."""
        assignment = self.assignment
        view = HeartbeatView(
            epoch=self.member_epoch,
            joining=self.state is states.JOINING,
            reconciling=self.state in (states.RECONCILING, states.PREPARE_LEAVING),
            subscription=self._announced,
            local_epoch=assignment.acknowledged_epoch,
            owned=assignment.claimed if self.state in ACTIVE else assignment.owned,
        )
        self.out.put(self.heartbeats.build(view))
        if self.state is not states.ACKNOWLEDGING:
            return False
        self._move(E.ACKNOWLEDGED, states.STABLE if assignment.reconciled else states.RECONCILING)
        return True

    def _send_others(self, now_ms: int) -> None:
        """Send what is due except the heartbeat; work out when more of it is due, or ends."""
        known, leave, commits, out = self.coordinator.known, self.leave, self.commits, self.out
        deadline = self.closing.deadline_ms
        if leave.pending is not None:
            if known:
                out.put(leave.request(now_ms))
                deadline = earlier(deadline, leave.retry_ms())
            deadline = earlier(deadline, leave.expires_ms())
        if commits.queue:
            if known:
                out.put(commits.request(self.member_epoch, now_ms))
                deadline = earlier(deadline, commits.retry_ms())
            deadline = earlier(deadline, commits.expires_ms())
        if not known and self._wants_coordinator:
            out.put(self.coordinator.request(now_ms))
            deadline = earlier(deadline, self.coordinator.retry_ms())
        if self.positions.sought:
            deadline = earlier(deadline, self._ask_for_positions(now_ms))
        if self.state is states.RECONCILING:
            deadline = earlier(deadline, self._ask_for_names(now_ms))
        self._other_deadline_ms = deadline

    def _ask_for_positions(self, now_ms: int) -> int | None:
        """Look positions up if that is due. Return the time of the next lookup."""
        positions = self.positions
        deadline: int | None = None
        if self.coordinator.known:
            self.out.put(positions.fetch_request(self.member_epoch, now_ms))
            deadline = positions.fetch_retry_ms()
        self.out.put(positions.reset_request(now_ms))
        return earlier(deadline, positions.reset_retry_ms())

    def _ask_for_names(self, now_ms: int) -> int | None:
        """Look up the target's topics that have no name yet, if that is due. Return the time of the next
        lookup."""
        names = self.reconciler.names
        unknown = names.unknown(self.assignment.target or ())
        if not unknown:
            return None
        self.out.put(names.request(unknown, now_ms))
        return names.retry_at_ms if names.in_flight is None else None

    @property
    def _wants_coordinator(self) -> bool:
        return (
            self._keeps_session
            or self.leave.pending is not None
            or bool(self.commits.queue)
            or self.positions.wants_fetch()
        )

    # -- time --------------------------------------------------------------------------------------------

    def deadline_reached(self, now_ms: int) -> Actions:
        """Do everything that is due by now. Do nothing if called too early."""
        deadline = self.deadline_ms
        if deadline is None or now_ms < deadline:
            return ()
        keepalive = self._keepalive
        heartbeats = self.heartbeats
        if keepalive is not None and heartbeats.in_flight is None:
            idle_until_ms = self._idle_until_ms
            if idle_until_ms is None or now_ms < idle_until_ms:
                heartbeats.in_flight = keepalive[0].token
                self.deadline_ms = idle_until_ms
                return keepalive
        return self._step(now_ms)

    def _plan(self, heartbeat_due_ms: int | None) -> None:
        """Work out the time of the next deadline, and if the next heartbeat is a repetition."""
        heartbeats, state, assignment = self.heartbeats, self.state, self.reconciler.assignment
        if (
            state is not states.STABLE
            or not self.coordinator.responds
            or heartbeats.urgent
            or heartbeats.has_news(self._announced, assignment.acknowledged_epoch, assignment.owned)
        ):
            self._keepalive = None
        elif self._keepalive is None or self._keepalive[0].request.member_epoch != self.member_epoch:
            self._keepalive = (heartbeats.keepalive(self.member_epoch),)
        poll = self.polls.deadline_ms if state in ACTIVE else None
        self._idle_until_ms = earlier(self._other_deadline_ms, poll)
        self.deadline_ms = earlier(heartbeat_due_ms, self._idle_until_ms)
