"""A run of an application, replayed in the order of time: events are recorded, and judged as a whole."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable
from itertools import count
from typing import Any, cast

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.member.streams.actions import Level, MoveRefused, StreamsMoved
from fencepost.member.streams.client_states import RUNNING, StreamClientState
from fencepost.member.streams.thread_states import StreamThreadState
from fencepost.simulation.kernel.observers import Observer, Violation
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.events import (
    Happening,
    HostNoted,
    MemberEvent,
    MessageLost,
    RunEvents,
    StreamsMemberHeard,
)
from fencepost.simulation.streams.application import ApplicationOutcomes
from fencepost.simulation.trace.rows import TraceRows

_NOT_LIVE = frozenset({StreamThreadState.CREATED, StreamThreadState.PENDING_SHUTDOWN, StreamThreadState.DEAD})


class ReplayedTime:
    """The time of the replayed event, and actions that are due meanwhile."""

    def __init__(self) -> None:
        self._now_us = 0
        self._due: list[tuple[int, int, Callable[[Any], Any], object]] = []
        self._numbers = count()

    @property
    def now_us(self) -> int:
        """The present time, in microseconds."""
        return self._now_us

    def schedule(self, when_us: int, action: Callable[[Any], Any], argument: object) -> None:
        """Call `action(argument)` at that time, if the run lasts that long."""
        heapq.heappush(self._due, (when_us, next(self._numbers), action, argument))

    def advance(self, to_us: int) -> None:
        """Advance to that time."""
        while self._due and self._due[0][0] < to_us:
            self._now_us, _, action, argument = heapq.heappop(self._due)
            action(argument)
        self._now_us = max(self._now_us, to_us)


class ReplayedClient:
    """A client at the time of the replayed event."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.state: StreamClientState | None = None
        self.threads: dict[str, StreamThreadState] = {}

    def begin(self) -> None:
        """Begin a process."""
        self.generation += 1
        self.state = StreamClientState.CREATED
        self.threads.clear()

    def end(self) -> None:
        """End the process."""
        self.state = None

    @property
    def live(self) -> list[str]:
        """The names of threads that are not about to end."""
        return [name for name, state in self.threads.items() if state not in _NOT_LIVE]

    @property
    def has_threads(self) -> bool:
        """True if a thread lives."""
        return bool(self.live)


class ReplayedApplication:
    """Everything of one run, at the time of the replayed event."""

    def __init__(
        self,
        names: Iterable[str],
        recorder: TraceRows,
        bound_us: int,
        *,
        request_timeout_us: int | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self._observers = tuple(observers)
        for observer in self._observers:
            observer.attach(cast("Any", self), self.report)
        self._time = ReplayedTime()
        self.clients = {name: ReplayedClient(name) for name in names}
        self.application = ApplicationOutcomes(
            self.clients, self._time, recorder, bound_us, request_timeout_us=request_timeout_us
        )
        self.heartbeats = 0
        """Heartbeats that a member got a response to."""
        self.settled = False
        """True if clients and group stood as they should at the end of the quiet phase."""
        self._epochs: set[int] = set()
        self._unsettled_by = "no look was made"

    @property
    def rebalances(self) -> int:
        """Number of epochs, or generations, that members received."""
        return len(self._epochs - {0})

    @property
    def violations(self) -> list[Violation]:
        """The violations that were found."""
        return self.application.violations

    def report(self, invariant: str, message: str, /, rule: str = "") -> None:
        """Report a finding."""
        self.application.report(invariant, message, rule)

    def tell_all(self, happenings: RunEvents, ended_us: int) -> None:
        """Replay all events, until the end of the run."""
        for t_us, host, happening in happenings.in_order():
            self._time.advance(t_us)
            self._tell(host, happening)
        self._time.advance(ended_us)

    def _tell(self, host: str, happening: Happening) -> None:
        match happening:
            case MemberEvent("on_look", (members,)):
                self._look(members)
            case MemberEvent("on_end", _):
                self._judge()
            case MemberEvent("on_coordinator_state", (broker, what)):
                self.application.on_coordinator(broker, what)
            case MessageLost(member):
                self.application.on_lost(member)
            case MemberEvent(hook, arguments):
                getattr(self.application, hook)(*arguments)
            case HostNoted(what):
                if what == "crash":
                    self.clients[host].end()
                self.application.on_host(host, what)
            case StreamsMemberHeard(epoch, heartbeat):
                self.heartbeats += heartbeat
                self._epochs.add(epoch)
            case _ if host:
                self._said(self.clients[host], happening)

    def _said(self, client: ReplayedClient, event: Happening) -> None:
        application = self.application
        match event:
            case m.Up():
                client.begin()
                application.on_host(client.name, "start")
            case m.Stopped(_, state):
                client.end()
                application.on_end(client, StreamClientState(state))
            case m.Stepped(_, level, name, arrow, source, target, refused):
                self._stepped(
                    client, (MoveRefused if refused else StreamsMoved)(level, name, arrow, source, target)
                )
            case m.HandlerAsked(_, thread, answer, where):
                application.on_failure(client, thread, answer, where)
            case m.ShutdownTold():
                application.told(client)
                application.on_asked()
            case m.Processed(_, partition, first, end, _):
                application.progress.processed(partition, first, end)
            case m.OffsetsCommitted(_, offsets):
                application.progress.committed({TopicPartition(*place): offset for place, offset in offsets})
            case m.CheckFound(_, invariant, message):
                application.report(invariant, message)
            case m.RoundTrip(_, thread, took_us, written):
                for observer in self._observers:
                    observer.on_round_trip(thread, took_us, written, self._time.now_us)

    def _stepped(self, client: ReplayedClient, step: StreamsMoved | MoveRefused) -> None:
        if isinstance(step, StreamsMoved):
            if step.level is Level.CLIENT:
                client.state = StreamClientState(step.target)
            elif step.level is Level.THREAD:
                client.threads[step.name] = StreamThreadState(step.target)
        self.application.on_step(step)

    def _look(self, members: Collection[str]) -> None:
        """Check everything. `members` are the client ids of the group's members, which are threads' names."""
        mistake = self._unsettled(members)
        self.settled = self.settled or mistake is None
        self._unsettled_by = mistake or ""

    def _judge(self) -> None:
        """Judge the end of the quiet phase: at least one look must have found everything in order."""
        if not self.settled:
            self.application.report("streams-settles", self._unsettled_by)
        self.application.start_over()

    def _unsettled(self, members: Collection[str]) -> str | None:
        expected: list[str] = []
        for client in self.clients.values():
            if client.state is None:
                if self.application.asked_us is None:
                    return f"{client.name} does not run"
                continue
            states = [client.threads[name] for name in client.live]
            if not states and client.state in RUNNING:
                continue  # its last thread was removed: its state stays
            if client.state is not StreamClientState.RUNNING or set(states) - {StreamThreadState.RUNNING}:
                return f"{client.name} is {client.state}, its live threads are {', '.join(states) or 'none'}"
            expected += client.live
        if sorted(members) != sorted(expected):
            return f"the group has {len(members)} members, and there are {len(expected)} threads"
        return None
