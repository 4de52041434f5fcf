"""One member of a classic group, as a pure state machine. It is used like `ConsumerMember`.

The application's polls and callbacks, positions and commits work as in the protocol of KIP-848. The member
joins only in a poll, since everything handed over before is processed then. It names owned partitions by
topic.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

from fencepost.coordinator.protocol import classic, consumer_protocol
from fencepost.coordinator.protocol.consumer import LeaveGroupRequest, LeaveGroupResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitResponse
from fencepost.member.base.actions import ASSIGNED, LOST, Actions
from fencepost.member.base.backoff import Backoff, earliest
from fencepost.member.base.errors import CallbackFailed, RequestFailure
from fencepost.member.base.leave import CloseOption, Leave
from fencepost.member.base.lookups import REDISCOVER
from fencepost.member.base.machine import MemberMachine
from fencepost.member.classic.actions import ClassicMoved, SendGroupRequest
from fencepost.member.classic.assignor import Assignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.ownership import ClassicCallback, ClassicOwnership, ReleaseStage
from fencepost.member.classic.rounds import Rounds
from fencepost.member.classic.states import ACTIVE, CLASSIC_MEMBER
from fencepost.member.classic.states import ClassicMemberEvent as E
from fencepost.member.classic.states import ClassicMemberState as S

GroupResponse = (
    classic.JoinGroupResponse | classic.SyncGroupResponse | classic.HeartbeatResponse | LeaveGroupResponse
)

LATER = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT)
"""Errors after which the same request is sent again after a wait."""
_FORGOTTEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class ClassicMember(MemberMachine):
    """One member: it wires its rounds and its owned partitions to the parts that every member has.

    It offers `assignors` in the order of preference; they have to be all cooperative, or all eager.
    """

    __slots__ = ("_answered", "_assignors", "ownership", "rounds", "state", "subscription")

    config: ClassicConfig

    _ACTIVE = ACTIVE

    def __init__(
        self, group_id: str, config: ClassicConfig, rng: random.Random, assignors: Sequence[Assignor]
    ) -> None:
        super().__init__(group_id, "", config, rng)
        self.state: S = S.UNSUBSCRIBED
        self.subscription: tuple[str, ...] = ()
        """Topic names, sorted."""
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._answered = True
        self.leave = Leave(Backoff.of(config, rng), self.tokens, self._leave_action)
        self.rounds = Rounds(group_id, config, Backoff.of(config, rng), self.tokens)
        self.ownership = ClassicOwnership(
            self, cooperative=all(assignor.cooperative for assignor in assignors)
        )

    def _leave_action(self, token: int, request: LeaveGroupRequest) -> SendGroupRequest:
        return SendGroupRequest(token, request, self.config.request_timeout_ms)

    @property
    def _has_failed(self) -> bool:
        return self.state is S.FATAL

    @property
    def _gives_up(self) -> bool:
        return self.state is S.PREPARE_LEAVING

    @property
    def _has_told(self) -> bool:
        return self.leave.pending is None and self.rounds.nameless is None

    @property
    def is_connected(self) -> bool:
        """True if the last request to the coordinator was answered, or none was sent yet (KIP-457)."""
        return self._answered

    @property
    def is_settled(self) -> bool:
        """True if the member owns the assignment of its generation, and has nothing left to do."""
        ownership = self.ownership
        busy = ownership.target is not None or self.callbacks.running is not None or ownership.rejoin_wanted
        return self.state is S.STABLE and not busy

    @property
    def is_rebalancing(self) -> bool:
        """True if a round of joining is under way or due, or its assignment is not taken up yet."""
        return self.state in (*ACTIVE, S.FENCED) and not self.is_settled

    def owned_partitions(self) -> tuple[TopicPartition, ...]:
        """Return everything owned, sorted: from the start of on_assigned to the end of on_revoked or lost."""
        return self.ownership.owned

    # -- calls of the application ------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str], pattern: str | None, now_ms: int) -> Actions:
        """Subscribe to these names; to nothing means unsubscribe.

        :raises ValueError: after `close`, or for a pattern, which the classic protocol leaves to clients.
        """
        if self.closing.closed:
            raise ValueError("the member is closed")
        if pattern:
            raise ValueError("a member of a classic group subscribes to names only")
        names = tuple(sorted(set(topics)))
        if not names:
            return self.unsubscribe(now_ms)
        if names != self.subscription:
            self.subscription = names
            self.ownership.rejoin_wanted = self.state in ACTIVE
        return self._step(now_ms)

    def rejoin(self, now_ms: int) -> Actions:
        """Join again as soon as the application polls, although nothing has happened to the group."""
        self.ownership.rejoin_wanted = self.state in ACTIVE
        return self._step(now_ms)

    def _forget_subscription(self) -> None:
        self.subscription = ()

    # -- responses of the cluster ------------------------------------------------------------------------

    def group_answered(self, token: int, response: GroupResponse, now_ms: int) -> Actions:
        """Take in the coordinator's response to a JoinGroup, a SyncGroup, a Heartbeat or a LeaveGroup."""
        rounds = self.rounds
        self._answered = True
        if token == rounds.in_flight:
            rounds.in_flight = None
            if isinstance(response, classic.JoinGroupResponse):
                self._join_answered(response, now_ms)
            elif isinstance(response, classic.SyncGroupResponse):
                self._sync_answered(response, now_ms)
        elif token == self.rounds.nameless and isinstance(response, classic.JoinGroupResponse):
            self.rounds.nameless = None
            self._leave_as(response.member_id, self.closing.option, now_ms)
        elif token == rounds.beat_in_flight:
            rounds.beat_in_flight = None
            self._heartbeat_answered(response.error_code, now_ms)
        elif token == self.leave.in_flight:
            code = response.error_code
            if code in REDISCOVER or code in LATER:
                self.coordinator.note(code, now_ms)
                self.leave.failed(token, now_ms)
            else:
                self.leave.cancel()
        return self._step(now_ms)

    def partitions_counted(self, token: int, counts: Mapping[str, int], now_ms: int) -> Actions:
        """Take in the sizes of the topics that were requested; those that do not exist are missing."""
        self._counted(token, counts, now_ms)
        return self._step(now_ms)

    def commit_answered(self, token: int, response: OffsetCommitResponse, now_ms: int) -> Actions:
        """Take in the response to an OffsetCommit. Between two generations the coordinator accepts none:
        retry then."""
        self._answered = True
        if ErrorCode.REBALANCE_IN_PROGRESS in response.errors.values():
            later = {ErrorCode.REBALANCE_IN_PROGRESS: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            response = OffsetCommitResponse(
                errors={partition: later.get(code, code) for partition, code in response.errors.items()}
            )
        return super().commit_answered(token, response, now_ms)

    def request_failed(self, token: int, failure: RequestFailure, now_ms: int) -> Actions:
        """Take in that a request of any kind got no response."""
        rounds = self.rounds
        if token == rounds.in_flight:
            rounds.in_flight = None
            waits = self.state is S.PREPARING_REBALANCE and failure is RequestFailure.TIMED_OUT
            connected = self._answered and waits
            self._unanswered(now_ms)
            self._answered = connected  # a JoinGroup may wait for longer than a transport does
            self._round_refused(now_ms)
        elif token == self.rounds.nameless:
            self.rounds.nameless = None
            self._unanswered(now_ms)
        elif token == rounds.beat_in_flight:
            rounds.beat_in_flight = None
            self._unanswered(now_ms)
            rounds.beat_at_ms = now_ms
        elif token == rounds.counting:
            rounds.counting = None
            rounds.failed(now_ms)
        elif self.leave.failed(token, now_ms):
            self._unanswered(now_ms)
        elif self.coordinator.failed(token, now_ms):
            self._answered = False
        else:
            self._work_failed(token, now_ms)
        return self._step(now_ms)

    def _join_answered(self, response: classic.JoinGroupResponse, now_ms: int) -> None:
        code = response.error_code
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self._become(response.member_id, 0)
            self._move(E.JOIN_REFUSED, S.UNJOINED)
        elif code:
            self._refused(code, self._why_not(code), now_ms)
        elif response.protocol_name not in self._assignors:
            self._fail(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"the group has chosen {response.protocol_name}, which was not offered",
            )
        else:
            self.coordinator.answered()
            self._become(response.member_id, response.generation)
            self.rounds.joined(response)
            self.rounds.beat_at_ms = now_ms + self.config.heartbeat_interval_ms
            self.rounds.sizes, self.rounds.sizes_at_ms = None, now_ms
            self._move(E.JOINED, S.COMPLETING_REBALANCE)

    def _why_not(self, code: ErrorCode) -> str:
        if code is ErrorCode.INVALID_SESSION_TIMEOUT:
            return (
                f"session_timeout_ms is {self.config.session_timeout_ms}, and should be between the broker's "
                "group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        return "the group cannot be joined"

    def _sync_answered(self, response: classic.SyncGroupResponse, now_ms: int) -> None:
        if response.error_code:
            self._refused(response.error_code, "no assignment is to be had", now_ms)
            return
        self.coordinator.answered()
        self.rounds.succeeded()
        try:
            assignment = consumer_protocol.read_assignment(response.assignment)
        except consumer_protocol.MalformedConsumerProtocol as error:
            self._fail(ErrorCode.UNKNOWN_SERVER_ERROR, f"the leader's assignment cannot be read: {error}")
            return
        self._take(self._assignors[self.rounds.protocol], assignment, now_ms)

    def _refused(self, code: ErrorCode, message: str, now_ms: int) -> None:
        """Take in the error that ended a request of the round."""
        if code in _FORGOTTEN:
            self.coordinator.answered()
            self._fenced(forget_id=code is ErrorCode.UNKNOWN_MEMBER_ID)
        elif code in REDISCOVER or code in LATER or code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.coordinator.note(code, now_ms)
            self._round_refused(now_ms, wait=code is not ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            self._fail(code, message)

    def _round_refused(self, now_ms: int, *, wait: bool = True) -> None:
        """End the round for this member: it joins again."""
        if wait:
            self.rounds.failed(now_ms)
        self.rounds.roster = ()
        joins = self.state is S.PREPARING_REBALANCE
        self._move(E.JOIN_REFUSED if joins else E.SYNC_REFUSED, S.UNJOINED)
        self.ownership.stage = ReleaseStage.READY

    def _heartbeat_answered(self, code: ErrorCode, now_ms: int) -> None:
        if code in REDISCOVER:
            self.coordinator.lost(now_ms)
            self.rounds.beat_at_ms = now_ms
            return
        self.coordinator.answered()
        if code in _FORGOTTEN:
            self._fenced(forget_id=code is ErrorCode.UNKNOWN_MEMBER_ID)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self.ownership.rejoin_wanted = self.ownership.rejoin_wanted or self.state is S.STABLE
        elif code and code not in LATER:
            self._fail(code, "the coordinator refuses heartbeats")

    def _counted(self, token: int, counts: Mapping[str, int], now_ms: int) -> None:
        """Take in sizes of topics: a leader assigns with them, and joins again when they have changed.

        A leader that did not assign treats the first sizes that it receives as those of the assignment.
        """
        if token != self.rounds.counting:
            return
        self.rounds.counting = None
        self.rounds.sizes_at_ms = now_ms + self.config.metadata_max_age_ms
        if self.state is S.COMPLETING_REBALANCE:
            self._assign(dict(counts))
        elif self.rounds.sizes is None:
            self.rounds.sizes = dict(counts)
        elif self.state is S.STABLE and self.rounds.sizes != counts:
            self.ownership.rejoin_wanted = True

    def _unanswered(self, now_ms: int) -> None:
        self._answered = False
        self.coordinator.lost(now_ms)

    # -- moving ------------------------------------------------------------------------------------------

    def _move(self, event: E, target: S) -> None:
        CLASSIC_MEMBER.check(self.state, event, target)
        self.out.put(ClassicMoved(event, self.state, target))
        self.state = target

    def _move_to_fatal(self) -> None:
        self._move(E.FATAL_ERROR, S.FATAL)

    def _become(self, member_id: MemberId, generation: int) -> None:
        """Become this member in this generation; 0 stands for no generation."""
        self.member_id = self.commits.member_id = member_id
        self.member_epoch = generation

    def _freeze(self) -> None:
        """Stop the work on the assignment: nothing may be fetched, and no round goes on."""
        self.ownership.freeze()
        self.commits.abandon()
        self.positions.freeze()
        self.out.wakes = True
        self.rounds.abandon()

    def _fenced(self, *, forget_id: bool) -> None:
        """Lose everything: the coordinator does not know this member in this generation."""
        self._become("" if forget_id else self.member_id, 0)
        self._freeze()
        self._lose_what_is_left()
        self._move(E.FENCED, S.UNSUBSCRIBED if self._gives_up else S.FENCED)

    # -- leaving -----------------------------------------------------------------------------------------

    def _begin_leaving(self, now_ms: int, *, closes: bool) -> None:
        """Leave on purpose: a member of a group gives everything up first; outside of a group there is
        nothing to send."""
        event = E.CLOSE if closes else E.UNSUBSCRIBE
        is_static = self.config.group_instance_id is not None
        # After the coordinator has given an id to a member, rounds wait for that member until a session ends.
        stays = is_static and self.closing.option is not CloseOption.LEAVE_GROUP
        if self.state is S.PREPARING_REBALANCE and not stays and not self.member_id:
            self.rounds.nameless = self.rounds.in_flight
        self.closing.wanted = True
        if self.state in (S.FENCED, S.STALE):
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
        self._build_leave(CloseOption.DEFAULT, now_ms)
        self.callbacks.release = LOST
        self._move(E.POLL_TIMED_OUT, S.STALE)

    def _build_leave(self, option: CloseOption, now_ms: int) -> None:
        self._leave_as(self.member_id, option, now_ms)
        self._become("", 0)

    def _leave_as(self, member_id: MemberId, option: CloseOption, now_ms: int) -> None:
        """Leave the group: a dynamic member unless it is to remain; a static one only if it is to leave."""
        instance_id = self.config.group_instance_id
        stays = CloseOption.REMAIN_IN_GROUP if instance_id is None else CloseOption.LEAVE_GROUP
        if member_id and (option is stays) is (instance_id is not None):
            request = LeaveGroupRequest(group_id=self.group_id, member_id=member_id, instance_id=instance_id)
            self.leave.begin(request, now_ms, self.closing.limit_ms(now_ms))

    def _left(self, now_ms: int) -> None:
        self._build_leave(self.closing.option, now_ms)
        self._move(E.RELEASED, S.UNSUBSCRIBED)
        self.rounds.abandon()

    def _released(self) -> None:
        self.ownership.released()

    def _give_up_closing(self, now_ms: int) -> None:
        self.rounds.nameless = None
        super()._give_up_closing(now_ms)

    # -- rebalancing -------------------------------------------------------------------------------------

    def _take(
        self, assignor: Assignor, assignment: consumer_protocol.ConsumerProtocolAssignment, now_ms: int
    ) -> None:
        """Take the assignment of a new generation."""
        delay_ms = assignor.on_assignment(assignment)
        self.ownership.take(assignment, None if delay_ms is None else now_ms + delay_ms)
        self._move(E.SYNCED, S.STABLE)

    def _release_committed(self) -> None:
        self.ownership.committed()

    def _callback_ended(self, callback: ClassicCallback, error: BaseException | None, now_ms: int) -> None:
        """Keep the callback's effect on the owned set; a callback that raised has had its effect, too."""
        if error is not None:
            self.out.raise_to_application(CallbackFailed.of(f"on_partitions_{callback.kind}", error))
        gone = self.ownership.callback_ended(callback)
        if callback.kind is ASSIGNED:
            self.commits.delay_auto(now_ms)
        else:
            self._forget_commits(gone, now_ms)

    # -- one step ----------------------------------------------------------------------------------------

    def _step(self, now_ms: int) -> Actions:
        """Carry out everything that follows from the last input, and return the actions."""
        self._meet_deadlines(now_ms)
        while self._progress(now_ms) or self._send_round(now_ms):
            pass
        self._send_others(now_ms)
        self._finish_leaving()
        self.deadline_ms = self._next_deadline(now_ms)
        return self.out.take()

    def _meet_deadlines(self, now_ms: int) -> None:
        if self.ownership.rejoin_at_ms is not None and now_ms >= self.ownership.rejoin_at_ms:
            self.ownership.rejoin_at_ms = None
            self.ownership.rejoin_wanted = self.ownership.rejoin_wanted or self.state is S.STABLE
        super()._meet_deadlines(now_ms)

    def _progress(self, now_ms: int) -> bool:
        """Make one move that needs nothing more from outside. Return true if there was one."""
        if self.polls.expired(now_ms) and self.state in ACTIVE:
            self._poll_timed_out(now_ms)
            return True
        if self.callbacks.running is not None:
            return False
        if self.callbacks.release is not None:
            self.ownership.begin_release()
            return True
        match self.state:
            case S.UNSUBSCRIBED | S.STALE if self.subscription and self.polls.in_poll:
                self._move(E.SUBSCRIBED if self.state is S.UNSUBSCRIBED else E.POLLED, S.UNJOINED)
                self.commits.delay_auto(now_ms)
            case S.FENCED:
                self._move(E.RELEASED, S.UNJOINED)
            case S.UNJOINED:
                return self.ownership.prepare(self.subscription, self.member_epoch, now_ms)
            case S.STABLE if self.ownership.target is not None:
                return self.ownership.reconcile(self.ownership.target, self.member_epoch, now_ms)
            case S.STABLE if self.ownership.rejoin_wanted:
                self.ownership.rejoin_wanted = False
                self._move(E.REJOIN, S.UNJOINED)
            case S.PREPARE_LEAVING if self.closing.commit is None:
                self._left(now_ms)
            case _:
                return False
        return True

    # -- sending -----------------------------------------------------------------------------------------

    @property
    def _keeps_session(self) -> bool:
        """True if heartbeats are sent. While a JoinGroup waits, the coordinator waits with it."""
        return self.member_epoch > 0 and self.state in (
            S.UNJOINED,
            S.COMPLETING_REBALANCE,
            S.STABLE,
            S.PREPARE_LEAVING,
        )

    @property
    def _may_join(self) -> bool:
        ready = self.state is S.UNJOINED and self.ownership.stage is ReleaseStage.READY
        return ready and self.callbacks.running is None and self.callbacks.release is None

    @property
    def _may_sync(self) -> bool:
        rounds = self.rounds
        return self.state is S.COMPLETING_REBALANCE and rounds.in_flight is None and rounds.counting is None

    def _send_round(self, now_ms: int) -> bool:
        """Send the next request of a round, if it is due. Return true if that moved the member."""
        rounds = self.rounds
        if not self.coordinator.known or now_ms < rounds.not_before_ms:
            return False
        if self._may_join:
            assignors = tuple(self._assignors.values())
            owned = self.ownership.owned if self.ownership.cooperative else ()
            self.ownership.join_sent()
            self.out.put(rounds.join(self.member_id, self.member_epoch, self.subscription, owned, assignors))
            self._move(E.JOIN_SENT, S.PREPARING_REBALANCE)
            return True
        if self._may_sync:
            topics = rounds.topics()
            if not rounds.roster or rounds.skips_assignment:
                self.out.put(rounds.sync(self.member_id, self.member_epoch, {}))
            elif topics:
                self.out.put(rounds.count(topics))
            else:
                self._assign({})
        return False

    def _assign(self, counts: dict[str, int]) -> None:
        self.rounds.sizes = counts
        assigned = self.rounds.assigned(self._assignors[self.rounds.protocol], counts)
        self.out.put(self.rounds.sync(self.member_id, self.member_epoch, assigned))

    def _send_others(self, now_ms: int) -> None:
        rounds, positions = self.rounds, self.positions
        if self.coordinator.known:
            self.out.put(self.leave.request(now_ms))
            if self._may_commit:
                self.out.put(self.commits.request(self.member_epoch, now_ms))
            self.out.put(positions.fetch_request(0, now_ms))
            if self._keeps_session:
                self.out.put(rounds.beat(self.member_id, self.member_epoch, now_ms))
        elif self._wants_coordinator:
            self.out.put(self.coordinator.request(now_ms))
        self.out.put(positions.reset_request(now_ms))
        looks_at_ms = self._looks_at_topics_at_ms
        if looks_at_ms is not None and now_ms >= looks_at_ms:
            self.out.put(rounds.count(rounds.topics()))

    @property
    def _may_commit(self) -> bool:
        """True if a commit waits, and the coordinator would accept it: between two generations it accepts
        none."""
        return bool(self.commits.queue) and self.state is not S.COMPLETING_REBALANCE

    @property
    def _wants_coordinator(self) -> bool:
        return (
            self._keeps_session
            or self.state in ACTIVE
            or self.leave.pending is not None
            or bool(self.commits.queue)
            or self.positions.wants_fetch()
        )

    @property
    def _looks_at_topics_at_ms(self) -> int | None:
        """Time at which a leader checks its topics for new partitions."""
        if self.state is not S.STABLE or self.rounds.counting is not None:
            return None
        return max(self.rounds.sizes_at_ms, self.rounds.not_before_ms) if self.rounds.topics() else None

    # -- time --------------------------------------------------------------------------------------------

    def deadline_reached(self, now_ms: int) -> Actions:
        """Do everything that is due by now. Do nothing if called too early."""
        deadline = self.deadline_ms
        return () if deadline is None or now_ms < deadline else self._step(now_ms)

    def _next_deadline(self, now_ms: int) -> int | None:
        """Return the time of the next deadline."""
        coordinator, positions, rounds = self.coordinator, self.positions, self.rounds
        found = earliest(
            self.closing.deadline_ms,
            self.polls.deadline_ms if self.state in ACTIVE else None,
            self.ownership.rejoin_at_ms if self.state is S.STABLE else None,
            self.commits.expires_ms(),
            self.leave.expires_ms(),
            positions.reset_retry_ms(),
            self._looks_at_topics_at_ms,
        )
        if not coordinator.known:
            return earliest(found, coordinator.retry_ms() if self._wants_coordinator else None)
        beats = self._keeps_session and rounds.beat_in_flight is None
        return earliest(
            found,
            self.leave.retry_ms(),
            self.commits.retry_ms() if self._may_commit else None,
            positions.fetch_retry_ms(),
            rounds.beat_at_ms if beats else None,
            rounds.not_before_ms if self._may_join or self._may_sync else None,
        )
