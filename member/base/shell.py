"""Run a member's machine on an event loop: send requests, feed responses back, run callbacks in a task, keep
one timer."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.offsets import (
    OffsetCommitResponse,
    OffsetFetchResponse,
)
from fencepost.member.base.actions import (
    ASSIGNED,
    LOST,
    REVOKED,
    Actions,
    FetchOffsets,
    FindLogOffsets,
    FindOffsetsByDuration,
    RunCallback,
    SendCommit,
    SendFindCoordinator,
)
from fencepost.member.base.errors import RequestFailure
from fencepost.member.base.listener import (
    PROGRAM_ENDS,
    MemberObserver,
    NoListener,
    Phase,
    RebalanceListener,
)
from fencepost.member.base.log import is_logged, log
from fencepost.member.base.machine import MemberMachine
from fencepost.member.base.transport import (
    Clock,
    Reply,
    RequestTimedOut,
    TimerHandle,
    Transport,
    TransportError,
)

Answered = Callable[[int, Any, int], Actions]


class MachineShell:
    """A member's machine with its transport, its clock and its listener, but without the requests of a
    protocol."""

    # Thousands of members in one process take turns: the objects of each one should lie together in memory.
    __slots__ = (
        "__weakref__",
        "_callback_task",
        "_clock",
        "_listener",
        "_member",
        "_observer",
        "_stopped",
        "_timers",
        "_transport",
    )

    _RAISED_IS_OVER = False
    """True if a callback that raised has done its work; otherwise it, or its opposite, is called again."""

    def __init__(
        self,
        member: MemberMachine,
        transport: Transport,
        clock: Clock,
        *,
        listener: RebalanceListener | None,
        observer: MemberObserver | None,
    ) -> None:
        self._member: MemberMachine = member
        self._transport = transport
        self._clock = clock
        self._listener: RebalanceListener = listener or NoListener()
        self._observer = observer
        self._timers: list[tuple[int, TimerHandle]] = []
        """Armed timers, the earliest last; a later one stays armed while an earlier one is needed."""
        self._callback_task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def is_calling_back(self) -> bool:
        """True if a callback of the application is due or under way."""
        return self._callback_task is not None

    @property
    def is_in_callback(self) -> bool:
        """True if the caller is the callback that is under way."""
        return self._callback_task is not None and self._callback_task is asyncio.current_task()

    # -- running the machine -----------------------------------------------------------------------------

    def _run(self, actions: Actions) -> None:
        """Carry the actions out, then make sure that the machine's next deadline is met."""
        if self._stopped:
            return
        for action in actions:
            self._PERFORM[type(action)](self, action)
        deadline = self._member.deadline_ms
        if deadline is None or self._stopped:
            return
        timers = self._timers
        if not timers or deadline < timers[-1][0]:
            timers.append((deadline, self._clock.call_at(deadline, self._timer_fired, deadline)))

    def _timer_fired(self, when_ms: int) -> None:
        at_ms, handle = self._timers.pop()
        while at_ms < when_ms:  # a clock that stood still may run late timers in any order
            handle.cancel()
            at_ms, handle = self._timers.pop()
        self._run(self._member.deadline_reached(self._clock.now_ms()))

    def _stop(self) -> None:
        """Carry nothing out any more, and notify no one."""
        self._stopped = True
        for _, handle in self._timers:
            handle.cancel()
        self._timers.clear()
        if self._callback_task is not None:
            self._callback_task.cancel()
        self._transport.close()

    # -- carrying actions out ----------------------------------------------------------------------------

    def _find_coordinator(self, action: SendFindCoordinator) -> None:
        reply = self._transport.find_coordinator(self._member.group_id)
        reply.add_done_callback(functools.partial(self._coordinator_done, action.token))

    def _coordinator_done(self, token: int, reply: Reply[Any]) -> None:
        outcome = outcome_of(reply)
        if self._stopped:
            return
        if isinstance(outcome, ProtocolError):
            self._run(self._member.coordinator_refused(token, outcome.code, self._clock.now_ms()))
        elif isinstance(outcome, Exception):
            self._failed(token, outcome)
        else:
            self._run(self._member.coordinator_found(token, self._clock.now_ms()))

    def _find_log_offsets(self, action: FindLogOffsets) -> None:
        reply = self._transport.log_offsets(action.partitions, earliest=action.earliest)
        reply.add_done_callback(functools.partial(self._done, action.token, self._member.log_offsets_found))

    def _find_offsets_by_duration(self, action: FindOffsetsByDuration) -> None:
        reply = self._transport.offsets_by_duration(action.partitions, action.duration_ms)
        reply.add_done_callback(functools.partial(self._done, action.token, self._member.log_offsets_found))

    def _fetch_offsets(self, action: FetchOffsets) -> None:
        reply = self._transport.send(action.request, self._member.config.request_timeout_ms)
        reply.add_done_callback(functools.partial(self._fetch_done, action))

    def _fetch_done(self, action: FetchOffsets, reply: Reply[Any]) -> None:
        response = outcome_of(reply)
        if isinstance(response, ProtocolError):
            response = OffsetFetchResponse(group_id=self._member.group_id, error_code=response.code)
        self._take(action.token, self._member.offsets_fetched, response)

    def _send_commit(self, action: SendCommit) -> None:
        if self._observer is not None:
            self._observer.on_request(action.request)
        reply = self._transport.send(action.request, self._member.config.request_timeout_ms)
        reply.add_done_callback(functools.partial(self._commit_done, action))

    def _commit_done(self, action: SendCommit, reply: Reply[Any]) -> None:
        response = outcome_of(reply)
        if self._stopped:
            return
        if isinstance(response, ProtocolError):
            response = OffsetCommitResponse(errors=dict.fromkeys(action.request.offsets, response.code))
        if self._observer is not None:
            self._observer.on_commit(action.request, response)
        self._take(action.token, self._member.commit_answered, response)

    def _done(self, token: int, answered: Answered, reply: Reply[Any]) -> None:
        self._take(token, answered, outcome_of(reply))

    def _take(self, token: int, answered: Answered, outcome: Any) -> None:
        """Feed the machine with the outcome of a request."""
        if self._stopped:
            return
        if isinstance(outcome, Exception):
            self._failed(token, outcome)
        else:
            self._run(answered(token, outcome, self._clock.now_ms()))

    def _failed(self, token: int, error: Exception) -> None:
        """Feed a failed request back. An error that is not the transport's own is a defect of it: log it."""
        if not isinstance(error, (TransportError, ProtocolError)):
            self._log(logging.ERROR, "transport failed", exc_info=error)
        failure = (
            RequestFailure.TIMED_OUT if isinstance(error, RequestTimedOut) else RequestFailure.DISCONNECTED
        )
        self._run(self._member.request_failed(token, failure, self._clock.now_ms()))

    def _run_callback(self, action: RunCallback) -> None:
        task = self._callback_task = asyncio.get_running_loop().create_task(self._call(action))
        task.add_done_callback(functools.partial(self._call_done, action))

    def _call_done(self, action: RunCallback, task: asyncio.Task[None]) -> None:
        """End a callback whose task was cancelled from outside before its first step, and so did not end it
        itself."""
        if task.cancelled() and not self._stopped:
            self._callback_over(action, asyncio.CancelledError())

    def _callback_over(self, action: RunCallback, error: BaseException | None) -> None:
        self._callback_task = None
        self._run(self._member.callback_finished(action.token, error, self._clock.now_ms()))

    async def _call(self, action: RunCallback) -> None:
        listener = self._listener
        callback = {
            ASSIGNED: listener.on_partitions_assigned,
            REVOKED: listener.on_partitions_revoked,
            LOST: listener.on_partitions_lost,
        }[action.kind]
        if self._observer is not None:
            self._observer.on_callback(action.kind, "begin", action.partitions)
        error: BaseException | None = None
        try:
            result = callback(action.partitions)
            if inspect.isawaitable(result):
                await result
        except asyncio.CancelledError as cancelled:
            if self._stopped:
                raise
            error = cancelled  # cancelled from outside: the machine still waits for the end of its callback
        except PROGRAM_ENDS:
            raise
        except BaseException as raised:  # such as those of pytest: the waiting caller has to receive it
            error = raised
        if self._observer is not None:
            over = error is None or action.releases or self._RAISED_IS_OVER
            phase: Phase = "end" if over else "raised"
            self._observer.on_callback(action.kind, phase, action.partitions)
        self._callback_over(action, error)

    def _log(self, level: int, event: str, **fields: object) -> None:
        """Log with the member's name, if the event reaches a log."""
        if is_logged(level):
            member = self._member
            who = {"group": member.group_id, "member": member.member_id, "epoch": member.member_epoch}
            log(level, event, **who, **fields)

    _PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        SendFindCoordinator: _find_coordinator,
        SendCommit: _send_commit,
        FetchOffsets: _fetch_offsets,
        FindLogOffsets: _find_log_offsets,
        FindOffsetsByDuration: _find_offsets_by_duration,
        RunCallback: _run_callback,
    }
    """The method that carries out each kind of action."""


def outcome_of(reply: Reply[Any]) -> Any:
    """Return the response, or an exception in its place; a cancelled request counts as disconnected."""
    try:
        error = reply.exception()
    except asyncio.CancelledError:
        return TransportError("the request was cancelled")
    if error is None:
        return reply.result()
    if isinstance(error, Exception):
        return error  # and not raised: an exception holds the frames that it passed through
    raise error
