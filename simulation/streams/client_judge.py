"""Judges one client of a Streams application: its states, its threads, and the calls of its listener."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from fencepost.coordinator.protocol.machine import StateTable
from fencepost.member.streams.actions import Level, MoveRefused, StreamsMoved
from fencepost.member.streams.application.driver import StreamsDriver
from fencepost.member.streams.client_states import STREAM_CLIENT, StreamClientState
from fencepost.member.streams.thread_states import (
    GLOBAL_THREAD,
    STREAM_THREAD,
    StreamThreadEvent,
    StreamThreadState,
)
from fencepost.simulation.streams.failures import asks_for_shutdown, shuts_down

_TABLES: Final[Mapping[Level, StateTable[Any, Any]]] = {
    Level.CLIENT: STREAM_CLIENT,
    Level.THREAD: STREAM_THREAD,
    Level.GLOBAL: GLOBAL_THREAD,
}
_TERMINAL = {StreamClientState.ERROR: "PENDING_ERROR", StreamClientState.NOT_RUNNING: "PENDING_SHUTDOWN"}
_ENDING = {*_TERMINAL, *_TERMINAL.values()}
_REBALANCING = {StreamThreadState.PARTITIONS_REVOKED, StreamThreadState.PARTITIONS_ASSIGNED}

Report = Callable[[str, str], None]


class WatchedMember(Protocol):
    """The member of one thread."""

    @property
    def member_id(self) -> str:
        """The group's name for it."""

    @property
    def closed(self) -> bool:
        """True if it has left the group and disconnected."""


class WatchedProcess(Protocol):
    """One process of one client."""

    name: str

    @property
    def engine(self) -> StreamsDriver | None:
        """The engine of its threads; None once the process has ended."""

    @property
    def members(self) -> Mapping[str, WatchedMember]:
        """The newest member of each thread, by the thread's name."""


class ClientJudge:
    """Watches one process of one client, which begins with that many threads."""

    def __init__(self, host: WatchedProcess, threads: int, report: Report) -> None:
        self._host = host
        self._report = report
        self._states: dict[str, str] = {}
        self._hidden: dict[str, str] = {}
        """State from which each thread last went to DISCONNECTED."""
        self._ended = False
        """True if the client has been in ERROR or NOT_RUNNING."""
        self._unheard: list[tuple[str, str]] = []
        """The client's steps that the listener has not received yet, in order."""
        self._heard = str(STREAM_CLIENT.initial)
        """State of the client according to its listener's calls."""
        self.live = threads
        """Number of threads that should be alive."""
        self.may_fail = False
        """True if there is a cause for PENDING_ERROR."""
        self._must_fail = False
        self.asked = False
        """True if a handler of this process asked for the application to be shut down."""

    def _finding(self, invariant: str, text: str) -> None:
        self._report(invariant, f"{self._host.name}: {text}")

    # -- as it happens ------------------------------------------------------------------------------------

    def on_step(self, step: StreamsMoved | MoveRefused) -> None:
        """A machine moved, or refused to."""
        table = _TABLES[step.level]
        move = f"{step.name} {step.source} to {step.target} ({step.event})"
        if isinstance(step, MoveRefused):
            if not table.refuses(step.source, step.target):
                self._finding("streams-transitions", f"{move} was refused")
            return
        before = self._states.get(step.name, str(table.initial))
        if before == "DEAD":
            before = str(table.initial)
        arrows = {(str(t.source), str(t.event), str(t.target)) for t in table.transitions}
        if (step.source, step.event, step.target) not in arrows or step.source != before:
            self._finding("streams-transitions", f"{move}, and it was {before}")
        self._states[step.name] = step.target
        if step.target == "DISCONNECTED":
            self._hidden[step.name] = step.source
        elif step.event == StreamThreadEvent.CONNECTION_BACK and step.target != self._hidden[step.name]:
            self._finding("streams-reconnects", f"{move}, and it was lost in {self._hidden[step.name]}")
        if step.level is Level.CLIENT:
            self._client_moved(step)
        elif step.level is Level.GLOBAL and step.target == "PENDING_SHUTDOWN":
            self._global_ends()
        elif step.level is Level.THREAD and step.target == "DEAD":
            self._thread_died(step.name)

    def _client_moved(self, step: StreamsMoved) -> None:
        if self._ended:
            self._finding("streams-terminal", f"{step.source} to {step.target}")
        self._unheard.append((step.source, step.target))
        if step.target in _TERMINAL:
            self._ended = True
            if step.source != _TERMINAL[StreamClientState(step.target)]:
                self._finding("streams-terminal", f"{step.target} from {step.source}")
            self._closed(step.target)
        if step.target == "PENDING_ERROR" and not self.may_fail:
            self._finding("streams-error-cause", f"{step.source} to PENDING_ERROR without a cause")

    def _global_ends(self) -> None:
        """Expect a failure if the global thread ends before its client is about to; its handler may not be
        asked."""
        if self._states.get(self._host.name) not in (None, *_ENDING):
            self.may_fail = True

    def _closed(self, state: str) -> None:
        engine = self._host.engine
        assert engine is not None
        alive = [
            name
            for name, thread in engine.client.threads.items()
            if thread.state is not StreamThreadState.DEAD
        ]
        if alive or engine.workers:
            self._finding("streams-closed", f"in {state} with {', '.join(alive or engine.workers)}")
        if engine.cleaner.running or engine.recorder.running:
            self._finding("streams-closed", f"in {state} with services")
        if engine.directory.locked:
            self._finding("streams-closed", f"in {state} with its directory locked")

    def _thread_died(self, name: str) -> None:
        member = self._host.members.get(name)
        if member is not None and not member.closed:
            self._finding(
                "streams-dead-left", f"{name} is dead, and its member {member.member_id} is not closed"
            )

    def on_listener(self, new: str, old: str) -> None:
        """Check that the listener is called with the next step, which begins where its last call ended."""
        due = self._unheard[0] if self._unheard else None
        if (old, new) != due:
            expected = " to ".join(due) if due else "nothing"
            self._finding("streams-listener", f"was called with {old} to {new}, expected {expected}")
        elif old != self._heard:
            self._finding(
                "streams-listener", f"was called with {old} to {new}, and was last called with {self._heard}"
            )
        if (old, new) in self._unheard:
            self._unheard.remove((old, new))
        self._heard = str(new)

    def on_failure(self, thread: str, error: BaseException) -> None:
        """Note that the handler is asked; the consequences of its response are checked once all have
        followed."""
        engine = self._host.engine
        assert engine is not None
        client = engine.client
        own_end = client.threads[thread].is_live
        runs = client.is_running
        if shuts_down(error):
            self.may_fail = True
            self._must_fail = self._must_fail or runs
        elif asks_for_shutdown(error):
            self.may_fail = self.asked = True
            if own_end:
                self.live -= 1
            if runs and not self.live:
                self.live += 1  # the one that asks
        elif own_end and not runs:
            self.live -= 1

    def on_global_failure(self, error: BaseException) -> None:
        """Note that the handler is asked about the global thread; whatever it returns, the client ends in
        ERROR."""
        engine = self._host.engine
        assert engine is not None
        self.may_fail = True
        self._must_fail = self._must_fail or engine.client.is_running
        self.asked = self.asked or asks_for_shutdown(error)

    def look(self) -> None:
        """Check the client once everything has followed from what happened."""
        engine = self._host.engine
        if engine is None:
            return
        for old, new in self._unheard:
            self._finding("streams-listener", f"was not called with {old} to {new}")
        self._unheard.clear()
        client = engine.client
        if self._must_fail and client.is_running:
            self._finding("streams-error-due", f"its handler shut it down, and it is {client.state}")
        if not client.is_running:
            return
        live = client.live
        if len(live) != self.live:
            names = ", ".join(thread.name for thread in live) or "none"
            self._finding("streams-live-threads", f"expected {self.live} live threads, there are {names}")
        self._derived(client.state, [thread.state for thread in live], [t.underneath for t in live])

    def _derived(
        self, state: StreamClientState, states: list[StreamThreadState], underneath: list[StreamThreadState]
    ) -> None:
        if not states:
            return
        disconnected = set(states) == {StreamThreadState.DISCONNECTED}
        expected: StreamClientState | None = None
        if disconnected:
            expected = StreamClientState.DISCONNECTED
        elif _REBALANCING & set(underneath):
            expected = StreamClientState.REBALANCING
        elif set(underneath) == {StreamThreadState.RUNNING}:
            expected = StreamClientState.RUNNING
        if expected is not None and state is not expected:
            self._finding("streams-derived", f"{state}, and its live threads are {', '.join(states)}")
