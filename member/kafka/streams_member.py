"""A stream thread's member over KIP848Consumer, and the global thread's reader over aiokafka's consumer."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import BrokerResponseError, KafkaConnectionError, KafkaError
from aiokafka.structs import TopicPartition as KafkaPartition

from fencepost.coordinator.protocol.ids import TopicPartition
from fencepost.coordinator.protocol.offsets import OffsetCommitRequest, OffsetCommitResponse
from fencepost.coordinator.protocol.outcome import Request, Response
from fencepost.member.base.actions import CallbackKind
from fencepost.member.base.errors import CallbackFailed
from fencepost.member.base.leave import CloseOption
from fencepost.member.base.listener import AnyEvent, AnyState, MemberObserver, Phase
from fencepost.member.consumer.states import ConsumerMemberState
from fencepost.member.kafka.connections import stop
from fencepost.member.kafka.consumer import KIP848Consumer
from fencepost.member.kafka.errors import AuthenticationError
from fencepost.member.streams.application.port import CommitRefused, PartitionRecords, ThreadEvents

C = TypeVar("C", bound=KIP848Consumer)

POLL_MS = 100
"""The default of `poll_ms`, and of Kafka's poll.ms."""
_CONNECT_AGAIN_S = 1.0


class _Listener:
    """Passes the consumer's callbacks on to the thread."""

    def __init__(self, events: ThreadEvents) -> None:
        self._events = events

    async def on_partitions_assigned(self, partitions: Iterable[KafkaPartition]) -> None:
        await self._events.on_assigned(_ours(partitions))

    async def on_partitions_revoked(self, partitions: Iterable[KafkaPartition]) -> None:
        await self._events.on_revoked(_ours(partitions))

    async def on_partitions_lost(self, partitions: Iterable[KafkaPartition]) -> None:
        await self._events.on_lost(_ours(partitions))


class _Watch:
    """The events of the member that the thread asks for."""

    def __init__(self, on_connection: Callable[[], None]) -> None:
        self._on_connection = on_connection
        self.observer: MemberObserver | None = None
        """Receives requests and responses, too."""
        self.connected = True
        self.state: AnyState = ConsumerMemberState.UNSUBSCRIBED

    def on_state(self, event: AnyEvent, source: AnyState, target: AnyState) -> None:
        self.state = target

    def on_request(self, request: Request) -> None:
        """A request shows nothing about the connection; its response does."""
        if self.observer is not None:
            self.observer.on_request(request)

    def on_response(self, request: Request, response: Response | Exception) -> None:
        if self.observer is not None:
            self.observer.on_response(request, response)
        self._heard(not isinstance(response, Exception))

    def _heard(self, connected: bool) -> None:
        """Notify the thread of a change, once the member's machine knows it as well."""
        if connected is not self.connected:
            self.connected = connected
            asyncio.get_running_loop().call_soon(self._on_connection)

    def on_callback(self, kind: CallbackKind, phase: Phase, partitions: tuple[TopicPartition, ...]) -> None:
        """The thread receives callbacks itself."""

    def on_commit(self, request: OffsetCommitRequest, response: OffsetCommitResponse | Exception) -> None:
        self._heard(not isinstance(response, Exception))


class KafkaConsumerGroupMember:
    """A member that speaks KIP-848. Without a broker it keeps trying. It can't request a shutdown.

    `poll_ms` says how long a poll waits for records.
    """

    def __init__(
        self,
        events: ThreadEvents,
        topics: Sequence[str],
        settings: Mapping[str, Any],
        *,
        poll_ms: int = POLL_MS,
    ) -> None:
        self._topics = topics
        self._settings = settings
        self._poll_ms = poll_ms
        self._listener = _Listener(events)
        self._watch = _Watch(events.on_connection)
        self._consumer: KIP848Consumer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._closed = asyncio.Event()
        self._before: KafkaConsumerGroupMember | None = None
        self._followed = False
        self._client_goes_on: Callable[[], bool] = lambda: False

    def observe_requests(self, observer: MemberObserver) -> None:
        """Let an observer see this member's requests and responses."""
        self._watch.observer = observer

    def follow(self, before: KafkaConsumerGroupMember | None, client_goes_on: Callable[[], bool]) -> None:
        """Become the same static member as another one: wait for that one, which leaves its place to this
        one.

        A static member without a successor leaves the group for good if its client goes on without it.
        """
        self._before, self._client_goes_on = before, client_goes_on
        if before is not None:
            before._followed = True

    async def start(self) -> None:
        """Begin to connect and to join; polls go on with it."""
        self._begin()

    def make_consumer(self) -> KIP848Consumer:
        """Make a consumer for the member.

        :raises ValueError: if a setting is impossible.
        """
        return self._consumer_of(KIP848Consumer)

    def _consumer_of(self, make: type[C], **options: Any) -> C:
        options = {"listener": self._listener, "observer": self._watch, **options}
        return make(*self._topics, enable_auto_commit=False, **options, **self._settings)

    def _begin(self) -> None:
        self._consumer = self.make_consumer()
        self._starting = asyncio.get_running_loop().create_task(self._connect(self._consumer))

    async def _connect(self, consumer: KIP848Consumer) -> None:
        if self._before is not None:
            # Brokers refuse a second member of the same instance id, or fence the first one.
            await self._before._closed.wait()
            if self._before._consumer is not None:
                consumer.follow(self._before._consumer)
            self._before = None
        await consumer.start()

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return records by partition; none after `poll_ms` without any, or while no broker is reachable.

        :raises AuthenticationError: if a broker does not accept the credentials, or no longer does.
        :raises KafkaError: if the coordinator refuses for good.
        """
        assert self._consumer is not None
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._poll_ms / 1000
        if self._starting is not None:
            await asyncio.wait((self._starting,), timeout=self._poll_ms / 1000)
            if not self._starting.done():
                return ()
            starting, self._starting = self._starting, None
            try:
                starting.result()
            except KafkaConnectionError as error:
                if not error.retriable:
                    raise
                self._watch.connected = False
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), _CONNECT_AGAIN_S)
                self._begin()
                return ()
        # The poll in which it has started lasts no longer than others, as in Kafka Streams.
        taken = await self._consumer.getmany(timeout_ms=max(0.0, end_s - loop.time()) * 1000)
        return [
            PartitionRecords(TopicPartition(*partition), records, records[-1].offset + 1)
            for partition, records in taken.items()
        ]

    @property
    def joined(self) -> bool:
        """True if the member is STABLE: it owns its target, even an empty one."""
        return self._watch.state is ConsumerMemberState.STABLE

    @property
    def round_s(self) -> float:
        """0: there are no rounds of joining."""
        return 0

    def is_connected(self) -> bool:
        """Return true if the last heartbeat or commit was answered, and a broker could be reached at all."""
        return self._watch.connected

    async def committed(self, partition: TopicPartition) -> int | None:
        """Return the group's committed offset."""
        assert self._consumer is not None
        return await self._consumer.committed(partition)

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets.

        :raises CommitRefused: if they were not committed.
        :raises KafkaError: if they never will be: this client lacks the permission, or they are too
            large.
        """
        assert self._consumer is not None
        try:
            await self._consumer.commit({KafkaPartition(*each): offset for each, offset in offsets.items()})
        except KafkaError as error:
            if isinstance(error, BrokerResponseError | AuthenticationError) and not error.retriable:
                raise
            raise CommitRefused(str(error)) from error

    def ask_for_shutdown(self) -> None:
        """Do nothing: the protocol has no way to ask, and the client's machine does not call it."""

    def wake(self) -> None:
        """End a wait for a broker now; a poll lasts no longer than `poll_ms`."""
        self._woken.set()

    async def close(self, *, told_to_end: bool = False, within_s: float = 10.0) -> None:
        """Leave the group and disconnect, within that many seconds."""
        await self._close(self._end(), within_s)

    def _end(self) -> CloseOption:
        for_good = self._client_goes_on() and not self._followed
        return CloseOption.LEAVE_GROUP if for_good else CloseOption.DEFAULT

    async def _close(self, option: CloseOption, within_s: float) -> None:
        try:
            if option is CloseOption.LEAVE_GROUP:
                # A start that is cut short leaves as usual, and then a static member keeps its place.
                await self._stop(option, within_s)
            if self._starting is not None:
                if not self._starting.cancelling():  # otherwise it is leaving the group already
                    self._starting.cancel()
                await asyncio.wait((self._starting,))
            await self._stop(option, within_s)
        finally:
            self._closed.set()

    async def _stop(self, option: CloseOption, within_s: float) -> None:
        if self._consumer is not None:
            with contextlib.suppress(KafkaError, CallbackFailed):
                await self._consumer.stop(option, timeout_ms=round(within_s * 1000))


class WholeTopicReader:
    """Reads all partitions of some topics from their beginning, in no group."""

    def __init__(self, topics: Sequence[str], settings: Mapping[str, Any], poll_ms: int = POLL_MS) -> None:
        self._topics = topics
        self._poll_ms = poll_ms
        self._make: Callable[..., AIOKafkaConsumer] = functools.partial(
            AIOKafkaConsumer, enable_auto_commit=False, auto_offset_reset="earliest", **settings
        )
        self._consumer: AIOKafkaConsumer | None = None
        self._missing: dict[KafkaPartition, int] = {}
        """The end of each partition at the start, until reading has reached it."""

    async def start(self) -> None:
        """Connect, and find the ends of the topics.

        :raises KafkaError: if there is no broker.
        :raises LookupError: if a topic does not exist.
        """
        # aiokafka's consumer would wait forty seconds for a topic that does not exist.
        self._consumer = self._make()
        await self._consumer.start()
        missing = sorted({*self._topics} - await self._consumer.topics())
        if missing:
            raise LookupError(f"there is no topic {missing[0]} for the global thread to read")
        await stop(self._consumer)
        self._consumer = consumer = self._make(*self._topics)
        await consumer.start()
        partitions = sorted(consumer.assignment())
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        begins = await consumer.beginning_offsets(partitions)
        self._missing = {each: end for each, end in ends.items() if end > begins[each]}

    async def poll(self) -> Sequence[PartitionRecords]:
        """Return records of several partitions; none after `poll_ms` without any."""
        assert self._consumer is not None
        taken = await self._consumer.getmany(timeout_ms=self._poll_ms)
        for partition in list(self._missing):
            if await self._consumer.position(partition) >= self._missing[partition]:
                del self._missing[partition]
        return [
            PartitionRecords(TopicPartition(*partition), records, records[-1].offset + 1)
            for partition, records in taken.items()
        ]

    @property
    def caught_up(self) -> bool:
        """True if all records that existed at the start were handed over."""
        return not self._missing

    async def close(self) -> None:
        """Disconnect."""
        if self._consumer is not None:
            await stop(self._consumer)


def _ours(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
    return sorted(TopicPartition(*partition) for partition in partitions)
