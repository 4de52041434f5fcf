"""One application as a whole: what its clients do is written down, and judged where no client alone can be.

The simulated world tells it of each event as it happens, a real run when it is told again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.actions import Level, Moved, Refused
from fencepost.member.streams.client_states import StreamClientState
from fencepost.simulation.checkers.catalogue import INVARIANTS
from fencepost.simulation.faults.stage import Schedule
from fencepost.simulation.streams.checks import Progress
from fencepost.simulation.streams.failures import SHUTS_APPLICATION_DOWN
from fencepost.simulation.trace.recorder import Recorder
from fencepost.simulation.trace.schema import Kind
from fencepost.simulation.world.observers import Violation

REPORTS_PER_INVARIANT = 5


class Client(Protocol):
    """A client's host, as far as it matters to the application."""

    name: str

    @property
    def generation(self) -> int:
        """Another number for each process."""

    @property
    def state(self) -> StreamClientState | None:
        """What its client is; None while no process runs."""


class Application:
    """What became of a request to shut everything down, of records, and of whatever clients report.

    `bound_us` is how long a request may take until every client that can be reached is in ERROR. In a classic
    group the request is told in one round, and who misses that hears nothing: with `one_round_us`, the time
    that its messages may take, clients are excused that lost a message about then, or had not run yet.
    """

    def __init__(
        self,
        clients: Mapping[str, Client],
        schedule: Schedule,
        recorder: Recorder,
        bound_us: int,
        *,
        one_round_us: int | None = None,
    ) -> None:
        self.recorder = recorder
        self.violations: list[Violation] = []
        self.progress = Progress(self.report)
        self.asked_us: int | None = None
        """When a handler asked for the application to be shut down, first."""
        self.shutdowns_us: list[int] = []
        """From a handler's answer to ERROR, for each client that was reached."""
        self._clients = clients
        self._schedule = schedule
        self._bound_us = bound_us
        self._one_round_us = one_round_us
        self._losses: dict[str, list[int]] = {}
        """When messages from or to a client were lost, by its name."""
        self._ran: set[str] = set()
        """Clients that were RUNNING since their process started."""
        self._unreachable: dict[str, int] = {}
        """Until when a client was, or is, cut off; by name."""
        self._coordinator_changed_us = 0
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
        kind: Kind,
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
            self._add("", Kind.VIOLATION, error=invariant, detail=message)
            self.violations.append(
                Violation(
                    invariant=invariant,
                    seq=self.recorder.seq,
                    t_us=self._schedule.now_us,
                    message=message,
                )
            )

    def on_host(self, name: str, what: str) -> None:
        """Something befell a client's host; one that dies is not reached any more."""
        self._add(name, Kind.HOST, detail=what)
        if what == "crash":
            self._unreachable[name] = self._schedule.now_us
        elif what == "start":
            self._ran.discard(name)

    def on_end(self, client: Client, state: StreamClientState) -> None:
        """A client is over, in NOT_RUNNING or ERROR."""
        self.on_host(client.name, "stopped")
        if state is StreamClientState.ERROR and self.asked_us is not None:
            self.shutdowns_us.append(self._schedule.now_us - self.asked_us)

    def on_step(self, step: Moved | Refused) -> None:
        """A machine of a client moved, or refused to."""
        if isinstance(step, Moved):
            kind = Kind.CLIENT_STATE if step.level is Level.CLIENT else Kind.THREAD_STATE
            if step.level is Level.CLIENT and step.target == StreamClientState.RUNNING:
                self._ran.add(step.name)
            self._add(step.name, kind, state_from=step.source, state_to=step.target, detail=step.event)

    def on_failure(self, client: Client, thread: str, answer: str, where: str) -> None:
        """The handler is asked about an exception of a thread; without an answer it is nobody's doing."""
        self._add(thread, Kind.THREAD_FAILED, detail=f"{answer} {where}" if answer else "organic")
        if answer == SHUTS_APPLICATION_DOWN:
            if self.asked_us is None:
                self.asked_us = self._schedule.now_us
            self._expect_error(client, asked=True)

    def told(self, client: Client) -> None:
        """The group told a member that the application is to be shut down."""
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
        self._add(kind, Kind.FAULT, state_to=phase, detail=detail)

    def cut_off(self, name: str, until_us: int) -> None:
        """A client can't be reached until then."""
        self._unreachable[name] = max(until_us, self._unreachable.get(name, 0))

    def on_lost(self, name: str) -> None:
        """A message from or to a client was lost."""
        if self._one_round_us is not None:
            self._losses.setdefault(name, []).append(self._schedule.now_us)

    def on_faults_end(self) -> None:
        """Nothing disturbs the application from here on."""
        self._add("", Kind.FAULTS_END)

    def heal(self) -> None:
        """Everybody can be reached."""
        now = self._schedule.now_us
        self._unreachable = {name: min(until, now) for name, until in self._unreachable.items()}

    def on_coordinator(self, host: str, what: str) -> None:
        """A coordinator's host changed."""
        self._add(host, Kind.COORDINATOR, detail=what)
        self._coordinator_changed_us = self._schedule.now_us

    def on_emptied(self) -> None:
        """The group has no members."""
        self._emptied_us = self._schedule.now_us

    def on_asked(self) -> None:
        """The group heard that the application is to be shut down: everybody is to be in ERROR soon."""
        for client in self._clients.values():
            self._expect_error(client)

    def _expect_error(self, client: Client, *, asked: bool = False) -> None:
        """From now on this client, perhaps the one that has asked, has the bound's time to be in ERROR."""
        heard = asked or self._one_round_us is None or client.name in self._ran
        if client.state is not None and heard:
            now = self._schedule.now_us
            self._schedule.schedule(
                now + self._bound_us, self._error_due, (client, client.generation, now, asked)
            )

    def _error_due(self, due: tuple[Client, int, int, bool]) -> None:
        client, generation, since_us, asked = due
        begin_us = since_us
        if self._one_round_us is not None and self.asked_us is not None:
            begin_us = self.asked_us - self._one_round_us
        undisturbed = (
            self._unreachable.get(client.name, -1) < begin_us
            and self._coordinator_changed_us < begin_us
            and (asked or self._emptied_us < since_us)
            and not self._missed_the_round(client.name, begin_us, since_us)
        )
        if client.generation == generation and undisturbed and client.state is not None:
            self.report(
                "streams-shutdown-reaches", f"{client.name} is {client.state} {self._bound_us} us after"
            )

    def _missed_the_round(self, name: str, begin_us: int, told_us: int) -> bool:
        """Whether a client lost a message in the time of the only round in which it could have been told."""
        if self._one_round_us is None:
            return False
        end_us = told_us + self._one_round_us
        return any(begin_us <= lost_us <= end_us for lost_us in self._losses.get(name, ()))
