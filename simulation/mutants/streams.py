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
from fencepost.simulation.mutants.mutant import Mutants, Original, instead_of

FAILURES: Final = ("streams-failures",)
SHUTDOWN: Final = ("streams-shutdown",)
SINGLE: Final = ("streams-single-threads",)


async def _nothing(**_: object) -> None:
    return None


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


async def _ends_when_told(original: Original, self: Any) -> None:
    """A client that learns of the shutdown does not wait for another round either."""
    if not self._engine.client.shutdown_told:
        await original(self)


async def _unclean(original: Original, self: Any) -> None:
    """A thread that failed commits before it closes."""
    self._clean = True
    await original(self)


STREAMS_MUTANTS: Final = Mutants()


@STREAMS_MUTANTS.bug(
    "replaced-thread-leaks", "streams-dead-left", FAILURES, (Worker, "_end"), source="KAFKA-12738"
)
async def _leaves_the_member_behind(original: Original, self: Any) -> None:
    """A replaced thread leaves its member in the group, which then has tasks without a thread."""
    if not self._clean:
        self.member.close = _nothing
    await original(self)


@STREAMS_MUTANTS.bug(
    "thread-replaced-twice", "streams-live-threads", FAILURES, (StreamsClient, "_replace"), source="KIP-671"
)
def _replaces_twice(original: Original, self: StreamsClient, name: str, *, own_end: bool) -> None:
    """Two threads replace a failed one, so each failure adds a thread."""
    original(self, name, own_end=own_end)
    if own_end and self.is_running:
        self._launch(self._new_thread())


@STREAMS_MUTANTS.bug(
    "shutdown-lost-with-its-requester",
    "streams-shutdown-reaches",
    SHUTDOWN,
    (StreamsClient, "_ask_all"),
    source="KAFKA-12375, KAFKA-19190",
    also=(instead_of(StreamsHeartbeats, "request", _says_nothing_on_leaving),),
)
def _asks_through_the_dying_thread(_: Original, self: StreamsClient) -> None:
    """Only the failed thread asks for the shutdown, and it dies before it can."""
    self.shutdown_requested = True
    for thread in self.threads.values():
        if thread.state is StreamThreadState.PENDING_SHUTDOWN:
            self._actions.append(AskForShutdown(thread.name))


@STREAMS_MUTANTS.bug(
    "shutdown-without-carrier",
    "streams-shutdown-reaches",
    SINGLE,
    (StreamsClient, "_launch"),
    source="KAFKA-12537",
    also=(instead_of(StreamsClient, "thread_ended", _waits_for_nobody),),
)
def _no_carrier(original: Original, self: StreamsClient, thread: StreamThread) -> None:
    """A client's only thread asks for the shutdown, and no other thread reads the response."""
    if not self.shutdown_requested:
        original(self, thread)
    else:
        thread.shut_down()
        thread.ended()


@STREAMS_MUTANTS.bug(
    "shutdown-told-once",
    "streams-shutdown-reaches",
    ("streams-missed-round",),
    (StreamsAssignor, "_repeat"),
    source="KIP-671",
    also=(instead_of(Worker, "_finish_round", _ends_when_told),),
)
def _does_not_repeat(_: Original, self: StreamsAssignor, info: AssignmentInfo) -> None:
    """A classic member that got a shutdown does not pass it on to members that missed the round."""
    self.shutdown_requested = True


@STREAMS_MUTANTS.bug(
    "error-left-by-close",
    "streams-terminal streams-transitions",
    FAILURES,
    (StreamsClient, "close"),
    source="KIP-696",
)
def _leaves_error(original: Original, self: StreamsClient) -> Any:
    """close() moves a client from ERROR to PENDING_SHUTDOWN."""
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


@STREAMS_MUTANTS.bug(
    "failing-handler-is-no-answer",
    "streams-error-due",
    FAILURES,
    (Handlers, "ask"),
    source="Kafka's own behaviour",
)
def _handler_that_raises_ends_its_thread(
    original: Original, self: Handlers, thread: str, error: BaseException
) -> HandlerDecision:
    """A handler that raises ends only its thread, and the client continues without it."""
    answer: HandlerDecision = original(self, thread, error)
    return answer if answer.complaint is None else HandlerDecision(None)


@STREAMS_MUTANTS.bug(
    "ending-threads-count", "streams-derived", FAILURES, (StreamsClient, "_derived"), source="KAFKA-14717"
)
def _waits_for_what_ends(
    _: Original, self: StreamsClient, live: tuple[StreamThread, ...]
) -> StreamClientState:
    """A thread that is being removed keeps its client in REBALANCING."""
    states = [each.state for each in self.threads.values() if each.state is not StreamThreadState.DEAD]
    if all(state is StreamThreadState.RUNNING for state in states):
        return StreamClientState.RUNNING
    return StreamClientState.REBALANCING


@STREAMS_MUTANTS.bug(
    "connection-back-means-running",
    "streams-reconnects",
    FAILURES,
    (StreamThread, "connection"),
    source="KIP-457",
)
def _forgets_the_connection(_: Original, self: StreamThread, *, connected: bool) -> None:
    """A reconnected thread becomes RUNNING even if it was in a rebalance."""
    before = self.state
    if connected and before is StreamThreadState.DISCONNECTED:
        self.state = StreamThreadState.RUNNING
        self._out.append(
            StreamsMoved(self.level, self.name, "connection back", before, StreamThreadState.RUNNING)
        )
    elif not connected and self.is_running and before is not StreamThreadState.DISCONNECTED:
        self.state = StreamThreadState.DISCONNECTED
        self._out.append(StreamsMoved(self.level, self.name, "connection lost", before, self.state))


@STREAMS_MUTANTS.bug("steps-last-to-first", "streams-transitions", FAILURES, (StreamsDriver, "carry_out"))
def _last_comes_first(_: Original, self: StreamsDriver, actions: tuple[Any, ...]) -> None:
    """The consequences of an input are carried out in reverse order."""
    for action in reversed(actions):
        self._PERFORM[type(action)](self, action)


@STREAMS_MUTANTS.bug(
    "listeners-out-of-order", "streams-listener", FAILURES, (StreamsDriver, "_tell_listener")
)
def _calls_later(original: Original, self: StreamsDriver, step: StreamsMoved) -> None:
    """The listener's call for a rebalance arrives after the call for the client's next step."""

    async def call() -> None:
        original(self, step)

    if step.event == StreamClientEvent.REBALANCING:
        self.runtime.spawn(call(), "listener")
    else:
        original(self, step)


@STREAMS_MUTANTS.bug(
    "no-threads-is-an-error",
    "streams-error-cause",
    FAILURES,
    (StreamsClient, "thread_ended"),
    source="KIP-696, before",
    overrides=("group.threads=1",),
)
def _last_thread_is_an_error(original: Original, self: StreamsClient, name: str) -> Any:
    """The death of the last thread moves a client to ERROR without a handler's decision."""
    before = self.shutdown_requested
    self.shutdown_requested = True
    actions = original(self, name)
    self.shutdown_requested = before
    return actions


@STREAMS_MUTANTS.bug(
    "no-thread-without-threads",
    "streams-live-threads",
    ("streams-no-threads",),
    (StreamsClient, "add_thread"),
)
def _adds_only_to_some(add_thread: Original, self: StreamsClient) -> Any:
    """A client that has lost its last thread adds none when it is asked to."""
    return add_thread(self) if self.live else (None, ())


@STREAMS_MUTANTS.bug(
    "delay-taken-for-shutdown",
    "streams-shutdown-cause streams-settles",
    FAILURES,
    (StreamsHeartbeats, "shutdown_requested"),
    source="KIP-1071, Status",
)
def _misread_status(_: Original, self: StreamsHeartbeats) -> bool:
    """A member treats the status of a delayed assignment as a shutdown."""
    return any(status.code is StatusCode.ASSIGNMENT_DELAYED for status in self.statuses)


@STREAMS_MUTANTS.bug("services-go-on", "streams-closed", FAILURES, (Service, "stop"), source="KIP-671")
def _services_go_on(_: Original, self: Service) -> None:
    """The state directory cleaner and the recorder outlive their client."""
    return


@STREAMS_MUTANTS.bug(
    "failed-batch-committed",
    "streams-at-least-once",
    FAILURES,
    (Worker, "_process"),
    source="KAFKA-15429",
    also=(instead_of(Worker, "_end", _unclean),),
)
async def _commits_after_a_failure(original: Original, self: Any, batch: Any) -> None:
    """A batch counts as processed too early, and a failed thread commits it."""
    self._processed[batch.partition] = batch.next_offset
    await original(self, batch)
