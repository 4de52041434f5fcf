"""What follows from an application's polls: it stays in the group, its commits go on, and it gets records.

A member whose application polls in time is not removed for its silence, and one whose application does not is
(`poll-timeouts`). With auto-commit what a poll finds processed is committed, at the latest an interval after
(`commits-go-on`). What a member owns its application is handed (`partitions-read`), and what its target asks
for is worked off (`reconciles-on`). It hears of what went wrong (`errors-raised`, `commits-end`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fencepost.coordinator.protocol.classic import HeartbeatRequest, JoinGroupRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Event, Outcome, Request, Response
from fencepost.member.classic.states import ACTIVE as CLASSIC_ACTIVE
from fencepost.member.consumer.states import ACTIVE as CONSUMER_ACTIVE
from fencepost.member.consumer.states import ConsumerMemberEvent
from fencepost.simulation.checkers.base import Checker, Finding, OfHosts, as_set, shown_names
from fencepost.simulation.checkers.requests import NEVER
from fencepost.simulation.kernel.observers import MembersWorldView, StepEvent

ACTIVE_STATES: Final = frozenset(map(str, (*CONSUMER_ACTIVE, *CLASSIC_ACTIVE)))
_SETTLED: Final = "STABLE"
_RECONCILING: Final = ("RECONCILING", "ACKNOWLEDGING")
_TAKES_NO_COMMITS: Final = "COMPLETING_REBALANCE"
"""Between two generations of a classic group commits wait."""
POLL_TIMED_OUT: Final = ConsumerMemberEvent.POLL_TIMED_OUT

_EARLY: Final = 990
_LATE: Final = 1_010
"""Microseconds of the world in a millisecond of a host's clock, at least and at most."""
_SLACK_US: Final = 100_000
_COMMIT_LIMIT_US: Final = 65_000_000
"""How long an application waits for a commit: default.api.timeout.ms, and some more."""
HALF_WINDOW_US: Final = 30_000_000
"""Records that came in the first half of a window are handed over in it."""


class PollTimer:
    """One process: how long its application has been out of poll, and how long it may be."""

    __slots__ = ("_excused", "_host", "interval_ms", "out_since_us", "state")

    def __init__(self, host: str) -> None:
        self._host = host
        self.state = ""
        self.interval_ms = 0
        """What the member told its coordinator; 0 before it did."""
        self.out_since_us: int | None = None
        """None in a poll, and before the first one."""
        self._excused = False
        """It stood still since its last poll."""

    def froze(self) -> None:
        """The process stands still, or goes on: its timers may run late."""
        self._excused = True

    def begins(self, now_us: int) -> Iterator[Finding]:
        """The application polls."""
        yield from self._overdue("polls again", now_us)
        self.out_since_us = None
        self._excused = False

    def ends(self, now_us: int) -> None:
        """The application has its records, or an exception."""
        self.out_since_us = now_us

    def sends(self, request: Request, now_us: int) -> Iterator[Finding]:
        """The member sends something. Heartbeats stop when the time between polls is over."""
        if type(request) is ConsumerGroupHeartbeatRequest:
            if request.rebalance_timeout_ms > 0:
                self.interval_ms = request.rebalance_timeout_ms
            if request.member_epoch >= 0:
                yield from self._overdue("sends a heartbeat", now_us)
        elif type(request) is JoinGroupRequest:
            self.interval_ms = request.rebalance_timeout_ms
        elif type(request) is HeartbeatRequest:
            yield from self._overdue("sends a heartbeat", now_us)

    def moved(self, event: str, source: str, target: str, now_us: int) -> Iterator[Finding]:
        """The member machine moved."""
        self.state = str(target)
        if event != POLL_TIMED_OUT or source not in ACTIVE_STATES or not self.interval_ms:
            return
        if self.out_since_us is None:
            yield "poll-timeouts", f"{self._host} leaves for want of polls while its application polls"
        elif now_us - self.out_since_us < self.interval_ms * _EARLY - 1_000:
            yield (
                "poll-timeouts",
                f"{self._host} leaves {(now_us - self.out_since_us) // 1_000} ms after its last poll, its"
                f" max.poll.interval.ms is {self.interval_ms}",
            )

    def _overdue(self, does: str, now_us: int) -> Iterator[Finding]:
        since_us = self.out_since_us
        if since_us is None or self._excused or not self.interval_ms or self.state not in ACTIVE_STATES:
            return
        if now_us - since_us > self.interval_ms * _LATE + _SLACK_US:
            yield (
                "poll-timeouts",
                f"{self._host} in {self.state} {does} {(now_us - since_us) // 1_000} ms after its last poll,"
                f" its max.poll.interval.ms is {self.interval_ms}",
            )


class AutoCommits:
    """One process that commits by itself: what it has to commit, and since when nothing stands in the way."""

    __slots__ = (
        "_begun_us",
        "_calm_us",
        "_dirty_us",
        "_host",
        "_in_flight",
        "_interval_us",
        "_processed",
        "_searches",
    )

    def __init__(self, host: str, interval_ms: int) -> None:
        self._host = host
        self._interval_us = interval_ms * _LATE + _SLACK_US
        self._processed: dict[TopicPartition, int] = {}
        """What is processed and not committed."""
        self._dirty_us = 0
        """Since when there is something."""
        self._calm_us = 0
        """When something happened last that a commit may wait for, or that was one."""
        self._begun_us: int | None = None
        """When the poll began."""
        self._in_flight: OffsetCommitRequest | None = None
        self._searches = False

    def disturbed(self, now_us: int) -> None:
        """Something happened after which a whole interval may pass."""
        self._calm_us = now_us

    def searches(self, now_us: int) -> None:
        """The coordinator is not known."""
        self._searches = True
        self._calm_us = now_us

    def sends(self, request: Request, now_us: int) -> None:
        """The coordinator is known; perhaps this is the commit."""
        if self._searches:
            self._searches = False
            self._calm_us = now_us
        if type(request) is OffsetCommitRequest:
            self._in_flight = request
            self._calm_us = now_us

    def answered(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """A commit ended."""
        if request is self._in_flight:
            self._in_flight = None
        self._calm_us = now_us
        if isinstance(response, OffsetCommitResponse):
            for partition, value in request.offsets.items():
                accepted = response.errors.get(partition) is ErrorCode.NONE
                if accepted and self._processed.get(partition) == value.offset:
                    del self._processed[partition]

    def processed(self, partition: TopicPartition, last_exclusive: int, now_us: int) -> None:
        """There is something to commit."""
        if not self._processed:
            self._dirty_us = now_us
        self._processed[partition] = last_exclusive

    def released(self, partitions: Iterable[TopicPartition]) -> None:
        """These are to be committed no more."""
        for partition in partitions:
            self._processed.pop(partition, None)

    def forget(self, topic: str) -> None:
        """What there was of the topic is another one's."""
        self.released([partition for partition in self._processed if partition.topic == topic])

    def begins(self, now_us: int) -> None:
        """A poll begins: now is the time to commit."""
        self._begun_us = now_us

    def ends(self, state: str) -> Iterator[Finding]:
        """The poll ends: what was due when it began has been sent."""
        begun_us, self._begun_us = self._begun_us, None
        if (
            not self._processed
            or begun_us is None
            or self._in_flight is not None
            or self._searches
            or state not in ACTIVE_STATES
            or state == _TAKES_NO_COMMITS
        ):
            return
        since_us = max(self._calm_us, self._dirty_us)
        if begun_us - since_us > self._interval_us:
            yield (
                "commits-go-on",
                f"{self._host} in {state} has committed nothing for {(begun_us - since_us) // 1_000} ms, and"
                f" has processed {shown_names(self._processed)}",
            )


class ReadWindow:
    """One process that nothing disturbs: what it owns, and what it was handed for a while."""

    __slots__ = ("_before", "_began_us", "_came", "_handed", "_open", "_took")

    def __init__(self, ends: Mapping[TopicPartition, int], now_us: int) -> None:
        self._began_us = now_us
        self._before = ends
        """The ends of the logs as it began."""
        self._came: list[TopicPartition] | None = None
        """Partitions to which records came in the first half; None before it is over."""
        self._handed: set[TopicPartition] = set()
        self._open = False
        """The application has polled through the second half."""
        self._took = False
        """A poll of the second half ended with less than it could have taken."""

    def handed(self, partition: TopicPartition) -> None:
        """Records of it were handed over."""
        self._handed.add(partition)

    def polled(self, records: int, most: int) -> None:
        """A poll ended with so many records."""
        self._open = False
        if self._came is not None and 0 < records < most:
            self._took = True

    def is_half_over(self, now_us: int) -> bool:
        """Whether the present half has lasted long enough."""
        halves = 1 if self._came is None else 2
        return now_us >= self._began_us + halves * HALF_WINDOW_US

    def first_half(self, ends: Mapping[TopicPartition, int], *, polls: bool) -> None:
        """The first half is over."""
        self._came = [each for each, end in self._before.items() if ends.get(each, 0) > end]
        self._open = polls

    @property
    def is_first(self) -> bool:
        """Whether the first half is under way."""
        return self._came is None

    def unread(self) -> list[TopicPartition]:
        """Partitions with records that the application could have been handed, and was not."""
        judged = self._open or self._took
        return [each for each in self._came or () if each not in self._handed] if judged else []


class PolledProcess:
    """All that is kept of one process."""

    __slots__ = (
        "begun_us",
        "calls_back",
        "commits",
        "disturbed_us",
        "in_poll",
        "owned",
        "processed_us",
        "raised_us",
        "records",
        "timer",
        "window",
    )

    def __init__(self, host: str, interval_ms: int | None) -> None:
        self.timer = PollTimer(host)
        self.commits = None if interval_ms is None else AutoCommits(host, interval_ms)
        self.owned: frozenset[TopicPartition] = frozenset()
        self.calls_back = False
        self.raised_us = NEVER
        """When a callback raised of which the application has not heard."""
        self.processed_us: int | None = None
        """When all was processed that the last poll ended with; None before, and in a poll."""
        self.in_poll = False
        self.begun_us = 0
        """When the last poll began."""
        self.records = 0
        """How many the last poll ended with."""
        self.window: ReadWindow | None = None
        self.disturbed_us = 0
        """When something happened last that a member may wait for, or that it did."""

    def disturbed(self, now_us: int) -> None:
        """Something happened after which commits and records may be a while in coming."""
        self.disturbed_us = now_us
        self.window = None
        if self.commits is not None:
            self.commits.disturbed(now_us)


class Polls(Checker):
    """Checks all members of a world whose applications tell of their polls."""

    world: MembersWorldView

    def __init__(self) -> None:
        self._processes = OfHosts(self._new)
        self._look_at_us = 0

    def _new(self, host: str) -> PolledProcess:
        application = self.world.scenario.application
        return PolledProcess(
            host, application.auto_commit_interval.ms if application.commit == "auto" else None
        )

    # -- the application ----------------------------------------------------------------------------------

    def on_poll(self, host: str, phase: str, now_us: int) -> None:
        """Timers start and stop, and commits are made."""
        process = self._processes[host]
        commits = process.commits
        process.in_poll = phase == "begin"
        if process.in_poll:
            process.begun_us = now_us
            process.processed_us = None
            self.report_all(process.timer.begins(now_us))
            if process.window is not None:
                process.window.polled(process.records, self.world.scenario.application.max_poll_records)
            process.records = 0
            if commits is not None:
                commits.begins(now_us)
        else:
            if phase == "failed":
                process.raised_us = NEVER
            elif process.begun_us > process.raised_us:
                self._keeps_quiet(host)
            self._reconciles(host, process, process.begun_us)
            process.timer.ends(now_us)
            if commits is not None:
                self.report_all(commits.ends(process.timer.state))

    def on_records_delivered(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """The partition is read."""
        process = self._processes[host]
        process.records += last_exclusive - first
        if process.window is not None:
            process.window.handed(partition)

    def on_records_processed(
        self, host: str, partition: TopicPartition, first: int, last_exclusive: int, now_us: int
    ) -> None:
        """What is owned is to be committed."""
        process = self._processes[host]
        process.processed_us = now_us
        if process.commits is not None and partition in process.owned:
            process.commits.processed(partition, last_exclusive, now_us)

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """What is owned changes. One that raised may leave a partition without a position."""
        process, chosen = self._processes[host], as_set(tuple(partitions))
        process.disturbed(now_us)
        process.calls_back = phase == "begin"
        if phase == "raised":
            process.raised_us = now_us
        if kind == "assigned" and phase == "end":
            process.owned |= chosen
        elif phase != "begin":
            process.owned -= chosen
        if process.commits is not None and (kind, phase) != ("revoked", "begin"):
            process.commits.released(chosen)

    def _keeps_quiet(self, host: str) -> None:
        self.report("errors-raised", f"{host} does not tell its application that a callback raised")

    def _comes_back(self, host: str, process: PolledProcess, now_us: int) -> None:
        """An application that has processed its records is held up by nothing but a commit."""
        since_us = process.processed_us
        if since_us is not None and now_us - since_us > _COMMIT_LIMIT_US:
            self.report(
                "commits-end",
                f"{host} has processed its records {(now_us - since_us) // 1_000} ms ago, and its application"
                " still waits for a commit",
            )

    def _reconciles(self, host: str, process: PolledProcess, until_us: int) -> None:
        """In a poll that began then, or lasts since before, the next step towards the target is taken."""
        waited_us = until_us - process.disturbed_us
        if process.timer.state in _RECONCILING and waited_us > HALF_WINDOW_US and not process.calls_back:
            self.report(
                "reconciles-on",
                f"{host} has been {process.timer.state} for {waited_us // 1_000} ms, and does nothing",
            )

    # -- the member ---------------------------------------------------------------------------------------

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """A new process starts anew."""
        if what in ("start", "crash"):
            self._processes[host] = self._new(host)
        else:
            self._processes[host].disturbed(now_us)
            if what in ("freeze", "thaw"):
                self._processes[host].timer.froze()

    def on_member_state(self, host: str, event: str, source: str, target: str, now_us: int) -> None:
        """States decide what may be expected."""
        process = self._processes[host]
        process.disturbed(now_us)
        self.report_all(process.timer.moved(event, source, target, now_us))

    def on_member_request(self, host: str, request: Request, now_us: int) -> None:
        """Heartbeats stop when polls do."""
        process = self._processes[host]
        self.report_all(process.timer.sends(request, now_us))
        if process.commits is not None:
            process.commits.sends(request, now_us)

    def on_member_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """After a failure the coordinator may not be known."""
        code = getattr(response, "error_code", ErrorCode.NONE)
        if isinstance(response, Exception) or code:
            self._processes[host].disturbed(now_us)

    def on_commit(
        self, host: str, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """What was committed need not be."""
        process = self._processes[host]
        if isinstance(response, Exception) or any(response.errors.values()):
            process.disturbed(now_us)
        if process.commits is not None:
            process.commits.answered(request, response, now_us)

    def on_member_search(self, host: str, now_us: int) -> None:
        """Nothing can be sent."""
        process = self._processes[host]
        process.disturbed_us, process.window = now_us, None
        if process.commits is not None:
            process.commits.searches(now_us)

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Nothing is to be committed, or to be read, of a topic that is gone."""
        for process in self._processes.values():
            process.disturbed(now_us)
            if process.commits is not None:
                process.commits.forget(topic)

    # -- now and then -------------------------------------------------------------------------------------

    def on_steady_step(self, host: str, event: Event, outcome: Outcome, now_us: int) -> None:
        """Time passes."""
        if now_us >= self._look_at_us:
            self._look(now_us)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Time passes."""
        if now_us >= self._look_at_us:
            self._look(now_us)

    def _look(self, now_us: int) -> None:
        self._look_at_us = now_us + HALF_WINDOW_US
        for host, process in self._processes.items():
            if self.world.members[host].status != "running":
                continue
            window = process.window
            self._comes_back(host, process, now_us)
            if process.in_poll and now_us - process.begun_us > HALF_WINDOW_US:
                self._reconciles(host, process, now_us)
                if now_us - process.raised_us > HALF_WINDOW_US:
                    self._keeps_quiet(host)
            if window is None:
                if process.timer.state == _SETTLED and process.owned:
                    process.window = ReadWindow(self._ends(process), now_us)
            elif window.is_half_over(now_us):
                if window.is_first:
                    window.first_half(self._ends(process), polls=process.in_poll)
                    continue
                if unread := window.unread():
                    self.report(
                        "partitions-read",
                        f"{host} owns {shown_names(unread)}, and its application polls, but is handed none"
                        f" of the records that came more than {HALF_WINDOW_US // 1_000_000} s ago",
                    )
                process.window = None

    def _ends(self, process: PolledProcess) -> dict[TopicPartition, int]:
        ends = self.world.log_ends
        return {partition: ends.get(partition, 0) for partition in process.owned}
