"""The checks of the coordinator: after each of its events, on the data that the event's records touch.

A real coordinator is checked on the state that its journal shows. No record shows the content of a request,
the reply to it, or timers, so these checks are left out; the catalogue lists the invariants that remain.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from fencepost.coordinator.consumer.group import ConsumerGroup
from fencepost.coordinator.coordinator import GroupCoordinator
from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.classic import JoinGroupRequest, JoinGroupResponse
from fencepost.coordinator.protocol.consumer import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import NO_PARTITIONS, MemberId, Partitions
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest
from fencepost.coordinator.protocol.outcome import (
    Event,
    Outcome,
    RegularExpressionsResolved,
    Request,
    Response,
)
from fencepost.coordinator.protocol.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    PendingOffsetCommitKey,
)
from fencepost.simulation.judge.administration import AdministrationChecks
from fencepost.simulation.judge.base import Finding, Judge, shown
from fencepost.simulation.judge.commits import (
    CommittedOffsets,
    check_deleted_topics,
    check_recorded,
)
from fencepost.simulation.judge.consumer_groups import (
    ConsumerGroupJudge,
    check_answer,
    check_due,
    check_new_target,
    check_reply,
    check_soft_state,
)
from fencepost.simulation.judge.consumer_model import NONE
from fencepost.simulation.judge.expressions import Expressions
from fencepost.simulation.judge.journal import (
    SEEN_SO_FAR,
    JournalVersion,
    Shadow,
    check_replays,
    compare_coordinators,
)
from fencepost.simulation.judge.step import GroupStep, Touched, steps_of, touched_groups
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

if TYPE_CHECKING:
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


class _GroupsJudge(Judge):
    """The judges of all consumer groups of a world."""

    slack_ms = 0
    """Longest delay of a timer, in ms."""

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with nothing."""
        super().attach(world, report)
        self._shadow = Shadow(world.config)
        """The groups before an event."""
        self._judges: dict[str, ConsumerGroupJudge] = {}
        self._commits: defaultdict[str, CommittedOffsets] = defaultdict(CommittedOffsets)

    def _judge(self, group_id: str) -> ConsumerGroupJudge:
        if group_id not in self._judges:
            default_assignor = self.world.config.group_consumer_assignors[0]
            self._judges[group_id] = ConsumerGroupJudge(default_assignor, slack_ms=self.slack_ms)
        return self._judges[group_id]

    def _report_overdue(self, now_ms: int, session_ms: Callable[[str], int | None]) -> None:
        """Report members whose time is over."""
        for group_id, judge in self._judges.items():
            if (known := self._shadow.groups.get(group_id)) is not None:
                late = judge.timeouts.overdue(group_id, known.members, session_ms(group_id), now_ms)
                self.report_all(late, group_id)


class Coordination(_GroupsJudge):
    """Watches the coordinators of a world: their state, their replies, and their journal."""

    has_the_time = True
    """True if coordinators use the time of the observers; without it nothing is judged by time."""

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with nothing."""
        super().attach(world, report)
        self._expressions: defaultdict[str, Expressions] = defaultdict(Expressions)
        self._administration = AdministrationChecks(world.config.group_consumer_assignors[0], self._commits)
        self._verified: dict[MemberId, Outcome] = {}
        """By member, the outcome of its steady heartbeat, which was judged."""
        self._loads = 0
        self._paused: set[str] = set()
        """Brokers that have done nothing since they began to stand still."""
        self._failing = False
        """True if appends fail: timers that run out change nothing then."""
        self._topics: dict[str, tuple[TopicsImage, int]] = {}
        """By host, the topics of its coordinator since it loaded, and the version that added one last."""

    def _make(self) -> GroupCoordinator:
        return GroupCoordinator(self.world.config)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Judge an event that changed the state, or was refused."""
        live = self.world.coordinators[host].coordinator
        if live is None:
            return
        if host in self._paused:
            self._paused.remove(host)
            self._excuse(now_us)
        now_ms = now_us // 1000
        if live.image.version and live.image is not self._topics.get(host, (None, 0))[0]:
            self.report_all(self._topics_changed(host, live))
        judge = self._judges.get(getattr(event, "group_id", ""))
        if judge is not None:
            judge.timeouts.takes(event, outcome, now_ms)
        self.report_all(self._findings(live, event, outcome, now_ms))
        self._look_at_expressions(host, live, event, outcome, now_ms)
        if self.has_the_time and not self._failing:
            for each in self._judges.values():
                if each.timeouts.is_due(now_ms):
                    self._look_at_timeouts(live, now_ms)
                    break

    def _topics_changed(self, host: str, live: GroupCoordinator) -> Iterator[Finding]:
        self._verified.clear()  # groups have to notice
        before, created = self._topics.get(host, (None, 0))
        if before is None or not live.image.by_id.keys() <= before.by_id.keys():
            created = live.image.version
        self._topics[host] = live.image, created
        if before is not None and not self._failing:
            yield from check_deleted_topics(before, live)

    def _look_at_expressions(
        self, host: str, live: GroupCoordinator, event: Event | StepEvent, outcome: Outcome, now_ms: int
    ) -> None:
        group_id = getattr(event, "group_id", "")
        group = live.groups.get(group_id)
        if isinstance(event, RegularExpressionsResolved):
            self._expressions[group_id].waits_no_more()  # it ends a lookup, also that of a group that is gone
        if group is None or not self.has_the_time:
            return
        if group.counts.regexes or group_id in self._expressions:
            _, created = self._topics.get(host, (None, 0))
            refresh_ms = live.config.group_consumer_regex_refresh_interval_ms
            self.report_all(
                self._expressions[group_id].check(
                    event, outcome, group, live.image, created=created, refresh_ms=refresh_ms, now_ms=now_ms
                )
            )

    def _look_at_timeouts(self, live: GroupCoordinator, now_ms: int) -> None:
        judged = self.has_the_time and not self._failing
        self._report_overdue(
            now_ms, lambda group_id: live.settings(group_id).session_timeout_ms if judged else None
        )

    def _findings(
        self, live: GroupCoordinator, event: StepEvent, outcome: Outcome, now_ms: int
    ) -> Iterator[Finding]:
        yield from self._before(live, event, outcome)
        if type(event) is not ConsumerGroupHeartbeatRequest:
            metadata_max = self.world.config.offset_metadata_max_bytes
            own_ms = now_ms if self.has_the_time else None
            yield from check_recorded(event, outcome, live.image, own_ms, metadata_max=metadata_max)
            yield from self._administration.check(live, self._shadow, event, outcome)
        failed = getattr(outcome.reply, "error_code", NONE) != NONE
        if failed and outcome.records and not makes_a_group(event, outcome, self._shadow.coordinator):
            yield "failed-changes-nothing", f"{event} was refused, and wrote {len(outcome.records)} records"
        named = touched_groups(outcome.records)
        if type(event) is ConsumerGroupHeartbeatRequest and not failed and event.group_id not in named:
            named[event.group_id] = Touched()
        known = self._shadow.groups
        for step in steps_of(named, known, live, event, outcome, now_ms=now_ms):
            self.about = step.group_id
            yield from self._step(live, step)
        self.about = ""
        if outcome.records:
            yield from self._shadow.follow(live, outcome.records, named)

    def _step(self, live: GroupCoordinator, step: GroupStep) -> Iterator[Finding]:
        """Judge the effects of an event on one group."""
        judge, touched = self._judge(step.group_id), step.touched
        if step.outcome.records:
            settings = live.settings(step.group_id)
            if self.has_the_time:
                yield from judge.timeouts.check_removals(step, settings.session_timeout_ms)
            yield from judge.check(step)
            yield from check_soft_state(live, step)
            if self.has_the_time and touched.new_targets and not touched.converted:
                release = live.config.release_version
                yield from check_new_target(step, settings.assignment_interval_ms, release)
            if touched.new_targets or any([change.lost for change in step.members]):
                self._verified.clear()  # others may get what was released
            for change in step.members:
                self._verified.pop(change.member_id, None)
        if isinstance(step.event, ConsumerGroupHeartbeatRequest):
            yield from self._replied(live, judge, step, step.event)
        if step.group is None:
            del self._judges[step.group_id]

    def _before(self, live: GroupCoordinator, event: StepEvent, outcome: Outcome) -> Iterable[Finding]:
        """Judge the event by the state that it met."""
        group_id = getattr(event, "group_id", None)
        if group_id is None:
            return self._offsets(live, outcome.records)
        reply, known = outcome.reply, self._shadow.groups.get(group_id)
        if live.kinds.of(group_id) not in (None, live.consumer):
            # These have rules of their own; their offsets are handled like any other's.
            return self._commits[group_id].take_all(outcome.records, known, live.image, event)
        if isinstance(event, ConsumerGroupHeartbeatRequest) and isinstance(
            reply, ConsumerGroupHeartbeatResponse
        ):
            return check_answer(event, reply, known)
        return self._commits[group_id].check(event, outcome, known, live.image)

    def _offsets(self, live: GroupCoordinator, records: tuple[r.Record, ...]) -> Iterator[Finding]:
        """Take in the records of an event that names no group."""
        for group_id in {record.key.group_id: None for record in records}:
            known = self._shadow.groups.get(group_id)
            self.about = group_id
            yield from self._commits[group_id].take_all(records, known, live.image)
        self.about = ""

    def _replied(
        self,
        live: GroupCoordinator,
        judge: ConsumerGroupJudge,
        step: GroupStep,
        request: ConsumerGroupHeartbeatRequest,
    ) -> Iterator[Finding]:
        """Judge the reply to an accepted heartbeat by the state that it left."""
        reply = step.outcome.reply
        if not isinstance(reply, ConsumerGroupHeartbeatResponse) or reply.error_code != NONE:
            return
        group, member_id = step.group, reply.member_id or request.member_id
        before, after = (
            step.known.members.get(member_id),
            None if group is None else group.members.get(member_id),
        )
        replaced = None if after is None else step.predecessor(after)
        yield from check_reply(request, reply, replaced or before, after)
        if group is None or after is None:
            return
        for topic_id, number, holder in judge.holders.others(member_id, reply.assignment or NO_PARTITIONS):
            yield (
                "granted-after-release",
                f"{member_id} of {step.group_id} received {topic_id}-{number} at epoch {after.member_epoch}"
                f" while {holder} holds it",
            )
        if request.member_epoch >= 0 and self.has_the_time:
            yield from judge.noticed(group, live.image)
            interval_ms = live.settings(step.group_id).assignment_interval_ms
            yield from check_due(group, member_id, interval_ms, step.now_ms)
            if before is not None and member_id not in step.touched.members:
                yield from judge.check_unmoved(step, group, after)

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
        live = self.world.coordinators[host].coordinator
        if type(event) is ConsumerGroupHeartbeatRequest and live is not None:
            reply: Any = outcome.reply
            if self._verified.get(event.member_id) is outcome and event.member_epoch == reply.member_epoch:
                self._judges[event.group_id].timeouts.heard[event.member_id] = now_us // 1000
                if event.group_id in self._expressions:
                    self._look_at_expressions(host, live, event, outcome, now_us // 1000)
                return
            self._verified[event.member_id] = outcome
        self.on_coordinator_step(host, event, outcome, now_us)

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
        for judge in self._judges.values():
            judge.timeouts.loaded(now_us // 1000)
        for expressions in self._expressions.values():
            expressions.waits_no_more()
        self._verified.clear()

    def adopt(self, live: GroupCoordinator, now_us: int) -> None:
        """Take in the records that were in the journal before the first check; they were judged then, if at
        all."""
        records = tuple(self.world.journal)
        for record in records:
            self._shadow.apply(record)
        event, outcome = RecordsObserved(group_id="", cause="load"), Outcome(records=records)
        for group_id in {record.key.group_id: None for record in records}:
            mine = tuple(record for record in records if record.key.group_id == group_id)
            deque(self._commits[group_id].take_all(mine, None, live.image), maxlen=0)
        named = touched_groups(records)
        for step in steps_of(named, {}, live, event, outcome, now_ms=now_us // 1000):
            if step.group is not None:
                deque(self._judge(step.group_id).check(step), maxlen=0)

    def on_fault(self, fault: str, phase: str, detail: str, now_us: int) -> None:
        """Note a fault: a timer whose records could not be appended runs again later; a broker that stood
        still is late."""
        if fault == "append-failure":
            self._failing = phase == "begin"
            self._excuse(now_us)
        elif fault == "broker-pause" and phase == "begin":
            self._paused.add(detail)

    def _excuse(self, now_us: int) -> None:
        for judge in self._judges.values():
            judge.timeouts.excuse(now_us // 1000)

    def on_end(self, now_us: int) -> None:
        """Check everything, once more."""
        live = self.world.active
        if live is not None:
            self.report_all(self._everything(live))
            self._look_at_timeouts(live, now_us // 1000)

    def _everything(
        self, live: GroupCoordinator, versions: Iterable[JournalVersion] | None = None
    ) -> Iterator[Finding]:
        yield from compare_coordinators(self._shadow.coordinator, live, SEEN_SO_FAR)
        yield from check_replays(self._make, self.world.journal, live, versions)


_STANDINGS: Final = 16
"""Number of a member's newest epochs and assignments that are remembered: responses come one at a time."""


class ObservedCoordination(_GroupsJudge):
    """Watches a real coordinator through the records that it wrote.

    The world's `active` coordinator is the replayed one, and has applied the records of the step.
    """

    slack_ms = 5_000  # on a busy machine

    def attach(self, world: WorldView, report: FindingReport) -> None:
        """Start with nothing."""
        super().attach(world, report)
        self._standings: dict[MemberId, deque[tuple[int, Partitions]]] = {}

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check one outcome."""
        live = self.world.active
        if live is None or not isinstance(event, RecordsObserved):
            return
        for why in event.refused:
            self.report("journal-replay", why)
        known, records = self._shadow.groups.get(event.group_id), outcome.records
        findings = list(self._commits[event.group_id].take_all(records, known, live.image))
        if not event.unsettled:  # offsets are deleted with their topics
            self.report_all(findings)
        named = touched_groups(records)
        groups = self._shadow.groups
        for step in steps_of(named, groups, live, event, outcome, now_ms=now_us // 1000):
            self.report_all(self._judge(step.group_id).check(step))
            if step.group is None:
                del self._judges[step.group_id]
        for record in records:
            if type(record.key) in ConsumerGroup.applied_by:
                self._shadow.apply(record)
            if isinstance(record.value, r.ConsumerGroupCurrentMemberAssignmentValue):
                assert isinstance(record.key, r.ConsumerGroupCurrentMemberAssignmentKey)
                newest = self._standings.setdefault(record.key.member_id, deque(maxlen=_STANDINGS))
                newest.append((record.value.member_epoch, record.value.assigned))

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Note that another broker has loaded the group: its timers run their full length again."""
        if what == "active":
            for judge in self._judges.values():
                judge.timeouts.loaded(now_us // 1000)

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
        self._report_overdue(now_us // 1000, lambda _: None)
