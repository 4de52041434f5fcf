"""A thread's member in a simulation: a driver of the protocol that it speaks, and simulated records."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetAndMetadata
from fencepost.member.base.driver import MemberDriver
from fencepost.member.base.errors import CommitFailed
from fencepost.member.consumer.states import ConsumerMemberEvent, ConsumerMemberState
from fencepost.member.streams.application.port import CommitRefused, PartitionRecords, ThreadEvents
from fencepost.simulation.judge.base import Finding
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kernel.host import HostTimer
from fencepost.simulation.streams.thread_commits import ThreadCommits

if TYPE_CHECKING:
    from fencepost.simulation.streams.client import StreamsClientHost


class SimulatedMember(abc.ABC):
    """A member of the application's group, on a client's host."""

    driver: MemberDriver

    def __init__(self, host: StreamsClientHost, thread: str, events: ThreadEvents) -> None:
        world = host.world
        scenario = world.scenario
        self._host = host
        self._events = events
        self._logs = world.cluster.logs
        self._most = scenario.application.max_poll_records
        self._filled_by: TopicPartition | None = None
        """The partition that brought the last poll to its most records."""
        self._connected = True
        self._ready = True
        self._look = False
        """The thread has something to look at when its poll ends."""
        self._commit_from_us = world.loop.now_us + scenario.application.commit_interval.us
        """The time from which the thread may want to commit when its poll ends."""
        self._first_poll_us = max(1, round(host.rng.uniform(0, scenario.application.poll_ms * 1_000)))
        """Threads connect before they join, so their polls are not in step with their heartbeats."""
        self._gather_from_us = 0
        """The time from which the next batch gathers: the fetches before are over."""
        self._waiter: asyncio.Future[None] | None = None
        self._callbacks: list[asyncio.Task[None]] = []
        self.thread = thread
        self.has_left = False
        """True if the member has left its group, or been told not to."""
        self.broken_off = False
        """True if an exception left the thread, or its process has ended: it commits nothing any more."""
        self.commits = ThreadCommits(thread, scenario.application.commit_interval.us)
        """Judges the thread's commits."""
        self._topics = [topic.name for topic in scenario.topics]
        transport = SimulatedTransport(
            host,
            world.network,
            world.cluster.brokers,
            first=int(host.rng.uniform(0, 1_000)),
            timeout_us=scenario.network.request_timeout.us,
            on_search=self._searches,
        )
        self._transport = transport
        self.driver = self._make_driver(transport)
        self.driver.on_change = self._change

    @abc.abstractmethod
    def _make_driver(self, transport: SimulatedTransport) -> MemberDriver:
        """Return the driver of the protocol that the group speaks."""

    @abc.abstractmethod
    def _group_is_ready(self) -> bool:
        """Return true if the group hands out tasks, as far as the member knows."""

    @property
    def closed(self) -> bool:
        """True if it has left the group and disconnected."""
        return self.has_left and not self._transport.is_connected

    @property
    def member_id(self) -> str:
        """The group's name for it."""
        return self.driver.member_id

    def _settings(self) -> dict[str, Any]:
        scenario = self._host.world.scenario
        return {
            "max_poll_interval_ms": scenario.group.rebalance_timeout.ms,
            "request_timeout_ms": scenario.network.request_timeout.ms,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "client_id": self._host.name,
        }

    # -- what the thread asks for --------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to join."""
        self.commits.started(self._host.loop.now_us)
        self.driver.subscribe(self._topics)

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return records that have gathered for a while; none after `poll_ms` without any.

        Nothing else ends it, as in Kafka Streams: an assignment that arrives meanwhile waits for its end.
        Polls after which the thread would find nothing new are taken as one.
        """
        host, application = self._host, self._host.world.scenario.application
        loop, poll_us = host.loop, application.poll_ms * 1_000
        if self._works:
            self._judge(self.commits.polls(loop.now_us))
        host.raise_injected("poll", self.thread)
        self.driver.poll_begin()
        first_us, self._first_poll_us = self._first_poll_us, poll_us
        began_us, end_us = loop.now_us, None
        while True:
            now_us, ready_us = loop.now_us, self._records_at()
            if ready_us is not None:
                gathering_us = application.poll.us if self._filled_by is None else 0
                ready_us = max(ready_us, self._gather_from_us + gathering_us)
                if ready_us <= now_us:
                    return self._take()
            if end_us is None and (self._look or self.round_s or self._commit_from_us <= now_us):
                # A timer ends each of them, so each is late by as much as this one.
                each_us = poll_us if host.timer_delays is None else poll_us + host.timer_delays.draw()
                first_end_us = began_us + first_us
                end_us = first_end_us + each_us * max(0, -((first_end_us - now_us) // each_us))
            elif end_us is not None and end_us <= now_us:
                self._look = False
                self.driver.poll_end({})
                return ()
            until_us = self._commit_from_us if end_us is None else end_us
            await self._wait(until_us if ready_us is None else min(ready_us, until_us))

    @property
    @abc.abstractmethod
    def joined(self) -> bool:
        """True if the member has what the group assigned to it, and the group hands out tasks."""

    @property
    def round_s(self) -> float:
        """0, because the group is not joined in rounds."""
        return 0

    @property
    def is_late(self) -> bool:
        """True if it left because its thread is busy with a batch for longer than the poll interval."""
        return self._host.is_processing and self.driver.state == ConsumerMemberState.STALE

    def is_connected(self) -> bool:
        """Return true if the last heartbeat or commit was answered."""
        return self._connected

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return None: threads of simulations keep no stores, and do not ask."""
        return None

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets."""
        world = self._host.world
        now_us = world.loop.now_us
        in_time = self._works and not self.driver.is_in_callback
        self._judge(self.commits.begins(offsets, now_us, in_time=in_time))
        self._commit_from_us = now_us + world.scenario.application.commit_interval.us
        try:
            await self.driver.commit(
                {partition: OffsetAndMetadata(offset=offset) for partition, offset in offsets.items()}
            )
        except CommitFailed as error:
            raise CommitRefused(str(error)) from error
        finally:
            self.commits.ended(world.loop.now_us)
        self.commits.committed(offsets)
        world.application.progress.committed(offsets)

    @abc.abstractmethod
    def ask_for_shutdown(self) -> None:
        """Ask for a shutdown in every request."""

    def wake(self) -> None:
        """Let the thread look around when the poll that is under way has ended."""
        self._look = True
        self._change()

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        """Leave the group."""
        self._judge_end()
        await self.driver.close()
        self.has_left = True

    def abandon(self) -> None:
        """Abandon the member: its process has ended."""
        self.broken_off = True
        self.driver.abandon()
        for task in self._callbacks:
            task.cancel()

    # -- judgements ----------------------------------------------------------------------------------------

    @property
    def _works(self) -> bool:
        """True if the thread goes on: it commits in time, and not because it ends."""
        engine = self._host.engine
        thread = None if engine is None else engine.client.threads.get(self.thread)
        return thread is not None and thread.is_live and not self.broken_off

    def _judge(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._host.world.application.report(*finding)

    def _judge_end(self) -> None:
        """Check that a thread that ends without a failure has committed."""
        if not self.broken_off:
            self._judge(self.commits.gives_up(self.commits.untried()))

    # -- records -------------------------------------------------------------------------------------------

    async def _wait(self, until_us: int) -> None:
        self._waiter = waiter = self._host.loop.create_future()
        timer = HostTimer(self._host, until_us, self._change, ())
        await waiter
        self._waiter = None
        timer.cancel()

    def _change(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _records_at(self) -> int | None:
        """Return the time of the first record that may be fetched; None if there will be no record."""
        first, _ = self._logs.next_record_us(self.driver.fetchable())
        return first

    def _take(self) -> list[PartitionRecords]:
        taken, self._filled_by = self._logs.take(self.driver.fetchable(), self._most, self._filled_by)
        self._look = False
        self._gather_from_us = self._host.loop.now_us
        self.driver.poll_end({partition: end for partition, (_, end) in taken.items()})
        return [
            PartitionRecords(partition, range(first, end), end) for partition, (first, end) in taken.items()
        ]

    # -- calls of the driver -------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Call the thread's callback."""
        await self._callback()
        self.commits.given(partitions)
        await self._events.on_assigned(partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Call the thread's callback."""
        due = self.commits.untried(partitions)
        await self._events.on_revoked(partitions)
        if not self.broken_off:
            self._judge(self.commits.gives_up(due))
        self.commits.taken(partitions)
        await self._callback()

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Call the thread's callback."""
        self.commits.taken(partitions)
        await self._events.on_lost(partitions)
        await self._callback()

    async def _callback(self) -> None:
        task = asyncio.current_task(self._host.loop)
        if task is not None:
            self._callbacks = [each for each in self._callbacks if not each.done()]
            self._callbacks.append(task)
        await self._host.pause_us(self._host.world.callback_times.draw())
        self._host.raise_injected("callback", self.thread)

    def _searches(self) -> None:
        self._host.world.tell_member("on_member_search", self.thread)

    def _shutdown_requested(self) -> None:
        if not self._host.ended:
            self._host.world.told(self._host)
            self._events.on_shutdown_requested()

    def on_state(self, event: str, source: str, target: str) -> None:
        """Wake the thread after a step of the machine. What it owns may have changed: fetches begin again."""
        self._host.world.tell_member("on_member_state", self.thread, event, source, target)
        if event in (ConsumerMemberEvent.POLL_TIMED_OUT, ConsumerMemberEvent.POLLED):
            self._host.world.disturb()
        self._gather_from_us = self._host.loop.now_us
        self.wake()

    def on_request(self, request: object) -> None:
        """Pass a request on: only its response shows the state of the connection."""
        self._host.world.tell_member("on_member_request", self.thread, request)

    def on_response(self, request: object, response: object) -> None:
        """Note whether a heartbeat was answered."""
        self._host.world.tell_member("on_member_response", self.thread, request, response)
        self._hear(response)

    def _hear(self, response: object) -> None:
        connected, ready = not isinstance(response, Exception), self._group_is_ready()
        if connected is not self._connected:
            self._connected = connected
            # Once the member's machine knows it as well.
            self._host.loop.call_soon(self._events.on_connection)
        if ready is not self._ready:
            self._ready = ready
            self.wake()

    def on_callback(self, kind: str, phase: str, partitions: Iterable[TopicPartition]) -> None:
        """Pass on that a callback began or ended."""
        if not self._host.ended:
            self._host.world.tell_member("on_callback", self.thread, kind, phase, partitions)

    def on_commit(self, request: object, response: object) -> None:
        """Note whether a commit was answered."""
        self._hear(response)
