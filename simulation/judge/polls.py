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
    Judge,
    OfHosts,
    as_set,
    shown_names,
    without,
)
from fencepost.simulation.judge.records import Records
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


class PollTimer:
    """One process: the time that its application has been out of poll, and the limit."""

    __slots__ = ("_excused", "_host", "interval_ms", "out_since_us", "state")

    def __init__(self, host: str) -> None:
        self._host = host
        self.state = ""
        self.interval_ms = 0
        """The poll interval that the member sent to its coordinator, in ms; 0 before it did."""
        self.out_since_us: int | None = None
        """None in a poll, and before the first one."""
        self._excused = False
        """True if it stood still since its last poll."""

    def froze(self) -> None:
        """Note that the process stands still, or goes on: its timers may run late."""
        self._excused = True

    def begins(self) -> None:
        """Note that the application polls."""
        self.out_since_us = None
        self._excused = False

    def ends(self, now_us: int) -> None:
        """Note that the application has its records, or an exception."""
        self.out_since_us = now_us

    def told(self, request: Request) -> None:
        """Note a request of the member, which may have the limit of the time out of poll."""
        if type(request) is ConsumerGroupHeartbeatRequest:
            if request.rebalance_timeout_ms > 0:
                self.interval_ms = request.rebalance_timeout_ms
        elif type(request) is JoinGroupRequest:
            self.interval_ms = request.rebalance_timeout_ms

    def sends(self, request: Request, now_us: int) -> Iterator[Finding]:
        """Check a request that is sent out of poll. Heartbeats stop when the time between polls is over."""
        if type(request) is ConsumerGroupHeartbeatRequest:
            if request.member_epoch >= 0:
                yield from self.overdue("sends a heartbeat", now_us)
        elif type(request) is HeartbeatRequest:
            yield from self.overdue("sends a heartbeat", now_us)

    def moved(self, event: str, source: str, target: str, now_us: int) -> Iterator[Finding]:
        """Note that the member machine moved."""
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

    def overdue(self, does: str, now_us: int) -> Iterator[Finding]:
        """Yield a finding if it does that although the time between two polls is over."""
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
    """One process that commits by itself, and the time since which it could have committed more."""

    __slots__ = (
        "_calm_us",
        "_committed",
        "_early",
        "_failed",
        "_found_us",
        "_host",
        "_interval_ms",
        "_interval_us",
        "_lacking_us",
        "_rested_until_us",
        "_rests_until_us",
        "in_flight",
        "is_searching",
    )

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

    __slots__ = ("_before", "_began_us", "_came", "_half", "_open", "_polls", "_positions")

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
    """The state that is kept of one process."""

    __slots__ = (
        "begun_us",
        "calls_back",
        "commits",
        "disturbed_us",
        "idle_us",
        "in_poll",
        "is_classic",
        "owes_join",
        "owned",
        "pauses",
        "raised_us",
        "reason_us",
        "thawed_us",
        "timer",
        "window",
    )

    def __init__(self, host: str, interval_ms: int | None) -> None:
        self.timer = PollTimer(host)
        self.commits = None if interval_ms is None else AutoCommits(host, interval_ms)
        self.owned = NOTHING
        self.calls_back = False
        self.raised_us = NEVER
        """Time at which a callback raised an error that the application has not received yet, in µs."""
        self.is_classic = False
        self.owes_join = False
        """True if it is a classic member that has to join: others wait for it, or for what it revoked."""
        self.reason_us: int | None = None
        """Time of the last event that the application has to know, in µs; None if a poll since then was
        successful."""
        self.idle_us: int | None = None
        """Time since which nothing keeps it from its next callback, in µs; None if something may."""
        self.pauses = False
        """True if a callback of this membership raised an error that the application has not received yet."""
        self.thawed_us = 0
        """Time at which it went on after it had stood still, in µs."""
        self.in_poll = False
        self.begun_us = 0
        """Time at which the last poll began, in µs."""
        self.window: ReadWindow | None = None
        self.disturbed_us = 0
        """Time of the member's last activity, or of the last event that may delay it, in µs."""

    def disturbed(self, now_us: int) -> None:
        """Note an event after which commits and records may take a while."""
        self.disturbed_us = now_us
        self.window = None
        if self.commits is not None:
            self.commits.disturbed(now_us)


class PollConsequences(Judge):
    """Checks all members of a world whose applications report their polls."""

    world: MembersWorldView

    def __init__(self, records: Records) -> None:
        self._records = records
        self._processes = OfHosts(self._new)
        self._look_at_us = 0

    def _new(self, host: str) -> PolledProcess:
        application = self.world.scenario.application
        return PolledProcess(
            host, application.auto_commit_interval.ms if application.commit == "auto" else None
        )

    # -- the application ----------------------------------------------------------------------------------

    def on_poll(self, host: str, phase: str, now_us: int) -> None:
        """Note the poll: timers start and stop, and commits are made."""
        if now_us >= self._look_at_us:
            self._look(now_us)
        process = self._processes[host]
        if phase == "begin":
            self._begins(host, process, now_us)
        else:
            self._ends_poll(host, process, phase, now_us)

    def _begins(self, host: str, process: PolledProcess, now_us: int) -> None:
        timer = process.timer
        since_us = timer.out_since_us
        if since_us is not None and now_us - since_us > timer.interval_ms * 1_000:
            self.report_all(timer.overdue("polls again", now_us))
        if process.window is not None:
            finished_us = self._records.application(host).finished_us
            process.window.polled(records=finished_us >= (since_us or 0))
        timer.begins()
        process.in_poll = True
        process.begun_us = now_us

    def _ends_poll(self, host: str, process: PolledProcess, phase: str, now_us: int) -> None:
        begun_us = process.begun_us
        process.in_poll = False
        if process.timer.state not in _GIVES_UP:
            process.idle_us = None
        if phase == "failed":
            process.raised_us = NEVER
            process.pauses = False
            process.disturbed_us = now_us  # it raised an earlier error; the next one goes on
            if process.reason_us is None:
                self.report(
                    "errors-raised",
                    f"{host} raises an error to its application, and nothing happened that it has to know",
                )
        else:
            if process.reason_us is not None and begun_us > process.reason_us:
                process.reason_us = None
            if begun_us > process.raised_us:
                self._keeps_quiet(host)
        self._reconciles(host, process, begun_us)
        commits = process.commits
        if commits is not None:
            self.report_all(commits.hastens(now_us))
        if commits is not None and commits.may_be_due(begun_us):
            application = self._records.application(host)
            owned = without(process.owned, application.outlived)
            self.report_all(commits.ends(process.timer.state, begun_us, application.processed, owned))
        process.timer.ends(now_us)

    def on_callback(
        self, host: str, kind: str, phase: str, partitions: Iterable[TopicPartition], now_us: int
    ) -> None:
        """Change the owned partitions. A callback that raised may leave a partition without a position."""
        process, chosen = self._processes[host], as_set(tuple(partitions))
        if phase == "begin" and process.pauses and process.timer.state in _RECONCILING:
            self.report(
                "errors-raised",
                f"{host} begins {kind} {shown_names(chosen)}, and its application has not received yet that"
                " the last callback raised",
            )
        if phase == "begin" and process.idle_us is not None and now_us > process.idle_us:
            waited_us = now_us - process.idle_us
            self.report(
                "reconciles-on",
                f"{host} begins {kind} {shown_names(chosen)} {waited_us} µs after it could",
            )
        process.idle_us = None
        process.disturbed(now_us)
        process.calls_back = phase == "begin"
        process.owes_join |= process.is_classic and kind == "revoked" and process.timer.state == _SETTLED
        if phase == "raised":
            process.raised_us = now_us
            process.pauses = True
        releases = kind == "lost" or process.timer.state == _LEAVES
        if phase == "raised" or (phase == "end" and (releases or process.is_classic)):
            process.reason_us = now_us  # these callbacks have ended for their member even if they raised
        if kind == "assigned" and phase == "end":
            process.owned |= chosen
        elif phase != "begin":
            process.owned -= chosen
        if process.commits is None:
            return
        if (kind, phase) != ("revoked", "begin"):
            process.commits.released(chosen)
        else:
            process.commits.releases()
        if (kind, phase) == ("assigned", "end"):
            process.commits.assigned(now_us)

    def _keeps_quiet(self, host: str) -> None:
        self.report("errors-raised", f"{host} does not report to its application that a callback raised")

    def _comes_back(self, host: str, process: PolledProcess, now_us: int) -> None:
        """Check that an application that has processed its records is delayed only by a commit."""
        application = self._records.application(host)
        since_us = application.finished_us
        waits = not process.in_poll and not application.in_hand and process.timer.out_since_us is not None
        if not waits or since_us < (process.timer.out_since_us or 0):
            return
        waited_us = now_us - max(since_us, process.thawed_us)
        if waited_us > _COMMIT_LIMIT_US:
            self.report(
                "commits-end",
                f"{host} has processed its records {waited_us // 1_000} ms ago, and its application"
                " still waits for a commit",
            )

    def _reconciles(self, host: str, process: PolledProcess, until_us: int) -> None:
        """Check that in a poll that began then, or earlier, the next step towards the target was taken."""
        if process.timer.state not in _RECONCILING and not process.owes_join:
            return
        waited_us = until_us - process.disturbed_us
        commits = process.commits if process.owes_join else None
        waits = process.calls_back or (
            commits is not None and (commits.is_searching or commits.in_flight is not None)
        )
        if waited_us > HALF_WINDOW_US and not waits:
            self.report(
                "reconciles-on",
                f"{host} has been {process.timer.state} for {waited_us // 1_000} ms, and does nothing",
            )

    # -- the member ---------------------------------------------------------------------------------------

    def on_member_host(self, host: str, what: str, now_us: int) -> None:
        """Start afresh with a new process."""
        if what in ("start", "crash"):
            self._processes[host] = self._new(host)
        else:
            self._processes[host].disturbed(now_us)
            self._processes[host].idle_us = None
            if what in ("freeze", "thaw"):
                process = self._processes[host]
                process.timer.froze()
                process.thawed_us = now_us
                if process.commits is not None:
                    process.commits.froze()

    def on_member_state(self, host: str, event: str, source: str, target: str, now_us: int) -> None:
        """Note the state: it decides what may be expected."""
        process = self._processes[host]
        process.disturbed(now_us)
        process.is_classic = isinstance(target, ClassicMemberState)
        process.owes_join = target == ClassicMemberState.UNJOINED
        process.pauses = process.pauses and target != JOINING
        starts = event == ClassicMemberEvent.SYNCED or (target == RECONCILING and source != target)
        may_lack_names = source == "ACKNOWLEDGING"  # it may have asked for them before it acknowledged
        waits = process.calls_back or process.pauses or (starts and (may_lack_names or not process.in_poll))
        process.idle_us = now_us if (starts or target in _GIVES_UP) and not waits else None
        self.report_all(process.timer.moved(event, source, target, now_us))

    def takes_request(self, host: str, request: Request, now_us: int) -> None:
        """Check the request: heartbeats stop when polls do."""
        process = self._processes[host]
        if type(request) is OffsetCommitRequest:
            process.idle_us = None
        else:
            if type(request) is JoinGroupRequest:
                process.owes_join = False
            process.timer.told(request)
            if process.timer.out_since_us is not None:
                self.report_all(process.timer.sends(request, now_us))
        if process.commits is not None:
            process.commits.sends(request, process.timer.state, now_us)

    def takes_response(
        self, host: str, request: Request, response: Response | Exception, now_us: int
    ) -> None:
        """Note that after a failure the coordinator may not be known."""
        code = getattr(response, "error_code", ErrorCode.NONE)
        if isinstance(response, Exception) or code:
            process = self._processes[host]
            process.disturbed(now_us)
            process.owes_join |= isinstance(request, JoinGroupRequest)
            if code not in MENDED:
                process.reason_us = now_us

    def on_commit(
        self, host: str, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception, now_us: int
    ) -> None:
        """Take in the offsets that were committed."""
        process = self._processes[host]
        if isinstance(response, Exception) or any(response.errors.values()):
            process.disturbed(now_us)
        if process.commits is not None:
            process.commits.answered(request, response, now_us)

    def on_member_search(self, host: str, now_us: int) -> None:
        """Note that nothing can be sent."""
        process = self._processes[host]
        process.disturbed_us, process.window, process.idle_us = now_us, None, None
        if process.commits is not None:
            process.commits.searches(now_us)

    def on_member_lookup(self, host: str, request: object, now_us: int) -> None:
        """Note that the member may wait for the names of topics."""
        self._processes[host].idle_us = None

    def on_loss(self, host: str, broker: str, kind: str, request: Request, now_us: int) -> None:
        """Note that the member waits for a response until the request times out: for names of topics, for
        example."""
        process = self._processes.get(host)
        if process is not None:  # else it is no member's
            process.disturbed_us = now_us + self.world.scenario.network.request_timeout.us

    def on_topic(self, topic: str, what: str, partitions: int, now_us: int) -> None:
        """Allow time: of a deleted topic, nothing is committed or read."""
        for process in self._processes.values():
            process.disturbed(now_us)

    # -- periodic checks ----------------------------------------------------------------------------------

    def on_coordinator_step(self, host: str, event: StepEvent, outcome: Outcome, now_us: int) -> None:
        """Check what is due, since time passes; and take in that a fetch of offsets was refused."""
        if now_us >= self._look_at_us:
            self._look(now_us)
        if type(event) is OffsetFetchRequest and isinstance(outcome.reply, OffsetFetchResponse):
            name = self.world.hosts_by_member.get(event.member_id or "")
            if name is not None and outcome.reply.error_code not in MENDED:
                self._processes[name].reason_us = now_us

    def _look(self, now_us: int) -> None:
        self._look_at_us = now_us + HALF_WINDOW_US
        for host, process in self._processes.items():
            if self.world.members[host].status != "running":
                continue
            window = process.window
            self._comes_back(host, process, now_us)
            self._remembers(host, process)
            if process.in_poll and now_us - process.begun_us > HALF_WINDOW_US:
                self._reconciles(host, process, now_us)
                if now_us - process.raised_us > HALF_WINDOW_US:
                    self._keeps_quiet(host)
            if window is None:
                if process.timer.state == _SETTLED and process.owned:
                    positions = self._records.application(host).positions
                    process.window = ReadWindow(self._ends(process), positions, now_us)
            elif window.is_half_over(now_us):
                positions = self._records.application(host).positions
                if window.is_first:
                    window.first_half(self._ends(process), positions, polls=process.in_poll)
                    continue
                if unread := window.unread(positions, self.world.scenario.application.max_poll_records):
                    self.report(
                        "partitions-read",
                        f"{host} owns {shown_names(unread)}, and its application polls, but is handed none"
                        f" of the records that came more than {HALF_WINDOW_US // 1_000_000} s ago",
                    )
                process.window = None

    def _remembers(self, host: str, process: PolledProcess) -> None:
        """Check that the member reports to its application the offsets up to which it has handed records
        over."""
        delivered = getattr(self.world.members[host].driver, "delivered", None)
        if delivered is None:  # not known of a driver in another process
            return
        application, reported = self._records.application(host), delivered()
        for partition in without(process.owned, application.outlived):
            handed, known = application.positions.get(partition), reported.get(partition)
            if handed is not None and (known is None or known.offset != handed):
                self.report(
                    "owned-honest",
                    f"{host} was handed {partition.topic}-{partition.partition} up to {handed}, and its"
                    f" member reports {'nothing' if known is None else known.offset}",
                )

    def _ends(self, process: PolledProcess) -> dict[TopicPartition, int]:
        ends = self.world.log_ends
        return {partition: ends.get(partition, 0) for partition in process.owned}
