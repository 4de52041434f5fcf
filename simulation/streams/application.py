"""One application as a whole: what its clients do is written down, and judged where no client alone can be.

The simulated world tells it of each event as it happens, a real run when it is told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.actions import Level, MoveRefused, StreamsMoved
from fencepost.member.streams.client_states import StreamClientState
from fencepost.simulation.checkers.base import REPORTS_PER_INVARIANT
from fencepost.simulation.checkers.catalogue import INVARIANTS
from fencepost.simulation.kernel.observers import Violation
from fencepost.simulation.kernel.supervisor import RunSchedule
from fencepost.simulation.streams.checks import PartitionProgress
from fencepost.simulation.streams.failures import SHUTS_APPLICATION_DOWN
from fencepost.simulation.trace.rows import TraceRows
from fencepost.simulation.trace.schema import RowKind


class ApplicationClient(Protocol):
    """A client's host, as far as it matters to the application."""

    name: str

    @property
    def generation(self) -> int:
        """Another number for each process."""

    @property
    def state(self) -> StreamClientState | None:
        """What its client is; None while no process runs."""

    @property
    def has_threads(self) -> bool:
        """True if a thread of it lives. One that has none is in no group, and can't be told anything."""


class ApplicationOutcomes:
    """What became of a request to shut everything down, of records, and of whatever clients report.

    `bound_us` is how long a request may take until every client that can be reached is in ERROR; None if it
    may never get through. Of a classic group `request_timeout_us` is known, too. Its members tell each other
    of the request from round to round, and end. There a client is excused that had not run yet, or lost a
    message or the coordinator when others were told already: all who knew may have been gone when it joined
    again.
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
        self.progress = PartitionProgress(self.report)
        self.asked_us: int | None = None
        """When a handler asked for the application to be shut down, first."""
        self.shutdowns_us: list[int] = []
        """From a handler's answer to ERROR, for each client that was reached."""
        self._clients = clients
        self._schedule = schedule
        self._bound_us = bound_us
        self._request_timeout_us = request_timeout_us
        self._losses: dict[str, list[int]] = {}
        """When messages from or to a client were lost, by its name; of a classic group."""
        self._told_us: tuple[int, int] | None = None
        """When the group told somebody to shut down, first and last."""
        self._ran: set[str] = set()
        """Clients that were RUNNING since their process started."""
        self._unreachable: dict[str, list[tuple[int, int]]] = {}
        """From when until when clients were, or are, cut off; by name."""
        self._coordinator_changes_us: list[int] = []
        self._emptied_us = 0
        """When the group had no members: with the last one the coordinator forgets what was asked of it."""

    @property
    def figures(self) -> dict[str, float]:
        """What was measured."""
        figures: dict[str, float] = {"records": self.progress.records}
        if self.shutdowns_us:
            figures["shutdown_s"] = max(self.shutdowns_us) / 1_000_000
            figures["clients_shut_down"] = len(self.shutdowns_us)
        return figures

    # -- what is told -------------------------------------------------------------------------------------

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
        """A row of the trace, of now."""
        self.recorder.add(
            self._schedule.now_us,
            actor,
            kind.value,
            state_from=state_from,
            state_to=state_to,
            error=error,
            detail=detail,
        )

    def report(self, invariant: str, message: str) -> None:
        """Take a finding down, unless there were enough of its kind.

        :raises KeyError: if the catalogue has no such invariant.
        """
        INVARIANTS[invariant]
        if sum(each.invariant == invariant for each in self.violations) < REPORTS_PER_INVARIANT:
            self.take_down(invariant, message)

    def take_down(self, invariant: str, message: str) -> None:
        """Add a violation, of whatever."""
        self._add("", RowKind.VIOLATION, error=invariant, detail=message)
        self.violations.append(
            Violation(invariant=invariant, seq=self.recorder.seq, t_us=self._schedule.now_us, message=message)
        )

    def on_host(self, name: str, what: str) -> None:
        """Something befell a client's host; one that dies is not reached any more."""
        self._add(name, RowKind.HOST, detail=what)
        if what == "crash":
            self.cut_off(name, self._schedule.now_us)
        elif what == "start":
            self._ran.discard(name)

    def on_end(self, client: ApplicationClient, state: StreamClientState) -> None:
        """A client is over, in NOT_RUNNING or ERROR."""
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
        """The handler is asked about an exception of a thread; without an answer it is nobody's doing."""
        self._add(thread, RowKind.THREAD_FAILED, detail=f"{answer} {where}" if answer else "organic")
        if answer == SHUTS_APPLICATION_DOWN:
            if self.asked_us is None:
                self.asked_us = self._schedule.now_us
            self._expect_error(client, asked=True)

    def told(self, client: ApplicationClient) -> None:
        """The group told a member that the application is to be shut down."""
        now = self._schedule.now_us
        self._told_us = now if self._told_us is None else self._told_us[0], now
        if self.asked_us is None:
            self.report("streams-shutdown-cause", f"{client.name} was told, and nobody has asked")

    def processed(self, partition: TopicPartition, first: int, end: int) -> None:
        """A thread has processed these."""
        self.progress.processed(partition, first, end)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A thread has committed these."""
        self.progress.committed(offsets)

    # -- what befalls it ----------------------------------------------------------------------------------

    def on_fault(self, kind: str, phase: str, detail: str) -> None:
        """A fault begins or ends."""
        self._add(kind, RowKind.FAULT, state_to=phase, detail=detail)

    def cut_off(self, name: str, until_us: int) -> None:
        """A client can't be reached until then."""
        self._unreachable.setdefault(name, []).append((self._schedule.now_us, until_us))

    def on_lost(self, name: str) -> None:
        """A message from or to a client was lost."""
        if self._is_classic:
            self._losses.setdefault(name, []).append(self._schedule.now_us)

    def on_faults_end(self) -> None:
        """Nothing disturbs the application from here on."""
        self._add("", RowKind.FAULTS_END)

    def heal(self) -> None:
        """Everybody can be reached."""
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
        """The group has no members."""
        self._emptied_us = self._schedule.now_us

    def on_asked(self) -> None:
        """The group heard that the application is to be shut down: everybody is to be in ERROR soon."""
        for client in self._clients.values():
            self._expect_error(client)

    @property
    def _is_classic(self) -> bool:
        return self._request_timeout_us is not None

    def _expect_error(self, client: ApplicationClient, *, asked: bool = False) -> None:
        """From now on this client, perhaps the one that has asked, has the bound's time to be in ERROR."""
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
        """Whether a classic member may have joined again when nobody was left who knew of the request.

        As long as nobody was told, the client that asked goes on asking; another coordinator begins anew.
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
