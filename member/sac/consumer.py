"""`SingleActiveConsumer`: one consumer of a stream on asyncio, as an application uses it."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from fencepost.member.base.arguments import check_methods, check_whole, refused_awaitable
from fencepost.member.base.clock import LoopClock
from fencepost.member.base.listener import PROGRAM_ENDS
from fencepost.member.base.log import log
from fencepost.member.base.transport import Clock, Disconnected, TimerHandle, TransportError
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
from fencepost.member.sac.listener import SacListener, SacMachineObserver
from fencepost.member.sac.machine import SacConfig, SacMember
from fencepost.member.sac.offsets import OffsetKind, OffsetSpecification
from fencepost.member.sac.settings import MAX_OFFSET, check_place
from fencepost.member.sac.states import SacMemberEvent, SacMemberState
from fencepost.member.sac.transport import (
    SacConnection,
    SacSubscription,
    SacTransport,
    UnreadableMessages,
)


class SacMessage(NamedTuple):
    """One message of a stream."""

    offset: int
    value: bytes
    """As its publisher encoded it: most clients publish messages of AMQP 1.0."""


class ConsumerClosed(Exception):
    """The consumer was closed before a message arrived, or before the call."""


class _Ear:
    """Listens to one connection for the consumer."""

    def __init__(self, consumer: SingleActiveConsumer, number: int) -> None:
        self._consumer = consumer
        self._number = number

    def consumer_update(self, correlation_id: int, active: bool) -> None:
        consumer = self._consumer
        consumer._run(
            consumer._machine.consumer_update(self._number, correlation_id, active, consumer._clock.now_ms())
        )

    def delivered(self, first: int, messages: Sequence[bytes]) -> None:
        self._consumer._take(self._number, first, messages)

    def unreadable(self, first: int, count: int, reason: str) -> None:
        self._consumer._take_unreadable(self._number, first, count, reason)

    def disconnected(self, reason: str) -> None:
        self._consumer._disconnected(self._number, reason)


class SingleActiveConsumer:
    """One consumer of a stream. One consumer of its group gets messages at a time.

    ::

        async with SingleActiveConsumer(subscription, transport) as consumer:
            async for message in consumer:
                process(message)
                consumer.store_offset(message.offset)

    A message counts as processed when the application requests the next one: a step-down waits for that. The
    consumer connects again by itself after a loss, or if there is no connection at first; it logs a warning
    for each failed try. Call all methods on the loop that it was started on.

    :raises TypeError: for a listener or an observer without its methods, or another setting of a wrong
        kind.
    :raises SubscriptionRefused: from `start` on, in any method that waits, if the server refuses it. An
        error that is not the connection's, and so would recur at the next try, is raised there as well.
    :raises UnreadableMessages: from `getone`, after all messages before them.
    """

    def __init__(
        self,
        subscription: SacSubscription,
        transport: SacTransport,
        *,
        listener: SacListener | None = None,
        config: SacConfig | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        observer: SacMachineObserver | None = None,
    ) -> None:
        if not isinstance(subscription, SacSubscription):
            raise TypeError(f"subscription should be a SacSubscription, got {subscription!r}")
        if not isinstance(config, SacConfig | None):
            raise TypeError(f"config should be a SacConfig, got {config!r}")
        check_methods("transport", transport, "connect")
        check_methods("listener", listener, "on_activated", "on_stepping_down", "on_lost")
        check_methods("observer", observer, "on_state", "on_callback", "on_answer", plain=True)
        self.subscription = subscription
        self._transport = transport
        self._listener = listener or SacListener()
        self._observer = observer
        self._machine = SacMember(config or SacConfig(), rng or random.Random())
        self._chosen_clock = clock
        self._connection: SacConnection | None = None
        self._left: SacConnection | None = None
        """The last connection that was given up."""
        self._connecting: asyncio.Future[SacConnection] | None = None
        self._timer: tuple[int, TimerHandle] | None = None
        self._task: asyncio.Task[None] | None = None
        self._chunks: deque[deque[SacMessage]] = deque()
        self._owed = 0
        """Chunks that the server may send in place of those that are finished."""
        self._handed_over: int | None = None
        """Offset of the message that the application works on."""
        self._wakers: list[asyncio.Future[None]] = []
        self._accepted = False
        """True once the server has accepted the subscription. States may pass between two looks; this stays.
        """
        self._failure: BaseException | None = None
        self._unreadable: UnreadableMessages | None = None
        """The error for unreadable messages after the chunks; if the chunks are dropped, the server sends
        them all again."""
        self._stopped = False

    @property
    def _clock(self) -> Clock:
        if self._chosen_clock is None:
            self._chosen_clock = LoopClock()
        return self._chosen_clock

    # -- state -------------------------------------------------------------------------------------------

    @property
    def state(self) -> SacMemberState:
        """The state of the consumer."""
        return self._machine.state

    @property
    def is_active(self) -> bool:
        """True if it is the active consumer, as far as it knows, and was not asked to step down."""
        return self.state is SacMemberState.ACTIVE

    # -- calls of the application ------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect and subscribe, and return once the server has accepted the subscription.

        While it reaches no node, it retries and logs a warning for each try. It returns even if the
        connection is lost, or given up, right after the server's response.

        :raises SubscriptionRefused: if the server refuses the subscription.
        :raises ConsumerClosed: if the consumer is closed before the server responds.
        :raises ValueError: if the consumer was started before.
        """
        self._run(self._machine.start(self._clock.now_ms()))
        await self._until(lambda: self._accepted)

    async def close(self) -> None:
        """Step down if it is active, and leave. The message that the application works on counts as
        processed.

        Return once the node has received everything, or has sent nothing for 5 s.
        """
        self._handed_over = None
        self._wake()  # on_lost may wait for messages that were handed over, and the machine for on_lost
        self._run(self._machine.close(self._clock.now_ms()))
        while not self._machine.is_over and not self._stopped:
            await self._wait()
        self._stop()
        await self._wait_left()

    def abandon(self) -> None:
        """Stop at once and notify no one, as a process that is killed."""
        if self._task is not None:
            self._task.cancel()
        self._stop()

    async def getone(self) -> SacMessage:
        """Return the next message; wait until there is one, as long as other consumers are active.

        :raises SubscriptionRefused: if the server refused the subscription.
        :raises UnreadableMessages: if a publisher sent messages that can't be read.
        :raises ConsumerClosed: if the consumer is closed.
        :raises RuntimeError: if the consumer is not started.
        """
        self._check_started()
        self._handed_over = None
        self._wake()
        await self._until(lambda: bool(self._chunks))
        chunk = self._chunks[0]
        message = chunk.popleft()
        if not chunk:
            self._chunks.popleft()
            self._owed += 1
            self._pay()
        self._handed_over = message.offset
        return message

    def __aiter__(self) -> SingleActiveConsumer:
        return self

    async def __anext__(self) -> SacMessage:
        """Return the next message; the iteration ends when the consumer is closed."""
        try:
            return await self.getone()
        except ConsumerClosed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> SingleActiveConsumer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def store_offset(self, offset: int) -> None:
        """Store for the group that everything up to and including this offset was processed.

        Nothing is stored while there is no connection.

        :raises TypeError: if it is not a whole number.
        :raises ValueError: if it is negative, or too large.
        :raises RuntimeError: if the consumer is not started.
        """
        check_whole("offset", offset, 0, MAX_OFFSET)
        self._check_started()
        if self._connection is not None:
            self._connection.store_offset(self.subscription, offset)

    async def stored_offset(self) -> int | None:
        """The offset that the group stored last; None if the group has stored none.

        :raises TransportError: if there is no connection, or no response.
        :raises RuntimeError: if the consumer is not started.
        """
        self._check_started()
        if self._connection is None:
            raise Disconnected("the stored offset can't be fetched: the consumer has no connection now")
        return await self._connection.query_offset(self.subscription)

    def _check_started(self) -> None:
        if self.state is SacMemberState.UNSUBSCRIBED and not self._stopped:
            raise RuntimeError(
                "the consumer is not started: await its start() first, or use it with `async with`"
            )

    # -- waiting -----------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if (failure := self._failure or self._unreadable) is not None:
                await self._wait_left()
                raise failure
            if self._machine.is_over or self._stopped:
                raise ConsumerClosed("the consumer is closed")
            await self._wait()

    async def _wait(self) -> None:
        waker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers.append(waker)
        await waker

    async def _wait_left(self) -> None:
        if self._left is not None:
            await self._left.wait_closed()

    def _wake(self) -> None:
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            if not waker.done():
                waker.set_result(None)

    # -- running the machine -----------------------------------------------------------------------------

    def _run(self, actions: tuple[Action, ...]) -> None:
        if self._stopped:
            return
        for action in actions:
            self._perform(action)
        self._arm()
        if actions:
            self._wake()

    def _perform(self, action: Action) -> None:
        match action:
            case SacMoved():
                self._accepted |= action.event is SacMemberEvent.SUBSCRIBED
                self._tell("on_state", action.event, action.source, action.target)
            case Connect():
                self._connecting = self._transport.connect(_Ear(self, action.connection))
                self._connecting.add_done_callback(lambda done: self._connect_done(action.connection, done))
            case SendSubscribe():
                assert self._connection is not None
                future = self._connection.subscribe(self.subscription)
                future.add_done_callback(lambda done: self._subscribe_done(action.connection, done))
            case AnswerUpdate():
                assert self._connection is not None
                self._tell("on_answer", action.offset)
                self._connection.answer(action.correlation_id, action.offset)
                self._pay()
            case RunSacCallback():
                self._task = asyncio.get_running_loop().create_task(self._call(action.kind))
                self._task.add_done_callback(self._call_done)
            case Hold():
                self._owed += len(self._chunks)
                self._chunks.clear()
                self._unreadable = None
            case Disconnect():
                self._hang_up()

    def _tell(self, what: str, *seen: object) -> None:
        """Notify the observer. The consumer's work must not get lost in an observer that raises."""
        if self._observer is not None:
            try:
                refused = refused_awaitable(what, getattr(self._observer, what)(*seen))
                if refused is not None:
                    raise TypeError(refused)
            except Exception as error:
                self._report("the observer failed", error)

    def _report(self, message: str, error: BaseException) -> None:
        """Report an exception of the application's own code that no caller waits for: the loop logs it."""
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def _arm(self) -> None:
        deadline = self._machine.deadline_ms
        if self._timer is not None and self._timer[0] != deadline:
            self._timer[1].cancel()
            self._timer = None
        if deadline is not None and self._timer is None:
            self._timer = deadline, self._clock.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        if self.state is not SacMemberState.BACKING_OFF:
            self._warn("no response in time")
        self._run(self._machine.deadline_reached(self._clock.now_ms()))

    def _connect_done(self, number: int, future: asyncio.Future[SacConnection]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            if not self._stopped:
                self._failed(number, error)
        elif number == self._machine.connection and future is self._connecting:
            self._connecting = None
            self._connection = future.result()
            self._owed = 0
            self._run(self._machine.connected(number, self._clock.now_ms()))
        else:  # it was made while it was given up
            future.result().close()

    def _subscribe_done(self, number: int, future: asyncio.Future[None]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._failed(number, error)
        else:
            self._run(self._machine.subscribed(number, self._clock.now_ms()))

    def _failed(self, number: int, error: BaseException) -> None:
        """Retry after an error of the transport's own; any other error is final."""
        if isinstance(error, TransportError):
            self._disconnected(number, error)
        elif number == self._machine.connection:
            self._failure = error
            self._run(self._machine.refused(number, self._clock.now_ms()))

    def _disconnected(self, number: int, error: TransportError | str) -> None:
        actions = self._machine.disconnected(number, self._clock.now_ms())
        if actions and not self._stopped:
            self._warn(error)
        self._run(actions)

    def _warn(self, error: TransportError | str) -> None:
        log(
            logging.WARNING,
            "a single active consumer is not connected",
            stream=self.subscription.stream,
            name=self.subscription.name,
            error=str(error),
        )

    def _take(self, number: int, first: int, messages: Sequence[bytes]) -> None:
        begin = self._begin(number, first, len(messages))
        if begin is None:
            return
        rest = messages[begin - first :]
        self._chunks.append(deque(SacMessage(begin + i, value) for i, value in enumerate(rest)))
        self._wake()

    def _take_unreadable(self, number: int, first: int, count: int, reason: str) -> None:
        """Raise it to the application after all messages before it; the application receives nothing after
        it."""
        begin = self._begin(number, first, count)
        if begin is not None:
            self._unreadable = UnreadableMessages(
                f"{self.subscription.stream!r} can't be read from offset {begin} on: {reason}"
            )
            self._wake()

    def _begin(self, number: int, first: int, count: int) -> int | None:
        """Return the first offset of a chunk to hand over.

        Return None if no record of the chunk is to be handed over; the server then gets its credit back.
        """
        if self._unreadable is not None:
            return None
        begin = self._machine.delivered(number, first, first + count)
        if begin is None or self._stopped:
            self._owed += number == self._machine.connection
            self._pay()
            return None
        return begin

    def _pay(self) -> None:
        """Give credit, while the server has a log open for which it counts credit."""
        if self._owed and self._connection is not None and self.is_active:
            self._connection.credit(self._owed)
            self._owed = 0

    async def _call(self, kind: SacCallback) -> None:
        """Call the application when it is done with its message; an error of its own counts as a call."""
        offset: OffsetSpecification | None = None
        phase = "end"
        while self._handed_over is not None and kind is not SacCallback.ACTIVATED:
            await self._wait()
        self._tell("on_callback", kind, "begin")
        try:
            if kind is SacCallback.ACTIVATED:
                chosen = await _result(self._listener.on_activated(self))
                offset = await self._stored_or(chosen)
            elif kind is SacCallback.STEPPING_DOWN:
                await _result(self._listener.on_stepping_down(self))
            else:
                await _result(self._listener.on_lost(self))
        except TransportError as error:
            phase = "raised"
            if self.state is not SacMemberState.LOST:
                self._warn(error)
        except PROGRAM_ENDS:
            raise
        # Such as those of pytest, or of a task that was cancelled from outside.
        except BaseException as error:
            if self._stopped and isinstance(error, asyncio.CancelledError):
                raise
            phase = "raised"
            self._report(f"the listener failed when the consumer was {kind}", error)
        self._tell("on_callback", kind, phase)
        self._callback_over(offset)

    def _call_done(self, task: asyncio.Task[None]) -> None:
        """End a call whose task was cancelled from outside before it called the listener."""
        if task.cancelled() and not self._stopped:
            self._callback_over(None)

    def _callback_over(self, offset: OffsetSpecification | None) -> None:
        self._task = None
        self._run(self._machine.callback_finished(offset, self._clock.now_ms()))

    async def _stored_or(self, chosen: object) -> OffsetSpecification:
        if chosen is not None:
            place = check_place("on_activated's result", chosen)
            return self.subscription.offset if place.kind is OffsetKind.NONE else place
        if self._connection is None:  # lost meanwhile: the machine drops this choice
            return self.subscription.offset
        stored = await self._connection.query_offset(self.subscription)
        return self.subscription.offset if stored is None else OffsetSpecification.at(stored + 1)

    def _hang_up(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.close()
            self._left, self._connection = self._connection, None

    def _stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        self._hang_up()
        self._chunks.clear()
        self._wake()


async def _result(value: Any | Awaitable[Any]) -> Any:
    return await value if inspect.isawaitable(value) else value
