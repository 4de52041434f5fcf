"""What a classic member sends, when, and what the answers do to it; between the membership and its inputs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from fencepost.coordinator.protocol.classic import JoinGroupResponse, SyncGroupResponse
from fencepost.coordinator.protocol.consumer_protocol import MalformedConsumerProtocol, read_assignment
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.member.base.actions import WakeApplication
from fencepost.member.base.backoff import Backoff, earliest
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.participant import REDISCOVER, Actions
from fencepost.member.classic.assignor import Assignor
from fencepost.member.classic.config import ClassicConfig
from fencepost.member.classic.membership import ClassicMembership, ReleaseStage
from fencepost.member.classic.rounds import Rounds
from fencepost.member.classic.states import ACTIVE
from fencepost.member.classic.states import ClassicMemberEvent as E
from fencepost.member.classic.states import ClassicMemberState as S

LATER = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT)
"""Errors after which the same request is sent again in a while."""
_FORGOTTEN = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class ClassicExchange(ClassicMembership):
    """A membership that talks: each step settles what follows from the input, then sends what is due."""

    __slots__ = ("_answered", "_counts", "_counts_at_ms", "_rounds")

    def __init__(
        self, group_id: str, config: ClassicConfig, rng: random.Random, assignors: Sequence[Assignor]
    ) -> None:
        super().__init__(group_id, config, rng, assignors)
        self._rounds = Rounds(group_id, config, Backoff.of(config, rng), self._tokens)
        self._answered = True
        self._counts: dict[str, int] | None = None
        """Sizes of topics when this member, as the leader, assigned them; None of any other member."""
        self._counts_at_ms = 0

    @property
    def _has_failed(self) -> bool:
        return self.state is S.FATAL

    def _freeze(self) -> None:
        super()._freeze()
        self._rounds.abandon()

    def _begin_leaving(self, event: E, now_ms: int) -> None:
        # The coordinator lets rounds wait for who was given an id, until a session ends.
        stays = (
            self.config.group_instance_id is not None and self._close_option is not CloseOption.LEAVE_GROUP
        )
        if self.state is S.PREPARING_REBALANCE and not stays and not self.member_id:
            self._nameless = self._rounds.in_flight
        super()._begin_leaving(event, now_ms)

    def _left(self, now_ms: int) -> None:
        super()._left(now_ms)
        self._rounds.abandon()

    # -- one step ----------------------------------------------------------------------------------------

    def _step(self, now_ms: int) -> Actions:
        """Let everything follow from what just happened, and hand out the actions."""
        self._meet_deadlines(now_ms)
        while self._progress(now_ms) or self._send_round(now_ms):
            pass
        self._send_others(now_ms)
        self._finish_leaving()
        if self._wake:
            self._wake = False
            self._out.append(WakeApplication())
        self.deadline_ms = self._next_deadline(now_ms)
        actions = tuple(self._out)
        self._out.clear()
        return actions

    def _meet_deadlines(self, now_ms: int) -> None:
        if self._rejoin_at_ms is not None and now_ms >= self._rejoin_at_ms:
            self._rejoin_at_ms = None
            self._rejoin_wanted = self._rejoin_wanted or self.state is S.STABLE
        super()._meet_deadlines(now_ms)

    def _progress(self, now_ms: int) -> bool:
        """One move that needs nothing more from outside. Whether there was one."""
        if self._poll_expired(now_ms) and self.state in ACTIVE:
            self._poll_timed_out(now_ms)
            return True
        if self._callback is not None:
            return False
        if self._release is not None:
            self._begin_release()
            return True
        match self.state:
            case S.UNSUBSCRIBED | S.STALE if self.subscription and self.in_poll:
                self._move(E.SUBSCRIBED if self.state is S.UNSUBSCRIBED else E.POLLED, S.UNJOINED)
                self._next_auto_commit_ms = now_ms + self.config.auto_commit_interval_ms
            case S.FENCED:
                self._move(E.RELEASED, S.UNJOINED)
            case S.UNJOINED:
                return self._prepare(now_ms)
            case S.STABLE if self._target is not None:
                return self._reconcile(self._target, now_ms)
            case S.STABLE if self._rejoin_wanted:
                self._rejoin_wanted = False
                self._move(E.REJOIN, S.UNJOINED)
            case S.PREPARE_LEAVING if self._close_commit is None:
                self._left(now_ms)
            case _:
                return False
        return True

    # -- sending -----------------------------------------------------------------------------------------

    @property
    def _keeps_session(self) -> bool:
        """Whether heartbeats go out. While a JoinGroup waits, the coordinator waits with it."""
        return self.member_epoch > 0 and self.state in (
            S.UNJOINED,
            S.COMPLETING_REBALANCE,
            S.STABLE,
            S.PREPARE_LEAVING,
        )

    @property
    def _may_join(self) -> bool:
        ready = self.state is S.UNJOINED and self._stage is ReleaseStage.READY
        return ready and self._callback is None and self._release is None

    @property
    def _may_sync(self) -> bool:
        rounds = self._rounds
        return self.state is S.COMPLETING_REBALANCE and rounds.in_flight is None and rounds.counting is None

    def _send_round(self, now_ms: int) -> bool:
        """The next request of a round, if it is due. Whether that moved the member."""
        rounds = self._rounds
        if not self._coordinator.known or now_ms < rounds.not_before_ms:
            return False
        if self._may_join:
            assignors = tuple(self._assignors.values())
            owned = self.owned if self._cooperative else ()
            self._rejoin_wanted = False
            self._rejoin_at_ms = None
            self._put(rounds.join(self.member_id, self.member_epoch, self.subscription, owned, assignors))
            self._move(E.JOIN_SENT, S.PREPARING_REBALANCE)
            return True
        if self._may_sync:
            topics = rounds.topics()
            if not rounds.roster or rounds.skips_assignment:
                self._put(rounds.sync(self.member_id, self.member_epoch, {}))
            elif topics:
                self._put(rounds.count(topics))
            else:
                self._assign({})
        return False

    def _assign(self, counts: dict[str, int]) -> None:
        self._counts = counts
        assigned = self._rounds.assigned(self._assignors[self._rounds.protocol], counts)
        self._put(self._rounds.sync(self.member_id, self.member_epoch, assigned))

    def _send_others(self, now_ms: int) -> None:
        rounds, positions = self._rounds, self.positions
        if self._coordinator.known:
            self._put(self._leave.request(now_ms))
            if self._may_commit:
                self._put(self._commits.request(self.member_epoch, now_ms))
            self._put(positions.fetch_request(0, now_ms))
            if self._keeps_session:
                self._put(rounds.beat(self.member_id, self.member_epoch, now_ms))
        elif self._wants_coordinator:
            self._put(self._coordinator.request(now_ms))
        self._put(positions.reset_request(now_ms))
        looks_at_ms = self._looks_at_topics_at_ms
        if looks_at_ms is not None and now_ms >= looks_at_ms:
            self._put(rounds.count(rounds.topics()))

    @property
    def _may_commit(self) -> bool:
        """Whether a commit waits that the coordinator would take: between two generations it takes none."""
        return bool(self._commits.queue) and self.state is not S.COMPLETING_REBALANCE

    @property
    def _wants_coordinator(self) -> bool:
        return (
            self._keeps_session
            or self.state in ACTIVE
            or self._leave.pending is not None
            or bool(self._commits.queue)
            or self.positions.wants_fetch()
        )

    @property
    def _looks_at_topics_at_ms(self) -> int | None:
        """When a leader looks for new partitions."""
        if self.state is not S.STABLE or self._rounds.counting is not None:
            return None
        return max(self._counts_at_ms, self._rounds.not_before_ms) if self._rounds.topics() else None

    # -- answers -----------------------------------------------------------------------------------------

    def _join_answered(self, response: JoinGroupResponse, now_ms: int) -> None:
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
            self._coordinator.answered()
            self._become(response.member_id, response.generation)
            self._rounds.joined(response)
            self._rounds.beat_at_ms = now_ms + self.config.heartbeat_interval_ms
            self._counts, self._counts_at_ms = None, now_ms
            self._move(E.JOINED, S.COMPLETING_REBALANCE)

    def _why_not(self, code: ErrorCode) -> str:
        if code is ErrorCode.INVALID_SESSION_TIMEOUT:
            return (
                f"session_timeout_ms is {self.config.session_timeout_ms}, and should be between the broker's "
                "group.min.session.timeout.ms and group.max.session.timeout.ms"
            )
        return "the group cannot be joined"

    def _sync_answered(self, response: SyncGroupResponse, now_ms: int) -> None:
        if response.error_code:
            self._refused(response.error_code, "no assignment is to be had", now_ms)
            return
        self._coordinator.answered()
        self._rounds.succeeded()
        try:
            assignment = read_assignment(response.assignment)
        except MalformedConsumerProtocol as error:
            self._fail(ErrorCode.UNKNOWN_SERVER_ERROR, f"the leader's assignment cannot be read: {error}")
            return
        self._take(self._assignors[self._rounds.protocol], assignment, now_ms)

    def _refused(self, code: ErrorCode, message: str, now_ms: int) -> None:
        """What an error does to the round."""
        if code in _FORGOTTEN:
            self._coordinator.answered()
            self._fenced(forget_id=code is ErrorCode.UNKNOWN_MEMBER_ID)
        elif code in REDISCOVER or code in LATER or code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._note_coordinator(code, now_ms)
            self._round_refused(now_ms, wait=code is not ErrorCode.REBALANCE_IN_PROGRESS)
        else:
            self._fail(code, message)

    def _round_refused(self, now_ms: int, *, wait: bool = True) -> None:
        """The round is over for this member: it joins again."""
        if wait:
            self._rounds.failed(now_ms)
        self._rounds.roster = ()
        joins = self.state is S.PREPARING_REBALANCE
        self._move(E.JOIN_REFUSED if joins else E.SYNC_REFUSED, S.UNJOINED)
        self._stage = ReleaseStage.READY

    def _heartbeat_answered(self, code: ErrorCode, now_ms: int) -> None:
        if code in REDISCOVER:
            self._coordinator.lost(now_ms)
            self._rounds.beat_at_ms = now_ms
            return
        self._coordinator.answered()
        if code in _FORGOTTEN:
            self._fenced(forget_id=code is ErrorCode.UNKNOWN_MEMBER_ID)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rejoin_wanted = self._rejoin_wanted or self.state is S.STABLE
        elif code and code not in LATER:
            self._fail(code, "the coordinator refuses heartbeats")

    def _counted(self, token: int, counts: Mapping[str, int], now_ms: int) -> None:
        """Sizes of topics: a leader assigns with them, and joins again when they have changed.

        One that did not assign takes the first that it hears for those that the assignment is about.
        """
        if token != self._rounds.counting:
            return
        self._rounds.counting = None
        self._counts_at_ms = now_ms + self.config.metadata_max_age_ms
        if self.state is S.COMPLETING_REBALANCE:
            self._assign(dict(counts))
        elif self._counts is None:
            self._counts = dict(counts)
        elif self.state is S.STABLE and self._counts != counts:
            self._rejoin_wanted = True

    def _unanswered(self, now_ms: int) -> None:
        self._answered = False
        self._coordinator.lost(now_ms)

    # -- time --------------------------------------------------------------------------------------------

    def _next_deadline(self, now_ms: int) -> int | None:
        """When time alone makes something due."""
        coordinator, positions, rounds = self._coordinator, self.positions, self._rounds
        found = earliest(
            self._close_deadline_ms,
            self._poll_deadline_ms if self.state in ACTIVE else None,
            self._rejoin_at_ms if self.state is S.STABLE else None,
            self._commits.expires_ms(),
            self._leave.expires_ms(),
            positions.reset_retry_ms(),
            self._looks_at_topics_at_ms,
        )
        if not coordinator.known:
            return earliest(found, coordinator.retry_ms() if self._wants_coordinator else None)
        beats = self._keeps_session and rounds.beat_in_flight is None
        return earliest(
            found,
            self._leave.retry_ms(),
            self._commits.retry_ms() if self._may_commit else None,
            positions.fetch_retry_ms(),
            rounds.beat_at_ms if beats else None,
            rounds.not_before_ms if self._may_join or self._may_sync else None,
        )
