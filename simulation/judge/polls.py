"""The consequences of an application's polls: it stays in the group, its commits go on, and it gets records.

A member whose application polls in time is not removed for its silence, and one whose application does not is
(`poll-timeouts`). With auto-commit, offsets that a poll finds processed are committed, at the latest an
interval after, and not much more often than that (`commits-go-on`). The application is handed records of the
member's partitions (`partitions-read`), and the member works its target off (`reconciles-on`). The
application receives errors, and only those that it can deal with (`errors-raised`, `commits-end`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fencepost.coordinator.protocol.classic import HeartbeatRequest, JoinGroupRequest
from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatRequest
from fencepost.coordinator.protocol.errors import ErrorCode
from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import (
    OffsetAndMetadata,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from fencepost.coordinator.protocol.outcome import Outcome, Request, Response
from fencepost.member.classic.states import ACTIVE as CLASSIC_ACTIVE
from fencepost.member.classic.states import ClassicMemberEvent, ClassicMemberState
from fencepost.member.consumer.states import ACTIVE as CONSUMER_ACTIVE
from fencepost.member.consumer.states import JOINING, RECONCILING, ConsumerMemberEvent
from fencepost.simulation.judge.base import (
    MENDED,
    NOTHING,
    Finding,
    OfProcesses,
    as_set,
    of_process,
    shown_names,
    without,
)
from fencepost.simulation.judge.records import ProcessedRecords, Records
from fencepost.simulation.judge.requests import NEVER
from fencepost.simulation.kernel.observers import MembersWorldView, StepEvent

ACTIVE_STATES: Final = frozenset(map(str, (*CONSUMER_ACTIVE, *CLASSIC_ACTIVE)))
_SETTLED: Final = "STABLE"
_RECONCILING: Final = ("RECONCILING", "ACKNOWLEDGING")
_LEAVES: Final = "PREPARE_LEAVING"
_GIVES_UP: Final = ("STALE", "FENCED")
_TAKES_NO_COMMITS: Final = "COMPLETING_REBALANCE"
"""Between two generations of a classic group commits wait."""
POLL_TIMED_OUT: Final = ConsumerMemberEvent.POLL_TIMED_OUT

_EARLY: Final = 990
_LATE: Final = 1_010
"""Microseconds of the world in a millisecond of a host's clock, at least and at most."""
_FAST: Final = 950
"""The same for a clock that is far too fast."""
_SLACK_US: Final = 100_000
_COMMIT_LIMIT_US: Final = 65_000_000
"""Longest time that an application waits for a commit, in µs: default.api.timeout.ms, and some more."""
HALF_WINDOW_US: Final = 30_000_000
"""Records that came in the first half of a window are handed over in it."""


class AutoCommits:
    """One process that commits by itself, and the time since which it could have committed more."""

    def __init__(self, host: str, interval_ms: int) -> None:
        self._host = host
        self._interval_ms = interval_ms
        self._interval_us = interval_ms * _LATE + _SLACK_US
        self._rests_until_us = 0
        """Before this time a commit is too early, unless partitions are released after it."""
        self._rested_until_us = 0
        """The same before the last commit, which may turn out to be for a release."""
        self._early: tuple[int, int] | None = None
        """Time of a commit that was too early, and the time from which it would have been right."""
        self._committed: dict[TopicPartition, int] = {}
        """The offset of each partition that the coordinator accepted."""
        self._lacking_us: int | None = None
        """Time since which it is known that some offsets are not committed."""
        self._calm_us = 0
        """Time of the last commit, or of the last event that may delay one, in µs."""
        self.in_flight: OffsetCommitRequest | None = None
        """The newest commit, until it ends."""
        self._failed: Mapping[TopicPartition, OffsetAndMetadata] = {}
        """The offsets of the last commit that failed."""
        self._found_us = -1
        """Time at which the coordinator was known again: commits that waited for it are sent then."""
        self.is_searching = False
        """True while the member looks for its coordinator."""

    def disturbed(self, now_us: int) -> None:
        """Note an event after which a whole interval may pass."""
        self._calm_us = now_us
        self._lacking_us = None

    def searches(self, now_us: int) -> None:
        """Note that the coordinator is not known."""
        self.is_searching = True
        self.disturbed(now_us)

    def sends(self, request: Request, state: str, now_us: int) -> None:
        """Note that the coordinator is known; perhaps this is the commit."""
        if self.is_searching:
            self.is_searching = False
            self._found_us = now_us
            self.disturbed(now_us)
        if type(request) is OffsetCommitRequest:
            waited = request.offsets == self._failed or now_us == self._found_us
            if state == _SETTLED and not waited:  # else its interval began earlier
                self._rested_until_us = self._rests_until_us
                if now_us < self._rests_until_us:
                    self._early = now_us, self._rests_until_us
                self._rests(now_us)
            self.in_flight = request
            self.disturbed(now_us)

    def _rests(self, now_us: int) -> None:
        """Expect no commit by interval until it has passed from now on."""
        self._rests_until_us = now_us + self._interval_ms * _FAST - 1_000

    def froze(self) -> None:
        """Note that the process stands still, or goes on: what it does comes in another order."""
        self._rests_until_us, self._early = 0, None

    def assigned(self, now_us: int) -> None:
        """Note that the member has its partitions: Kafka's client starts the interval now."""
        self._rests(now_us)

    def releases(self) -> None:
        """Note that partitions are released: the last commit was made for that, whatever the interval."""
        self._rests_until_us, self._early = min(self._rests_until_us, self._rested_until_us), None

    def hastens(self, now_us: int) -> Iterator[Finding]:
        """Yield a finding if a commit came too early, and nothing was released right after it."""
        if self._early is not None and self.in_flight is None and now_us > self._calm_us:
            sent_us, until_us = self._early
            self._early = None
            yield (
                "commits-go-on",
                f"{self._host} commits {(until_us - sent_us) // 1_000} ms before its interval of"
                f" {self._interval_ms} ms is over",
            )

    def answered(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """Note that a commit ended."""
        if request is self.in_flight:
            self.in_flight = None
        self.disturbed(now_us)
        if isinstance(response, Exception) or any(response.errors.values()):
            self._rests_until_us, self._early = 0, None  # it is tried again soon
            self._failed = request.offsets
        if isinstance(response, OffsetCommitResponse):
            for partition, value in request.offsets.items():
                if response.errors.get(partition) is ErrorCode.NONE:
                    self._committed[partition] = value.offset

    def released(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget commits of partitions that are released, or assigned again."""
        for partition in partitions:
            self._committed.pop(partition, None)

    def ends(
        self,
        state: str,
        begun_us: int,
        processed: Mapping[TopicPartition, int],
        owned: Iterable[TopicPartition],
    ) -> Iterator[Finding]:
        """Check that in a poll that began then, all due commits were sent."""
        waits = self.in_flight is not None or self.is_searching or state == _TAKES_NO_COMMITS
        if waits or state not in ACTIVE_STATES:
            return
        lacking = [each for each in owned if processed.get(each, -1) > self._committed.get(each, -1)]
        if not lacking:
            self._lacking_us = None
        elif self._lacking_us is None:
            self._lacking_us = begun_us
        elif begun_us - self._lacking_us > self._interval_us:
            yield (
                "commits-go-on",
                f"{self._host} in {state} has committed nothing for {(begun_us - self._calm_us) // 1_000} ms,"
                f" and has processed {shown_names(lacking)}",
            )

    def may_be_due(self, begun_us: int) -> bool:
        """Return true if a poll that began then had to commit, if there was anything."""
        return begun_us - self._calm_us > self._interval_us


class ReadWindow:
    """One process without disturbances: its partitions, and the records that it was handed for a while."""

    def __init__(
        self, ends: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int], now_us: int
    ) -> None:
        self._began_us = now_us
        self._before = ends
        """The ends of the logs at its start."""
        self._positions = {each: positions.get(each, -1) for each in ends}
        self._half = self._positions
        """Positions at the start of its second half."""
        self._came: list[TopicPartition] | None = None
        """Partitions to which records came in the first half; None before it is over."""
        self._open = False
        """True if the application has polled through the second half."""
        self._polls = 0
        """Number of polls of the second half that ended with records."""

    def polled(self, *, records: bool) -> None:
        """Note that a poll is over."""
        self._open = False
        self._polls += records

    def is_half_over(self, now_us: int) -> bool:
        """Return true if the present half has lasted long enough."""
        halves = 1 if self._came is None else 2
        return now_us >= self._began_us + halves * HALF_WINDOW_US

    def first_half(
        self, ends: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int], *, polls: bool
    ) -> None:
        """Note that the first half is over."""
        self._came = [each for each, end in self._before.items() if ends.get(each, 0) > end]
        self._half = {each: positions.get(each, -1) for each in self._before}
        self._open = polls
        self._polls = 0

    @property
    def is_first(self) -> bool:
        """True if the first half is under way."""
        return self._came is None

    def unread(self, positions: Mapping[TopicPartition, int], most: int) -> list[TopicPartition]:
        """Return partitions with records that the application could have been handed, and was not."""
        handed = sum(positions.get(each, -1) - half for each, half in self._half.items() if half >= 0)
        if not self._open and handed >= self._polls * most:
            return []
        return [each for each in self._came or () if positions.get(each, -1) == self._positions[each]]


class PolledProcess:
    """One process: what its application's polls must bring about, and the time that it is out of poll."""

    def __init__(self, host: str, world: MembersWorldView, records: Records) -> None:
        self._host = host
        self._world = world
        self._records = records
        application = world.scenario.application
        automatic = application.commit == "auto"
        self._commits = AutoCommits(host, application.auto_commit_interval.ms) if automatic else None
        self._state = ""
        self._interval_ms = 0
        """The poll interval that the member sent to its coordinator, in ms; 0 before it did."""
        self._out_since_us: int | None = None
        """None in a poll, and before the first one."""
        self._stood_still = False
        """True if it stood still since its last poll: its timers may run late."""
        self._owned = NOTHING
        self._calls_back = False
        self._raised_us = NEVER
        """Time at which a callback raised an error that the application has not received yet, in µs."""
        self._is_classic = False
        self._owes_join = False
        """True if it is a classic member that has to join: others wait for it, or for what it revoked."""
        self.reason_us: int | None = None
        """Time of the last event that the application has to know, in µs; None if a poll since then was
        successful."""
        self._idle_us: int | None = None
        """Time since which nothing keeps it from its next callback, in µs; None if something may."""
        self._pauses = False
        """True if a callback of this membership raised an error that the application has not received yet."""
        self._thawed_us = 0
        """Time at which it went on after it had stood still, in µs."""
        self._in_poll = False
        self._begun_us = 0
        """Time at which the last poll began, in µs."""
        self._window: ReadWindow | None = None
        self._disturbed_us = 0
        """Time of the member's last activity, or of the last event that may delay it, in µs."""

    @property
    def _application(self) -> ProcessedRecords:
        return self._records.processes[self._host]

    def disturbed(self, now_us: int) -> None:
        """Note an event after which commits and records may take a while."""
        self._disturbed_us = now_us
        self._window = None
        if self._commits is not None:
            self._commits.disturbed(now_us)

    # -- the application ----------------------------------------------------------------------------------

    def on_poll(self, phase: str, now_us: int) -> Iterator[Finding]:
        """Note the poll: timers start and stop, and commits are made."""
        return self._begins(now_us) if phase == "begin" else self._ends_poll(phase, now_us)

    def _begins(self, now_us: int) -> Iterator[Finding]:
        yield from self._overdue("polls again", now_us)
        if self._window is not None:
            self._window.polled(records=self._application.finished_us >= (self._out_since_us or 0))
        self._out_since_us = None
        self._stood_still = False
        self._in_poll = True
        self._begun_us = now_us

    def _ends_poll(self, phase: str, now_us: int) -> Iterator[Finding]:
        begun_us = self._begun_us
        self._in_poll = False
        if self._state not in _GIVES_UP:
            self._idle_us = None
        if phase == "failed":
            self._raised_us = NEVER
            self._pauses = False
            self._disturbed_us = now_us  # it raised an earlier error; the next one goes on
            if self.reason_us is None:
                yield (
                    "errors-raised",
                    f"{self._host} raises an error to its application, and nothing happened that it has to"
                    " know",
                )
        else:
            if self.reason_us is not None and begun_us > self.reason_us:
                self.reason_us = None
            if begun_us > self._raised_us:
                yield from self._keeps_quiet()
        yield from self._reconciles(begun_us)
        commits = self._commits
        if commits is not None:
            yield from commits.hastens(now_us)
            if commits.may_be_due(begun_us):
                application = self._application
                owned = without(self._owned, application.outlived)
                yield from commits.ends(self._state, begun_us, application.processed, owned)
        self._out_since_us = now_us

    def on_callback(
        self, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> Iterator[Finding]:
        """Change the owned partitions. A callback that raised may leave a partition without a position."""
        chosen = as_set(tuple(partitions))
        if phase == "begin" and self._pauses and self._state in _RECONCILING:
            yield (
                "errors-raised",
                f"{self._host} begins {kind} {shown_names(chosen)}, and its application has not received yet"
                " that the last callback raised",
            )
        if phase == "begin" and self._idle_us is not None and now_us > self._idle_us:
            yield (
                "reconciles-on",
                f"{self._host} begins {kind} {shown_names(chosen)} {now_us - self._idle_us} µs after it"
                " could",
            )
        self._idle_us = None
        self.disturbed(now_us)
        self._calls_back = phase == "begin"
        self._owes_join |= self._is_classic and kind == "revoked" and self._state == _SETTLED
        if phase == "raised":
            self._raised_us = now_us
            self._pauses = True
        releases = kind == "lost" or self._state == _LEAVES
        if phase == "raised" or (phase == "end" and (releases or self._is_classic)):
            self.reason_us = now_us  # these callbacks have ended for their member even if they raised
        if kind == "assigned" and phase == "end":
            self._owned |= chosen
        elif phase != "begin":
            self._owned -= chosen
        if self._commits is None:
            return
        if (kind, phase) != ("revoked", "begin"):
            self._commits.released(chosen)
        else:
            self._commits.releases()
        if (kind, phase) == ("assigned", "end"):
            self._commits.assigned(now_us)

    def _keeps_quiet(self) -> Iterator[Finding]:
        yield "errors-raised", f"{self._host} does not report to its application that a callback raised"

    def _overdue(self, does: str, now_us: int) -> Iterator[Finding]:
        """Yield a finding if it does that although the time between two polls is over."""
        since_us = self._out_since_us
        if since_us is None or self._stood_still or not self._interval_ms or self._state not in ACTIVE_STATES:
            return
        if now_us - since_us > self._interval_ms * _LATE + _SLACK_US:
            yield (
                "poll-timeouts",
                f"{self._host} in {self._state} {does} {(now_us - since_us) // 1_000} ms after its last poll,"
                f" its max.poll.interval.ms is {self._interval_ms}",
            )

    def _comes_back(self, now_us: int) -> Iterator[Finding]:
        """Check that an application that has processed its records is delayed only by a commit."""
        application = self._application
        since_us = application.finished_us
        waits = not self._in_poll and not application.in_hand and self._out_since_us is not None
        if not waits or since_us < (self._out_since_us or 0):
            return
        waited_us = now_us - max(since_us, self._thawed_us)
        if waited_us > _COMMIT_LIMIT_US:
            yield (
                "commits-end",
                f"{self._host} has processed its records {waited_us // 1_000} ms ago, and its application"
                " still waits for a commit",
            )

    def _reconciles(self, until_us: int) -> Iterator[Finding]:
        """Check that in a poll that began then, or earlier, the next step towards the target was taken."""
        if self._state not in _RECONCILING and not self._owes_join:
            return
        waited_us = until_us - self._disturbed_us
        commits = self._commits if self._owes_join else None
        waits = self._calls_back or (
            commits is not None and (commits.is_searching or commits.in_flight is not None)
        )
        if waited_us > HALF_WINDOW_US and not waits:
            yield (
                "reconciles-on",
                f"{self._host} has been {self._state} for {waited_us // 1_000} ms, and does nothing",
            )

    # -- the member ---------------------------------------------------------------------------------------

    def on_member_host(self, what: str, now_us: int) -> None:
        """Allow time to a process that stands still, or is to end."""
        self.disturbed(now_us)
        self._idle_us = None
        if what in ("freeze", "thaw"):
            self._stood_still = True
            self._thawed_us = now_us
            if self._commits is not None:
                self._commits.froze()

    def on_member_state(self, event: str, source: str, target: str, now_us: int) -> Iterator[Finding]:
        """Note the state: it decides what may be expected."""
        self.disturbed(now_us)
        self._is_classic = isinstance(target, ClassicMemberState)
        self._owes_join = target == ClassicMemberState.UNJOINED
        self._pauses = self._pauses and target != JOINING
        starts = event == ClassicMemberEvent.SYNCED or (target == RECONCILING and source != target)
        may_lack_names = source == "ACKNOWLEDGING"  # it may have asked for them before it acknowledged
        waits = self._calls_back or self._pauses or (starts and (may_lack_names or not self._in_poll))
        self._idle_us = now_us if (starts or target in _GIVES_UP) and not waits else None
        self._state = str(target)
        if event != POLL_TIMED_OUT or source not in ACTIVE_STATES or not self._interval_ms:
            return
        if self._out_since_us is None:
            yield "poll-timeouts", f"{self._host} leaves for want of polls while its application polls"
        elif now_us - self._out_since_us < self._interval_ms * _EARLY - 1_000:
            yield (
                "poll-timeouts",
                f"{self._host} leaves {(now_us - self._out_since_us) // 1_000} ms after its last poll, its"
                f" max.poll.interval.ms is {self._interval_ms}",
            )

    def takes_request(self, request: Request, now_us: int) -> Iterator[Finding]:
        """Check that heartbeats stop when the time between polls is over."""
        if type(request) is OffsetCommitRequest:
            self._idle_us = None
        elif type(request) is JoinGroupRequest:
            self._owes_join = False
            self._interval_ms = request.rebalance_timeout_ms
        elif type(request) is ConsumerGroupHeartbeatRequest:
            if request.rebalance_timeout_ms > 0:
                self._interval_ms = request.rebalance_timeout_ms
            if request.member_epoch >= 0:
                yield from self._overdue("sends a heartbeat", now_us)
        elif type(request) is HeartbeatRequest:
            yield from self._overdue("sends a heartbeat", now_us)
        if self._commits is not None:
            self._commits.sends(request, self._state, now_us)

    def takes_response(self, request: Request, response: Response | Exception, now_us: int) -> None:
        """Note that after a failure the coordinator may not be known."""
        code = getattr(response, "error_code", ErrorCode.NONE)
        if isinstance(response, Exception) or code:
            self.disturbed(now_us)
            self._owes_join |= isinstance(request, JoinGroupRequest)
            if code not in MENDED:
                self.reason_us = now_us

    def on_commit(
        self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """Take in the offsets that were committed."""
        if isinstance(response, Exception) or any(response.errors.values()):
            self.disturbed(now_us)
        if self._commits is not None:
            self._commits.answered(request, response, now_us)

    def on_member_search(self, now_us: int) -> None:
        """Note that nothing can be sent."""
        self._disturbed_us, self._window, self._idle_us = now_us, None, None
        if self._commits is not None:
            self._commits.searches(now_us)

    def on_member_lookup(self, request: object, now_us: int) -> None:
        """Note that the member may wait for the names of topics."""
        self._idle_us = None

    def lost(self, now_us: int) -> None:
        """Note that the member waits for a response until the request times out: for names of topics, for
        example."""
        self._disturbed_us = now_us + self._world.scenario.network.request_timeout.us

    # -- periodic checks ----------------------------------------------------------------------------------

    def look(self, now_us: int) -> Iterator[Finding]:
        """Check what is due, since time passes."""
        yield from self._comes_back(now_us)
        yield from self._remembers()
        if self._in_poll and now_us - self._begun_us > HALF_WINDOW_US:
            yield from self._reconciles(now_us)
            if now_us - self._raised_us > HALF_WINDOW_US:
                yield from self._keeps_quiet()
        window = self._window
        if window is None:
            if self._state == _SETTLED and self._owned:
                self._window = ReadWindow(self._log_ends, self._application.positions, now_us)
        elif window.is_half_over(now_us):
            positions = self._application.positions
            if window.is_first:
                window.first_half(self._log_ends, positions, polls=self._in_poll)
                return
            self._window = None
            if unread := window.unread(positions, self._world.scenario.application.max_poll_records):
                yield (
                    "partitions-read",
                    f"{self._host} owns {shown_names(unread)}, and its application polls, but is handed none"
                    f" of the records that came more than {HALF_WINDOW_US // 1_000_000} s ago",
                )

    def _remembers(self) -> Iterator[Finding]:
        """Check that the member reports to its application the offsets up to which it has handed records
        over."""
        delivered = getattr(self._world.members[self._host].driver, "delivered", None)
        if delivered is None:  # not known of a driver in another process
            return
        application, reported = self._application, delivered()
        for partition in sorted(without(self._owned, application.outlived)):
            handed, known = application.positions.get(partition), reported.get(partition)
            if handed is not None and (known is None or known.offset != handed):
                yield (
                    "owned-honest",
                    f"{self._host} was handed {partition.topic}-{partition.partition} up to {handed}, and its"
                    f" member reports {'nothing' if known is None else known.offset}",
                )

    @property
    def _log_ends(self) -> dict[TopicPartition, int]:
        ends = self._world.log_ends
        return {partition: ends.get(partition, 0) for partition in self._owned}


class PollConsequences(OfProcesses[PolledProcess]):
    """Checks all members of a world whose applications report their polls."""

    world: MembersWorldView
    changed = of_process(PolledProcess.on_member_host)
    on_callback = of_process(PolledProcess.on_callback)
    on_commit = of_process(PolledProcess.on_commit)
    on_member_lookup = of_process(PolledProcess.on_member_lookup)
    on_member_search = of_process(PolledProcess.on_member_search)
    on_member_state = of_process(PolledProcess.on_member_state)
    takes_request = of_process(PolledProcess.takes_request)
    takes_response = of_process(PolledProcess.takes_response)

    def __init__(self, records: Records) -> None:
        super().__init__()
        self._records = records
        self._look_at_us = 0

    def new(self, host: str) -> PolledProcess:
        """Return a process whose application has not polled."""
        return PolledProcess(host, self.world, self._records)

    def on_poll(self, host: str, phase: str, now_us: int) -> None:
        """Check what is due, and the poll."""
        self._look(now_us)
        self.report_all(self.processes[host].on_poll(phase, now_us))

    def on_loss(self, host: str, broker: str, kind: str, request: Request, now_us: int) -> None:
        """Note that a member waits for a response."""
        process = self.processes.get(host)
        if process is not None:  # else it is no member's
            process.lost(now_us)

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Allow time: of a deleted topic, nothing is committed or read."""
        for process in self.processes.values():
            process.disturbed(now_us)

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check what is due, since time passes; and take in that a fetch of offsets was refused."""
        self._look(now_us)
        if type(event) is OffsetFetchRequest and isinstance(outcome.reply, OffsetFetchResponse):
            name = self.world.hosts_by_member.get(event.member_id or "")
            if name is not None and outcome.reply.error_code not in MENDED:
                self.processes[name].reason_us = now_us

    def _look(self, now_us: int) -> None:
        if now_us >= self._look_at_us:
            self._look_at_us = now_us + HALF_WINDOW_US
            for host, process in self.processes.items():
                if self.world.members[host].status == "running":
                    self.report_all(process.look(now_us))
