"""The runner of one coordinator: feeds it events, carries out its effects, keeps its one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from fencepost.coordinator.consumer.regular_expressions import resolving, validate
from fencepost.coordinator.protocol.classic import JoinGroupRequest, SyncGroupRequest, Token
from fencepost.coordinator.protocol.errors import ProtocolError
from fencepost.coordinator.protocol.outcome import (
    CreateInternalTopics,
    Effect,
    Event,
    MemberFenced,
    ParkedResponse,
    RegularExpressionsResolved,
    ResolveRegularExpressions,
    Response,
)
from fencepost.coordinator.protocol.slices import Sliced
from fencepost.coordinator.runtime import CoordinatorRuntime
from fencepost.coordinator.server.clock import ServerClock
from fencepost.coordinator.server.internal_topics import InternalTopics

log = structlog.get_logger(__name__)


class CoordinatorRunner:
    """Runs a coordinator on the running loop. `close` stops its timer and its background work.

    `internal_topics` creates what groups of Streams applications wait for.
    """

    def __init__(
        self, runtime: CoordinatorRuntime, clock: ServerClock, internal_topics: InternalTopics | None = None
    ) -> None:
        self.runtime = runtime
        self._coordinator = runtime.coordinator
        self._clock = clock
        self._internal_topics = internal_topics or InternalTopics()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._background: dict[asyncio.Handle, None] = {}
        self._closed = False
        self._waiting: dict[Token, asyncio.Future[Response]] = {}

    def process(self, event: Event) -> Response | asyncio.Future[Response] | None:
        """One step: the reply to a request, or a future of it if it has to wait; None for other events."""
        outcome = self.runtime.process(event, self._clock.now_ms())
        if outcome.effects:
            self._carry_out(outcome.effects)
        # What is in no record has deadlines too: a round of a classic group, an id that was given out.
        self._arm()
        if outcome.reply is None and isinstance(event, JoinGroupRequest | SyncGroupRequest):
            future = self._waiting[event.token] = asyncio.get_running_loop().create_future()
            return future
        return outcome.reply

    def close(self) -> None:
        """Nothing happens by itself any more; those who wait are told to look for another coordinator."""
        self._closed = True
        self.runtime.close()
        self._carry_out(self._coordinator.unload())
        if self._timer is not None:
            self._timer.cancel()
        for handle in self._background:
            handle.cancel()
        self._background.clear()

    def _arm(self) -> None:
        """A timer that fires too early only looks again; one that is too late is set anew."""
        deadline = self._coordinator.next_deadline()
        if deadline is None or self._closed:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline:
                return
            self._timer.cancel()
        self._timer_ms = deadline
        self._timer = self._clock.call_at(deadline, self._timer_fired)

    def run_due(self) -> None:
        """Do what is due by now; the clock may have been moved."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_fired()

    def _timer_fired(self) -> None:
        self._timer = None
        for outcome in self.runtime.run_due(self._clock.now_ms()):
            self._carry_out(outcome.effects)
        self._arm()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case ParkedResponse():
                    future = self._waiting.pop(effect.token)
                    if not future.done():
                        # It is cancelled when the client has hung up.
                        future.set_result(effect.response)
                case ResolveRegularExpressions():
                    self._later(partial(self._start_resolving, effect))
                case CreateInternalTopics():
                    self._later(partial(self._create, effect))
                case MemberFenced() if structlog.is_configured():
                    log.info(
                        "member_fenced",
                        group_id=effect.group_id,
                        member_id=effect.member_id,
                        reason=effect.reason,
                    )
                case MemberFenced():
                    # An application that set up no logging wants no line on its standard output.
                    pass

    def _later(self, work: Callable[[], None]) -> None:
        """Do that behind the reply, with the topics of that moment."""

        def run() -> None:
            self._background.pop(handle, None)
            work()

        handle = asyncio.get_running_loop().call_soon(run)
        self._background[handle] = None

    def _start_resolving(self, effect: ResolveRegularExpressions) -> None:
        for expression in effect.regular_expressions:
            try:
                validate(expression)
            except ProtocolError as error:
                log.warning("regular_expression_unreadable", reason=error.message)
        self._resolve(resolving(effect, self._coordinator.image))

    def _resolve(self, work: Sliced[RegularExpressionsResolved]) -> None:
        """Run one slice: the others of this loop have their turn before the next one."""
        try:
            next(work)
        except StopIteration as end:
            self.process(end.value)
        else:
            self._later(partial(self._resolve, work))

    def _create(self, effect: CreateInternalTopics) -> None:
        retry_ms = 2 * self._coordinator.streams.settings(effect.group_id).heartbeat_interval_ms
        self._internal_topics.request(effect, now_ms=self._clock.now_ms(), retry_ms=retry_ms)
