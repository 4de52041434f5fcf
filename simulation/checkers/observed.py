"""The checks of a real coordinator: on the state that its journal shows, after each outcome in it.

What a request asked for, the reply to it and timers are in no record, so what is judged by them is left out;
the catalogue says of each invariant whether it is judged here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fencepost.coordinator.protocol import records as r
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import MemberId, Partitions
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.simulation.checkers.base import Checker, Finding, shown
from fencepost.simulation.checkers.commits import CommittedOffsets
from fencepost.simulation.checkers.coordination import GroupChecks
from fencepost.simulation.checkers.step import Tracker, touched_groups
from fencepost.simulation.kernel.observers import RecordsObserved, StepEvent

if TYPE_CHECKING:
    from fencepost.coordinator.coordinator import GroupCoordinator
    from fencepost.simulation.kernel.observers import Report, WorldView

TIMER_SLACK_MS: Final = 5_000
"""How late a timer of a broker on a busy machine may run out."""
_STANDINGS: Final = 16
"""How many of a member's newest epochs and assignments are remembered: answers come one at a time."""


class ObservedCoordination(Checker):
    """Watches a real coordinator through the records that it wrote.

    The world's `active` coordinator is the replayed one, and has applied the records of the step.
    """

    def attach(self, world: WorldView, report: Report) -> None:
        """Nothing has been seen yet."""
        super().attach(world, report)
        self._tracker = Tracker()
        self._checks: dict[str, GroupChecks] = {}
        self._commits: dict[str, CommittedOffsets] = {}
        self._standings: dict[MemberId, deque[tuple[int, Partitions]]] = {}

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Checks one outcome."""
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
        if not event.unsettled:  # offsets go with their topics
            yield from findings

    def on_coordinator_state(self, host: str, what: str, now_us: int) -> None:
        """Another broker has loaded the group: its timers run their full length again."""
        if what == "active":
            for checks in self._checks.values():
                checks.reconciliation.restart_clocks(now_us // 1000)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """What a member is told is in the journal, by now."""
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
                f"{member_id} was told {what} at epoch {epoch}; of that there is no record, but of"
                f" {', '.join(f'{shown(assigned)} at epoch {at}' for at, assigned in known) or 'nothing'}",
            )

    def on_end(self, now_us: int) -> None:
        """Revocations that have lasted too long."""
        for group_id, checks in self._checks.items():
            if (known := self._tracker.groups.get(group_id)) is not None:
                self.report_all(checks.reconciliation.overdue(group_id, known.members, now_us // 1000))
