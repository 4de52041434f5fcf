"""One member of a classic group, as a pure state machine. It is used as `ConsumerMember` is.

The application's polls and callbacks, positions and commits work as in the protocol of KIP-848. It joins in a
poll only, for then everything that was handed over before is processed. What it owns is named by topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fencepost.coordinator.protocol.classic import (
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.consumer import LeaveGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitResponse
from fencepost.member.base.errors import RequestFailure
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.participant import REDISCOVER, Actions
from fencepost.member.classic.exchange import LATER, ClassicExchange
from fencepost.member.classic.states import ACTIVE
from fencepost.member.classic.states import ClassicMemberEvent as E
from fencepost.member.classic.states import ClassicMemberState as S

GroupResponse = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse | LeaveGroupResponse


class ClassicMember(ClassicExchange):
    """One member: its inputs, and the requests that it has under way.

    It offers `assignors` in the order of preference; they have to be all cooperative, or all eager.
    """

    __slots__ = ()

    @property
    def is_connected(self) -> bool:
        """Whether the last request to the coordinator was answered, or none was sent yet (KIP-457)."""
        return self._answered

    @property
    def is_settled(self) -> bool:
        """Whether the member owns what its generation has given it, and nothing is left to be done."""
        busy = self._target is not None or self._callback is not None or self._rejoin_wanted
        return self.state is S.STABLE and not busy

    @property
    def is_rebalancing(self) -> bool:
        """Whether a round of joining is under way or due, or what it brought is not taken up yet."""
        return self.state in (*ACTIVE, S.FENCED) and not self.is_settled

    def owned_partitions(self) -> tuple[TopicPartition, ...]:
        """Everything owned, from the begin of on_assigned to the end of on_revoked or on_lost; sorted."""
        return self.owned

    # -- what the application does -----------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None, now_ms: int) -> Actions:
        """Subscribe to these names; to nothing means unsubscribe.

        :raises ValueError: after `close`, or for a pattern, which the classic protocol leaves to clients.
        """
        if self.closed:
            raise ValueError("the member is closed")
        if pattern:
            raise ValueError("a member of a classic group subscribes to names only")
        names = tuple(sorted(set(topics)))
        if not names:
            return self.unsubscribe(now_ms)
        if names != self.subscription:
            self.subscription = names
            self._rejoin_wanted = self.state in ACTIVE
        return self._step(now_ms)

    def rejoin(self, now_ms: int) -> Actions:
        """Join again as soon as the application polls, although nothing has happened to the group."""
        self._rejoin_wanted = self.state in ACTIVE
        return self._step(now_ms)

    def unsubscribe(self, now_ms: int) -> Actions:
        """Give everything up and leave. `LeaveFinished` follows, now or later."""
        self.subscription = ()
        self._begin_leaving(E.UNSUBSCRIBE, now_ms)
        return self._step(now_ms)

    def close(
        self, now_ms: int, option: CloseOption = CloseOption.DEFAULT, timeout_ms: int = 30_000
    ) -> Actions:
        """Commit, give everything up, leave, and never come back. `LeaveFinished` follows within the time."""
        self.subscription = ()
        self.closed = True
        self._close_option = option
        self._close_deadline_ms = now_ms + timeout_ms
        self._begin_leaving(E.CLOSE, now_ms)
        return self._step(now_ms)

    def poll_begin(self, now_ms: int) -> Actions:
        """The application asks for records: what it was given before is processed."""
        self.in_poll = True
        self._poll_deadline_ms = None
        self.positions.process()
        if self.positions.undecided:
            self._raise_undecided()
        if self.config.enable_auto_commit and now_ms >= self._next_auto_commit_ms and self.state in ACTIVE:
            self._auto_commit(now_ms)
        return self._step(now_ms)

    def poll_end(self, consumed: Mapping[TopicPartition, int], now_ms: int) -> Actions:
        """The application got all records before these offsets; the poll timer starts."""
        self.in_poll = False
        self._poll_deadline_ms = now_ms + self.config.max_poll_interval_ms
        self.positions.deliver(consumed)
        return self._step(now_ms)

    # -- what comes back from the cluster ----------------------------------------------------------------

    def group_answered(self, token: int, response: GroupResponse, now_ms: int) -> Actions:
        """The coordinator answered a JoinGroup, a SyncGroup, a Heartbeat or a LeaveGroup."""
        rounds = self._rounds
        self._answered = True
        if token == rounds.in_flight:
            rounds.in_flight = None
            if isinstance(response, JoinGroupResponse):
                self._join_answered(response, now_ms)
            elif isinstance(response, SyncGroupResponse):
                self._sync_answered(response, now_ms)
        elif token == self._nameless and isinstance(response, JoinGroupResponse):
            self._nameless = None
            self._leave_as(response.member_id, self._close_option, now_ms)
        elif token == rounds.beat_in_flight:
            rounds.beat_in_flight = None
            self._heartbeat_answered(response.error_code, now_ms)
        elif token == self._leave.in_flight:
            code = response.error_code
            if code in REDISCOVER or code in LATER:
                self._note_coordinator(code, now_ms)
                self._leave.failed(token, now_ms)
            else:
                self._leave.answered(token)
        return self._step(now_ms)

    def partitions_counted(self, token: int, counts: Mapping[str, int], now_ms: int) -> Actions:
        """Sizes of the topics that were asked for; those that do not exist are missing."""
        self._counted(token, counts, now_ms)
        return self._step(now_ms)

    def commit_answered(self, token: int, response: OffsetCommitResponse, now_ms: int) -> Actions:
        """The coordinator answered an OffsetCommit. Between two generations it takes none: again, then."""
        self._answered = True
        if ErrorCode.REBALANCE_IN_PROGRESS in response.errors.values():
            later = {ErrorCode.REBALANCE_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            response = OffsetCommitResponse(
                errors={partition: later.get(code, code) for partition, code in response.errors.items()}
            )
        return super().commit_answered(token, response, now_ms)

    def request_failed(self, token: int, failure: RequestFailure, now_ms: int) -> Actions:
        """A request of any kind got no answer."""
        rounds = self._rounds
        if token == rounds.in_flight:
            rounds.in_flight = None
            waits = self.state is S.PREPARING_REBALANCE and failure is RequestFailure.TIMED_OUT
            connected = self._answered and waits
            self._unanswered(now_ms)
            self._answered = connected  # a JoinGroup may wait for longer than a transport does
            self._round_refused(now_ms)
        elif token == self._nameless:
            self._nameless = None
            self._unanswered(now_ms)
        elif token == rounds.beat_in_flight:
            rounds.beat_in_flight = None
            self._unanswered(now_ms)
            rounds.beat_at_ms = now_ms
        elif token == rounds.counting:
            rounds.counting = None
            rounds.failed(now_ms)
        elif self._leave.failed(token, now_ms):
            self._unanswered(now_ms)
        elif self._coordinator.failed(token, now_ms):
            self._answered = False
        else:
            self._work_failed(token, now_ms)
        return self._step(now_ms)

    def coordinator_refused(self, token: int, code: ErrorCode, now_ms: int) -> Actions:
        """The cluster answered the lookup with an error."""
        if self._coordinator.failed(token, now_ms) and not code.retriable:
            if self.state in ACTIVE or self.state is S.PREPARE_LEAVING:
                self._fail(code, "the group's coordinator cannot be looked up")
            else:
                self._leave.cancel()
                for commit in self._commits.take_all():
                    self._commit_ended(commit, code, now_ms)
        return self._step(now_ms)

    # -- time --------------------------------------------------------------------------------------------

    def deadline_reached(self, now_ms: int) -> Actions:
        """Time passed. Does nothing if called too early."""
        deadline = self.deadline_ms
        return () if deadline is None or now_ms < deadline else self._step(now_ms)
