"""Classic groups step by step: each request gets the right response at the right time.

A second account of the group (`classic_account`) works out the effects of an event, `classic_comparison`
compares them. After a finding, a group is left alone until another coordinator loads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.protocol import consumer
from fencepost.coordinator.protocol.classic import (
    CONSUMER_PROTOCOL_TYPE,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
)
from fencepost.coordinator.protocol.outcome import (
    NOTHING,
    DeadlineReached,
    MemberFenced,
    MemberHeard,
    Outcome,
    ParkedResponse,
    RebalanceRequested,
    Request,
    Response,
    SessionEnded,
)
from fencepost.coordinator.protocol.records import GroupMetadataKey, GroupMetadataValue
from fencepost.member.base.transport import RequestTimedOut
from fencepost.simulation.judge.administration import delete_errors
from fencepost.simulation.judge.base import OF_LOG, Finding, Judge
from fencepost.simulation.judge.classic_account import ExpectedGroup
from fencepost.simulation.judge.classic_comparison import (
    check_state,
    check_timer,
    compare,
    essence,
    names_of,
    sent,
    undated,
)
from fencepost.simulation.judge.classic_expected import (
    EMPTY,
    JOINING,
    STABLE,
    Deadline,
    Expected,
    nothing,
    offers_of,
    request_error,
)
from fencepost.simulation.judge.classic_migration import ClassicMigration
from fencepost.simulation.judge.classic_records import check_fresh_assignments
from fencepost.simulation.judge.commits import missing
from fencepost.simulation.kernel.observers import StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.simulation.kernel.observers import FindingReport, WorldView

_E = ErrorCode
_NONE = ErrorCode.NONE
_LATE_MS: Final = 1
"""Events in the millisecond of a deadline may come before its timer."""
_AT_ONCE: Final = 8
"""Groups that are looked at after an event that does not name them."""
_FENCING: Final = frozenset(
    {_E.UNKNOWN_MEMBER_ID, _E.FENCED_INSTANCE_ID, _E.ILLEGAL_GENERATION, _E.REBALANCE_IN_PROGRESS}
)
_IN_SESSION: Final = (HeartbeatRequest, OffsetCommitRequest, MemberHeard)
_OF_A_GROUP: Final = (
    JoinGroupRequest,
    SyncGroupRequest,
    consumer.LeaveGroupRequest,
    consumer.LeaveGroupBatchRequest,
    SessionEnded,
    RebalanceRequested,
)


class ClassicRounds(Judge):
    """Watches the coordinators' classic groups, and keeps an account of each."""

    has_the_time = True
    """True if timers of the coordinator run in time, and hosts of members are seen; else no timer is found
    late, and no request that hangs."""

    def __init__(self) -> None:
        self._accounts: dict[str, ExpectedGroup] = {}
        self._lost: set[str] = set()
        """Groups with a finding."""
        self._unseen: list[str] = []
        """Groups that have their turn in the coming steps."""
        self._counted: dict[str, int] = {}
        self._armed = 0
        """The number of timers that all accounts expect, and that of each: no step has to look at all."""
        self._paused: set[str] = set()
        """Brokers that have done nothing since they began to stand still."""
        self._turned_away: set[str] = set()
        """Hosts whose request waited when its coordinator resigned in good order."""
        self._excused_ms = 0
        """Time at which a broker last went on after a pause, in ms: deadlines that passed before may be met
        late."""

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with nothing."""
        super().attach(world, report)
        self._migration = ClassicMigration(world.config)

    # -- events -------------------------------------------------------------------------------------------

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Load the groups: the coordinator treats every member as just seen, and no request waits."""
        live = self.world.coordinators[host].coordinator
        if what == "resign":
            self._turn_away()
        if what == "active" and live is not None:
            self._accounts.clear()
            self._lost.clear()
            self._counted.clear()
            self._armed = 0
            for group_id, value in live.classic.stored.items():
                account = ExpectedGroup.of_record(group_id, value, self.world.config, now_us // 1000)
                self._accounts[group_id] = account
                if not self.has_the_time:
                    account.adopt(live.classic.timers)
                self._count(group_id)
                self._found(group_id, check_state(account, live))
            self._migration.loaded(live)

    def _turn_away(self) -> None:
        """Note the members that wait: each is sent to the new coordinator."""
        hosts = self.world.hosts_by_member
        for account in self._accounts.values() if self.has_the_time else ():
            for member_id, member in account.members.items():
                if member_id in hosts and (member.join is not None or member.sync is not None):
                    self._turned_away.add(hosts[member_id])
        self._accounts.clear()

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Note that a process that ended, or stands still, waits for nothing."""
        self._turned_away.discard(host)

    def on_loss(self, host: str, broker: str, kind: str, request: Request, now_us: int) -> None:
        """Note that the response to a request that waited may be lost."""
        self._turned_away.discard(host)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Check that a request that waited gets a response, or loses its connection, and does not hang."""
        if host in self._turned_away and isinstance(request, JoinGroupRequest | SyncGroupRequest):
            self._turned_away.remove(host)
            if isinstance(response, RequestTimedOut):
                self.report(
                    "classic-rounds" if isinstance(request, JoinGroupRequest) else "classic-synced",
                    f"{host} was not notified that its group has another coordinator, and waited until its"
                    f" {type(request).__name__} timed out",
                )

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """Note that a broker that stood still is late."""
        if fault == "broker-pause" and phase == "begin":
            self._paused.add(detail)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check one event."""
        live = self.world.coordinators[host].coordinator
        if live is None:
            return
        now_ms = now_us // 1000
        self.report_all(self._migration.before(live, event, outcome, now_ms))
        if isinstance(event, DeadlineReached):
            self._time(live, event, outcome, now_ms)
        elif isinstance(event, _IN_SESSION):
            self._in_session(live, event, outcome.reply, now_ms)
        elif isinstance(event, _OF_A_GROUP) and event.group_id not in self._lost:
            self._of_a_group(live, event, outcome, now_ms)
        else:
            if isinstance(event, OffsetDeleteRequest | consumer.DeleteGroupsRequest):
                self._administered(live, event, outcome)
            self._elsewhere(live, event, outcome, now_ms)
        if isinstance(event, SyncGroupRequest):
            self.report_all(check_fresh_assignments(outcome.records))
        if outcome.records:
            self.report_all(self._migration.after(live, outcome))
        if not isinstance(event, _IN_SESSION):
            self._look_around(live)
        if self.has_the_time:
            self._look(host, now_ms)

    def _look_around(self, live: GroupCoordinator) -> None:
        """Find groups that an event changed without naming them: a few after each event, in turn."""
        if not self._unseen:
            self._unseen = [*self._accounts]
        for group_id in self._unseen[-_AT_ONCE:]:
            account, group = self._accounts.get(group_id), live.classic.groups.get(group_id)
            if account is not None and (
                group is None
                or group.generation != account.generation
                or group.state is not account.phase
                or len(group.members) != len(account.members)
            ):
                self._found(group_id, check_state(account, live))
        del self._unseen[-_AT_ONCE:]
        groups = live.classic.groups
        if len(groups) > len(self._accounts) and not self._lost:
            for group_id in groups.keys() - self._accounts.keys():
                message = (
                    f"{group_id} is there in generation {groups[group_id].generation}, and was never made"
                )
                self._found(group_id, [("classic-generations", message)])

    def on_end(self, now_us: int) -> None:
        """Check that groups are as their accounts say, and those at rest on record, too."""
        live = self.world.active
        if live is None:
            return
        for group_id, account in [*self._accounts.items()]:
            self._found(group_id, check_state(account, live))
            group = live.classic.groups.get(group_id)
            if group is None or group_id in self._lost or account.phase not in (STABLE, EMPTY):
                continue
            value, right = group.value(group.assignments), account.value()
            if essence(value) != essence(right):
                message = f"{group_id}, {account.phase}, ends as {value} instead of {right}"
                self._found(group_id, [("classic-record", message)])
            elif account.is_written and undated(live.classic.stored.get(group_id)) != undated(value):
                message = f"{group_id}, {account.phase} in generation {account.generation}, differs from its"
                self._found(group_id, [("classic-record", f"{message} record")])

    # -- requests -----------------------------------------------------------------------------------------

    def _in_session(self, live: GroupCoordinator, event: Any, reply: Response | None, now_ms: int) -> None:
        """Judge a request that at most renews the session of its member."""
        group_id, account = event.group_id, self._accounts.get(event.group_id)
        codes: set[ErrorCode] = set()
        if isinstance(event, OffsetCommitRequest):
            if not isinstance(reply, OffsetCommitResponse) or event.is_anonymous_transaction:
                return
            if not (judged := reply.errors.keys() - missing(event, reply, live.image)) and event.offsets:
                return  # of no partition that exists: the request did not reach the group
            codes = set() if event.is_transactional else {reply.errors[each] for each in judged}
        elif isinstance(event, HeartbeatRequest):
            if not isinstance(reply, HeartbeatResponse):
                return
            codes = {reply.error_code}
        if account is None:
            return
        account.begin(now_ms, {})
        expected, what = _NONE, "commit-fenced"
        if isinstance(event, OffsetCommitRequest):
            expected = account.commits(event)
            if expected is _NONE:
                codes &= _FENCING  # a partition may be refused for its own sake
        elif isinstance(event, HeartbeatRequest):
            expected, what = account.beats(event), "classic-answers"
        else:
            account.hears(event.member_id)
        self._count(group_id)
        if codes - {expected}:
            self.report(
                what,
                f"{event} to {group_id}, which is {account.phase} in generation {account.generation}:"
                f" {names_of(tuple(codes))} instead of {expected.name}",
            )
        else:
            self._found(group_id, check_timer(live, account, account.session_of(event.member_id)))

    def _administered(self, live: GroupCoordinator, event: Any, outcome: Outcome) -> None:
        """Judge the deletions of administrators: of groups without members, and of offsets that no member
        needs.

        The topics of members that are not consumers are unknown: nothing is deleted.
        """
        account, reply = self._accounts.get(event.group_id), outcome.reply
        if account is None or getattr(reply, "error_code", None) in OF_LOG:
            return
        is_empty, group_id = account.phase is EMPTY, account.group_id
        right, errors, kept = _NONE, {}, set[TopicPartition]()
        if isinstance(reply, OffsetDeleteResponse) and (
            is_empty or account.protocol_type == CONSUMER_PROTOCOL_TYPE
        ):
            every = account.topics is None
            subscribed = () if is_empty or account.topics is None else account.topics
            errors = delete_errors(event, live.image, subscribed, every=every and not is_empty)
            left = {each for each, _ in live.offsets.committed(group_id)}
            kept = {each for each in left if errors.get(each) is _NONE}
        elif not is_empty:
            right = _E.NON_EMPTY_GROUP
        if getattr(reply, "error_code", None) is not right or getattr(reply, "errors", {}) != errors or kept:
            message = f"{event}, {account.phase} with {account.topics}, was answered {reply}: left {kept}"
            self._found(group_id, [("admin-changes", message)])

    def _of_a_group(self, live: GroupCoordinator, event: Any, outcome: Outcome, now_ms: int) -> None:
        """Judge a request that names a group, or one that concerns a group."""
        group_id = event.group_id
        account, is_new = self._accounts.get(group_id), False
        got = sent(group_id, event, outcome)
        if account is None:
            if not isinstance(event, JoinGroupRequest) or self._belongs_elsewhere(live, group_id):
                self._elsewhere(live, event, outcome, now_ms)
                return
            account, is_new = ExpectedGroup(group_id, self.world.config), True
        account.begin(now_ms, got.answers, kept=getattr(event, "token", None) in got.answers)
        if not isinstance(event, JoinGroupRequest):
            _takes(account, event)
        elif self._joins(account, event, is_new=is_new) and not outcome.records and self._fails(outcome):
            del self._accounts[group_id]  # it never existed
            return
        self._judge(live, account, type(event).__name__, outcome, got)

    def _joins(self, account: ExpectedGroup, request: JoinGroupRequest, *, is_new: bool) -> bool:
        """Judge a JoinGroup. Return true if it makes a group, which is written at once."""
        error = request_error(request, self.world.config)
        if error is _NONE and is_new and request.member_id:
            error = _E.UNKNOWN_MEMBER_ID
        if error is not _NONE:
            account.now.answers[request.token] = JoinGroupResponse(error_code=error)
            return False
        made = account.value() if is_new else None
        account.joins(request)
        account.now.value = made or account.now.value
        self._accounts[account.group_id] = account
        return is_new

    def _fails(self, outcome: Outcome) -> bool:
        """Return true if the log accepts no records now; the response to a request must say so."""
        failing = not self.has_the_time or bool(getattr(self.world.journal, "failing", False))
        return failing and (outcome.reply is None or _code_of(outcome.reply) in OF_LOG)

    def _judge(
        self,
        live: GroupCoordinator,
        account: ExpectedGroup,
        what: str,
        outcome: Outcome,
        got: Expected,
    ) -> None:
        """Compare, and let the account go on."""
        group_id, expected = account.group_id, account.now
        findings: list[Finding] = []
        if expected.value is not None:
            account.is_written = bool(outcome.records)
        if expected.value is not None and not outcome.records and self._fails(outcome):
            expected.answers.clear()
            expected.value = None
            expected.codes, expected.fenced = got.codes, got.fenced
            expected.undo(_E.UNKNOWN_SERVER_ERROR if outcome.reply is None else _code_of(outcome.reply))
            expected.later = nothing
        findings += compare(group_id, what, expected, got)
        expected.later()
        if not findings and group_id in self._accounts:
            findings += check_state(account, live)
        self._found(group_id, findings)
        self._count(group_id)
        if not findings and not self._lost and (armed := len(live.classic.timers)) != self._armed:
            message = f"{what} left {armed} timers instead of {self._armed}"
            self._found(group_id, [("timers-armed", message)])

    def _belongs_elsewhere(self, live: GroupCoordinator, group_id: str) -> bool:
        """Return true if a group of another kind has that id, and has members."""
        if self._migration.has_members(group_id):
            return True
        found = live.kinds.find(group_id)
        return found is not None and found[0] not in (live.classic, live.consumer) and bool(found[1].members)

    # -- deadlines ----------------------------------------------------------------------------------------

    def _time(self, live: GroupCoordinator, event: DeadlineReached, outcome: Outcome, now_ms: int) -> None:
        """Judge a timer that ran. If one of these groups had it, it was that of the earliest deadline, and is
        no longer armed."""
        fenced = {each.member_id: each for each in outcome.effects if isinstance(each, MemberFenced)}

        timers: Any = live.classic.timers

        def rank(one: tuple[int, Deadline]) -> tuple[int, bool, bool]:
            at_ms, deadline = one
            return at_ms, timers.deadline_of(deadline) == at_ms, not _explains(deadline, fenced)

        due: list[tuple[int, Deadline]] = []
        for account in self._accounts.values():
            if account.look_ms <= now_ms:
                if not (found := [*account.due(now_ms)]):
                    account.looked()
                due += found
        first = min(due, key=rank, default=None)
        if first is not None and rank(first)[1]:
            is_again = not outcome.records and self._accounts[first[1].group_id].gathers_again(*first, now_ms)
            first = first if is_again and outcome is not NOTHING else None
        if first is None:  # it was another kind's
            parked = any(isinstance(each, ParkedResponse) for each in outcome.effects)
            named = {each.group_id: None for each in fenced.values()}
            for record in outcome.records:
                if type(record.key) is GroupMetadataKey:
                    named[record.key.group_id] = None
            for group_id in [*(self._accounts if parked else named)]:
                if group_id in self._accounts:
                    got = sent(group_id, event, outcome)
                    self._found(group_id, compare(group_id, "a timer that was never set", Expected(), got))
            self._elsewhere(live, event, outcome, now_ms)
            return
        deadline = first[1]
        account, got = self._accounts[deadline.group_id], sent(deadline.group_id, event, outcome)
        account.begin(now_ms, got.answers)
        account.is_over(deadline)
        what = f"the {deadline.kind} timeout {deadline.member_id}".rstrip()
        self._judge(live, account, what, outcome, got)

    def _look(self, host: str, now_ms: int) -> None:
        """Report rounds and members that should have ended by now."""
        if host in self._paused:
            self._paused.remove(host)
            self._excused_ms = now_ms
        for group_id, account in [*self._accounts.items()]:
            if now_ms <= account.look_ms + _LATE_MS:
                continue
            account.looked()
            late = [
                (
                    "classic-members" if deadline.kind == "session" else "classic-rounds",
                    f"the {deadline.kind} timeout of {deadline.member_id or group_id} was over"
                    f" {now_ms - at_ms} ms ago, and nothing happened",
                )
                for at_ms, deadline in account.due(now_ms - _LATE_MS - 1)
                if at_ms > self._excused_ms
            ]
            self._found(group_id, late)

    # -- other kinds of groups ----------------------------------------------------------------------------

    def _elsewhere(self, live: GroupCoordinator, event: StepEvent, outcome: Outcome, now_ms: int) -> None:
        """Note that a group was deleted, became one of the other kind, or was one."""
        for group_id in {
            record.key.group_id: None for record in outcome.records if type(record.key) is GroupMetadataKey
        }:
            if group_id in self._lost:
                continue
            value, account = sent(group_id, event, outcome).value, self._accounts.get(group_id)
            if value is not None:
                if account is None:
                    self._came_over(live, group_id, value, event, outcome, now_ms=now_ms)
            elif account is not None:
                self._ended(live, account, event, outcome, now_ms)

    def _ended(
        self, live: GroupCoordinator, account: ExpectedGroup, event: StepEvent, outcome: Outcome, now_ms: int
    ) -> None:
        group_id, got = account.group_id, sent(account.group_id, event, outcome)
        account.begin(now_ms, got.answers)
        account.ends(_E.REBALANCE_IN_PROGRESS)
        findings = [*compare(group_id, type(event).__name__, account.now, got)]
        if account.phase is not EMPTY:
            if isinstance(event, consumer.ConsumerGroupHeartbeatRequest):
                findings += self._migration.upgraded(live, account, event)
            else:
                findings.append(
                    (
                        "classic-members",
                        f"{group_id}, {account.phase}, was ended by {type(event).__name__}",
                    )
                )
        del self._accounts[group_id]
        self._count(group_id)
        self._found(group_id, findings)

    def _came_over(
        self,
        live: GroupCoordinator,
        group_id: str,
        value: GroupMetadataValue,
        event: StepEvent,
        outcome: Outcome,
        *,
        now_ms: int,
    ) -> None:
        """Note that a consumer group became a classic one."""
        self._found(group_id, self._migration.downgraded(live, group_id, value, event, outcome))
        group = live.classic.groups.get(group_id)
        if group_id in self._lost or group is None:
            return
        account = ExpectedGroup.of_record(group_id, value, self.world.config, now_ms)
        self._accounts[group_id] = account
        offers = self._migration.offers(group_id)
        for member in account.members.values():
            member.offers = offers.get(member.member_id, member.offers)
            if isinstance(event, JoinGroupRequest) and member.instance_id == event.instance_id:
                member.offers = offers_of(event)
        if group.state is JOINING:
            account.begin(now_ms, {})
            account.start()
        self._count(group_id)
        self._found(group_id, check_state(account, live))

    def _count(self, group_id: str) -> None:
        """Count the timers of a group anew."""
        account = self._accounts.get(group_id)
        now = 0 if account is None else len(account.deadlines)
        self._armed += now - self._counted.pop(group_id, 0)
        if account is not None:
            self._counted[group_id] = now

    def _found(self, group_id: str, findings: Iterable[Finding]) -> None:
        """Report findings, and leave their group alone."""
        self.about = group_id
        for finding in findings:
            self.report(*finding)
            self._lost.add(group_id)
            self._accounts.pop(group_id, None)
        self.about = ""


def _takes(account: ExpectedGroup, event: Any) -> None:
    """Work out the effects of an event other than JoinGroup."""
    if isinstance(event, SyncGroupRequest):
        if event.lacks_protocol:
            refused = SyncGroupResponse(error_code=_E.INCONSISTENT_GROUP_PROTOCOL)
            account.now.answers[event.token] = refused
        else:
            account.syncs(event)
    elif isinstance(event, consumer.LeaveGroupBatchRequest):
        account.leaves(event.members)
    elif isinstance(event, consumer.LeaveGroupRequest):
        account.leaves((event,))
    elif isinstance(event, SessionEnded):
        if event.member_id in account.members:
            account.is_over(account.session_of(event.member_id), by_time=False)
    else:
        account.rebalances()


def _explains(deadline: Deadline, fenced: Mapping[str, MemberFenced]) -> bool:
    """Return true if members can have been removed by this timer."""
    if not fenced:
        return False
    reason = next(iter(fenced.values())).reason
    return deadline.kind == reason and (not deadline.member_id or deadline.member_id in fenced)


def _code_of(reply: Response) -> ErrorCode:
    if isinstance(reply, consumer.LeaveGroupBatchResponse) and reply.members:
        return reply.members[0].error_code
    return getattr(reply, "error_code", _NONE)
