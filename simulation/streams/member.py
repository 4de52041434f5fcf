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
from fencepost.simulation.kafka.transport import SimulatedTransport
from fencepost.simulation.kernel.host import HostTimer

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
        self._waiter: asyncio.Future[None] | None = None
        self._callbacks: list[asyncio.Task[None]] = []
        self.thread = thread
        self.closed = False
        self._topics = [topic.name for topic in scenario.topics]
        transport = SimulatedTransport(
            host,
            world.network,
            world.cluster.brokers,
            first=int(host.rng.uniform(0, 1_000)),
            timeout_us=scenario.network.request_timeout.us,
        )
        self.driver = self._make_driver(transport)
        self.driver.on_change = self._change

    @abc.abstractmethod
    def _make_driver(self, transport: SimulatedTransport) -> MemberDriver:
        """Return the driver of the protocol that the group speaks."""

    @abc.abstractmethod
    def _group_is_ready(self) -> bool:
        """Return true if the group hands out tasks, as far as the member knows."""

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
        self.driver.subscribe(self._topics)

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return records that have gathered for a while; no records if something has changed."""
        gathered_us = self._host.loop.now_us
        if self._filled_by is None:
            gathered_us += self._host.world.scenario.application.poll.us
        while True:
            self._host.raise_injected("poll", self.thread)
            self.driver.poll_begin()
            ready_us = self._records_at()
            if ready_us is not None:
                ready_us = max(ready_us, gathered_us)
                if ready_us <= self._host.loop.now_us:
                    return self._take()
            if self._look:
                self._look = False
                self.driver.poll_end({})
                return ()
            await self._wait(ready_us)

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
        """True if it left because its thread worked on a batch for longer than the poll interval."""
        return self.driver.state == ConsumerMemberState.STALE

    def is_connected(self) -> bool:
        """Return true if the last heartbeat or commit was answered."""
        return self._connected

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return None: threads of simulations keep no stores, and do not ask."""
        return None

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets."""
        try:
            await self.driver.commit(
                {partition: OffsetAndMetadata(offset=offset) for partition, offset in offsets.items()}
            )
        except CommitFailed as error:
            raise CommitRefused(str(error)) from error
        self._host.world.committed(offsets)

    @abc.abstractmethod
    def ask_for_shutdown(self) -> None:
        """Ask for a shutdown in every request."""

    def wake(self) -> None:
        """End a poll that waits."""
        self._look = True
        self._change()

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        """Leave the group."""
        await self.driver.close()
        self.closed = True

    def abandon(self) -> None:
        """Abandon the member: its process has ended."""
        self.driver.abandon()
        for task in self._callbacks:
            task.cancel()

    # -- records -------------------------------------------------------------------------------------------

    async def _wait(self, until_us: int | None) -> None:
        self._waiter = waiter = self._host.loop.create_future()
        timer = None if until_us is None else HostTimer(self._host, until_us, self._change, ())
        await waiter
        self._waiter = None
        if timer is not None:
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
        self.driver.poll_end({partition: end for partition, (_, end) in taken.items()})
        return [
            PartitionRecords(partition, range(first, end), end) for partition, (first, end) in taken.items()
        ]

    # -- calls of the driver -------------------------------------------------------------------------------

    async def on_partitions_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Call the thread's callback."""
        await self._callback()
        await self._events.on_assigned(partitions)

    async def on_partitions_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Call the thread's callback."""
        await self._events.on_revoked(partitions)
        await self._callback()

    async def on_partitions_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """Call the thread's callback."""
        await self._events.on_lost(partitions)
        await self._callback()

    async def _callback(self) -> None:
        task = asyncio.current_task(self._host.loop)
        if task is not None:
            self._callbacks = [each for each in self._callbacks if not each.done()]
            self._callbacks.append(task)
        await self._host.pause_us(self._host.world.callback_times.draw())
        self._host.raise_injected("callback", self.thread)

    def _shutdown_requested(self) -> None:
        if not self._host.ended:
            self._host.world.told(self._host)
            self._events.on_shutdown_requested()

    def on_state(self, event: str, source: str, target: str) -> None:
        """Wake the thread after a step of the machine: it may have something to look at."""
        if event in (ConsumerMemberEvent.POLL_TIMED_OUT, ConsumerMemberEvent.POLLED):
            self._host.world.disturb()
        self.wake()

    def on_request(self, request: object) -> None:
        """Ignore a request: only its response shows the state of the connection."""
        self._host.world.tell_request("on_member_request", self.thread, request)

    def on_response(self, request: object, response: object) -> None:
        """Note whether a heartbeat was answered."""
        self._host.world.tell_request("on_member_response", self.thread, request, response)
        self._hear(response)

    def _hear(self, response: object) -> None:
        connected, ready = not isinstance(response, Exception), self._group_is_ready()
        if connected is not self._connected or ready is not self._ready:
            self._connected, self._ready = connected, ready
            self.wake()

    def on_callback(  # noqa: B027 - a hook
        self, kind: str, phase: str, partitions: Iterable[TopicPartition]
    ) -> None:
        """Ignore callbacks: the thread gets them itself."""

    def on_commit(self, request: object, response: object) -> None:
        """Note whether a commit was answered."""
        self._hear(response)
