"""Bugs that Kafka Streams had, or would have had without the KIPs, and two slips in reporting steps."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fencepost.coordinator.protocol.streams import StatusCode
from fencepost.member.classic.assignors.assignment_info import AssignmentInfo
from fencepost.member.classic.assignors.streams import StreamsAssignor
from fencepost.member.streams.actions import AskForShutdown, StreamsMoved
from fencepost.member.streams.application.driver import StreamsDriver
from fencepost.member.streams.application.services import Service
from fencepost.member.streams.application.worker import Worker
from fencepost.member.streams.client import StreamsClient
from fencepost.member.streams.client_states import StreamClientEvent, StreamClientState
from fencepost.member.streams.handler import HandlerDecision, Handlers
from fencepost.member.streams.heartbeats import StreamsHeartbeats
from fencepost.member.streams.thread import StreamThread
from fencepost.member.streams.thread_states import StreamThreadState
from fencepost.simulation.mutants.mutant import UNREPORTED, Mutant, Original, instead_of

FAILURES: Final = ("streams-failures",)
SHUTDOWN: Final = ("streams-shutdown",)
SINGLE: Final = ("streams-single-threads",)


async def _leaves_the_member_behind(original: Original, self: Any) -> None:
    """A thread that failed ends without closing its member, which stays in the group."""
    if not self._clean:
        self.member.close = _nothing
    await original(self)


async def _nothing(**_: object) -> None:
    return None


def _replaces_twice(original: Original, self: StreamsClient, name: str, *, own_end: bool) -> None:
    """Two threads are started for one that failed."""
    original(self, name, own_end=own_end)
    if own_end and self.is_running:
        self._launch(self._new_thread())


def _asks_through_the_dying_thread(_: Original, self: StreamsClient) -> None:
    """Only the failed thread may request the shutdown."""
    self.shutdown_requested = True
    for thread in self.threads.values():
        if thread.state is StreamThreadState.PENDING_SHUTDOWN:
            self._actions.append(AskForShutdown(thread.name))


def _says_nothing_on_leaving(original: Original, self: StreamsHeartbeats, heartbeat: Any) -> Any:
    """A leave carries no request for shutdown."""
    made = original(self, heartbeat)
    return msgspec.structs.replace(
        made, shutdown_application=made.member_epoch >= 0 and made.shutdown_application
    )


def _waits_for_nobody(original: Original, self: StreamsClient, name: str) -> Any:
    """A client without threads waits for a response that no thread can receive."""
    asked, self.shutdown_requested = self.shutdown_requested, False
    actions = original(self, name)
    self.shutdown_requested = asked
    return actions


def _no_carrier(original: Original, self: StreamsClient, thread: StreamThread) -> None:
    """The only thread requests the shutdown as it dies, and no other thread is started."""
    if not self.shutdown_requested:
        original(self, thread)
    else:
        thread.shut_down()
        thread.ended()


def _does_not_repeat(_: Original, self: StreamsAssignor, info: AssignmentInfo) -> None:
    """A client that learns of the shutdown starts no other round to pass it on."""
    self.shutdown_requested = True


async def _ends_when_told(original: Original, self: Any) -> None:
    """A client that learns of the shutdown does not wait for another round either."""
    if not self._engine.client.shutdown_told:
        await original(self)


def _leaves_error(original: Original, self: StreamsClient) -> Any:
    """ERROR is left by close, as before KIP-696."""
    if self.state is not StreamClientState.ERROR:
        return original(self)
    self._actions.append(
        StreamsMoved(
            self.level, self.name, StreamClientEvent.CLOSE, self.state, StreamClientState.PENDING_SHUTDOWN
        )
    )
    self.state = StreamClientState.PENDING_SHUTDOWN
    self._closing_resources = False
    return self._done()


def _handler_that_raises_ends_its_thread(
    original: Original, self: Handlers, thread: str, error: BaseException
) -> HandlerDecision:
    """A handler that raises lets its thread die, and the client continues."""
    answer: HandlerDecision = original(self, thread, error)
    return answer if answer.complaint is None else HandlerDecision(None)


def _waits_for_what_ends(
    _: Original, self: StreamsClient, live: tuple[StreamThread, ...]
) -> StreamClientState:
    """Threads that are about to end keep the client from running."""
    states = [each.state for each in self.threads.values() if each.state is not StreamThreadState.DEAD]
    if all(state is StreamThreadState.RUNNING for state in states):
        return StreamClientState.RUNNING
    return StreamClientState.REBALANCING


def _forgets_the_connection(_: Original, self: StreamThread, *, connected: bool) -> None:
    """A thread that is connected again goes to RUNNING, wherever it was."""
    before = self.state
    if connected and before is StreamThreadState.DISCONNECTED:
        self.state = StreamThreadState.RUNNING
        self._out.append(
            StreamsMoved(self.level, self.name, "connection back", before, StreamThreadState.RUNNING)
        )
    elif not connected and self.is_running and before is not StreamThreadState.DISCONNECTED:
        self.state = StreamThreadState.DISCONNECTED
        self._out.append(StreamsMoved(self.level, self.name, "connection lost", before, self.state))


def _last_comes_first(_: Original, self: StreamsDriver, actions: tuple[Any, ...]) -> None:
    """Actions are carried out from the last to the first, including the reported steps."""
    for action in reversed(actions):
        self._PERFORM[type(action)](self, action)


def _calls_later(original: Original, self: StreamsDriver, step: StreamsMoved) -> None:
    """The listener's call for a rebalance comes when the thread has its next turn, and can be overtaken."""

    async def call() -> None:
        original(self, step)

    if step.event == StreamClientEvent.REBALANCING:
        self.runtime.spawn(call(), "listener")
    else:
        original(self, step)


def _services_go_on(_: Original, self: Service) -> None:
    """The cleaner and the recorder are not stopped."""
    return


async def _commits_after_a_failure(original: Original, self: Any, batch: Any) -> None:
    """If a batch fails half-way, all of it counts as processed."""
    self._processed[batch.partition] = batch.next_offset
    await original(self, batch)


async def _unclean(original: Original, self: Any) -> None:
    """A thread that failed commits before it closes."""
    self._clean = True
    await original(self)


def _last_thread_is_an_error(original: Original, self: StreamsClient, name: str) -> Any:
    """A client without live threads goes to ERROR by itself."""
    before = self.shutdown_requested
    self.shutdown_requested = True
    actions = original(self, name)
    self.shutdown_requested = before
    return actions


def _adds_only_to_some(add_thread: Original, self: StreamsClient) -> Any:
    return add_thread(self) if self.live else (None, ())


def _misread_status(_: Original, self: StreamsHeartbeats) -> bool:
    """A group that waits for more members is taken for one that is to be shut down."""
    return any(status.code is StatusCode.ASSIGNMENT_DELAYED for status in self.statuses)


STREAMS_MUTANTS: Final = (
    Mutant(
        "replaced-thread-leaks",
        "KAFKA-12738",
        "A replaced thread leaves its member in the group, which then has tasks without a thread.",
        ("streams-dead-left",),
        FAILURES,
        (instead_of(Worker, "_end", _leaves_the_member_behind),),
    ),
    Mutant(
        "thread-replaced-twice",
        "KIP-671",
        "Two threads replace a failed one, so each failure adds a thread.",
        ("streams-live-threads",),
        FAILURES,
        (instead_of(StreamsClient, "_replace", _replaces_twice),),
    ),
    Mutant(
        "shutdown-lost-with-its-requester",
        "KAFKA-12375, KAFKA-19190",
        "Only the failed thread asks for the shutdown, and it dies before it can.",
        ("streams-shutdown-reaches",),
        SHUTDOWN,
        (
            instead_of(StreamsClient, "_ask_all", _asks_through_the_dying_thread),
            instead_of(StreamsHeartbeats, "request", _says_nothing_on_leaving),
        ),
    ),
    Mutant(
        "shutdown-without-carrier",
        "KAFKA-12537",
        "A client's only thread asks for the shutdown, and no other thread reads the response.",
        ("streams-shutdown-reaches",),
        SINGLE,
        (
            instead_of(StreamsClient, "_launch", _no_carrier),
            instead_of(StreamsClient, "thread_ended", _waits_for_nobody),
        ),
    ),
    Mutant(
        "shutdown-told-once",
        "KIP-671",
        "A classic member that got a shutdown does not pass it on to members that missed the round.",
        ("streams-shutdown-reaches",),
        ("streams-missed-round",),
        (
            instead_of(StreamsAssignor, "_repeat", _does_not_repeat),
            instead_of(Worker, "_finish_round", _ends_when_told),
        ),
    ),
    Mutant(
        "error-left-by-close",
        "KIP-696",
        "close() moves a client from ERROR to PENDING_SHUTDOWN.",
        ("streams-terminal", "streams-transitions"),
        FAILURES,
        (instead_of(StreamsClient, "close", _leaves_error),),
    ),
    Mutant(
        "failing-handler-is-no-answer",
        "Kafka's own behaviour",
        "A handler that raises ends only its thread, and the client continues without it.",
        ("streams-error-due",),
        FAILURES,
        (instead_of(Handlers, "ask", _handler_that_raises_ends_its_thread),),
    ),
    Mutant(
        "ending-threads-count",
        "KAFKA-14717",
        "A thread that is being removed keeps its client in REBALANCING.",
        ("streams-derived",),
        FAILURES,
        (instead_of(StreamsClient, "_derived", _waits_for_what_ends),),
    ),
    Mutant(
        "connection-back-means-running",
        "KIP-457",
        "A reconnected thread becomes RUNNING even if it was in a rebalance.",
        ("streams-reconnects",),
        FAILURES,
        (instead_of(StreamThread, "connection", _forgets_the_connection),),
    ),
    Mutant(
        "steps-last-to-first",
        UNREPORTED,
        "The consequences of an input are carried out in reverse order.",
        ("streams-transitions",),
        FAILURES,
        (instead_of(StreamsDriver, "carry_out", _last_comes_first),),
    ),
    Mutant(
        "listeners-out-of-order",
        UNREPORTED,
        "The listener's call for a rebalance arrives after the call for the client's next step.",
        ("streams-listener",),
        FAILURES,
        (instead_of(StreamsDriver, "_tell_listener", _calls_later),),
    ),
    Mutant(
        "no-threads-is-an-error",
        "KIP-696, before",
        "The death of the last thread moves a client to ERROR without a handler's decision.",
        ("streams-error-cause",),
        FAILURES,
        (instead_of(StreamsClient, "thread_ended", _last_thread_is_an_error),),
        overrides=("group.threads=1",),
    ),
    Mutant(
        "no-thread-without-threads",
        UNREPORTED,
        "A client that has lost its last thread adds none when it is asked to.",
        ("streams-live-threads",),
        ("streams-no-threads",),
        (instead_of(StreamsClient, "add_thread", _adds_only_to_some),),
    ),
    Mutant(
        "delay-taken-for-shutdown",
        "KIP-1071, Status",
        "A member treats the status of a delayed assignment as a shutdown.",
        ("streams-shutdown-cause", "streams-settles"),
        FAILURES,
        (instead_of(StreamsHeartbeats, "shutdown_requested", _misread_status),),
    ),
    Mutant(
        "services-go-on",
        "KIP-671",
        "The state directory cleaner and the recorder outlive their client.",
        ("streams-closed",),
        FAILURES,
        (instead_of(Service, "stop", _services_go_on),),
    ),
    Mutant(
        "failed-batch-committed",
        "KAFKA-15429",
        "A batch counts as processed too early, and a failed thread commits it.",
        ("streams-at-least-once",),
        FAILURES,
        (instead_of(Worker, "_process", _commits_after_a_failure), instead_of(Worker, "_end", _unclean)),
    ),
)
