"""One application as a whole: it records what the clients do, and judges what no single client shows.

The simulated world reports each event as it happens; a real run reports it when it is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.actions import Level, MoveRefused, StreamsMoved
from fencepost.member.streams.client_states import StreamClientState
from fencepost.simulation.judge.base import FindingReporter
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.kernel.supervisor import RunSchedule
from fencepost.simulation.streams.failures import SHUTS_APPLICATION_DOWN
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind


class ApplicationClient(Protocol):
    """A client's host, as far as it matters to the application."""

    name: str

    @property
    def generation(self) -> int:
        """A number that differs for each process."""

    @property
    def state(self) -> StreamClientState | None:
        """State of its client; None while no process runs."""

    @property
    def has_threads(self) -> bool:
        """True if one of its threads is alive. A client without threads is in no group, and can't be
        notified."""


class PartitionProgress:
    """Progress of each partition, over all threads that process it."""

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._done: dict[TopicPartition, int] = {}
        self.records = 0

    def processed(self, partition: TopicPartition, first: int, end: int) -> None:
        """Note records that were processed."""
        done = self._done.get(partition, 0)
        if first > done:
            self._report(
                "streams-at-least-once",
                f"{partition.topic}-{partition.partition}: {first} was processed after {done - 1}",
            )
        self._done[partition] = max(done, end)
        self.records += end - first

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note offsets that were committed."""
        for partition, offset in offsets.items():
            if offset > self._done.get(partition, 0):
                self._report(
                    "streams-at-least-once",
                    f"{partition.topic}-{partition.partition}: {offset} was committed, and only "
                    f"{self._done.get(partition, 0)} processed",
                )


class ApplicationOutcomes:
    """Outcomes of a request to shut everything down, of records, and of anything else that clients report.

    `bound_us` is the maximum time until every client that can be reached is in ERROR; None if a request may
    never get through. For a classic group, `request_timeout_us` is known, too. Its members pass the request
    on to each other from round to round, and end. There a client is excused if it had not run yet, or if it
    lost a message or the coordinator after others had been notified. All members that knew of the request may
    have ended before it joined again.
    """

    def __init__(
        self,
        clients: Mapping[str, ApplicationClient],
        schedule: RunSchedule,
        recorder: TraceRows,
        bound_us: int | None,
        *,
        request_timeout_us: int | None = None,
    ) -> None:
        self.recorder = recorder
        self.violations: list[Violation] = []
        findings = FindingReporter()
        findings.attach(None, self.add_violation)
        self.report = findings.report
        self.progress = PartitionProgress(self.report)
        self.asked_us: int | None = None
        """Time at which a handler of this incarnation first asked to shut the application down, in
        microseconds."""
        self._asked_before = False
        self.shutdowns_us: list[int] = []
        """Time from a handler's response to ERROR, for each client that was reached."""
        self._clients = clients
        self._schedule = schedule
        self._bound_us = bound_us
        self._request_timeout_us = request_timeout_us
        self._losses: dict[str, list[int]] = {}
        """Times at which messages from or to a client were lost, by its name; only for a classic group."""
        self._told_us: tuple[int, int] | None = None
        """First and last time at which the group notified a member of the shutdown, in microseconds."""
        self._ran: set[str] = set()
        """Clients that were RUNNING at some time since their process started."""
        self._unreachable: dict[str, list[tuple[int, int]]] = {}
        """Periods in which clients were, or are, cut off; by name."""
        self._coordinator_changes_us: list[int] = []
        self._emptied_us = 0
        """Time at which the group became empty. With its last member the coordinator forgets the request."""

    @property
    def figures(self) -> dict[str, float]:
        """The measurements, by name."""
        figures: dict[str, float] = {"records": self.progress.records}
        if self.shutdowns_us:
            figures["shutdown_s"] = max(self.shutdowns_us) / 1_000_000
            figures["clients_shut_down"] = len(self.shutdowns_us)
        return figures

    # -- messages -----------------------------------------------------------------------------------------

    def _add(
        self,
        actor: str,
        kind: RowKind,
        *,
        state_from: str = "",
        state_to: str = "",
        error: str = "",
        detail: str = "",
    ) -> None:
        """Add a row to the trace, at the present time."""
        self.recorder.add(
            self._schedule.now_us,
            actor,
            kind.value,
            state_from=state_from,
            state_to=state_to,
            error=error,
            detail=detail,
        )

    def add_violation(self, invariant: str, message: str, rule: str = "") -> None:
        """Add a violation of any invariant."""
        self._add("", RowKind.VIOLATION, error=invariant, detail=message)
        now_us, seq = self._schedule.now_us, self.recorder.seq
        self.violations.append(
            Violation(invariant=invariant, seq=seq, t_us=now_us, message=message, rule=rule)
        )

    def on_host(self, name: str, what: str) -> None:
        """Follow an event of a client's host; a host that dies can't be reached any more."""
        self._add(name, RowKind.HOST, detail=what)
        if what == "crash":
            self.cut_off(name, self._schedule.now_us)
        elif what == "start":
            self._ran.discard(name)

    def on_end(self, client: ApplicationClient, state: StreamClientState) -> None:
        """Note that a client has ended, in NOT_RUNNING or ERROR."""
        self.on_host(client.name, "stopped")
        if state is StreamClientState.ERROR and self.asked_us is not None:
            self.shutdowns_us.append(self._schedule.now_us - self.asked_us)

    def on_step(self, step: StreamsMoved | MoveRefused) -> None:
        """A machine of a client moved, or refused to."""
        if isinstance(step, StreamsMoved):
            kind = RowKind.CLIENT_STATE if step.level is Level.CLIENT else RowKind.THREAD_STATE
            if step.level is Level.CLIENT and step.target == StreamClientState.RUNNING:
                self._ran.add(step.name)
            self._add(step.name, kind, state_from=step.source, state_to=step.target, detail=step.event)

    def on_failure(self, client: ApplicationClient, thread: str, answer: str, where: str) -> None:
        """Note that the handler is asked about an exception of a thread; without a response, it was not
        injected."""
        self._add(thread, RowKind.THREAD_FAILED, detail=f"{answer} {where}" if answer else "organic")
        if answer == SHUTS_APPLICATION_DOWN:
            if self.asked_us is None:
                self.asked_us = self._schedule.now_us
            self._expect_error(client, asked=True)

    def start_over(self) -> None:
        """Note that clients that start from now on belong to another incarnation of the group.

        A member that asked for a shutdown repeats that in its leave. The coordinator takes it even from a
        client that is no longer a member (KAFKA-19190), so the leave may reach a group that is already empty.
        Then the next incarnation is told to shut down.
        """
        self._asked_before = self._asked_before or self.asked_us is not None
        self.asked_us = None

    def told(self, client: ApplicationClient) -> None:
        """Note that the group told a member to shut the application down."""
        now = self._schedule.now_us
        self._told_us = now if self._told_us is None else self._told_us[0], now
        if self.asked_us is None and not self._asked_before:
            self.report(
                "streams-shutdown-cause", f"{client.name} was told to shut down, and no client has asked"
            )

    # -- faults -------------------------------------------------------------------------------------------

    def on_fault(self, kind: str, phase: str, detail: str) -> None:
        """A fault begins or ends."""
        self._add(kind, RowKind.FAULT, state_to=phase, detail=detail)

    def cut_off(self, name: str, until_us: int) -> None:
        """Note that a client can't be reached until that time."""
        self._unreachable.setdefault(name, []).append((self._schedule.now_us, until_us))

    def on_lost(self, name: str) -> None:
        """Note that a message from or to a client was lost."""
        if self._is_classic:
            self._losses.setdefault(name, []).append(self._schedule.now_us)

    def on_faults_end(self) -> None:
        """Nothing disturbs the application from here on."""
        self._add("", RowKind.FAULTS_END)

    def heal(self) -> None:
        """Note that all clients can be reached."""
        now = self._schedule.now_us
        self._unreachable = {
            name: [(since, min(until, now)) for since, until in times]
            for name, times in self._unreachable.items()
        }

    def on_coordinator(self, host: str, what: str) -> None:
        """A coordinator's host changed."""
        self._add(host, RowKind.COORDINATOR, detail=what)
        self._coordinator_changes_us.append(self._schedule.now_us)

    def on_emptied(self) -> None:
        """Note that the group has no members."""
        self._emptied_us = self._schedule.now_us

    def on_asked(self) -> None:
        """Note that the group got a request to shut down: all clients must be in ERROR soon."""
        for client in self._clients.values():
            self._expect_error(client)

    @property
    def _is_classic(self) -> bool:
        return self._request_timeout_us is not None

    def _expect_error(self, client: ApplicationClient, *, asked: bool = False) -> None:
        """Expect this client, perhaps the one that has asked, to be in ERROR within the bound."""
        heard = client.has_threads and (not self._is_classic or client.name in self._ran)
        if self._bound_us is not None and client.state is not None and (asked or heard):
            now = self._schedule.now_us
            self._schedule.schedule(
                now + self._bound_us, self._error_due, (client, client.generation, now, asked)
            )

    def _error_due(self, due: tuple[ApplicationClient, int, int, bool]) -> None:
        client, generation, since_us, asked = due
        if self._is_classic:
            excused = self._joined_too_late(client.name, since_us)
        else:
            excused = (
                any(until >= since_us for _, until in self._unreachable.get(client.name, ()))
                or any(each >= since_us for each in self._coordinator_changes_us)
                or (not asked and self._emptied_us >= since_us)
            )
        in_group = asked or client.has_threads
        if client.generation == generation and client.state is not None and in_group and not excused:
            self.report(
                "streams-shutdown-reaches", f"{client.name} is {client.state} {self._bound_us} us after"
            )

    def _joined_too_late(self, name: str, since_us: int) -> bool:
        """Return true if a classic member may have rejoined when every member that knew of the request had
        ended.

        As long as no member is notified, the client that asked keeps asking; another coordinator starts over.
        """
        now = self._schedule.now_us
        asked_us = since_us if self.asked_us is None else self.asked_us
        first_us, last_us = self._told_us or (now, now)
        end_us = last_us + (self._request_timeout_us or 0)
        changes_us, losses_us = self._coordinator_changes_us, self._losses.get(name, ())
        return (
            any(begin <= end_us and until >= asked_us for begin, until in self._unreachable.get(name, ()))
            or any(min(since_us, first_us) <= each <= end_us for each in changes_us)
            or any(first_us <= each <= end_us for each in losses_us)
        )
