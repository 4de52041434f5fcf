"""A client's program: a StreamsApp whose threads fail on order, and the checks of a client.

The checks run in the client's process, after each step; their findings are reported like all other events.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.kafka.streams import StreamsApp
from fencepost.member.kafka.streams_member import KafkaConsumerGroupMember
from fencepost.member.streams.actions import MoveRefused, StreamsMoved
from fencepost.member.streams.application.driver import StreamsDriver
from fencepost.member.streams.application.port import PartitionRecords, StreamThreadMember, ThreadEvents
from fencepost.member.streams.application.settings import GlobalThread
from fencepost.member.streams.client_states import STREAM_CLIENT, StreamClientState
from fencepost.member.streams.handler import StreamThreadExceptionResponse
from fencepost.simulation.lab.chaos import messages as m
from fencepost.simulation.lab.chaos.application import Behaviour
from fencepost.simulation.lab.chaos.event_channel import EventChannel, Orders
from fencepost.simulation.lab.chaos.round_trips import RoundTrips
from fencepost.simulation.streams.client_judge import ClientJudge
from fencepost.simulation.streams.failures import GLOBAL_FAILURES, Injected, answer, said


class DisturbedApp(StreamsApp):
    """An application whose members its process wraps."""

    def __init__(self, process: StreamsProcess, *, stores: bool, **settings: Any) -> None:
        self._process_of_mine = process
        super().__init__(process.count if stores else process.work, **settings)
        self._engine.observer = process.observe

    @property
    def engine(self) -> StreamsDriver:
        """The engine that runs the threads."""
        return self._engine

    def _make_member(self, thread: str, events: ThreadEvents) -> StreamThreadMember:
        process = self._process_of_mine
        inner = super()._make_member(thread, DisturbedEvents(events, process))
        if isinstance(inner, KafkaConsumerGroupMember):
            inner.observe_requests(RoundTripObserver(thread, process.telling))
        member = process.members[thread] = FaultyThreadMember(thread, inner, process)
        return member


class StreamsProcess:
    """The one client of this process, on the running loop."""

    def __init__(self, terms: m.ClientTerms, telling: EventChannel, channel: socket.socket) -> None:
        self.name = terms.name
        self.members: dict[str, FaultyThreadMember] = {}
        self.telling = telling
        self.say = telling.say
        self._behaviour = Behaviour(terms)
        self._injected: list[Injected] = []
        self._orders = Orders(channel)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._app = self._make(terms)
        self.judge = ClientJudge(self, terms.threads, self._found)
        self._loop.add_reader(channel, self._heed)

    def _make(self, terms: m.ClientTerms) -> DisturbedApp:
        classic = {
            "session_timeout_ms": terms.session_timeout_ms,
            "heartbeat_interval_ms": terms.heartbeat_interval_ms,
        }
        app = DisturbedApp(
            self,
            stores=terms.stores,
            global_thread=None
            if terms.global_topic is None
            else GlobalThread([terms.global_topic], self.read_globally),
            topics=terms.topics,
            threads=terms.threads,
            handler=self._handle,
            state_dir=terms.state_dir,
            group_protocol=terms.group_protocol,
            commit_interval_ms=terms.commit_interval_ms,
            poll_ms=terms.poll_ms,
            **terms.client_settings,
            **(classic if terms.group_protocol == "classic" else {}),
        )
        app.set_state_listener(self._listen)
        return app

    @property
    def engine(self) -> StreamsDriver:
        """The engine that runs the threads."""
        return self._app.engine

    async def live(self) -> None:
        """Run from start to end, whichever side ends it."""
        self.say(m.Up, "")
        # An error that keeps the global thread from starting comes out here, and the client is in ERROR.
        with contextlib.suppress(KafkaError, LookupError, *GLOBAL_FAILURES):
            await self._app.start()
        state = await self._app.wait_ended()
        # The consequences of the last step are checked after it.
        await asyncio.sleep(0)
        self.say(m.Stopped, str(state))

    # -- orders -------------------------------------------------------------------------------------------

    def _heed(self) -> None:
        for order in self._orders.read():
            match order:
                case m.Stop():
                    self._spawn(self._app.close())
                case m.FailThread(said, where, error):
                    self._injected.append(Injected.of(said, where, error))
                case m.ChangeThreads(adds=True):
                    self._add_thread()
                case m.ChangeThreads():
                    self._spawn(self._remove_thread())
                case m.Forgive():
                    self._injected.clear()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_thread(self) -> None:
        if self.engine.client.is_running:
            self.judge.live += 1
            self._app.add_thread()
            self._look_later()

    async def _remove_thread(self) -> None:
        """Remove a thread, and expect that from now on: earlier checks may still run while this waits to
        begin."""
        if self.engine.client.is_running and self.engine.client.live:
            self.judge.live -= 1
            self._look_later()
            await self._app.remove_thread()

    # -- checks -------------------------------------------------------------------------------------------

    def _found(self, invariant: str, message: str) -> None:
        self.say(m.CheckFound, invariant, message)

    def _look_later(self) -> None:
        self._loop.call_soon(self.judge.look)

    def observe(self, step: StreamsMoved | MoveRefused) -> None:
        """A machine moved, or refused to."""
        self.say(
            m.Stepped,
            step.level,
            step.name,
            str(step.event),
            str(step.source),
            str(step.target),
            isinstance(step, MoveRefused),
        )
        self.judge.on_step(step)
        self._look_later()

    def _listen(self, new: StreamClientState, old: StreamClientState) -> None:
        self.judge.on_listener(new, old)
        if new in (*STREAM_CLIENT.terminal, StreamClientState.PENDING_ERROR):
            self._spawn(self._app.close())  # as many applications do

    def _handle(self, error: BaseException) -> StreamThreadExceptionResponse:
        task = asyncio.current_task()
        assert task is not None
        thread = task.get_name()
        if thread in self.members:
            self.judge.on_failure(thread, error)
        else:
            thread = f"{self.name}-GlobalStreamThread"
            self.judge.on_global_failure(error)
        self.say(m.HandlerAsked, thread, *said(error))
        self._look_later()
        return answer(error)

    def told_to_shut_down(self) -> None:
        """Report that the group told a member to shut the application down."""
        self.judge.may_fail = True
        self.say(m.ShutdownTold)

    # -- calls of threads ---------------------------------------------------------------------------------

    def raise_injected(self, where: str) -> None:
        """Raise the failure that waits for a thread that gets here."""
        for injected in self._injected:
            if injected.where == where:
                self._injected.remove(injected)
                raise injected.error

    async def pause(self) -> None:
        """Sleep for the time of a rebalance callback."""
        await asyncio.sleep(self._behaviour.callback_us() / 1_000_000)

    async def work(self, partition: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        """Process records."""
        self.raise_injected("processing")
        for place, run in self._behaviour.flawed([(partition, records)]):
            await asyncio.sleep(self._behaviour.processing_us(len(run)) / 1_000_000)
            numbers = tuple(int(record.value) for record in run)
            self.say(m.Processed, place, run[0].offset, run[-1].offset + 1, numbers)

    async def count(self, partition: TopicPartition, records: Sequence[ConsumerRecord], store: Any) -> None:
        """Process records, with a store that counts them."""
        await self.work(partition, records)
        store.put("records", (store.get("records") or 0) + len(records))

    async def read_globally(self, partition: TopicPartition, records: Sequence[ConsumerRecord]) -> None:
        """Handle records of the global thread."""
        self.raise_injected("global")


class RoundTripObserver:
    """Measures the duration of the requests of one thread's member."""

    def __init__(self, thread: str, telling: EventChannel) -> None:
        self._thread = thread
        self._telling = telling
        self._trips = RoundTrips()

    def on_request(self, request: Request) -> None:
        """Note a request."""
        self._trips.sent(self._thread, request, self._telling.now_us())

    def on_response(self, request: Request, response: Response | Exception) -> None:
        """Note the response to a request, or its failure."""
        now_us = self._telling.now_us()
        if (measured := self._trips.answered(self._thread, request, response, now_us)) is not None:
            self._telling.say(m.RoundTrip, self._thread, *measured)

    def on_state(self, *given: object) -> None:
        """Ignore transitions, callbacks and commits: the thread reports them."""

    on_callback = on_commit = on_state


class DisturbedEvents:
    """The calls of a member to its thread: callbacks take their time, and fail."""

    def __init__(self, events: ThreadEvents, process: StreamsProcess) -> None:
        self._events = events
        self._process = process

    async def on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Give these up; they are given up when this ends."""
        await self._events.on_revoked(partitions)
        await self._pause()

    async def on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Add these."""
        await self._pause()
        await self._events.on_assigned(partitions)

    async def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Drop these, which are lost."""
        await self._events.on_lost(partitions)
        await self._pause()

    async def _pause(self) -> None:
        await self._process.pause()
        self._process.raise_injected("callback")

    def on_connection(self) -> None:
        """Tell the thread that the state of the connection may have changed."""
        self._events.on_connection()

    def on_shutdown_requested(self) -> None:
        """Tell the thread that the group is to be shut down."""
        self._process.told_to_shut_down()
        self._events.on_shutdown_requested()


class FaultyThreadMember:
    """A thread's member that fails on order, and reports its commits."""

    def __init__(self, thread: str, inner: StreamThreadMember, process: StreamsProcess) -> None:
        self.member_id = thread
        self.closed = False
        self._inner = inner
        self._process = process
        self.start = inner.start
        self.is_connected = inner.is_connected
        self.committed = inner.committed
        self.ask_for_shutdown = inner.ask_for_shutdown
        self.wake = inner.wake

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return records of several partitions."""
        self._process.raise_injected("poll")
        return await self._inner.poll()

    @property
    def joined(self) -> bool:
        """True if the member owns what the group assigned to it."""
        return self._inner.joined

    @property
    def round_s(self) -> float:
        """Time that the current round of joining may take, in seconds."""
        return self._inner.round_s

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets."""
        await self._inner.commit(offsets)
        self._process.say(m.OffsetsCommitted, tuple(offsets.items()))

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        """Leave the group at once, and disconnect."""
        await self._inner.close(told_to_end=told_to_end, within_s=within_s)
        self.closed = True


def prepare() -> None:
    """Load what the first requests of each process would load."""
    from fencepost.simulation.lab.chaos.member import prepare as prepare_member

    prepare_member()


def main(terms: m.ClientTerms, channel: socket.socket) -> None:
    """Run that client until it ends. Orders come over the channel, and events go back."""

    async def live() -> None:
        await StreamsProcess(terms, EventChannel(channel, terms.began_us), channel).live()

    asyncio.run(live())
