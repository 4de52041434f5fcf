"""A single active consumer as a pure machine: events go in, actions come out.

Consumer updates are carried out in the order of their arrival, one at a time, and each gets a response. The
response to a step-down lets the next consumer start, so it is sent when the application has let go, never
before. An update to the current state gets its response at once.
"""

from __future__ import annotations

import random
from collections import deque

import msgspec

from fencepost.member.base.backoff import Backoff
from fencepost.member.sac.actions import (
    Action,
    AnswerUpdate,
    Connect,
    Disconnect,
    Hold,
    RunSacCallback,
    SacCallback,
    SacMoved,
    SendSubscribe,
)
from fencepost.member.sac.offsets import NONE, OffsetKind, OffsetSpecification
from fencepost.member.sac.states import SAC_MEMBER, SacMemberEvent, SacMemberState

_S, _E = SacMemberState, SacMemberEvent
_CALLED_BACK = frozenset({_S.ACTIVATING, _S.ACTIVE, _S.STEPPING_DOWN})
_OVER = frozenset({_S.CLOSED, _S.FAILED})


class SacConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times are in milliseconds."""

    backoff_ms: int = 500
    """Wait before it connects again; twice as much after each failed try, a fifth more or less."""
    backoff_max_ms: int = 10_000
    request_timeout_ms: int = 30_000
    """Time in which a connection has to be made, and a subscription."""


class SacMember:
    """The machine of one consumer of one stream."""

    def __init__(self, config: SacConfig, rng: random.Random) -> None:
        self.state = _S.UNSUBSCRIBED
        self.connection = 0
        """The number of the current connection."""
        self._config = config
        self._backoff = Backoff(config.backoff_ms, config.backoff_max_ms, rng)
        self.deadline_ms: int | None = None
        """Time at which to call `deadline_reached`; None if nothing is timed."""
        self._updates: deque[tuple[int, bool]] = deque()
        """Correlation id and activity of the updates without a response; the first may be under way."""
        self._running: SacCallback | None = None
        self._started_at = NONE
        self._next_offset: int | None = None
        self._closing = False
        self._actions: list[Action] = []

    @property
    def is_over(self) -> bool:
        """True if nothing more will happen."""
        return self.state in _OVER

    # -- calls of the application ------------------------------------------------------------------------

    def start(self, now_ms: int) -> tuple[Action, ...]:
        """Connect and subscribe.

        :raises ValueError: if it was started before.
        """
        if self.state is not _S.UNSUBSCRIBED:
            raise ValueError(f"a consumer starts once, this one is {self.state}")
        self._connect(_E.STARTED, now_ms)
        return self._done()

    def close(self, now_ms: int) -> tuple[Action, ...]:
        """Leave. An active consumer steps down first, and no other one is active before the application has
        let go."""
        if not self._closing:
            self._closing = True
            if self.state is _S.ACTIVE:
                self._step_down_to_close()
            elif self.state not in _OVER | _CALLED_BACK | {_S.LOST}:
                self._end_connection(now_ms)
        return self._done()

    # -- events of the transport -------------------------------------------------------------------------

    def connected(self, connection: int, now_ms: int) -> tuple[Action, ...]:
        """Take in that this connection is open."""
        if connection == self.connection and self.state is _S.CONNECTING:
            self._move(_E.CONNECTED, _S.SUBSCRIBING)
            self.deadline_ms = now_ms + self._config.request_timeout_ms
            self._actions.append(SendSubscribe(connection))
        return self._done()

    def subscribed(self, connection: int, now_ms: int) -> tuple[Action, ...]:
        """Take in that the subscription on that connection was accepted."""
        if connection == self.connection and self.state is _S.SUBSCRIBING:
            self._move(_E.SUBSCRIBED, _S.WAITING)
            self.deadline_ms = None
            self._backoff.reset()
            self._next_update()
        return self._done()

    def refused(self, connection: int, now_ms: int) -> tuple[Action, ...]:
        """Take in that the subscription on that connection was refused for good, or that a permanent error
        occurred."""
        if connection == self.connection and self.state in {_S.CONNECTING, _S.SUBSCRIBING}:
            self._move(_E.REFUSED, _S.FAILED)
            self.deadline_ms = None
            self._actions.append(Disconnect())
        return self._done()

    def disconnected(self, connection: int, now_ms: int) -> tuple[Action, ...]:
        """Take in that this connection is lost, or could not be made."""
        if connection == self.connection and self.state in _CALLED_BACK | {
            _S.CONNECTING,
            _S.SUBSCRIBING,
            _S.WAITING,
        }:
            self._end_connection(now_ms)
        return self._done()

    def consumer_update(
        self, connection: int, correlation_id: int, active: bool, now_ms: int
    ) -> tuple[Action, ...]:
        """Take in that the server wants this consumer to be active, or not."""
        if connection == self.connection and self.state in _CALLED_BACK | {_S.SUBSCRIBING, _S.WAITING}:
            self._updates.append((correlation_id, active))
            if not active:
                self._actions.append(Hold())
            if self.state is not _S.SUBSCRIBING:
                self._next_update()
        return self._done()

    def delivered(self, connection: int, first: int, end: int) -> int | None:
        """Take in messages from offset `first` up to, but not including, `end`; return the first one to hand
        over.

        Return None if none of them is to be handed over: the consumer is not active, or has them.
        """
        asked_to_stop = any(not active for _, active in self._updates)
        if connection != self.connection or self.state is not _S.ACTIVE or asked_to_stop or self._closing:
            return None
        begin = first if self._next_offset is None else max(first, self._next_offset)
        if begin >= end:
            return None
        self._next_offset = end
        return begin

    # -- inputs of the application and the clock ---------------------------------------------------------

    def callback_finished(self, offset: OffsetSpecification | None, now_ms: int) -> tuple[Action, ...]:
        """Take in that the application was called. `offset` is the start, after `ACTIVATED`; None if that
        failed.

        An activation that failed gives the connection up: another consumer gets its turn.
        """
        kind, self._running = self._running, None
        if kind is SacCallback.LOST:
            self._back_off(_E.TOLD_LOST, now_ms)
        elif self.state is _S.LOST:
            self._run(SacCallback.LOST)
        elif kind is SacCallback.ACTIVATED:
            if offset is None:
                self._end_connection(now_ms)
            else:
                self._move(_E.OFFSET_CHOSEN, _S.ACTIVE)
                # The server sends from the chunk that holds the offset.
                self._started_at = offset
                self._next_offset = offset.value if offset.kind is OffsetKind.OFFSET else None
                if self._closing:
                    self._step_down_to_close()
                else:
                    self._answer(offset)
        elif self._closing:
            self._move(_E.LET_GO, _S.CLOSED)
            self._updates.clear()
            self._actions.append(Disconnect())
        else:
            self._move(_E.LET_GO, _S.WAITING)
            self._answer(NONE)
        return self._done()

    def deadline_reached(self, now_ms: int) -> tuple[Action, ...]:
        """Do what is due at `deadline_ms`."""
        if self.deadline_ms is not None and now_ms >= self.deadline_ms:
            if self.state is _S.BACKING_OFF:
                self._connect(_E.BACKOFF_OVER, now_ms)
            else:
                self._end_connection(now_ms)
        return self._done()

    # -- inside ------------------------------------------------------------------------------------------

    def _done(self) -> tuple[Action, ...]:
        actions, self._actions = tuple(self._actions), []
        return actions

    def _move(self, event: SacMemberEvent, target: SacMemberState) -> None:
        source, self.state = self.state, SAC_MEMBER.check(self.state, event, target)
        self._actions.append(SacMoved(event, source, target))

    def _run(self, kind: SacCallback) -> None:
        self._running = kind
        self._actions.append(RunSacCallback(kind))

    def _connect(self, event: SacMemberEvent, now_ms: int) -> None:
        self._move(event, _S.CONNECTING)
        self.connection += 1
        self.deadline_ms = now_ms + self._config.request_timeout_ms
        self._actions.append(Connect(self.connection))

    def _next_update(self) -> None:
        """Carry the first update out, unless one is under way."""
        while self._updates and self._running is None:
            _, active = self._updates[0]
            if active and self.state is _S.WAITING:
                self._move(_E.TOLD_ACTIVE, _S.ACTIVATING)
                self._run(SacCallback.ACTIVATED)
            elif not active and self.state is _S.ACTIVE:
                self._move(_E.TOLD_WAITING, _S.STEPPING_DOWN)
                self._run(SacCallback.STEPPING_DOWN)
            elif active:
                here = self._next_offset
                self._answer(self._started_at if here is None else OffsetSpecification.at(here))
            else:
                self._answer(NONE)

    def _answer(self, offset: OffsetSpecification) -> None:
        correlation_id, _ = self._updates.popleft()
        self._actions.append(AnswerUpdate(correlation_id, offset))
        self._next_update()

    def _step_down_to_close(self) -> None:
        self._move(_E.CLOSED, _S.STEPPING_DOWN)
        self._actions.append(Hold())
        self._run(SacCallback.STEPPING_DOWN)

    def _end_connection(self, now_ms: int) -> None:
        """Ignore the connection from now on; call the application if the consumer was, or may be, active."""
        self._updates.clear()
        self.deadline_ms = None
        self._actions += [Hold(), Disconnect()]
        if self.state in _CALLED_BACK:
            self._move(_E.DISCONNECTED, _S.LOST)
            if self._running is None:
                self._run(SacCallback.LOST)
        elif self._closing:
            self._move(_E.CLOSED, _S.CLOSED)
        else:
            self._back_off(_E.DISCONNECTED, now_ms)

    def _back_off(self, event: SacMemberEvent, now_ms: int) -> None:
        if self._closing:
            self._move(_E.CLOSED, _S.CLOSED)
            return
        self._move(event, _S.BACKING_OFF)
        self.deadline_ms = now_ms + self._backoff.next_ms()
