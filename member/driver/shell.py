"""Runs a member's machine on an event loop: requests out, answers in, callbacks in a task, one timer.

A steady heartbeat costs no task: the machine's deadline arms a timer, the timer sends, and the answer's
done-callback feeds the machine.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import structlog

from fencepost.coordinator.protocol.consumer import ConsumerGroupHeartbeatResponse
from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.ids import MemberId
from fencepost.coordinator.protocol.offsets import OffsetCommitResponse, OffsetFetchResponse
from fencepost.member.consumer.actions import (
    Action,
    CallbackKind,
    FetchOffsets,
    FindCoordinator,
    FindLogOffsets,
    Moved,
    ResolveTopicNames,
    RunCallback,
    SendCommit,
    SendHeartbeat,
)
from fencepost.member.consumer.config import ConsumerConfig
from fencepost.member.consumer.errors import Failure
from fencepost.member.consumer.machine import ConsumerMember
from fencepost.member.driver.listener import MemberObserver, NoListener, Phase, RebalanceListener
from fencepost.member.driver.transport import Clock, RequestTimedOut, TimerHandle, Transport, TransportError

_logger = structlog.get_logger("fencepost.member")

Answered = Callable[[int, Any, int], tuple[Action, ...]]


class MachineShell:
    """A member's machine with its transport, its clock and its listener."""

    def __init__(
        self,
        group_id: str,
        member_id: MemberId,
        transport: Transport,
        clock: Clock,
        *,
        listener: RebalanceListener | None = None,
        config: ConsumerConfig | None = None,
        rng: random.Random,
        observer: MemberObserver | None = None,
    ) -> None:
        self._config = config or ConsumerConfig()
        self._member = ConsumerMember(group_id, member_id, self._config, rng)
        self._transport = transport
        self._clock = clock
        self._listener: RebalanceListener = listener or NoListener()
        self._observer = observer
        self._timers: list[tuple[int, TimerHandle]] = []
        """Armed timers, the earliest last; a later one stays armed while an earlier one is needed."""
        self._heartbeat: SendHeartbeat | None = None
        self._heartbeat_answered: Callable[[asyncio.Future[Any]], None] = self._discard
        self._callback_task: asyncio.Task[None] | None = None
        self._stopped = False

    # -- running the machine -----------------------------------------------------------------------------

    def _run(self, actions: tuple[Action, ...]) -> None:
        """Carry the actions out, then see to it that the machine's next deadline is met."""
        if self._stopped:
            return
        for action in actions:
            self._PERFORM[type(action)](self, action)
        self._arm()

    def _arm(self) -> None:
        deadline = self._member.next_deadline()
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
        now_ms = self._clock.now_ms()
        actions = self._member.deadline_reached(now_ms)
        for action in actions:
            self._PERFORM[type(action)](self, action)
        self._arm()

    def _stop(self) -> None:
        """Carry nothing out any more, and tell nobody."""
        self._stopped = True
        for _, handle in self._timers:
            handle.cancel()
        self._timers.clear()
        if self._callback_task is not None:
            self._callback_task.cancel()
        self._transport.close()

    # -- carrying actions out ----------------------------------------------------------------------------

    def _send_heartbeat(self, action: SendHeartbeat) -> None:
        if action is not self._heartbeat:
            self._heartbeat = action
            self._heartbeat_answered = functools.partial(self._heartbeat_done, action)
        if self._observer is not None:
            self._observer.on_request(action.request)
        future = self._transport.send(action.request, self._config.request_timeout_ms)
        future.add_done_callback(self._heartbeat_answered)

    def _heartbeat_done(self, action: SendHeartbeat, future: asyncio.Future[Any]) -> None:
        error = _error_of(future)
        if self._stopped:
            return
        if error is None:
            response = future.result()
        elif isinstance(error, ProtocolError):
            response = ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message)
        else:
            if self._observer is not None:
                self._observer.on_response(action.request, error)
            self._failed(action.token, error)
            return
        if self._observer is not None:
            self._observer.on_response(action.request, response)
        actions = self._member.heartbeat_answered(action.token, response, self._clock.now_ms())
        for each in actions:
            self._PERFORM[type(each)](self, each)
        self._arm()

    def _find_coordinator(self, action: FindCoordinator) -> None:
        future = self._transport.find_coordinator(self._member.group_id)
        future.add_done_callback(functools.partial(self._coordinator_done, action.token))

    def _coordinator_done(self, token: int, future: asyncio.Future[None]) -> None:
        error = _error_of(future)
        if self._stopped:
            return
        if error is None:
            self._run(self._member.coordinator_found(token, self._clock.now_ms()))
        elif isinstance(error, ProtocolError):
            self._run(self._member.coordinator_refused(token, error.code, self._clock.now_ms()))
        else:
            self._failed(token, error)

    def _resolve_topic_names(self, action: ResolveTopicNames) -> None:
        future = self._transport.topic_names(action.topic_ids)
        future.add_done_callback(functools.partial(self._done, action.token, self._member.topic_names_found))

    def _find_log_offsets(self, action: FindLogOffsets) -> None:
        future = self._transport.log_offsets(action.partitions, earliest=action.earliest)
        future.add_done_callback(functools.partial(self._done, action.token, self._member.log_offsets_found))

    def _fetch_offsets(self, action: FetchOffsets) -> None:
        future = self._transport.send(action.request, self._config.request_timeout_ms)
        future.add_done_callback(functools.partial(self._fetch_done, action))

    def _fetch_done(self, action: FetchOffsets, future: asyncio.Future[Any]) -> None:
        error = _error_of(future)
        if isinstance(error, ProtocolError) and not self._stopped:
            refused = OffsetFetchResponse(group_id=self._member.group_id, error_code=error.code)
            self._run(self._member.offsets_fetched(action.token, refused, self._clock.now_ms()))
        else:
            self._done(action.token, self._member.offsets_fetched, future)

    def _send_commit(self, action: SendCommit) -> None:
        if self._observer is not None:
            self._observer.on_request(action.request)
        future = self._transport.send(action.request, self._config.request_timeout_ms)
        future.add_done_callback(functools.partial(self._commit_done, action))

    def _commit_done(self, action: SendCommit, future: asyncio.Future[Any]) -> None:
        error = _error_of(future)
        if self._stopped:
            return
        if error is None:
            response = future.result()
        elif isinstance(error, ProtocolError):
            response = OffsetCommitResponse(errors=dict.fromkeys(action.request.offsets, error.code))
        else:
            if self._observer is not None:
                self._observer.on_commit(action.request, error)
            self._failed(action.token, error)
            return
        if self._observer is not None:
            self._observer.on_commit(action.request, response)
        self._run(self._member.commit_answered(action.token, response, self._clock.now_ms()))

    def _done(self, token: int, answered: Answered, future: asyncio.Future[Any]) -> None:
        error = _error_of(future)
        if self._stopped:
            return
        if error is None:
            self._run(answered(token, future.result(), self._clock.now_ms()))
        else:
            self._failed(token, error)

    def _failed(self, token: int, error: Exception) -> None:
        """A request got no answer. An error that is not the transport's own is a defect of it: logged."""
        if not isinstance(error, (TransportError, ProtocolError)):
            self._log(logging.ERROR, "transport failed", exc_info=error)
        failure = Failure.TIMED_OUT if isinstance(error, RequestTimedOut) else Failure.DISCONNECTED
        self._run(self._member.request_failed(token, failure, self._clock.now_ms()))

    @staticmethod
    def _discard(future: asyncio.Future[Any]) -> None:
        _error_of(future)

    def _run_callback(self, action: RunCallback) -> None:
        self._callback_task = asyncio.get_running_loop().create_task(self._call(action))

    async def _call(self, action: RunCallback) -> None:
        listener = self._listener
        callback = {
            CallbackKind.ASSIGNED: listener.on_partitions_assigned,
            CallbackKind.REVOKED: listener.on_partitions_revoked,
            CallbackKind.LOST: listener.on_partitions_lost,
        }[action.kind]
        if self._observer is not None:
            self._observer.on_callback(action.kind, "begin", action.partitions)
        error: Exception | None = None
        try:
            result = callback(action.partitions)
            if inspect.isawaitable(result):
                await result
        except Exception as raised:
            error = raised
        if self._observer is not None:
            phase: Phase = "raised" if error is not None and not action.releases else "end"
            self._observer.on_callback(action.kind, phase, action.partitions)
        self._callback_task = None
        self._run(self._member.callback_finished(action.token, error, self._clock.now_ms()))

    def _moved(self, action: Moved) -> None:
        if self._observer is not None:
            self._observer.on_state(action.event, action.source, action.target)
        self._log(logging.DEBUG, "member moved", by=action.event, source=action.source, target=action.target)

    def _log(self, level: int, event: str, **fields: object) -> None:
        """Log, if the process that this is part of has said where to; a library keeps quiet otherwise."""
        if structlog.is_configured():
            member = self._member
            _logger.log(
                level,
                event,
                group=member.group_id,
                member=member.member_id,
                epoch=member.member_epoch,
                **fields,
            )

    _PERFORM: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {
        SendHeartbeat: _send_heartbeat,
        FindCoordinator: _find_coordinator,
        ResolveTopicNames: _resolve_topic_names,
        SendCommit: _send_commit,
        FetchOffsets: _fetch_offsets,
        FindLogOffsets: _find_log_offsets,
        RunCallback: _run_callback,
        Moved: _moved,
    }
    """What carries an action out."""


def _error_of(future: asyncio.Future[Any]) -> Exception | None:
    """The future's exception; a cancelled request counts as disconnected."""
    if future.cancelled():
        return TransportError("the request was cancelled")
    error = future.exception()
    if error is None or isinstance(error, Exception):
        return error
    raise error
