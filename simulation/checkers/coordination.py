"""The checks of the coordinator: after each of its events, on the data that the event's records touch.

A real coordinator is checked on the state that its journal shows. No record shows the content of a request,
the reply to it, or timers, so these checks are left out; the catalogue lists the invariants that remain.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupRequest, JoinGroupResponse
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import Event, Outcome, Request, Response, TopicsChanged
from fencepost.coordinator.protocol.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    PendingOffsetCommitKey,
    Record,
)
from fencepost.simulation.checkers.administration import AdministrationChecks
from fencepost.simulation.checkers.base import Checker, Finding, shown
from fencepost.simulation.checkers.causes import EpochCauses
from fencepost.simulation.checkers.commits import (
    CommittedOffsets,
    check_deleted_topics,
    check_recorded,
)
from fencepost.simulation.checkers.consumer_model import NONE
from fencepost.simulation.checkers.expressions import Expressions
from fencepost.simulation.checkers.groups import GroupInvariants, SoftStateInvariants, check_epochs
from fencepost.simulation.checkers.journal import (
    SEEN_SO_FAR,
    JournalVersion,
    Shadow,
    check_replays,
    compare_coordinators,
)
from fencepost.simulation.checkers.ownership import Ownership
from fencepost.simulation.checkers.reconciliation import (
    Reconciliation,
    check_answer,
    check_due,
    check_new_target,
    check_reply,
    only_epoch_moved,
)
from fencepost.simulation.checkers.sessions import Sessions
from fencepost.simulation.checkers.step import GroupStep, Tracker, touched_groups
from fencepost.simulation.checkers.targets import Targets, is_taken_over
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.consumer.group import ConsumerGroup
    from fencepost.coordinator.consumer.member import ConsumerGroupMember
    from fencepost.coordinator.protocol.topics import TopicsImage
    from fencepost.simulation.kernel.observers import FindingReport, WorldView


_MAKES_A_GROUP = (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
"""Errors that a classic member may receive for its JoinGroup though the group was made: it stays, without
members."""


def makes_a_group(event: StepEvent, outcome: Outcome, shadow: GroupCoordinator) -> bool:
    """Return true if a JoinGroup was refused, and wrote only that there is an empty classic group.

    By the `shadow` there was no group before; an empty group of another kind was replaced.
    """
    reply = outcome.reply
    if not isinstance(event, JoinGroupRequest) or not isinstance(reply, JoinGroupResponse):
        return False
    if event.member_id or reply.error_code not in _MAKES_A_GROUP or event.group_id in shadow.classic.stored:
        return False
    other = shadow.kinds.find(event.group_id)
    if other is not None and other[1].members:
        return False
    *ends, made = outcome.records
    if made.key != GroupMetadataKey(event.group_id) or not isinstance(made.value, GroupMetadataValue):
        return False
    if made.value.generation or made.value.members:
        return False
    return all(
        other is not None
        and record.value is None
        and record.key.group_id == event.group_id
        and not isinstance(record.key, OffsetCommitKey | PendingOffsetCommitKey)
        for record in ends
    )


class GroupChecks:
    """All checks of one group that keep state from one event to the next."""

    def __init__(self, default_assignor: str, *, slack_ms: int = 0) -> None:
        self.ownership = Ownership()
        self.reconciliation = Reconciliation(self.ownership, slack_ms)
        self.sessions = Sessions()
        self.expressions = Expressions()
        self._causes = EpochCauses()
        self._targets = Targets(default_assignor)
        self._watch = GroupInvariants()

    def noticed(self, group: ConsumerGroup, image: TopicsImage) -> Iterator[Finding]:
        """Check that the group has noticed changes of its topics."""
        return self._targets.noticed(group, image)

    def loaded(self, now_ms: int) -> None:
        """Note that another coordinator has loaded the group: all timers run their full length again."""
        self.sessions.loaded(now_ms)
        self.expressions.loaded()
        self.reconciliation.loaded(now_ms)

    def check(self, step: GroupStep) -> Iterator[Finding]:
        """Findings of one event, about the group itself."""
        yield from self.ownership.check(step)
        yield from check_epochs(step)
        yield from self._causes.check(step)
        if step.targets or step.new_target:
            yield from self._targets.check(step)
        yield from self.reconciliation.check(step)
        yield from self._watch.check(step, self.ownership.holders.total)

    def stands(self, group: ConsumerGroup, moved: ConsumerGroupMember) -> bool:
        """Return true if nothing is wrong with the group after a step that moved only this member's epoch."""
        return (
            self._causes.knows(group)
            and self._watch.stands(group, self.ownership.holders.total)
            and moved.member_id not in self.reconciliation.revoking_since
            and self.ownership.is_at(group, moved.assigned, moved.member_epoch)
        )


class Coordination(Checker):
    """Watches the coordinators of a world: their state, their replies, and their journal."""

    has_the_time = True
    """True if coordinators use the time of the observers; without it nothing is judged by time."""

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with nothing."""
        super().attach(world, report)
        self._tracker = Tracker()
        self._checks: dict[str, GroupChecks] = {}
        self._commits: defaultdict[str, CommittedOffsets] = defaultdict(CommittedOffsets)
        self._shadow = Shadow(world.config)
        self._administration = AdministrationChecks(world.config.group_consumer_assignors[0])
        self._soft = SoftStateInvariants()
        self._verified: dict[MemberId, Outcome | Response] = {}
        """By member, the response to its steady heartbeat, or a reply that moved its epoch and will be that.
        """
        self._loads = 0
        self._paused: set[str] = set()
        """Brokers that have done nothing since they began to stand still."""
        self._failing = False
        """True if appends fail: timers that run out change nothing then."""
        self._image: TopicsImage | None = None
        """The topics that the coordinator knows, as checkers of expressions have seen them."""
        self._topics: dict[str, TopicsImage] = {}
        """By host, the topics of its coordinator since it loaded."""

    def _make(self) -> GroupCoordinator:
        return GroupCoordinator(self.world.config)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check an event that changed the state, or was refused."""
        live = self.world.coordinators[host].coordinator
        if live is None:
            return
        if host in self._paused:
            self._paused.remove(host)
            self._excuse(now_us)
        now_ms = now_us // 1000
        if type(event) is TopicsChanged:
            self._verified.clear()  # groups have to notice
            before, self._topics[host] = self._topics.get(host), live.image
            if before is not None and not self._failing:
                self.report_all(check_deleted_topics(before, live))
        checks = self._checks.get(getattr(event, "group_id", ""))
        if checks is not None:
            checks.sessions.takes(event, outcome, now_ms)
        if checks is None or not self._only_moves(live, checks, event, outcome, now_ms):
            self.report_all(self._findings(live, event, outcome, now_ms))
        self._look_at_expressions(live, event, outcome, now_ms)
        if self.has_the_time and not self._failing:
            for each in self._checks.values():
                if each.sessions.is_due(now_ms):
                    self.report_all(self._overdue(live, now_ms))
                    break

    def _only_moves(
        self, live: GroupCoordinator, checks: GroupChecks, event: StepEvent, outcome: Outcome, now_ms: int
    ) -> bool:
        """Return true if a heartbeat only moved its member's epoch, and nothing is wrong with that; then take
        it in."""
        if type(event) is not ConsumerGroupHeartbeatRequest or not self.has_the_time:
            return False
        group_id, reply = event.group_id, outcome.reply
        known, group = self._tracker.groups.get(group_id), live.groups.get(group_id)
        if known is None or group is None:
            return False
        before, after = known.members.get(event.member_id), group.members.get(event.member_id)
        if (
            before is None
            or after is None
            or not isinstance(reply, ConsumerGroupHeartbeatResponse)
            or len(outcome.records) != 1
            or outcome.records[0].key != r.ConsumerGroupCurrentMemberAssignmentKey(group_id, after.member_id)
            or not only_epoch_moved(before, after)
            or not group.assignment_epoch == group.group_epoch == known.group_epoch == known.assignment_epoch
            or not checks.stands(group, after)
            or not self._soft.stands(live, group_id, after.member_id)
            or check_answer(event, reply, known)
            or any(checks.reconciliation.check_move(event, before, after, group, live.image))
            or any(check_reply(event, reply, before, after, None))
        ):
            return False
        checks.sessions.keeps(after, live.settings(group_id).session_timeout_ms, now_ms)
        known.members[after.member_id] = after
        self._verified[after.member_id] = reply
        self.report_all(self._shadow.follow_move(live, outcome.records[0], before))
        return True

    def _look_at_expressions(
        self, live: GroupCoordinator, event: Event | StepEvent, outcome: Outcome, now_ms: int
    ) -> None:
        if not self.has_the_time:
            return
        image = live.image
        if image is not self._image and image.version:
            self._image = image
            for each in self._checks.values():
                each.expressions.sees(image)
        group_id = getattr(event, "group_id", "")
        group, checks = live.groups.get(group_id), self._checks.get(group_id)
        if group is not None and checks is not None and (group.counts.regexes or checks.expressions.used):
            refresh_ms = live.config.group_consumer_regex_refresh_interval_ms
            self.report_all(
                checks.expressions.check(event, outcome, group, image, refresh_ms=refresh_ms, now_ms=now_ms)
            )

    def _overdue(self, live: GroupCoordinator, now_ms: int) -> Iterator[Finding]:
        """Yield findings about members of consumer groups whose time is over."""
        for group_id, checks in self._checks.items():
            if checks.sessions.is_due(now_ms):
                members = self._tracker.groups[group_id].members
                session_ms = live.settings(group_id).session_timeout_ms
                yield from checks.sessions.overdue(group_id, members, session_ms, now_ms)
                yield from checks.reconciliation.overdue(group_id, members, now_ms)

    def _findings(
        self, live: GroupCoordinator, event: StepEvent, outcome: Outcome, now_ms: int
    ) -> Iterator[Finding]:
        yield from self._before(live, event, outcome)
        if type(event) is not ConsumerGroupHeartbeatRequest:
            metadata_max = self.world.config.offset_metadata_max_bytes
            own_ms = now_ms if self.has_the_time else None
            yield from check_recorded(event, outcome, live.image, own_ms, metadata_max=metadata_max)
            yield from self._administration.check(live, self._shadow, event, outcome)
        if not outcome.records:
            yield from self._reply(live, event, outcome, now_ms)
            return
        failed = getattr(outcome.reply, "error_code", NONE) != NONE
        if failed and not makes_a_group(event, outcome, self._shadow.coordinator):
            yield "failed-changes-nothing", f"{event} was refused, and wrote {len(outcome.records)} records"
        named = touched_groups(outcome.records)
        before: dict[MemberId, ConsumerGroupMember | None] = {}
        for step in self._tracker.steps(named, live.groups, live.image, event, outcome, now_ms=now_ms):
            checks = self._checks.get(step.group_id)
            if checks is None:
                checks = self._checks[step.group_id] = GroupChecks(
                    self.world.config.group_consumer_assignors[0]
                )
            settings = live.settings(step.group_id)
            if self.has_the_time:
                yield from checks.sessions.check(step, checks.reconciliation, settings.session_timeout_ms)
            yield from checks.check(step)
            if self.has_the_time and step.new_target and not is_taken_over(step):
                yield from check_new_target(
                    step, settings.assignment_interval_ms, live.config.release_version
                )
            if step.new_target or any(change.lost for change in step.members):
                self._verified.clear()  # a waiting commit may go on
            yield from self._reply(live, event, outcome, now_ms)
            yield from self._soft.check(live, step)
            for change in step.members:
                before[change.member_id] = change.before
                self._verified.pop(change.member_id, None)
            if step.group is None:
                del self._checks[step.group_id]
        yield from self._shadow.follow(live, outcome.records, named, before)

    def _before(self, live: GroupCoordinator, event: StepEvent, outcome: Outcome) -> Iterable[Finding]:
        """Judge the event by the state that it met."""
        group_id = getattr(event, "group_id", None)
        if group_id is None:
            return self._offsets(live, outcome.records)
        reply, known = outcome.reply, self._tracker.groups.get(group_id)
        if live.kinds.of(group_id) not in (None, live.consumer):
            # These have rules of their own; their offsets are handled like any other's.
            return self._commits[group_id].take_all(outcome.records, known, live.image, event)
        if isinstance(event, ConsumerGroupHeartbeatRequest) and isinstance(
            reply, ConsumerGroupHeartbeatResponse
        ):
            return check_answer(event, reply, known)
        return self._commits[group_id].check(event, outcome, known, live.image)

    def _offsets(self, live: GroupCoordinator, records: tuple[Record, ...]) -> Iterator[Finding]:
        """Take in the records of an event that names no group."""
        for group_id in {record.key.group_id: None for record in records}:
            known = self._tracker.groups.get(group_id)
            yield from self._commits[group_id].take_all(records, known, live.image)

    def _reply(
        self, live: GroupCoordinator, event: StepEvent, outcome: Outcome, now_ms: int
    ) -> Iterator[Finding]:
        """Judge the reply by the state that the event left."""
        reply = outcome.reply
        if (
            not isinstance(event, ConsumerGroupHeartbeatRequest)
            or not isinstance(reply, ConsumerGroupHeartbeatResponse)
            or reply.error_code != NONE
        ):
            return
        group, known = live.groups.get(event.group_id), self._tracker.groups.get(event.group_id)
        member_id = reply.member_id or event.member_id
        checks = self._checks.get(event.group_id)
        before = None if known is None else known.members.get(member_id)
        after = None if group is None else group.members.get(member_id)
        yield from check_reply(event, reply, before, after, None if checks is None else checks.ownership)
        if group is None or after is None or checks is None or not self.has_the_time:
            return
        if event.member_epoch >= 0:
            yield from checks.noticed(group, live.image)
            interval_ms = live.settings(event.group_id).assignment_interval_ms
            yield from check_due(group, after.member_id, interval_ms, now_ms)
            if before is not None and after == before:
                yield from checks.reconciliation.check_move(event, before, after, group, live.image)

    def takes_request(self, host: str, request: Request, now_us: int) -> None:
        """Note a commit that is sent."""
        if type(request) is OffsetCommitRequest:
            self._commits[request.group_id].sends(request)

    def takes_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Check nothing: the response was judged as it was sent."""

    def on_steady_step(self, host: str, event: Event, outcome: Outcome, now_us: int) -> None:
        """Judge the steady heartbeat: its response was verified once, and the member is unchanged."""
        if type(event) is ConsumerGroupHeartbeatRequest:
            reply: Any = outcome.reply
            verified = self._verified.get(event.member_id)
            if (verified is outcome and event.member_epoch == reply.member_epoch) or (
                verified is reply and self._repeats(host, event, outcome)
            ):
                checks = self._checks[event.group_id]
                checks.sessions.heard[event.member_id] = now_us // 1000
                if checks.expressions.used:
                    live = self.world.coordinators[host].coordinator
                    assert live is not None
                    self._look_at_expressions(live, event, outcome, now_us // 1000)
                return
            if self.world.coordinators[host].coordinator is not None:
                self._verified[event.member_id] = outcome
        self.on_coordinator_step(host, event, outcome, now_us)

    def _repeats(self, host: str, request: ConsumerGroupHeartbeatRequest, outcome: Outcome) -> bool:
        """Return true if a reply that moved its member's epoch is rightly sent again; it counts as verified
        from now on.

        The member sends only that epoch, and neither it nor its group has changed since.
        """
        live, reply = self.world.coordinators[host].coordinator, outcome.reply
        known = self._tracker.groups.get(request.group_id)
        if live is None or known is None or host in self._paused:
            return False
        group, epoch, member_id = live.groups.get(request.group_id), request.member_epoch, request.member_id
        if (
            group is None
            or not isinstance(reply, ConsumerGroupHeartbeatResponse)
            or not reply.member_epoch == epoch == group.assignment_epoch == group.group_epoch
            or known.members.get(member_id) is not group.members.get(member_id)
            or request.topic_partitions is not None
            or request.subscribed_topic_names is not None
            or request.subscribed_topic_regex is not None
            or request.server_assignor is not None
            or request.instance_id is not None
        ):
            return False
        self._verified[member_id] = outcome
        return True

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Check that a coordinator that has loaded equals the last one."""
        if what != "active":
            return
        self._topics.pop(host, None)
        live = self.world.coordinators[host].coordinator
        assert live is not None
        if self._loads == 0:
            self.adopt(live, now_us)
        # Loading was a replay of the journal itself; the compacted ones take turns.
        versions = [version for version in JournalVersion if version is not JournalVersion.AS_IT_IS]
        self.report_all(self._everything(live, (versions[self._loads % len(versions)],)))
        self._loads += 1
        for checks in self._checks.values():
            checks.loaded(now_us // 1000)
        self._image = None
        self._verified.clear()

    def adopt(self, live: GroupCoordinator, now_us: int) -> None:
        """Take in the records that were in the journal before the first check; they were judged then, if at
        all."""
        records = tuple(self.world.journal)
        for record in records:
            self._shadow.apply(record)
        self._administration.adopt(records)
        event, outcome = RecordsObserved(group_id="", cause="load"), Outcome(records=records)
        for group_id in {record.key.group_id: None for record in records}:
            mine = tuple(record for record in records if record.key.group_id == group_id)
            deque(self._commits[group_id].take_all(mine, None, live.image), maxlen=0)
        named = touched_groups(records)
        for step in self._tracker.steps(
            named, live.groups, live.image, event, outcome, now_ms=now_us // 1000
        ):
            if step.group is not None:
                self._checks[step.group_id] = GroupChecks(self.world.config.group_consumer_assignors[0])
                deque(self._checks[step.group_id].check(step), maxlen=0)

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """Note a fault: a timer whose records could not be appended runs again later; a broker that stood
        still is late."""
        if fault == "append-failure":
            self._failing = phase == "begin"
            self._excuse(now_us)
        elif fault == "broker-pause" and phase == "begin":
            self._paused.add(detail)

    def _excuse(self, now_us: int) -> None:
        for checks in self._checks.values():
            checks.reconciliation.excuse(now_us // 1000)
            checks.sessions.excuse(now_us // 1000)

    def on_end(self, now_us: int) -> None:
        """Check everything, once more."""
        live = self.world.active
        if live is None:
            return
        self.report_all(self._everything(live))
        now_ms = now_us // 1000
        if self.has_the_time and not self._failing:
            self.report_all(self._overdue(live, now_ms))
        for group_id, checks in self._checks.items():
            if (known := self._tracker.groups.get(group_id)) is not None:
                self.report_all(checks.reconciliation.overdue(group_id, known.members, now_ms))

    def _everything(
        self, live: GroupCoordinator, versions: Iterable[JournalVersion] | None = None
    ) -> Iterator[Finding]:
        yield from compare_coordinators(self._shadow.coordinator, live, SEEN_SO_FAR)
        yield from check_replays(self._make, self.world.journal, live, versions)
        for group_id, group in live.groups.items():
            if group_id in self._checks:
                yield from self._checks[group_id].ownership.compare_all(group)


TIMER_SLACK_MS: Final = 5_000
"""Longest delay of a timer of a broker on a busy machine, in ms."""
_STANDINGS: Final = 16
"""Number of a member's newest epochs and assignments that are remembered: responses come one at a time."""


class ObservedCoordination(Checker):
    """Watches a real coordinator through the records that it wrote.

    The world's `active` coordinator is the replayed one, and has applied the records of the step.
    """

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with nothing."""
        super().attach(world, report)
        self._tracker = Tracker()
        self._checks: dict[str, GroupChecks] = {}
        self._commits: dict[str, CommittedOffsets] = {}
        self._standings: dict[MemberId, deque[tuple[int, Partitions]]] = {}

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check one outcome."""
        live = self.world.active
        if live is None or not isinstance(event, RecordsObserved):
            return
        for why in event.refused:
            self.report("journal-replay", why)
        self.report_all(self._offsets(live, event, outcome))
        named = touched_groups(outcome.records)
        for step in self._tracker.steps(
            named, live.groups, live.image, event, outcome, now_ms=now_us // 1000
        ):
            checks = self._checks.get(step.group_id)
            if checks is None:
                default = self.world.config.group_consumer_assignors[0]
                checks = self._checks[step.group_id] = GroupChecks(default, slack_ms=TIMER_SLACK_MS)
            self.report_all(checks.check(step))
            if step.group is None:
                del self._checks[step.group_id]
        for record in outcome.records:
            if isinstance(record.value, r.ConsumerGroupCurrentMemberAssignmentValue):
                assert isinstance(record.key, r.ConsumerGroupCurrentMemberAssignmentKey)
                known = self._standings.setdefault(record.key.member_id, deque(maxlen=_STANDINGS))
                known.append((record.value.member_epoch, record.value.assigned))

    def _offsets(self, live: GroupCoordinator, event: RecordsObserved, outcome: Outcome) -> Iterator[Finding]:
        known = self._tracker.groups.get(event.group_id)
        commits = self._commits.setdefault(event.group_id, CommittedOffsets())
        findings = list(commits.take_all(outcome.records, known, live.image))
        if not event.unsettled:  # offsets are deleted with their topics
            yield from findings

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Note that another broker has loaded the group: its timers run their full length again."""
        if what == "active":
            for checks in self._checks.values():
                checks.loaded(now_us // 1000)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Check that a member's response is in the journal by now."""
        if not isinstance(response, ConsumerGroupHeartbeatResponse) or response.error_code != ErrorCode.NONE:
            return
        member_id = response.member_id
        if response.member_epoch < 0 or member_id is None:
            return
        epoch, told = response.member_epoch, response.assignment
        known = self._standings.get(member_id, ())
        if not any(epoch == at and told in (None, assigned) for at, assigned in known):
            what = "nothing" if told is None else shown(told)
            self.report(
                "reply-equals-state",
                f"{member_id} received {what} at epoch {epoch}, without a record; there are records of"
                f" {', '.join(f'{shown(assigned)} at epoch {at}' for at, assigned in known) or 'nothing'}",
            )

    def on_end(self, now_us: int) -> None:
        """Report revocations that have lasted too long."""
        for group_id, checks in self._checks.items():
            if (known := self._tracker.groups.get(group_id)) is not None:
                self.report_all(checks.reconciliation.overdue(group_id, known.members, now_us // 1000))
