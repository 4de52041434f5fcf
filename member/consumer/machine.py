"""One member of a consumer group (KIP-848), as a pure state machine.

Inputs are method calls with the time; each answers the actions that the shell has to carry out, in
order. Nothing here waits: an action's outcome comes back as another input, with the action's token.
`deadline_ms` says when `deadline_reached` is due.

The application is "in poll" between `poll_begin` and `poll_end`. Out of poll the poll timer runs. A
reconciliation that takes partitions away, or that commits, starts only in poll: there everything that
was handed over before is processed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import (
    NO_PARTITIONS,
    MemberId,
    Partitions,
    TopicId,
    TopicPartition,
)
from fencepost.member.base.backoff import earlier
from fencepost.member.base.config import ConsumerConfig
from fencepost.member.base.errors import RequestFailure
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.participant import Actions
from fencepost.member.consumer.assignment import named
from fencepost.member.consumer.exchange import Exchange
from fencepost.member.consumer.states import ACTIVE
from fencepost.member.consumer.states import ConsumerMemberEvent as E
from fencepost.member.consumer.states import ConsumerMemberState as S
from fencepost.member.consumer.subscription import NO_SUBSCRIPTION, Subscription


class ConsumerMember(Exchange):
    """One member: its inputs, and the requests that it has under way.

    Made with the member id that it keeps for life, and a source of randomness for its back-off.
    """

    __slots__ = ("_owned",)

    def __init__(
        self, group_id: str, member_id: MemberId, config: ConsumerConfig, rng: random.Random
    ) -> None:
        super().__init__(group_id, member_id, config, rng)
        self._owned: tuple[Partitions, tuple[TopicPartition, ...]] = NO_PARTITIONS, ()
        """What `owned_partitions` answered last, and for which set."""

    @property
    def _has_failed(self) -> bool:
        return self.state is S.FATAL

    # -- what the application does -----------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None, now_ms: int) -> Actions:
        """Subscribe to these names, to what the pattern matches, or both; to nothing means unsubscribe.

        :raises ValueError: after `close`.
        """
        if self.closed:
            raise ValueError("the member is closed")
        subscription = Subscription.of(topics, pattern)
        if not subscription:
            return self.unsubscribe(now_ms)
        if subscription != self.subscription:
            self.subscription = subscription
            if self.state in ACTIVE:
                self._announced = subscription
                self._heartbeats.urgent = True
        return self._step(now_ms)

    def unsubscribe(self, now_ms: int) -> Actions:
        """Give everything up and leave. `LeaveFinished` follows, now or later."""
        self.subscription = NO_SUBSCRIPTION
        self._begin_leaving(E.UNSUBSCRIBE, now_ms)
        return self._step(now_ms)

    def close(
        self, now_ms: int, option: CloseOption = CloseOption.DEFAULT, timeout_ms: int = 30_000
    ) -> Actions:
        """Commit, give everything up, leave, and never come back. `LeaveFinished` follows within the time."""
        self.subscription = NO_SUBSCRIPTION
        self.closed = True
        self._close_option = option
        self._close_deadline_ms = now_ms + timeout_ms
        self._begin_leaving(E.CLOSE, now_ms)
        return self._step(now_ms)

    def poll_begin(self, now_ms: int) -> Actions:
        """The application asks for records: what it was given before is processed."""
        self.in_poll = True
        self._poll_deadline_ms = None
        self._needs_new_poll = False
        self.positions.process()
        if self.positions.undecided:
            self._raise_undecided()
        if self.config.enable_auto_commit and now_ms >= self._next_auto_commit_ms and self.state in ACTIVE:
            self._auto_commit(now_ms)
        elif not self._wake and self._nothing_follows(now_ms):
            return ()
        return self._step(now_ms)

    def owned_partitions(self) -> tuple[TopicPartition, ...]:
        """Everything owned, from the begin of on_assigned to the end of on_revoked or on_lost; sorted."""
        owned, names = self._owned
        if owned is not self.assignment.owned:
            owned = self.assignment.owned
            names = named(owned, self._names.known)
            self._owned = owned, names
        return names

    def poll_end(self, consumed: Mapping[TopicPartition, int], now_ms: int) -> Actions:
        """The application got all records before these offsets; the poll timer starts.

        Partitions that are not fetchable (any more) are left as they are: their records must not be
        handed over.
        """
        self.in_poll = False
        self._poll_deadline_ms = now_ms + self.config.max_poll_interval_ms
        self.positions.deliver(consumed)
        return () if self._nothing_follows(now_ms) else self._step(now_ms)

    def _nothing_follows(self, now_ms: int) -> bool:
        """Whether a stable member's poll changes no more than the poll timer, which is then done here."""
        if self._keepalive is None or (self.deadline_ms is not None and now_ms >= self.deadline_ms):
            return False
        heartbeats = self._heartbeats
        due = heartbeats.at_ms if heartbeats.in_flight is None else None
        self._idle_until_ms = earlier(self._other_deadline_ms, self._poll_deadline_ms)
        self.deadline_ms = earlier(due, self._idle_until_ms)
        return True

    # -- what comes back from the cluster ----------------------------------------------------------------

    def heartbeat_answered(
        self, token: int, response: ConsumerGroupHeartbeatResponse, now_ms: int
    ) -> Actions:
        """The coordinator answered a heartbeat."""
        heartbeats = self._heartbeats
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
                self._coordinator.answered()
                self._keepalive = (heartbeats.keepalive(self.member_epoch),)
            heartbeats.in_flight = None
            due = heartbeats.at_ms = now_ms + heartbeats.interval_ms
            idle_until = self._idle_until_ms
            self.deadline_ms = due if idle_until is None else min(due, idle_until)
            return ()
        if heartbeats.in_flight == token:
            if heartbeats.answered(token) and self._keeps_session:
                self._heartbeat_answered(response, now_ms)
        elif token == self._leave.in_flight:
            self._leave_answered(token, response.error_code, now_ms)
        return self._step(now_ms)

    def request_failed(self, token: int, failure: RequestFailure, now_ms: int) -> Actions:
        """A request of any kind got no answer."""
        if token == self._heartbeats.in_flight:
            self._may_hold_instance()
            self._coordinator.lost(now_ms)
            if self._heartbeats.answered(token):
                self._heartbeats.failed(now_ms)
        elif self._leave.failed(token, now_ms):
            self._coordinator.lost(now_ms)
        elif self._coordinator.failed(token, now_ms) or self._names.answered(token, {}, now_ms):
            pass
        else:
            self._work_failed(token, now_ms)
        return self._step(now_ms)

    def coordinator_refused(self, token: int, code: ErrorCode, now_ms: int) -> Actions:
        """The cluster answered the lookup with an error."""
        if self._coordinator.failed(token, now_ms) and not code.retriable:
            message = "the group's coordinator cannot be looked up"
            if self.state in ACTIVE or self.state is S.PREPARE_LEAVING:
                self._fail(code, message)
            else:
                self._leave.cancel()
                for commit in self._commits.take_all():
                    self._commit_ended(commit, code, now_ms)
        return self._step(now_ms)

    def topic_names_found(self, token: int, names: Mapping[TopicId, str], now_ms: int) -> Actions:
        """Names from fresh metadata; ids without a name are unknown to the cluster."""
        self._names.answered(token, names, now_ms)
        return self._step(now_ms)

    # -- time --------------------------------------------------------------------------------------------

    def deadline_reached(self, now_ms: int) -> Actions:
        """Time passed. Does nothing if called too early."""
        deadline = self.deadline_ms
        if deadline is None or now_ms < deadline:
            return ()
        keepalive = self._keepalive
        heartbeats = self._heartbeats
        if keepalive is not None and heartbeats.in_flight is None:
            idle_until_ms = self._idle_until_ms
            if idle_until_ms is None or now_ms < idle_until_ms:
                heartbeats.in_flight = keepalive[0].token
                self.deadline_ms = idle_until_ms
                return keepalive
        return self._step(now_ms)
